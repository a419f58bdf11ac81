// Reads memory as fast as the device can: each item adds up COUNT vectors of 16 numbers, one group after the other.
kernel void sum_stream(global const float *x, global float *y, int items) {
    RETURN_IF_DUMMY_LAUNCH
    int i = get_global_id(0);
    float16 sum = 0.0f;
    for (int c = 0; c < COUNT; c++) {
        size_t place = PER_ITEM ? (size_t)i * COUNT + c : (size_t)c * items + i;
        sum += vload16(place, x);
    }
    y[i] = sum16(sum);
}
