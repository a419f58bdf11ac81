// Q5_1: value = (fifth bit * 16 + nibble) * scale + minimum. Planes: nibbles, words of fifth bits, pairs of both.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    int bits = ((global const int *)(w + w_1))[run];
    float2 scale = LOAD_SCALES(w + w_2, run);
    int16 fifth_low = ((int16)bits >> INDEX16 & 1) << 4;
    int16 fifth_high = ((int16)bits >> (INDEX16 + 16) & 1) << 4;
    *low = convert_float16(convert_int16(codes & (uchar16)15) | fifth_low) * scale.x + scale.y;
    *high = convert_float16(convert_int16(codes >> (uchar16)4) | fifth_high) * scale.x + scale.y;
}
