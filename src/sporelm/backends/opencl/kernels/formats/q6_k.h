// Q6_K: value = (pair * 16 + nibble - 32) * (scale * group scale), in groups of 16, the halves of a run.
// Planes: nibbles, upper pairs of bits, group scales, for each 8 runs a scale.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    uchar8 pairs = vload8(run, w + w_1);
    char2 group = vload2(run, (global const char *)(w + w_2));
    float block = LOAD_SCALE(w + w_3, run / 8);
    int8 wide = convert_int8(pairs);
    int16 upper_low = (int16)((wide & 3) << 4, (wide >> 2 & 3) << 4);
    int16 upper_high = (int16)((wide >> 4 & 3) << 4, (wide >> 6) << 4);
    *low = convert_float16((convert_int16(codes & (uchar16)15) | upper_low) - 32) * (block * group.x);
    *high = convert_float16((convert_int16(codes >> (uchar16)4) | upper_high) - 32) * (block * group.y);
}
