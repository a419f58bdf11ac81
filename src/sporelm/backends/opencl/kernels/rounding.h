// Rounding of GROUP numbers of a row to int8 with one scale, max|x| / 127, ties to even: stored as the numbers that
// they stand for. A group with NaN or infinity is NaN. `first` is the group's first number among the `numbers` of all
// rows.
// With CODES integers are stored as well, for products of integers (dots/rounded_rows.h). After room for the numbers as
// floats there are for each run of 32: 16 bytes of its lower half, of its upper half, and two floats, namely the scale
// and the sum of its integers times the scale.
static inline void round_group(global const real *x, global real *rows, size_t first, ulong numbers) {
    global real *y = rows + first;
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
#ifdef CODES
    global char *codes = (global char *)rows + numbers * 4;
    global float *scales = (global float *)(codes + numbers);
    size_t runs = numbers / 32;
    for (int c = 0; c < GROUP; c += 32) {
        float16 low = rint(LOAD16(x + c) * inverse), high = rint(LOAD16(x + c + 16) * inverse);
        STORE16(y + c, low * scale);
        STORE16(y + c + 16, high * scale);
        size_t run = (first + c) / 32;
        vstore16(convert_char16_sat(low), run, codes);
        vstore16(convert_char16_sat(high), runs + run, codes);
        scales[run] = scale;
        scales[runs + run] = sum16(low + high) * scale;
    }
#else
    for (int c = 0; c < GROUP; c += 16) STORE16(y + c, rint(LOAD16(x + c) * inverse) * scale);
#endif
}
