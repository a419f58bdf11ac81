// Arithmetic in half precision with cl_khr_fp16.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef half16 halves_t;
#define HALF_ZERO ((half16)(half)0)
#define LOAD_HALVES(p) vload16(0, p)
#define SPREAD_HALF(p, i) ((half16)((p)[i]))
#define FMA_HALVES(a, b, c) fma(a, b, c)
#define WIDEN_HALVES(v) convert_float16(v)
