// Q6_K as integers. Planes: nibbles, upper pairs of bits, scales of both halves, scales for 8 runs.
static inline void multiply_runs(WEIGHT(w), size_t run, int left, const dot_rows *x, dot_sums *sums) {
    codes_t codes = load_codes(w, run), low, high;
    load_pairs(w + w_1, run, &low, &high);
    LOAD_BYTE_PAIRS(char, w + w_2, run, low_scale, high_scale);
    float block = LOAD_SCALE(w + w_3, run / 8);
    add_products(multiply_half(low_nibbles(codes) | low, x->low, 32), block * low_scale * x->scale, sums);
    add_products(multiply_half(high_nibbles(codes) | high, x->high, 32), block * high_scale * x->scale, sums);
}
