// Q4_1: value = nibble * scale + minimum. Planes: nibbles, pairs of scale and minimum.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    float2 scale = LOAD_SCALES(w + w_1, run);
    *low = convert_float16(codes & (uchar16)15) * scale.x + scale.y;
    *high = convert_float16(codes >> (uchar16)4) * scale.x + scale.y;
}
