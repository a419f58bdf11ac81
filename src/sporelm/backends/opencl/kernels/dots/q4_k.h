// Q4_K as integers. Planes: nibbles, bytes of group scale and group minimum, pairs of scale and minimum for 8 runs.
static inline void multiply_runs(WEIGHT(w), size_t run, int left, const dot_rows *x, dot_sums *sums) {
    codes_t codes = load_codes(w, run);
    LOAD_BYTE_PAIRS(uchar, w + w_1, run, group_scale, group_minimum);
    float2 block = LOAD_SCALES(w + w_2, run / 8);
    sums_t products = multiply_codes(low_nibbles(codes), high_nibbles(codes), x->low, x->high, 0);
    add_products(products, block.x * group_scale * x->scale, sums);
    sums->offsets = MULTIPLY_ADD(-block.y * group_minimum, x->sum, sums->offsets);
}
