// Q8_0 as integers. Planes: integers, scales.
static inline void multiply_runs(WEIGHT(w), size_t run, int left, const dot_rows *x, dot_sums *sums) {
    codes_t low, high;
    load_bytes(w, run, &low, &high);
    add_products(multiply_signed(low, high, x->low, x->high), load_scales(w + w_1, run, left) * x->scale, sums);
}
