// Rows of a weight as numbers: panels of PANEL rows, panels[panel][column][row]; rows beyond the last are zeros.
kernel void unpack_panels(WEIGHT(w), global real *panels, int first, int rows, int runs, int count) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= count) return;
    int panel = i / runs, run = i % runs;
    global real *target = panels + ((size_t)panel * runs + run) * 32 * PANEL;
    for (int r = 0; r < PANEL; r++) {
        int row = panel * PANEL + r;
        float16 part[2];
        part[0] = part[1] = 0.0f;
        if (row < rows) unpack(PASS(w), (size_t)(first + row) * runs + run, &part[0], &part[1]);
        const float *values = (const float *)part;
#pragma unroll
        for (int c = 0; c < 32; c++) STORE(target, c * PANEL + r, values[c]);
    }
}
