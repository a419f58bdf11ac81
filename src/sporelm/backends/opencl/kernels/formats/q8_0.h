// Q8_0: value = int8 * scale. Planes: integers, scales.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    global const char *integers = (global const char *)w + run * 32;
    float scale = LOAD_SCALE(w + w_1, run);
    *low = convert_float16(vload16(0, integers)) * scale;
    *high = convert_float16(vload16(1, integers)) * scale;
}
