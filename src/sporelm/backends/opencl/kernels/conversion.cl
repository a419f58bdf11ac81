// Numbers between float and half. WIDEN: half to float.
kernel void convert_numbers(
#ifdef WIDEN
    global const half *x, global float *y, int n
#else
    global const float *x, global half *y, int n
#endif
) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= n) return;
#ifdef WIDEN
    y[i] = vload_half(i, x);
#else
    vstore_half_rte(x[i], i, y);
#endif
}
