// Q4_1 as integers. Planes: nibbles, pairs of scale and minimum.
static inline void multiply_runs(WEIGHT(w), size_t run, int left, const dot_rows *x, dot_sums *sums) {
    codes_t codes = load_codes(w, run);
    scales_t scale, minimum;
    load_scale_pairs(w + w_1, run, left, &scale, &minimum);
    sums_t products = multiply_codes(low_nibbles(codes), high_nibbles(codes), x->low, x->high, 0);
    add_products(products, scale * x->scale, sums);
    sums->offsets = MULTIPLY_ADD(minimum, x->sum, sums->offsets);
}
