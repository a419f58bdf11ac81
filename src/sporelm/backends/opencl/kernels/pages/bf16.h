// Pages of bfloat16, the upper halves of floats: rounded to nearest, ties to even; a NaN becomes quiet.
typedef ushort page_t;
#define ROW_UNITS HEAD_DIM
static inline floath load_part(global const page_t *row, int c) {
    return JOIN(as_, floath)(JOIN(convert_uint, HEAD_VEC)(JOIN(vload, HEAD_VEC)(0, row + c)) << 16u);
}
static inline void store_row(global page_t *row, const float *values) {
    for (int c = 0; c < HEAD_DIM; c++) {
        uint bits = as_uint(values[c]);
        uint rounded = bits + 0x7fffu + (bits >> 16 & 1u);
        row[c] = (isnan(values[c]) ? bits | 0x00400000u : rounded) >> 16;
    }
}
