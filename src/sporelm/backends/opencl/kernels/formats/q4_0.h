// Q4_0: value = (nibble - 8) * scale. Planes: nibbles, scales.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    float scale = LOAD_SCALE(w + w_1, run);
    *low = convert_float16(convert_int16(codes & (uchar16)15) - 8) * scale;
    *high = convert_float16(convert_int16(codes >> (uchar16)4) - 8) * scale;
}
