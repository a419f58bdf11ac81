// Pages of half: a row of a head is HEAD_DIM numbers.
typedef half page_t;
#define ROW_UNITS HEAD_DIM
static inline floath load_part(global const page_t *row, int c) { return half_loadh(0, row + c); }
static inline void store_row(global page_t *row, const float *values) {
    for (int c = 0; c < HEAD_DIM; c++) vstore_half_rte(values[c], c, row);
}
