// Functions of numbers with parameters that tensors hold.

kernel void scale_numbers(global const real *x, global const float *factor, global real *y, int n) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i < n) STORE(y, i, LOAD(x, i) * factor[0]);
}

// xIELU; the parameters have a number for each layer.
kernel void apply_xielu(global const real *x, global const float *alpha_p, global const float *alpha_n,
                        global const float *beta, global const float *eps, global real *y, int n, int layer) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= n) return;
    float v = LOAD(x, i), slope = beta[layer];
    float above = act_softplus(alpha_p[layer]) * v * v;
    float below = (slope + act_softplus(alpha_n[layer])) * (expm1(fmin(v, eps[layer])) - v);
    STORE(y, i, (v > 0.0f ? above : below) + slope * v);
}
