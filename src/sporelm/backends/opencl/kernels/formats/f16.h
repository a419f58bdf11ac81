// F16: halves.
static inline void unpack(WEIGHT(w), size_t run, float16 *low, float16 *high) {
    global const half *values = (global const half *)w + run * 32;
    *low = vload_half16(0, values);
    *high = vload_half16(1, values);
}
