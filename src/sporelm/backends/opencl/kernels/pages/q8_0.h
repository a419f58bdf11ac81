// Pages of Q8_0 blocks: [scale half][32 int8], the last block of a row filled with zeros. Rounded as `Q8_0.quantize`.
typedef uchar page_t;
#define BLOCKS ((HEAD_DIM + 31) / 32)
#define ROW_UNITS (BLOCKS * 34)
static inline floath load_part(global const page_t *row, int c) {
    global const page_t *block = row + c / 32 * 34;
    float scale = vload_half(0, (global const half *)block);
    return JOIN(convert_, floath)(JOIN(vload, HEAD_VEC)(0, (global const char *)block + 2 + c % 32)) * scale;
}
static inline void store_row(global page_t *row, const float *values) {
    for (int b = 0; b < BLOCKS; b++) {
        global page_t *block = row + b * 34;
        float largest = 0.0f, bad = 0.0f;
        for (int i = 0; i < 32; i++) {
            float v = b * 32 + i < HEAD_DIM ? values[b * 32 + i] : 0.0f;
            largest = fmax(largest, fabs(v));
            bad += v * 0.0f;
        }
        float scale = isnan(bad) && !isinf(largest) ? NAN : largest / 127.0f;
        float inverse = 1.0f / scale;
        if (!isfinite(inverse)) inverse = 0.0f;
        vstore_half_rte(scale, 0, (global half *)block);
        for (int i = 0; i < 32; i++) {
            float v = b * 32 + i < HEAD_DIM ? values[b * 32 + i] * inverse : 0.0f;
            float towards_zero = trunc(v);
            if (fabs(v - towards_zero) >= 0.5f) towards_zero += sign(v);
            ((global char *)block)[2 + i] = isnan(v) ? 0 : (char)towards_zero;
        }
    }
}
