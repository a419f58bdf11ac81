// Functions of single numbers: y = FUNCTION(x), of numbers a and b, or of a second array z (BINARY).

#define INV_SQRT2 0.70710678118654752f
#define SQRT_2_OVER_PI 0.79788456080286536f
#define sigmoid_of(v) (1.0f / (1.0f + exp(-(v))))
#define relu_of(v) fmax(v, (floatv)0.0f)

static inline floatv act_gelu(floatv v) { return v * 0.5f * (1.0f + erf(v * INV_SQRT2)); }
static inline floatv act_gelu_tanh(floatv v) {
    return v * 0.5f * (1.0f + tanh(SQRT_2_OVER_PI * (v + 0.044715f * v * v * v)));
}
static inline floatv act_gelu_quick(floatv v) { return v / (1.0f + exp(-1.702f * v)); }
static inline floatv act_linear(floatv v) { return v; }
static inline floatv act_relu(floatv v) { return select(relu_of(v), v, isnan(v)); }
static inline floatv act_relu_squared(floatv v) { return act_relu(v) * act_relu(v); }
static inline floatv act_sigmoid(floatv v) { return sigmoid_of(v); }
static inline floatv act_silu(floatv v) { return v / (1.0f + exp(-v)); }
static inline floatv act_softplus(floatv v) { return relu_of(v) + log1p(exp(-fabs(v))); }

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
