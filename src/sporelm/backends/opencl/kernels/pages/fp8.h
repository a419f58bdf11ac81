// Pages of E4M3FN: sign, four bits of exponent, three of fraction; all bits but the sign set are NaN.
// Rounded as `Float8.from_f32` does: to nearest, ties to even, values beyond 448 become 448.
typedef uchar page_t;
#define ROW_UNITS HEAD_DIM
static inline float float_of(uchar code) {
    int exponent = code >> 3 & 15, fraction = code & 7;
    float value = exponent ? ldexp(1.0f + fraction / 8.0f, exponent - 7) : ldexp(fraction / 8.0f, -6);
    value = (code & 127) == 127 ? NAN : value;
    return code >> 7 ? -value : value;
}
static inline uchar code_of(float value) {
    uchar sign = as_uint(value) >> 24 & 0x80u;
    if (isnan(value)) return sign | 0x7f;
    float clamped = fmin(fabs(value), 448.0f);
    uint magnitude = as_uint(clamped);
    uint tiny = as_uint(clamped + 16384.0f) - as_uint(16384.0f);
    uint normal = ((magnitude + (0x7ffffu + (magnitude >> 20 & 1u))) >> 20) - (120u << 3);
    return sign | (clamped < 0.015625f ? tiny : normal);
}
static inline floath load_part(global const page_t *row, int c) {
    float values[HEAD_VEC];
    for (int i = 0; i < HEAD_VEC; i++) values[i] = float_of(row[c + i]);
    return vloadh(0, values);
}
static inline void store_row(global page_t *row, const float *values) {
    for (int c = 0; c < HEAD_DIM; c++) row[c] = code_of(values[c]);
}
