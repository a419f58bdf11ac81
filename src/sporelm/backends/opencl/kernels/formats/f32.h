// F32: plain numbers.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    global const float *values = (global const float *)w + run * 32;
    *low = vload16(0, values);
    *high = vload16(1, values);
}
