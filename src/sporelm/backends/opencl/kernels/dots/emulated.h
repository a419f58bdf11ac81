// The functions of cl_khr_integer_dot_product in plain C, for tests of dots/packed.h on devices without the extension.
static inline int sum_products(int4 v) { return (v.x + v.y) + (v.z + v.w); }
static inline int dot_4x8packed_us_int(uint a, uint b) {
    return sum_products(convert_int4(as_uchar4(a)) * convert_int4(as_char4(b)));
}
static inline int dot_4x8packed_ss_int(uint a, uint b) {
    return sum_products(convert_int4(as_char4(a)) * convert_int4(as_char4(b)));
}
