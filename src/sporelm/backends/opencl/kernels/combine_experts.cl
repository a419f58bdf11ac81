// The sum of each token's rows, each times its weight, in their order, and a bias: y[token] = sum w[slot] x[slot].
kernel void combine_rows(global const real *x, global const float *weights, global const float *bias, global real *y,
                         int tokens, int slots, int width) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= tokens * width) return;
    int token = i / width, column = i % width;
    float total = 0.0f;
    for (int slot = 0; slot < slots; slot++) {
        float part = weights[token * slots + slot] * LOAD(x, ((size_t)token * slots + slot) * width + column);
        total = slot == 0 ? part : total + part;
    }
#ifdef BIAS
    total += bias[column];
#endif
    STORE(y, i, total);
}
