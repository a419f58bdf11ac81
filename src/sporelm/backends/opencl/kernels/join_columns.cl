// Rows of x as columns `first` and following of y.
kernel void copy_columns(global const SOURCE *x, global SOURCE *y, int rows, int width, int target_width, int first) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    if (i >= rows * width) return;
    y[(size_t)(i / width) * target_width + first + i % width] = x[i];
}
