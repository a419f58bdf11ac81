// Pages of float: a row of a head is HEAD_DIM numbers.
typedef float page_t;
#define ROW_UNITS HEAD_DIM
static inline floath load_part(global const page_t *row, int c) { return vloadh(0, row + c); }
static inline void store_row(global page_t *row, const float *values) {
    for (int c = 0; c < HEAD_DIM; c++) row[c] = values[c];
}
