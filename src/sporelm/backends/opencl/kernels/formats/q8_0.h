// Q8_0: value = int8 * scale. Planes: integers, scales.
inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    global const char *integers = (global const char *)w + run * 32;
    float scale = vload_half(run, (global const half *)(w + w_1));
    *low = convert_float16(vload16(0, integers)) * scale;
    *high = convert_float16(vload16(1, integers)) * scale;
}
