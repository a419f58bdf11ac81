// Q4_0: value = (nibble - 8) * scale. Planes: nibbles, scales.
inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    float scale = vload_half(run, (global const half *)(w + w_1));
    *low = convert_float16(convert_int16(codes & (uchar16)15) - 8) * scale;
    *high = convert_float16(convert_int16(codes >> (uchar16)4) - 8) * scale;
}
