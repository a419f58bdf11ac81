// Rounding of GROUP numbers of a row to int8 with one scale, max|x| / 127, ties to even: stored as the numbers that they
// stand for. A group with NaN or infinity is NaN.
inline void round_group(global const real *x, global real *y) {
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
    if (isnan(sum16(bad))) scale = NAN;
    for (int c = 0; c < GROUP; c += 16) STORE16(y + c, rint(LOAD16(x + c) * inverse) * scale);
}
