// Products of bytes with cl_khr_integer_dot_product: four bytes of a word at once, one run at a time.
#define DOT_RUNS 1
typedef uint4 codes_t;
typedef float scales_t;
typedef float sums_t;
#define SPREAD(v) (v)
#define LOAD_FLOATS(i, p) ((p)[i])
#define SUM_PRODUCTS(v) (v)
#define SUM_SCALES(v) (v)

static inline codes_t load_codes(global const void *p, size_t run) { return vload4(run, (global const uint *)p); }
static inline codes_t low_nibbles(codes_t codes) { return codes & 0x0f0f0f0fu; }
static inline codes_t high_nibbles(codes_t codes) { return codes >> 4 & 0x0f0f0f0fu; }
// A run of 32 signed bytes as the codes of both halves.
static inline void load_bytes(global const uchar *p, size_t run, codes_t *low, codes_t *high) {
    *low = load_codes(p, 2 * run);
    *high = load_codes(p, 2 * run + 1);
}
// Upper pairs of bits (see formats/q6_k.h), moved to bits 4 and 5.
static inline void load_pairs(global const uchar *p, size_t run, codes_t *low, codes_t *high) {
    uint4 pairs = vload2(run, (global const uint *)p).xyxy;
    *low = (pairs >> (uint4)(0, 0, 2, 2) & 0x03030303u) << 4;
    *high = (pairs >> (uint4)(4, 4, 6, 6) & 0x03030303u) << 4;
}
static inline scales_t within_row(scales_t v, int left) { return v; }

static inline int dot_half(codes_t codes, codes_t x) {
    return dot_4x8packed_us_int(codes.x, x.x) + dot_4x8packed_us_int(codes.y, x.y) +
           dot_4x8packed_us_int(codes.z, x.z) + dot_4x8packed_us_int(codes.w, x.w);
}
// Products of one half of a run with (code - center).
static inline sums_t multiply_half(codes_t codes, codes_t x, char center) {
    int dot = dot_half(codes, x);
    return (float)(center ? dot - dot_half((codes_t)(center * 0x01010101u), x) : dot);
}
// Products of a whole run with (code - center).
static inline sums_t multiply_codes(codes_t low, codes_t high, codes_t x_low, codes_t x_high, char center) {
    return multiply_half(low, x_low, center) + multiply_half(high, x_high, center);
}
// Products of a whole run of signed codes.
static inline sums_t multiply_signed(codes_t low, codes_t high, codes_t x_low, codes_t x_high) {
    return (float)(dot_4x8packed_ss_int(low.x, x_low.x) + dot_4x8packed_ss_int(low.y, x_low.y) +
                   dot_4x8packed_ss_int(low.z, x_low.z) + dot_4x8packed_ss_int(low.w, x_low.w) +
                   dot_4x8packed_ss_int(high.x, x_high.x) + dot_4x8packed_ss_int(high.y, x_high.y) +
                   dot_4x8packed_ss_int(high.z, x_high.z) + dot_4x8packed_ss_int(high.w, x_high.w));
}
