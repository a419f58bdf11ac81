// Products of bytes with the instructions of x86, for drivers whose compiler is Clang: DOT_RUNS runs at once, 4 with
// AVX-512 and 2 with AVX2. Codes of weights are unsigned unless a function says otherwise; those of x are signed.
#ifdef __AVX512BW__
#define DOT_RUNS 4
#define MULTIPLY_BYTES __builtin_ia32_pmaddubsw512
#define ADD_PAIRS __builtin_ia32_pmaddwd512
#define SPREAD(v) ((float16)((v).xxxx, (v).yyyy, (v).zzzz, (v).wwww))
#define RUN_NUMBERS ((int4)(0, 1, 2, 3))
#define EACH_HALF 0, 1, 4, 5, 8, 9, 12, 13
#define OTHER_HALF 2, 3, 6, 7, 10, 11, 14, 15
#define TWICE 0, 0, 1, 1, 2, 2, 3, 3
#define IN_TURN(a, b) a, b, a, b, a, b, a, b
#elif defined(__AVX2__)
#define DOT_RUNS 2
#define MULTIPLY_BYTES __builtin_ia32_pmaddubsw256
#define ADD_PAIRS __builtin_ia32_pmaddwd256
#define SPREAD(v) ((float8)((v).xxxx, (v).yyyy))
#define RUN_NUMBERS ((int2)(0, 1))
#define EACH_HALF 0, 1, 4, 5
#define OTHER_HALF 2, 3, 6, 7
#define TWICE 0, 0, 1, 1
#define IN_TURN(a, b) a, b, a, b
#else
#error neither AVX2 nor AVX-512
#endif
#define CODE_BYTES (16 * DOT_RUNS)
typedef char codes_t __attribute__((vector_size(CODE_BYTES)));
typedef unsigned char unsigned_codes_t __attribute__((vector_size(CODE_BYTES)));
typedef char half_codes_t __attribute__((vector_size(CODE_BYTES / 2)));
typedef short dots_t __attribute__((vector_size(CODE_BYTES))); // sums of two products, of halves of a run
typedef int ints_t __attribute__((vector_size(CODE_BYTES)));
typedef unsigned long words_t __attribute__((vector_size(CODE_BYTES)));
typedef unsigned long half_words_t __attribute__((vector_size(CODE_BYTES / 2)));
typedef struct __attribute__((packed)) { codes_t value; } unaligned_codes_t;
typedef struct __attribute__((packed)) { half_words_t value; } unaligned_half_t;
typedef float scales_t __attribute__((ext_vector_type(DOT_RUNS)));
typedef int places_t __attribute__((ext_vector_type(DOT_RUNS)));
typedef float sums_t __attribute__((ext_vector_type(4 * DOT_RUNS)));
typedef int sums_int_t __attribute__((ext_vector_type(4 * DOT_RUNS)));
#define LOAD_FLOATS JOIN(vload, DOT_RUNS)

static inline codes_t load_codes(global const void *p, size_t run) {
    return ((global const unaligned_codes_t *)((global const char *)p + run * 16))->value;
}
static inline codes_t low_nibbles(codes_t codes) { return codes & 15; }
static inline codes_t high_nibbles(codes_t codes) { return (codes_t)((unsigned_codes_t)codes >> 4); }
// Runs of 32 signed bytes as the codes of both halves.
static inline void load_bytes(global const uchar *p, size_t run, codes_t *low, codes_t *high) {
    words_t first = (words_t)load_codes(p, 2 * run), second = (words_t)load_codes(p, 2 * run + DOT_RUNS);
    *low = (codes_t)__builtin_shufflevector(first, second, EACH_HALF);
    *high = (codes_t)__builtin_shufflevector(first, second, OTHER_HALF);
}
// Upper pairs of bits (see formats/q6_k.h), moved to bits 4 and 5.
static inline void load_pairs(global const uchar *p, size_t run, codes_t *low, codes_t *high) {
    half_words_t packed = ((global const unaligned_half_t *)(p + run * 8))->value;
    words_t pairs = __builtin_shufflevector(packed, packed, TWICE);
    *low = (codes_t)(pairs >> (words_t){IN_TURN(0, 2)} & 0x0303030303030303ul) << 4;
    *high = (codes_t)(pairs >> (words_t){IN_TURN(4, 6)} & 0x0303030303030303ul) << 4;
}
// Numbers of the runs of a row; zero beyond its last run, of which `left` are left.
static inline scales_t within_row(scales_t v, int left) {
    return select((scales_t)0.0f, v, RUN_NUMBERS < left);
}

static inline sums_t sums_of(ints_t v) { return __builtin_convertvector(__builtin_astype(v, sums_int_t), sums_t); }
// Sums of two products of (code - center).
static inline dots_t dot_pairs(codes_t codes, codes_t x, char center) {
    dots_t dots = (dots_t)MULTIPLY_BYTES(codes, x);
    return center ? dots - (dots_t)MULTIPLY_BYTES((codes_t){} + center, x) : dots;
}
// Products of one half of each run with (code - center): four numbers of a run, whose sum is the product.
static inline sums_t multiply_half(codes_t codes, codes_t x, char center) {
    dots_t ones = (dots_t){} + (short)1;
    return sums_of((ints_t)ADD_PAIRS(dot_pairs(codes, x, center), ones));
}
// Products of whole runs with (code - center). Codes are below 64, so that the sum of four products is a short.
static inline sums_t multiply_codes(codes_t low, codes_t high, codes_t x_low, codes_t x_high, char center) {
    dots_t ones = (dots_t){} + (short)1;
    return sums_of((ints_t)ADD_PAIRS(dot_pairs(low, x_low, center) + dot_pairs(high, x_high, center), ones));
}
static inline ints_t dot_signed(codes_t codes, codes_t x) {
    dots_t w = (dots_t)codes, v = (dots_t)x;
    ints_t even = (ints_t)ADD_PAIRS(w << 8 >> 8, v << 8 >> 8);
    return even + (ints_t)ADD_PAIRS(w >> 8, v >> 8);
}
// Products of whole runs of signed codes.
static inline sums_t multiply_signed(codes_t low, codes_t high, codes_t x_low, codes_t x_high) {
    return sums_of(dot_signed(low, x_low) + dot_signed(high, x_high));
}
#if DOT_RUNS == 4
#define SUM_PRODUCTS sum16
#define SUM_SCALES sum4
#else
#define SUM_PRODUCTS sum8
#define SUM_SCALES sum2
#endif
