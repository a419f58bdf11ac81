// Q4_K: value = nibble * (scale * group scale) - minimum * group minimum, in groups of one run.
// Planes: nibbles, bytes of group scale and group minimum, for each 8 runs a pair of scale and minimum.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    uchar16 codes = vload16(run, w);
    uchar2 group = vload2(run, w + w_1);
    float2 block = LOAD_SCALES(w + w_2, run / 8);
    float step = block.x * group.x;
    float drop = block.y * group.y;
    *low = convert_float16(codes & (uchar16)15) * step - drop;
    *high = convert_float16(codes >> (uchar16)4) * step - drop;
}
