// Products of many tokens with unpacked panels: y[token][first + row] = x panel^T + bias.
// An item has TOKENS tokens and one panel of PANEL = 16 * VECTORS rows.
// HALVES: HALF_TERMS products at a time are added in half precision, and these sums in float.
#define HALF_TERMS 16

kernel __attribute__((reqd_work_group_size(GROUP_TOKENS, GROUP_PANELS, 1)))
void multiply_tiles(global const real *x, global const real *panels, global const float *bias, global real *y,
                    int tokens, int width, int depth, int first, int rows, int y_width) {
    RETURN_IF_DUMMY_LAUNCH
    int token = get_global_id(0) * TOKENS;
    int panel = get_global_id(1);
    if (token >= tokens || panel * PANEL >= rows) return;
    global const real *w = panels + (size_t)panel * depth * PANEL;
    global const real *from[TOKENS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) from[t] = x + (size_t)min(token + t, tokens - 1) * width;
    float16 sums[TOKENS][VECTORS];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
#pragma unroll
        for (int v = 0; v < VECTORS; v++) sums[t][v] = 0.0f;
#ifdef HALVES
    for (int first_column = 0; first_column < width; first_column += HALF_TERMS) {
        halves_t parts[TOKENS][VECTORS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
            for (int v = 0; v < VECTORS; v++) parts[t][v] = HALF_ZERO;
        int end = min(first_column + HALF_TERMS, width);
        for (int k = first_column; k < end; k++) {
            halves_t row[VECTORS];
#pragma unroll
            for (int v = 0; v < VECTORS; v++) row[v] = LOAD_HALVES(w + (size_t)k * PANEL + 16 * v);
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                halves_t number = SPREAD_HALF(from[t], k);
#pragma unroll
                for (int v = 0; v < VECTORS; v++) parts[t][v] = FMA_HALVES(number, row[v], parts[t][v]);
            }
        }
        float16 zeros = 0.0f; // NaN where a sum is not finite
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
            for (int v = 0; v < VECTORS; v++) zeros += WIDEN_HALVES(parts[t][v]) * 0.0f;
        if (any(isnan(zeros))) { // beyond the range of half: these products are added in float
            for (int k = first_column; k < end; k++)
                for (int v = 0; v < VECTORS; v++) {
                    float16 row = LOAD16(w + (size_t)k * PANEL + 16 * v);
#pragma unroll
                    for (int t = 0; t < TOKENS; t++)
                        sums[t][v] = MULTIPLY_ADD((float16)LOAD(from[t], k), row, sums[t][v]);
                }
            continue;
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
            for (int v = 0; v < VECTORS; v++) sums[t][v] += WIDEN_HALVES(parts[t][v]);
    }
#else
    for (int k = 0; k < width; k++) {
        float16 row[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) row[v] = LOAD16(w + 16 * v);
        w += PANEL;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float16 number = LOAD(from[t], k);
#pragma unroll
            for (int v = 0; v < VECTORS; v++) sums[t][v] = MULTIPLY_ADD(number, row[v], sums[t][v]);
        }
    }
#endif
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        if (token + t >= tokens) break;
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            int row = panel * PANEL + 16 * v;
            global real *target = y + (size_t)(token + t) * y_width + first + row;
            float16 values = sums[t][v];
            if (row + 16 <= rows) {
#ifdef BIAS
                values += vload16(0, bias + first + row);
#endif
                STORE16(target, values);
            } else {
                float numbers[16];
                vstore16(values, 0, numbers);
                for (int r = 0; r < rows - row; r++) {
#ifdef BIAS
                    numbers[r] += bias[first + row + r];
#endif
                    STORE(target, r, numbers[r]);
                }
            }
        }
    }
}
