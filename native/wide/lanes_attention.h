/* The inner loops of fused attention: one block of WIDE_CELLS cells of one kv head for some rows and all heads that share
 * it, and how blocks are put together. attention.c says what they compute and in which order. */
#ifndef LOCALSPEC_WIDE_LANES_ATTENTION_H
#define LOCALSPEC_WIDE_LANES_ATTENTION_H

#include "wide.h"

enum {
    WIDE_PANEL = 64,                    /* dims or cells multiplied at once: a panel of 64 x 64 floats */
    WIDE_WEIGHTS = WIDE_CELLS + 16,     /* floats from one query's weights to the next; no power of two */
    WIDE_PART_HEAD = 16,                /* a part: maximum, sum, padding, then value_size weighted sums */
    WIDE_SMALLEST = 16,                 /* head sizes are multiples of this */
    WIDE_LARGEST = 576
};

/* A query is a pair (row, head of the group); query i of an item is row i / group, head i % group. */
struct wide_attention_item {
    const struct wide_attention *a;
    int64_t stream, kv_head, first_row, rows, block;
    float *queries;   /* [head_size / 64, rounded up][queries][64] */
    float *weights;   /* [queries][WIDE_WEIGHTS]: scores, then their exponentials */
    float *panel;     /* [64][64] */
    uint16_t *masks;  /* [queries][WIDE_CELLS] float16 */
    const char *ahead[2]; /* keys and values that the thread reads later, fetched into the caches meanwhile */
    size_t ahead_bytes[2];
    float *parts;     /* [queries][WIDE_PART_HEAD + value_size] */
};

struct wide_attention_lanes {
    /* Fills `parts`; the maximum of a query whose cells are all masked is -inf and nothing else of it is set. */
    void (*block)(const struct wide_attention_item *item);
    /* Puts the next block's part onto what came before, which starts with the maximum -inf. */
    void (*merge)(float *state, const float *part, int64_t value_size);
    /* The row of output: divides by the sum, to which the sink (or NULL) adds. */
    void (*finish)(const float *state, const float *sink, int64_t value_size, float *out);
};

extern const struct wide_attention_lanes wide_attention_scalar, wide_attention_neon, wide_attention_avx2,
    wide_attention_avx512;

#endif
