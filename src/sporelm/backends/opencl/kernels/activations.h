// Activation functions of one number or of VEC numbers: ACTIVATED is float or floatv.
#define INV_SQRT2 0.70710678118654752f
#define SQRT_2_OVER_PI 0.79788456080286536f
#define sigmoid_of(v) (1.0f / (1.0f + exp(-(v))))
#define relu_of(v) fmax(v, (ACTIVATED)0.0f)

static inline ACTIVATED act_gelu(ACTIVATED v) { return v * 0.5f * (1.0f + erf(v * INV_SQRT2)); }
static inline ACTIVATED act_gelu_tanh(ACTIVATED v) {
    return v * 0.5f * (1.0f + tanh(SQRT_2_OVER_PI * (v + 0.044715f * v * v * v)));
}
static inline ACTIVATED act_gelu_quick(ACTIVATED v) { return v / (1.0f + exp(-1.702f * v)); }
static inline ACTIVATED act_linear(ACTIVATED v) { return v; }
static inline ACTIVATED act_relu(ACTIVATED v) { return select(relu_of(v), v, isnan(v)); }
static inline ACTIVATED act_relu_squared(ACTIVATED v) { return act_relu(v) * act_relu(v); }
static inline ACTIVATED act_sigmoid(ACTIVATED v) { return sigmoid_of(v); }
static inline ACTIVATED act_silu(ACTIVATED v) { return v / (1.0f + exp(-v)); }
static inline ACTIVATED act_softplus(ACTIVATED v) { return relu_of(v) + log1p(exp(-fabs(v))); }
