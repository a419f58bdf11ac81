// Products of runs of a weight with runs of rows that are rounded to int8 (rounding.h), as integers.
// A format's file in `dots` gives multiply_runs, which adds the products of DOT_RUNS runs to sums.
typedef struct {
    codes_t low, high;   // of both halves of each run
    scales_t scale, sum; // of each run; the sum of its codes, times the scale
} dot_rows;
typedef struct {
    sums_t products;
    scales_t offsets; // what minima of weights add
} dot_sums;

static inline dot_rows load_rounded(global const real *rows, ulong numbers, size_t run, int left) {
    global const uchar *codes = (global const uchar *)rows + numbers * 4;
    global const float *scales = (global const float *)(codes + numbers);
    size_t runs = numbers / 32;
    dot_rows x;
    x.low = load_codes(codes, run);
    x.high = load_codes(codes, runs + run);
    x.scale = within_row(LOAD_FLOATS(0, scales + run), left);
    x.sum = within_row(LOAD_FLOATS(0, scales + runs + run), left);
    return x;
}
// Scales of runs, and pairs of scale and minimum.
#ifdef WIDE_SCALES
#define LOAD_NUMBERS(n, p) JOIN(vload, n)(0, (global const float *)(p))
#define NUMBER_BYTES 4
#else
#define LOAD_NUMBERS(n, p) JOIN(vload_half, n)(0, (global const half *)(p))
#define NUMBER_BYTES 2
#endif
static inline scales_t load_scales(global const uchar *p, size_t run, int left) {
#if DOT_RUNS == 1
    return LOAD_SCALE(p, run);
#else
    return within_row(LOAD_NUMBERS(DOT_RUNS, p + run * NUMBER_BYTES), left);
#endif
}
static inline void load_scale_pairs(global const uchar *p, size_t run, int left, scales_t *scale, scales_t *minimum) {
#if DOT_RUNS == 1
    float2 pair = LOAD_SCALES(p, run);
    *scale = pair.x;
    *minimum = pair.y;
#elif DOT_RUNS == 2
    float4 pairs = LOAD_NUMBERS(4, p + 2 * run * NUMBER_BYTES);
    *scale = within_row(pairs.even, left);
    *minimum = within_row(pairs.odd, left);
#else
    float8 pairs = LOAD_NUMBERS(8, p + 2 * run * NUMBER_BYTES);
    *scale = within_row(pairs.even, left);
    *minimum = within_row(pairs.odd, left);
#endif
}
// Pairs of bytes of runs as floats. A row has whole groups of 8 runs.
#if DOT_RUNS == 1
#define LOAD_BYTE_PAIRS(type, p, run, first, second) \
    JOIN(type, 2) pair = vload2(run, (global const type *)(p)); \
    scales_t first = (float)pair.x, second = (float)pair.y
#elif DOT_RUNS == 2
#define LOAD_BYTE_PAIRS(type, p, run, first, second) \
    float4 pairs = convert_float4(vload4(0, (global const type *)(p) + 2 * (run))); \
    scales_t first = pairs.even, second = pairs.odd
#else
#define LOAD_BYTE_PAIRS(type, p, run, first, second) \
    float8 pairs = convert_float8(vload8(0, (global const type *)(p) + 2 * (run))); \
    scales_t first = pairs.even, second = pairs.odd
#endif
static inline void add_products(sums_t products, scales_t scale, dot_sums *sums) {
    sums->products = MULTIPLY_ADD(products, SPREAD(scale), sums->products);
}
static inline float total_of(const dot_sums *sums) { return SUM_PRODUCTS(sums->products) + SUM_SCALES(sums->offsets); }
