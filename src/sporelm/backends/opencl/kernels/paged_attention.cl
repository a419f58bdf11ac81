// Attention of rows to the pages of their sequences, with an online softmax page by page.
// A group attends with ROWS = TILE_TOKENS * TILE_HEADS rows at once, of one sequence and of heads that share keys. Its
// LOCAL items share the keys of a page for the scores, and the columns of a head for the sums.
// WINDOW, CHUNK, SOFTCAP, SINKS, SLOPES, SPANS: as in `ops/paged_attention.py`.
#define ROWS (TILE_TOKENS * TILE_HEADS)
#define PARTS (HEAD_DIM / HEAD_VEC)
#define OWN_PARTS ((PARTS + LOCAL - 1) / LOCAL)

kernel __attribute__((reqd_work_group_size(LOCAL, 1, 1)))
void attend_rows(global const real *q, global const page_t *pages, global const int *starts, global const int *lengths,
                 global const int *table, global const float *sinks, global const float *slopes,
                 global const int *spans, global real *y, int sequences, int columns, int heads, int kv_heads,
                 float scale, float softcap) {
    RETURN_IF_DUMMY_LAUNCH
    int item = get_local_id(0);
    int tile = get_group_id(0);
    int group_size = heads / kv_heads;
    int first_head = get_group_id(1) * TILE_HEADS;
    int kv_head = first_head / group_size;

    // The sequence of this tile: tiles are numbered over all sequences.
    int sequence = 0, begin = 0, stop = 0;
    for (; sequence < sequences; sequence++) {
        begin = starts[sequence];
        stop = starts[sequence + 1];
        int tiles = (stop - begin + TILE_TOKENS - 1) / TILE_TOKENS;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (sequence == sequences) return;
    int row = begin + tile * TILE_TOKENS;
    int length = lengths[sequence];
    int place = length - (stop - row); // of the first row
    int num_tokens = min(TILE_TOKENS, stop - row);

    // The keys that some row sees.
    int low = INT_MAX, high = 0;
    int lows[TILE_TOKENS], highs[TILE_TOKENS];
#pragma unroll
    for (int t = 0; t < TILE_TOKENS; t++) {
        int own = place + min(t, num_tokens - 1);
        lows[t] = 0;
        highs[t] = own + 1;
#ifdef SPANS
        highs[t] = max(highs[t], spans[2 * (row + min(t, num_tokens - 1)) + 1]);
#endif
#ifdef WINDOW
        lows[t] = max(0, own - WINDOW + 1);
#endif
#ifdef CHUNK
        lows[t] = own / CHUNK * CHUNK;
#endif
        low = min(low, lows[t]);
        high = max(high, highs[t]);
    }
    high = min(high, length);

#if LOCAL > 1
    local float scores[ROWS][PAGE];
    local float shared[LOCAL];
#else
    float scores[ROWS][PAGE];
#endif
    floath sums[ROWS][OWN_PARTS];
    float peaks[ROWS], totals[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        peaks[r] = -INFINITY;
        totals[r] = 0.0f;
#ifdef SINKS
        peaks[r] = sinks[first_head + r % TILE_HEADS];
        totals[r] = 1.0f;
#endif
#pragma unroll
        for (int p = 0; p < OWN_PARTS; p++) sums[r][p] = 0.0f;
    }
    global const real *queries[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        size_t own_row = row + min(r / TILE_HEADS, num_tokens - 1);
        queries[r] = q + (own_row * heads + first_head + r % TILE_HEADS) * HEAD_DIM;
    }

    for (int page = low / PAGE; page * PAGE < high; page++) {
        int number = table[(size_t)sequence * columns + page];
        int from = max(low - page * PAGE, 0), to = min(high - page * PAGE, PAGE);
        for (int key = from + item; key < to; key += LOCAL) {
            global const page_t *keys = PAGE_ROW(pages, number, 0, kv_head, key, kv_heads);
            floath dots[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) dots[r] = 0.0f;
            for (int p = 0; p < PARTS; p++) {
                floath part = load_part(keys, p * HEAD_VEC);
#pragma unroll
                for (int r = 0; r < ROWS; r++) dots[r] = MULTIPLY_ADD(LOADH(queries[r] + p * HEAD_VEC), part, dots[r]);
            }
            int where = page * PAGE + key;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int t = r / TILE_HEADS;
                float score = sumh(dots[r]) * scale;
#ifdef SOFTCAP
                score = softcap * tanh(score / softcap);
#endif
#ifdef SLOPES
                score += slopes[first_head + r % TILE_HEADS] * (float)(where - (place + min(t, num_tokens - 1)));
#endif
                scores[r][key] = where >= lows[t] && where < highs[t] ? score : -INFINITY;
            }
        }
#if LOCAL > 1
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float peak = peaks[r], total = 0.0f;
#if LOCAL > 1
            for (int key = from; key < to; key++) peak = fmax(peak, scores[r][key]);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int key = from + item; key < to; key += LOCAL)
                scores[r][key] = exp(scores[r][key] - (peak == -INFINITY ? 0.0f : peak));
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int key = from; key < to; key++) total += scores[r][key];
#else
            for (int key = 0; key < from; key++) scores[r][key] = -INFINITY;
            for (int key = to; key < PAGE; key++) scores[r][key] = -INFINITY;
            float16 part[PAGE / 16];
#pragma unroll
            for (int i = 0; i < PAGE / 16; i++) part[i] = vload16(i, scores[r]);
            peak = fmax(peak, max16(fmax(fmax(part[0], part[1]), fmax(part[2], part[3]))));
            float16 base = peak == -INFINITY ? 0.0f : peak;
#pragma unroll
            for (int i = 0; i < PAGE / 16; i++) {
                part[i] = exp(part[i] - base);
                vstore16(part[i], i, scores[r]);
            }
            total = sum16((part[0] + part[1]) + (part[2] + part[3]));
#endif
            // No key of this row yet: nothing to scale, and no infinity minus infinity.
            float fade = peaks[r] == -INFINITY ? 0.0f : exp(peaks[r] - peak);
            totals[r] = totals[r] * fade + total;
            peaks[r] = peak;
#pragma unroll
            for (int p = 0; p < OWN_PARTS; p++) sums[r][p] *= fade;
        }
        for (int key = from; key < to; key++) {
            global const page_t *values = PAGE_ROW(pages, number, 1, kv_head, key, kv_heads);
#pragma unroll
            for (int p = 0; p < OWN_PARTS; p++) {
                int own = p * LOCAL + item;
                if (own >= PARTS) continue;
                floath part = load_part(values, own * HEAD_VEC);
#pragma unroll
                for (int r = 0; r < ROWS; r++) sums[r][p] = MULTIPLY_ADD((floath)scores[r][key], part, sums[r][p]);
            }
        }
#if LOCAL > 1
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r / TILE_HEADS >= num_tokens) continue;
        global real *target = y + ((size_t)(row + r / TILE_HEADS) * heads + first_head + r % TILE_HEADS) * HEAD_DIM;
#pragma unroll
        for (int p = 0; p < OWN_PARTS; p++) {
            int own = p * LOCAL + item;
            if (own < PARTS) STOREH(target + own * HEAD_VEC, sums[r][p] / totals[r]);
        }
    }
}
