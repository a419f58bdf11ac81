// Pairs of a token and a slot sorted by their expert, in tiles of TILE pairs of one expert. One group of one item.
// offsets[EXPERTS + 1]: the first place of each expert's pairs; order[place]: the pair; tiles[tile]: its expert and its
// first place. num_tiles[0]: how many there are.
kernel void sort_pairs(global const int *ids, global int *offsets, global int *order, global int2 *tiles,
                       global int *num_tiles, int pairs, int experts) {
    RETURN_IF_DUMMY_LAUNCH
    if (get_global_id(0)) return;
    for (int e = 0; e <= experts; e++) offsets[e] = 0;
    for (int i = 0; i < pairs; i++) offsets[ids[i] + 1]++;
    int count = 0;
    for (int e = 0; e < experts; e++) {
        for (int place = 0; place < offsets[e + 1]; place += TILE) tiles[count++] = (int2)(e, offsets[e] + place);
        offsets[e + 1] += offsets[e];
    }
    num_tiles[0] = count;
    for (int i = pairs - 1; i >= 0; i--) order[--offsets[ids[i] + 1]] = i;
    // Now offsets[e + 1] is where the pairs of e begin: its end is that of the next expert.
}
