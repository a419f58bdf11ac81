// Rows rounded to int8, group by group (rounding.h). An item has one group.
kernel void quantize_groups(global const real *x, global real *y, int groups, ulong numbers) {
    RETURN_IF_DUMMY_LAUNCH
    int group = get_global_id(0);
    if (group >= groups) return;
    round_group(x + (size_t)group * GROUP, y, (size_t)group * GROUP, numbers);
}
