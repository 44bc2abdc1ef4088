/* Between product.c and lanes_product.c, which is compiled once per instruction set. Weights: see weights.c. */
#ifndef LOCALSPEC_WIDE_LANES_H
#define LOCALSPEC_WIDE_LANES_H

#include "wide.h"

/* WIDE_BLOCK activations of an input row, prepared: about scale * quants. The other numbers undo what weights stored without
 * a sign add too much, or go with minima:
 *   Q6_K, Q3_K, Q2_K     start, second = -offset * (sum of the first, of the last 16 quants); offset 1 for the last
 *   Q4_K, Q5_K           total = -(sum of the quants), as a float
 *   Q4_1, Q5_1           total = sum of the quants, as a float
 *   the others           start = -offset * (sum of the quants).
 * Where rows go in pairs (`together` below), the quants of the two blocks alternate: 8 of the first row, 8 of the second. */
struct wide_block {
    int8_t quants[WIDE_BLOCK];
    float scale;
    int32_t start, second;
    float total;
};

/* BF16 weights times activations rounded to BF16; `input` holds pairs of them, for columns 2k and 2k + 1, in 32 bits. */
enum { WIDE_BF16_PAIRS = -WIDE_BF16 };

/* A tile of weights and a group of prepared input rows: `input` holds, for every block of columns, one wide_block of every
 * row of the group (F16, BF16: for every column, one number of every row). Writes `count` rows of 16 outputs. */
struct wide_tile {
    int64_t columns;
    int count;                    /* input rows */
    const uint8_t *weights;
    const void *input;
    float *output;
    size_t output_stride;
};

struct wide_product_lanes {
    int most_blocks, most_floats; /* input rows in a group: of quantised weights, of F16 and BF16 */
    int together;                 /* input rows of quantised weights whose products are made in one go: 1 or 2 */
    bool bf16_pairs;              /* whether it has the type WIDE_BF16_PAIRS, for CPUs with AVX512_BF16 */
    void (*quantise)(int type, const float *x, struct wide_block *out); /* one block of 32 floats */
    void (*tile)(int type, const struct wide_tile *t);
};

extern const struct wide_product_lanes wide_product_scalar, wide_product_neon, wide_product_i8mm, wide_product_avx2,
    wide_product_avx2_vnni, wide_product_avx512;

/* Where the blocks of a packed tile begin, after its halves (weights.c). */
size_t wide_tile_records(int type, int64_t columns);

#endif
