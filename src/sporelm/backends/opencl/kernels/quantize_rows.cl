// Groups of a row rounded to int8 with one scale, max|x| / 127, ties to even; stored as the numbers they stand for.
#pragma OPENCL FP_CONTRACT OFF
kernel void quantize_groups(global const real *x, global real *y, int groups) {
    int group = get_global_id(0);
    if (group >= groups) return;
    x += (size_t)group * GROUP;
    y += (size_t)group * GROUP;
    float16 largest = 0.0f, bad = 0.0f;
    for (int c = 0; c < GROUP; c += 16) {
        float16 v = LOAD16(x + c);
        largest = fmax(largest, fabs(v));
        bad += v * 0.0f;
    }
    float most = max16(largest);
    float scale = most / 127.0f;
    float inverse = 127.0f / most;
    if (isinf(inverse)) inverse = 0.0f;
    if (isnan(sum16(bad))) scale = NAN; // NaN or infinity in the group
    for (int c = 0; c < GROUP; c += 16) STORE16(y + c, rint(LOAD16(x + c) * inverse) * scale);
}
