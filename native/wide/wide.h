/* What the files of localspec_wide share. The library is a ggml backend device of type ACCEL that makes passes of several
 * rows cheap on CPUs and gives every row the same bits whatever the width of its pass, the tile it falls in or the number
 * of threads. (Different instruction sets may differ from each other in the last bits; a process uses one.)
 *
 *   abi.h, .c    the structs and functions of ggml that we meet, declared for one pinned version and tried out
 *   device.c     registration, what we take
 *   graph.c      running what we took
 *   buffer.c     memory of weights and of results; which weights are packed
 *   weights.c    the packed layout of every type: pack, unpack
 *   grids.h, .c  tables that some types look their values up in
 *   product.c    matrix products: cutting the work, calling the lanes
 *   dots.c       products of matrices that are not packed, row by row with ggml's own arithmetic
 *   attention.c  fused attention: cutting the work, combining blocks
 *   holes.c      rows of it that do not see cells between others: branches of a tree
 *   self_check.c whether rows have the same bits at every width here
 *   lanes*.c     the loops of one instruction set
 *
 * Nothing here allocates on the hot path or knows about Python. */
#ifndef LOCALSPEC_WIDE_INTERNAL_H
#define LOCALSPEC_WIDE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Weight and cache types we know, by ggml's numbers. */
enum wide_type {
    WIDE_F32 = 0, WIDE_F16 = 1, WIDE_Q4_0 = 2, WIDE_Q4_1 = 3, WIDE_Q5_0 = 6, WIDE_Q5_1 = 7, WIDE_Q8_0 = 8, WIDE_Q2_K = 10,
    WIDE_Q3_K = 11, WIDE_Q4_K = 12, WIDE_Q5_K = 13, WIDE_Q6_K = 14, WIDE_IQ2_XXS = 16, WIDE_IQ2_XS = 17, WIDE_IQ3_XXS = 18,
    WIDE_IQ4_NL = 20, WIDE_IQ3_S = 21, WIDE_IQ2_S = 22, WIDE_IQ4_XS = 23, WIDE_BF16 = 30, WIDE_TQ2_0 = 35, WIDE_MXFP4 = 39
};

enum {
    WIDE_TILE = 16,    /* weight rows that lie interleaved in the packed layout */
    WIDE_BLOCK = 32,   /* activations that share a scale */
    WIDE_CELLS = 256   /* cache cells in a block of attention; blocks are combined in order */
};

/* Instruction sets; of those that a CPU has, the best is last. WIDE_I8MM is NEON with products of 8-bit matrices. */
enum wide_isa { WIDE_SCALAR = 1, WIDE_NEON, WIDE_AVX2, WIDE_AVX512, WIDE_I8MM };

/* -- weights.c: packing is a permutation in place, so a packed matrix has exactly as many bytes as before ------------- */

/* Whether a matrix of `rows` rows of `columns` values of this type can be packed: columns a multiple of the type's block,
 * rows of WIDE_TILE; and the type's grid is found, if it has one. */
bool wide_can_pack(int type, int64_t columns, int64_t rows);
size_t wide_row_bytes(int type, int64_t columns); /* 0 of a type that is never packed */
/* Bytes of scratch that packing one tile needs: WIDE_TILE rows. */
size_t wide_pack_scratch(int type, int64_t columns);
/* Pack or unpack the tiles [first, last) of a matrix in place. */
void wide_pack(int type, int64_t columns, void *matrix, int64_t first, int64_t last, void *scratch);
void wide_unpack(int type, int64_t columns, void *matrix, int64_t first, int64_t last, void *scratch);

/* -- product.c --------------------------------------------------------------------------------------------------------- */

/* output[w][r] = sum over c of weights[r][c] * input[w][c]. */
struct wide_product {
    int type;
    int64_t columns, rows, width;
    const void *weights;                  /* packed */
    const float *input; size_t input_stride;   /* floats from one row to the next */
    float *output; size_t output_stride;
    void *scratch;                        /* wide_product_scratch bytes, aligned to 64; holds the prepared input */
};
size_t wide_product_scratch(int type, int64_t columns, int64_t width);
/* Two steps with a barrier between them; every thread of the team calls both. */
void wide_product_prepare(const struct wide_product *p, enum wide_isa isa, int thread, int threads);
void wide_product_run(const struct wide_product *p, enum wide_isa isa, int thread, int threads);

/* -- dots.c ----------------------------------------------------------------------------------------------------------- */

/* For every input i and its matrix of weights: output[i][w][r] = sum over c of weights[i / per_matrix][r][c] * input[i][w][c].
 * Strides are in bytes: from row to row, then to the next of dimensions 2 and 3. Values of a row lie side by side. */
struct wide_dots {
    int64_t columns, rows, width;         /* rows: of a matrix; width: rows of an input */
    int64_t inputs[2], per_matrix[2];     /* in dimensions 2 and 3 */
    const char *weights; size_t weight_at[3];
    const char *input; size_t input_at[3];
    char *output; size_t output_at[3];
    void (*convert)(const float *, void *, int64_t);      /* an input row to what `dot` reads; NULL = it reads float32 */
    size_t converted;                     /* bytes of such a row */
    void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
    void *scratch;                        /* wide_dots_scratch bytes, aligned to 64 */
};
size_t wide_dots_scratch(const struct wide_dots *d);
/* Two steps with a barrier between them; every thread of the team calls both. */
void wide_dots_prepare(const struct wide_dots *d, int thread, int threads);
void wide_dots_run(const struct wide_dots *d, int thread, int threads);

/* -- attention.c ------------------------------------------------------------------------------------------------------- */

/* ggml's FLASH_ATTN_EXT. Strides are in bytes. Streams are ne[3] of q; k and v may have fewer (ne3 of q divides). */
struct wide_attention {
    int64_t head_size, value_size;        /* of q and k; of v and out */
    int64_t heads, kv_heads, rows, cells, streams, kv_streams;
    const char *q; size_t q_row, q_head, q_stream;          /* float32 */
    int k_type; const char *k; size_t k_cell, k_head, k_stream;   /* WIDE_F16, WIDE_BF16, WIDE_Q8_0 or WIDE_F32 */
    int v_type; const char *v; size_t v_cell, v_head, v_stream;
    const char *mask; size_t mask_row, mask_head, mask_stream;    /* float16, or NULL; heads and streams repeat */
    int64_t mask_heads, mask_streams;
    const float *sinks;                   /* one per head, or NULL */
    float scale, max_bias, soft_cap;      /* 0 = none for the last two */
    float *out;                           /* [streams][rows][heads][value_size] */
    void *scratch;                        /* wide_attention_scratch bytes, aligned to 64 */
};
/* Whether the shapes and types are ones we know; `threads` as in the scratch. */
bool wide_can_attend(const struct wide_attention *a);
size_t wide_attention_scratch(const struct wide_attention *a, int threads);
/* Two steps with a barrier between them; every thread of the team calls both. */
void wide_attention_run(const struct wide_attention *a, enum wide_isa isa, int thread, int threads);
void wide_attention_combine(const struct wide_attention *a, enum wide_isa isa, int thread, int threads);

/* -- cpu.c ------------------------------------------------------------------------------------------------------------- */

enum wide_isa wide_best_isa(void);        /* of this CPU and build; never changes while the process lives */
bool wide_has_isa(enum wide_isa isa);

#endif
