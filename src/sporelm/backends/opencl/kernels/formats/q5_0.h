// Q5_0: value = (fifth bit * 16 + nibble - 16) * scale. Planes: nibbles, words of fifth bits, scales.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    int bits = ((global const int *)(w + w_1))[run];
    float scale = LOAD_SCALE(w + w_2, run);
    int16 fifth_low = ((int16)bits >> INDEX16 & 1) << 4;
    int16 fifth_high = ((int16)bits >> (INDEX16 + 16) & 1) << 4;
    *low = convert_float16((convert_int16(codes & (uchar16)15) | fifth_low) - 16) * scale;
    *high = convert_float16((convert_int16(codes >> (uchar16)4) | fifth_high) - 16) * scale;
}
