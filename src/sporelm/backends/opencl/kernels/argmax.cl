// The greatest number of each row, its lowest index among equals; -1 for a row with NaN. A group has one row.
kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void find_argmax(global const real *x, global int *y, int width) {
    GROUP_MEMORY
    RETURN_IF_DUMMY_LAUNCH
    int item = get_local_id(0);
    x += (size_t)get_group_id(0) * width;
    float most = -INFINITY, bad = 0.0f;
    int whole = width / VEC * VEC;
    floatv mostv = -INFINITY, badv = 0.0f;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) {
        floatv v = LOADV(x + c);
        mostv = fmax(mostv, v);
        badv += select((floatv)0.0f, (floatv)1.0f, isnan(v));
    }
    bad = SUMV(badv);
    for (int i = 0; i < VEC; i++) most = fmax(most, ((const float *)&mostv)[i]);
    for (int c = whole + item; c < width; c += LOCAL) {
        float v = LOAD(x, c);
        most = fmax(most, v);
        if (isnan(v)) bad = 1.0f;
    }
    most = GROUP_MAX(most);
    int first = bad > 0.0f ? -1 : width;
    for (int c = item; c < width && first == width; c += LOCAL)
        if (LOAD(x, c) == most) first = c;
#if LOCAL > 1
    local int places[LOCAL];
    places[item] = first;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0)
        for (int i = 1; i < LOCAL; i++) first = min(first, places[i]);
#endif
    if (item == 0) y[get_group_id(0)] = first;
}
