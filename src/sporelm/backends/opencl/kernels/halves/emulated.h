// Arithmetic in half precision in float, rounded to half after each operation: for tests of its results on devices
// without cl_khr_fp16.
typedef float16 halves_t;
static inline float16 round_to_half(float16 v) {
    ushort bits[16];
    vstore_half16_rte(v, 0, (half *)bits);
    return vload_half16(0, (const half *)bits);
}
#define HALF_ZERO ((float16)0.0f)
#define LOAD_HALVES(p) vload_half16(0, p)
#define SPREAD_HALF(p, i) ((float16)vload_half(i, p))
#define FMA_HALVES(a, b, c) round_to_half(fma(a, b, c))
#define WIDEN_HALVES(v) (v)
