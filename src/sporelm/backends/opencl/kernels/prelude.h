// Types and loads that all kernels share. Options of the compiler:
//   NARROW   activations are stored as half, and computed in float
//   VEC      numbers that a work-item loads at once: 2, 4, 8 or 16
//   LOCAL    work-items of a group that share a row, a power of two: sums are halved step by step
// Products and sums are rounded one by one, so that formats unpack to the bits that a file stands for.
#pragma OPENCL FP_CONTRACT OFF
#if LOCAL & (LOCAL - 1)
#error LOCAL is not a power of two
#endif

// a * b + c, rounded once where that is fast; only for sums of products.
#if defined(FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA) // PoCL does not define the first
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) mad(a, b, c)
#endif

// A launch with two groups in the third dimension computes nothing; it makes the driver compile the kernel
// (`ProgramCompiler.compile_kernel`). Each kernel begins with this check, after its local memory.
#if LOCAL > 1 // PoCL 3.1 crashes where work-items return before a barrier: such programs have no dummy launches
#define RETURN_IF_DUMMY_LAUNCH
#else
#define RETURN_IF_DUMMY_LAUNCH if (get_num_groups(2) > 1) return;
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define floatv JOIN(float, VEC)
#define vloadv JOIN(vload, VEC)
#define vstorev JOIN(vstore, VEC)

// Halves are only loaded and stored: that needs no cl_khr_fp16.
#define half_loadv JOIN(vload_half, VEC)
#define half_storev JOIN(JOIN(vstore_half, VEC), _rte)

#ifdef NARROW
typedef half real;
#define LOAD(p, i) vload_half(i, p)
#define LOADV(p) half_loadv(0, p)
#define LOAD16(p) vload_half16(0, p)
#define STORE(p, i, v) vstore_half_rte(v, i, p)
#define STORE16(p, v) vstore_half16_rte(v, 0, p)
#define STOREV(p, v) half_storev(v, 0, p)
#else
typedef float real;
#define LOAD(p, i) ((p)[i])
#define LOADV(p) vloadv(0, p)
#define LOAD16(p) vload16(0, p)
#define STORE(p, i, v) ((p)[i] = (v))
#define STORE16(p, v) vstore16(v, 0, p)
#define STOREV(p, v) vstorev(v, 0, p)
#endif

static inline float sum16(float16 v) {
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.x + c.y;
}

static inline float max16(float16 v) {
    float8 a = fmax(v.lo, v.hi);
    float4 b = fmax(a.lo, a.hi);
    float2 c = fmax(b.lo, b.hi);
    return fmax(c.x, c.y);
}

// A weight as kernels take it: its buffer, and the byte offsets of planes 1 to 3 (`weight_formats.py`).
#define WEIGHT(w) global const uchar *w, ulong w##_1, ulong w##_2, ulong w##_3
// A scale of a block, or a pair of them; WIDE_SCALES: kept as float.
#ifdef WIDE_SCALES
#define LOAD_SCALE(p, i) (((global const float *)(p))[i])
#define LOAD_SCALES(p, i) vload2(i, (global const float *)(p))
#else
#define LOAD_SCALE(p, i) vload_half(i, (global const half *)(p))
#define LOAD_SCALES(p, i) vload_half2(i, (global const half *)(p))
#endif
#define PASS(w) w, w##_1, w##_2, w##_3
#define INDEX16 ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))

// Sum and maximum over the LOCAL work-items of a group, in a fixed order. All of them must call it, with `shared` of
// LOCAL floats. Always inlined: PoCL 3.1 gives wrong results if a kernel calls such a function twice (docs/lab.md).
#if LOCAL > 1
static inline __attribute__((always_inline)) float group_sum(float v, local float *shared) {
    int item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared[item] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_size = LOCAL / 2; half_size > 0; half_size /= 2) {
        if (item < half_size) shared[item] += shared[item + half_size];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return shared[0];
}
static inline __attribute__((always_inline)) float group_max(float v, local float *shared) {
    int item = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    shared[item] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_size = LOCAL / 2; half_size > 0; half_size /= 2) {
        if (item < half_size) shared[item] = fmax(shared[item], shared[item + half_size]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return shared[0];
}
#define GROUP_SUM(v) group_sum(v, shared)
#define GROUP_MAX(v) group_max(v, shared)
#define GROUP_MEMORY local float shared[LOCAL];
#else
#define GROUP_SUM(v) (v)
#define GROUP_MAX(v) (v)
#define GROUP_MEMORY
#endif

#define SUMV JOIN(sum, VEC)
static inline float sum8(float8 v) {
    float4 b = v.lo + v.hi;
    float2 c = b.lo + b.hi;
    return c.x + c.y;
}
static inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }
static inline float sum2(float2 v) { return v.x + v.y; }
