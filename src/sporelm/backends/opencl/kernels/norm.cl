// Norms of rows: rms_norm, layer_norm, and both of x + residual (RMS, ADD, SCALED by a weight, BIAS, BIAS_ROWS).
// With GROUP the result is rounded as well (rounding.h), to `rounded`.
// A group of work-items has one row, or one head of a row, of `width` numbers. The weight has `period` rows.
kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void norm_rows(global const real *x, global const real *residual, global const float *weight,
               global const float *bias, global real *y, global real *total, global real *rounded, int width,
               int period, float eps, ulong numbers) {
    GROUP_MEMORY
    RETURN_IF_DUMMY_LAUNCH
    size_t row = get_group_id(0);
    int item = get_local_id(0);
    int whole = width / VEC * VEC;
    x += row * width;
    y += row * width;
#ifdef ADD
    residual += row * width;
    total += row * width;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) STOREV(total + c, LOADV(x + c) + LOADV(residual + c));
    for (int c = whole + item; c < width; c += LOCAL) STORE(total, c, LOAD(x, c) + LOAD(residual, c));
#define INPUTV(c) (LOADV(x + (c)) + LOADV(residual + (c)))
#define INPUT(c) (LOAD(x, c) + LOAD(residual, c))
#else
#define INPUTV(c) LOADV(x + (c))
#define INPUT(c) LOAD(x, c)
#endif
    float mean = 0.0f, rest = 0.0f; // the mean is their sum: rows may lie far from zero
#ifndef RMS
    float sum = 0.0f;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) sum += SUMV(INPUTV(c));
    for (int c = whole + item; c < width; c += LOCAL) sum += INPUT(c);
    mean = GROUP_SUM(sum) / width;
    sum = 0.0f;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) sum += SUMV(INPUTV(c) - mean);
    for (int c = whole + item; c < width; c += LOCAL) sum += INPUT(c) - mean;
    rest = GROUP_SUM(sum) / width;
#endif
    float squares = 0.0f;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) {
        floatv v = INPUTV(c) - mean - rest;
        squares += SUMV(v * v);
    }
    for (int c = whole + item; c < width; c += LOCAL) {
        float v = INPUT(c) - mean - rest;
        squares += v * v;
    }
    float scale = 1.0f / sqrt(GROUP_SUM(squares) / width + eps);
    size_t offset = row % period * width;
    for (int c = item * VEC; c < whole; c += LOCAL * VEC) {
        floatv v = (INPUTV(c) - mean - rest) * scale;
#ifdef SCALED
        v *= vloadv(0, weight + offset + c);
#endif
#ifdef BIAS
        v += vloadv(0, bias + c);
#elif defined(BIAS_ROWS)
        v += vloadv(0, bias + offset + c);
#endif
        STOREV(y + c, v);
    }
    for (int c = whole + item; c < width; c += LOCAL) {
        float v = (INPUT(c) - mean - rest) * scale;
#ifdef SCALED
        v *= weight[offset + c];
#endif
#ifdef BIAS
        v += bias[c];
#elif defined(BIAS_ROWS)
        v += bias[offset + c];
#endif
        STORE(y, c, v);
    }
#ifdef GROUP
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int c = item * GROUP; c < width; c += LOCAL * GROUP) round_group(y + c, rounded, row * width + c, numbers);
#endif
}
