// The K greatest numbers of each row in descending order and their indices, lower ones first among equals, NaN last.
// A group has one row. Each round finds the greatest key below the last one.
static inline ulong key_of(float v, uint index) {
    uint bits = as_uint(v == 0.0f ? 0.0f : v);
    uint order = isnan(v) ? 0u : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (ulong)order << 32 | (0xffffffffu - index);
}

kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void find_greatest(global const real *x, global float *values, global int *ids, int width, int k) {
    RETURN_IF_DUMMY_LAUNCH
    int item = get_local_id(0);
    size_t row = get_group_id(0);
    x += row * width;
#if LOCAL > 1
    local ulong keys[LOCAL];
#endif
    ulong last = ULONG_MAX;
    for (int place = 0; place < k; place++) {
        ulong best = 0;
        for (int c = item; c < width; c += LOCAL) {
            ulong key = key_of(LOAD(x, c), c);
            if (key < last && key > best) best = key;
        }
#if LOCAL > 1
        keys[item] = best;
        barrier(CLK_LOCAL_MEM_FENCE);
        best = keys[0];
        for (int i = 1; i < LOCAL; i++) best = max(best, keys[i]);
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
        last = best;
        if (item == 0) {
            uint index = 0xffffffffu - (uint)best;
            values[row * k + place] = LOAD(x, index);
            ids[row * k + place] = index;
        }
    }
}
