// Caches of keys and values: pages[page][half][head][64][ROW_UNITS], half 0 has keys. A slot is page * 64 + offset.
// HEAD_DIM, and HEAD_VEC, the numbers of a head that are loaded at once (2, 4, 8 or 16; it divides HEAD_DIM).
#define floath JOIN(float, HEAD_VEC)
#define vloadh JOIN(vload, HEAD_VEC)
#define half_loadh JOIN(vload_half, HEAD_VEC)
#define sumh JOIN(sum, HEAD_VEC)
#define PAGE 64
#define PAGE_ROW(pages, page, half_index, head, offset, heads) \
    ((pages) + ((((size_t)(page) * 2 + (half_index)) * (heads) + (head)) * PAGE + (offset)) * ROW_UNITS)
#ifdef NARROW
#define LOADH(p) half_loadh(0, p)
#define STOREH(p, v) JOIN(JOIN(vstore_half, HEAD_VEC), _rte)(v, 0, p)
#else
#define LOADH(p) vloadh(0, p)
#define STOREH(p, v) JOIN(vstore, HEAD_VEC)(v, 0, p)
#endif
