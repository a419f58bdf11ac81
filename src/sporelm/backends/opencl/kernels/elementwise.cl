// Functions of single numbers: y = FUNCTION(x), of numbers a and b, or of a second array z (BINARY).

static inline floatv fun_add(floatv x, floatv z, float a, float b) { return x + z; }
static inline floatv fun_activate_mul(floatv x, floatv z, float a, float b) { return ACT(x) * z; }
static inline floatv fun_activate(floatv x, floatv z, float a, float b) { return ACT(x); }
static inline floatv fun_scale(floatv x, floatv z, float a, float b) { return x * a; }
static inline floatv fun_softcap(floatv x, floatv z, float a, float b) { return a * tanh(x / a); }
static inline floatv fun_clip(floatv x, floatv z, float a, float b) {
    return select(fmin(fmax(x, (floatv)-a), (floatv)a), x, isnan(x));
}
static inline floatv fun_clamped_swiglu(floatv x, floatv z, float a, float b) {
    floatv gate = select(fmin(x, (floatv)b), x, isnan(x));
    floatv up = select(fmin(fmax(z, (floatv)-b), (floatv)b), z, isnan(z));
    return (up + 1.0f) * (gate / (1.0f + exp(-a * gate)));
}

#ifdef BINARY
#define SECONDV(i) LOADV(z + (i))
#define SECOND(i) (floatv)LOAD(z, i)
#else
#define SECONDV(i) (floatv)0.0f
#define SECOND(i) (floatv)0.0f
#endif

kernel void map_numbers(global const real *x, global const real *z, global real *y, int n, float a, float b) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0) * VEC;
    if (i + VEC <= n) {
        STOREV(y + i, FUNCTION(LOADV(x + i), SECONDV(i), a, b));
        return;
    }
    for (; i < n; i++) {
        floatv v = FUNCTION((floatv)LOAD(x, i), SECOND(i), a, b);
        STORE(y, i, v.s0);
    }
}
