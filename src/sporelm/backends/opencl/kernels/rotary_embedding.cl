// Rotary embedding of rows of heads: out of place (y), or into a cache (STORE_KV), where values are stored as well.
// ROTARY numbers of a head are rotated in pairs (STYLE_HALF, STYLE_ADJACENT, STYLE_HALVES); `table` has the cosines and
// then the sines of each position. STREAMS: a row has so many positions, and pair i uses that of streams[i].

static inline int2 pair_of(int i) {
#if defined(STYLE_HALF)
    return (int2)(i, i + ROTARY / 2);
#elif defined(STYLE_ADJACENT)
    return (int2)(2 * i, 2 * i + 1);
#else
    int first = i + i / (ROTARY / 4) * (ROTARY / 4);
    return (int2)(first, first + ROTARY / 4);
#endif
}

static inline void rotate_head(global const real *x, float *head, global const int *positions,
                               global const float *table, global const int *streams) {
    for (int c = 0; c < HEAD_DIM; c++) head[c] = LOAD(x, c);
    for (int i = 0; i < ROTARY / 2; i++) {
#ifdef STREAMS
        global const float *angles = table + (size_t)positions[streams[i]] * ROTARY;
#else
        global const float *angles = table + (size_t)positions[0] * ROTARY;
#endif
        int2 pair = pair_of(i);
        float cosine = angles[i], sine = angles[ROTARY / 2 + i];
        float left = head[pair.x], right = head[pair.y];
        head[pair.x] = left * cosine - right * sine;
        head[pair.y] = right * cosine + left * sine;
    }
}

#ifdef STREAMS
#define POSITIONS(token) (positions + (size_t)(token) * STREAMS)
#else
#define POSITIONS(token) (positions + (token))
#endif

#ifndef STORE_KV
kernel void rotate_heads(global const real *x, global const int *positions, global const float *table,
                         global const int *streams, global real *y, int tokens, int heads) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= tokens * heads) return;
    float head[HEAD_DIM];
    rotate_head(x + (size_t)i * HEAD_DIM, head, POSITIONS(i / heads), table, streams);
    for (int c = 0; c < HEAD_DIM; c++) STORE(y + (size_t)i * HEAD_DIM, c, head[c]);
}
#else
// A row has the heads of the queries, then those of the keys, then those of the values.
kernel void rotate_and_store(global const real *q, global const real *k, global const real *v,
                             global const int *positions, global const float *table, global const int *streams,
                             global const int *slots, global page_t *pages, global real *y, int tokens, int q_heads,
                             int kv_heads) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    int heads = q_heads + 2 * kv_heads;
    if (i >= tokens * heads) return;
    int token = i / heads, number = i % heads;
    float head[HEAD_DIM];
    if (number < q_heads) {
        size_t place = ((size_t)token * q_heads + number) * HEAD_DIM;
        rotate_head(q + place, head, POSITIONS(token), table, streams);
        for (int c = 0; c < HEAD_DIM; c++) STORE(y + place, c, head[c]);
        return;
    }
    int is_value = number >= q_heads + kv_heads;
    int own = number - q_heads - is_value * kv_heads;
    size_t place = ((size_t)token * kv_heads + own) * HEAD_DIM;
    if (is_value)
        for (int c = 0; c < HEAD_DIM; c++) head[c] = LOAD(v + place, c);
    else
        rotate_head(k + place, head, POSITIONS(token), table, streams);
    int slot = slots[token];
    store_row(PAGE_ROW(pages, slot / PAGE, is_value, own, slot % PAGE, kv_heads), head);
}
#endif
