// Rows and columns by their indices: y[r][c] = x[ROW][COLUMN].
kernel void select_numbers(global const SOURCE *x, global const int *indices, global SOURCE *y, int rows, int width,
                           int source_width) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= rows * width) return;
    int row = i / width, column = i % width;
#ifdef BY_COLUMN
    y[i] = x[(size_t)row * source_width + indices[column]];
#else
    y[i] = x[(size_t)indices[row] * source_width + column];
#endif
}
