// The table's row of each id: NaN for an id outside the table, or its first row (FILLS). A part of a larger table has
// the rows of ids from `first` on, and gives zeros outside (IS_PART).
kernel void embed_tokens(global const int *ids, WEIGHT(w), global real *y, int tokens, int vocab, int width,
                         int first) {
    RETURN_IF_DUMMY_LAUNCH
    int runs = (width + 31) / 32;
    int i = get_global_id(0);
    if (i >= tokens * runs) return;
    int token = i / runs, run = i % runs;
    int id = ids[token] - first;
    int known = id >= 0 && id < vocab;
    float16 part[2];
    unpack(PASS(w), (size_t)(known ? id : 0) * runs + run, &part[0], &part[1]);
#ifdef IS_PART
    if (!known) part[0] = part[1] = (float16)0.0f;
#elif !defined(FILLS)
    if (!known) part[0] = part[1] = (float16)NAN;
#endif
    y += (size_t)token * width + run * 32;
    int left = width - run * 32;
    if (left >= 32) {
        STORE16(y, part[0]);
        STORE16(y + 16, part[1]);
    } else {
        const float *values = (const float *)part;
        for (int c = 0; c < left; c++) STORE(y, c, values[c]);
    }
}
