// Each row's keys and values to its slot of the cache. An item has one head of one row, of keys or values.
kernel void store_heads(global const real *k, global const real *v, global const int *slots, global page_t *pages,
                        int tokens, int kv_heads) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= tokens * 2 * kv_heads) return;
    int token = i / (2 * kv_heads), own = i % kv_heads, is_value = i / kv_heads % 2;
    size_t place = ((size_t)token * kv_heads + own) * HEAD_DIM;
    float head[HEAD_DIM];
    for (int c = 0; c < HEAD_DIM; c++) head[c] = is_value ? LOAD(v + place, c) : LOAD(k + place, c);
    int slot = slots[token];
    store_row(PAGE_ROW(pages, slot / PAGE, is_value, own, slot % PAGE, kv_heads), head);
}
