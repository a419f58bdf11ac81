// Q5_K: value = (fifth bit * 16 + nibble) * (scale * group scale) - minimum * group minimum, in groups of one run.
// Planes: nibbles, words of fifth bits, bytes of group scale and group minimum, for each 8 runs a pair of both.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    int bits = ((global const int *)(w + w_1))[run];
    uchar2 group = vload2(run, w + w_2);
    float2 block = LOAD_SCALES(w + w_3, run / 8);
    float step = block.x * group.x;
    float drop = block.y * group.y;
    int16 fifth_low = ((int16)bits >> INDEX16 & 1) << 4;
    int16 fifth_high = ((int16)bits >> (INDEX16 + 16) & 1) << 4;
    *low = convert_float16(convert_int16(codes & (uchar16)15) | fifth_low) * step - drop;
    *high = convert_float16(convert_int16(codes >> (uchar16)4) | fifth_high) * step - drop;
}
