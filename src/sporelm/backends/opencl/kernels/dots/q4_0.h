// Q4_0 as integers. Planes: nibbles, scales.
static inline void multiply_runs(WEIGHT(w), size_t run, int left, const dot_rows *x, dot_sums *sums) {
    codes_t codes = load_codes(w, run);
    scales_t scale = load_scales(w + w_1, run, left);
    sums_t products = multiply_codes(low_nibbles(codes), high_nibbles(codes), x->low, x->high, 8);
    add_products(products, scale * x->scale, sums);
}
