// BF16: the upper halves of floats.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    global const ushort *values = (global const ushort *)w + run * 32;
    *low = as_float16(convert_uint16(vload16(0, values)) << 16u);
    *high = as_float16(convert_uint16(vload16(1, values)) << 16u);
}
