// A sum of products in half precision whose result is known: a device whose driver gets it wrong computes in float.
kernel void add_products(global const half *x, global const half *w, global float *y) {
    RETURN_IF_DUMMY_LAUNCH
    halves_t sum = HALF_ZERO;
    for (int k = 0; k < 4; k++) sum = FMA_HALVES(SPREAD_HALF(x, k), LOAD_HALVES(w + 16 * k), sum);
    vstore16(WIDEN_HALVES(sum), 0, y);
}
