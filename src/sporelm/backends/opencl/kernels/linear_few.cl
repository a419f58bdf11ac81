// Products of few tokens with packed weights: y = x w^T + bias, or ACT(x w^T) * (x u^T) (GATED).
// GROUPED: also y_u = x u^T + bias_u and y_v = x v^T + bias_v, whose rows follow those of w; of two weights v has none.
// A group multiplies BLOCKS times ROWS rows of the weight with TOKENS rows of x; its LOCAL items share the runs of
// the columns. Blocks come one after the other, so that a CPU reads memory in order.
// EXPERTS: a row of y is a pair of a token and a slot; `ids` has its expert, whose matrix is multiplied. x has a row
// for each token, or for each pair (SLOTTED). SORTED: a group has a tile of pairs of one expert (`expert_tiles.cl`).
// DOTS: x are rows rounded to int8, of `numbers` numbers in all, and are multiplied as integers (dots/rounded_rows.h).
#ifdef DOTS
typedef dot_sums sums_of_row;
#define NO_SUM {0.0f, 0.0f}
#else
typedef float16 sums_of_row;
#define NO_SUM (0.0f)
static inline float total_of(const float16 *sums) { return sum16(*sums); }
#endif

#define OWN_ROWS (ROWS * BLOCKS)

static inline void load_run(global const real *x, int left, float16 *low, float16 *high) {
#ifdef RAGGED
    if (left < 32) { // rows of the weight are filled with zeros, those of x are not
        float v[32];
        for (int c = 0; c < 32; c++) v[c] = c < left ? LOAD(x, c) : 0.0f;
        *low = vload16(0, v);
        *high = vload16(1, v);
        return;
    }
#endif
    *low = LOAD16(x);
    *high = LOAD16(x + 16);
}

kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void multiply_few(global const real *x, WEIGHT(w), WEIGHT(u), global const float *bias, global real *y, int tokens,
                  int width, int rows, global const int *ids, int slots, global const int *order,
                  global const int2 *tiles, global const int *num_tiles, WEIGHT(v),
                  global const float *bias_u, global const float *bias_v, global real *y_u,
                  global real *y_v, int rows_u, int rows_v, ulong numbers) {
    GROUP_MEMORY
    RETURN_IF_DUMMY_LAUNCH
    int item = get_local_id(0);
    int first = get_group_id(0) * OWN_ROWS;
#ifdef GROUPED
    int skipped = (rows + OWN_ROWS - 1) / OWN_ROWS * OWN_ROWS;
    if (first >= skipped) {
        first -= skipped;
        skipped = (rows_u + OWN_ROWS - 1) / OWN_ROWS * OWN_ROWS;
        w = u, w_1 = u_1, w_2 = u_2, w_3 = u_3, bias = bias_u, y = y_u, rows = rows_u;
        if (first >= skipped) {
            first -= skipped;
            w = v, w_1 = v_1, w_2 = v_2, w_3 = v_3, bias = bias_v, y = y_v, rows = rows_v;
        }
    }
#endif
    int token = get_group_id(1) * TOKENS;
    int runs = (width + 31) / 32;
    int last = tokens;
    size_t matrix = 0;
    size_t x_rows[TOKENS], y_rows[TOKENS];
#ifdef SORTED
    if (get_group_id(1) >= num_tiles[0]) return;
    int2 tile = tiles[get_group_id(1)];
    token = tile.y;
    matrix = (size_t)tile.x * rows;
    last = token;
    while (last < token + TOKENS && last < tokens && ids[order[last]] == tile.x) last++;
#elif defined(EXPERTS)
    matrix = (size_t)ids[token] * rows;
#endif
    for (int t = 0; t < TOKENS; t++) {
        y_rows[t] = min(token + t, last - 1);
#ifdef SORTED
        y_rows[t] = order[y_rows[t]];
#endif
        x_rows[t] = y_rows[t];
#if defined(EXPERTS) && !defined(SLOTTED)
        x_rows[t] /= slots;
#endif
    }
    int end = min(first + OWN_ROWS, rows);
    for (; first < end; first += ROWS) {
        sums_of_row sums[ROWS][TOKENS];
#ifdef GATED
        sums_of_row others[ROWS][TOKENS];
#endif
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                sums[r][t] = (sums_of_row)NO_SUM;
#ifdef GATED
                others[r][t] = (sums_of_row)NO_SUM;
#endif
            }
#ifdef DOTS
        for (int run = item * DOT_RUNS; run < runs; run += LOCAL * DOT_RUNS) {
            dot_rows parts[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) parts[t] = load_rounded(x, numbers, x_rows[t] * runs + run, runs - run);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                size_t place = (matrix + min(first + r, rows - 1)) * runs + run;
#pragma unroll
                for (int t = 0; t < TOKENS; t++) {
                    multiply_runs(PASS(w), place, runs - run, &parts[t], &sums[r][t]);
#ifdef GATED
                    multiply_runs(PASS(u), place, runs - run, &parts[t], &others[r][t]);
#endif
                }
            }
        }
#else
        for (int run = item; run < runs; run += LOCAL) {
            float16 low[TOKENS], high[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                load_run(x + x_rows[t] * width + run * 32, width - run * 32, &low[t], &high[t]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                size_t place = (matrix + min(first + r, rows - 1)) * runs + run;
                float16 a, b;
                unpack(PASS(w), place, &a, &b);
#pragma unroll
                for (int t = 0; t < TOKENS; t++)
                    sums[r][t] = MULTIPLY_ADD(b, high[t], MULTIPLY_ADD(a, low[t], sums[r][t]));
#ifdef GATED
                unpack(PASS(u), place, &a, &b);
#pragma unroll
                for (int t = 0; t < TOKENS; t++)
                    others[r][t] = MULTIPLY_ADD(b, high[t], MULTIPLY_ADD(a, low[t], others[r][t]));
#endif
            }
        }
#endif
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                float v = GROUP_SUM(total_of(&sums[r][t]));
#ifdef GATED
                v = ACT(v) * GROUP_SUM(total_of(&others[r][t]));
#endif
                if (item == 0 && first + r < rows && token + t < last) {
#ifdef BIAS
                    v += bias[matrix + first + r];
#endif
                    STORE(y, y_rows[t] * rows + first + r, v);
                }
            }
    }
}
