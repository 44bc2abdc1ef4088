/* Whether our kernels give a row the same bits at every width, in this build and on this CPU: tried on random numbers.
 * One-row passes on one thread are compared with wider ones on several. */
#include "localspec_wide.h"
#include "wide.h"

#include <stdlib.h>
#include <string.h>

enum { AGREES = 0, NOT_TAKEN = 1, NO_MEMORY = 3, DIFFERS = 4 };
enum { ROWS = 33, MATRIX_ROWS = 1024, MATRIX_COLUMNS = 512 };  /* more weights than a panel of product.c holds */
enum { HEADS = 4, KV_HEADS = 2, CELLS = 3 * WIDE_CELLS, SEEN = CELLS - ROWS };

static const int widths[] = {2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, ROWS};
enum { WIDTHS = sizeof widths / sizeof *widths };

static uint64_t next_random(uint64_t *state) { /* Marsaglia, Xorshift RNGs, 2003 */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void fill_floats(float *x, size_t count, uint64_t *state) {
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(int32_t)next_random(state) * (1.0f / 2147483648.0f);
    }
}

/* Any bits, but no infinity, NaN or large number where they are read as float16 or bfloat16: |x| < 2. */
enum { SMALL_HALVES = 0xbfff, SMALL_EXPONENTS = 0x7f7f }; /* the latter where bytes are exponents */
static void fill(void *memory, size_t bytes, int bits, uint64_t *state) {
    uint16_t *at = memory;
    for (size_t i = 0; i < bytes / sizeof *at; i++) {
        at[i] = (uint16_t)(next_random(state) & (uint64_t)bits);
    }
}

/* -- products -------------------------------------------------------------------------------------------------------- */

static int32_t products_agree(int32_t type, const void *weights, const float *input, float *one, float *several,
                              int32_t threads) {
    const int64_t columns = MATRIX_COLUMNS, rows = MATRIX_ROWS;
    for (int row = 0; row < ROWS; row++) {
        const int32_t failed =
            lsw_product(type, columns, rows, 1, weights, input + row * columns, one + row * rows, 0, 1);
        if (failed) {
            return failed;
        }
    }
    for (int i = 0; i < WIDTHS; i++) {
        const int first = (ROWS - widths[i]) / 2;  /* so that a row has another place at each width */
        const int32_t failed =
            lsw_product(type, columns, rows, widths[i], weights, input + first * columns, several, 0, threads);
        if (failed) {
            return failed;
        }
        if (memcmp(several, one + first * rows, sizeof(float) * (size_t)(widths[i] * rows))) {
            return DIFFERS;
        }
    }
    return AGREES;
}

int32_t lsw_check_product(int32_t type, int32_t threads) {
    if (!wide_can_pack(type, MATRIX_COLUMNS, MATRIX_ROWS) || threads < 1) {
        return NOT_TAKEN;
    }
    const size_t bytes = MATRIX_ROWS * wide_row_bytes(type, MATRIX_COLUMNS);
    const size_t outputs = (size_t)ROWS * MATRIX_ROWS, inputs = (size_t)ROWS * MATRIX_COLUMNS;
    void *weights = malloc(bytes);
    float *numbers = malloc((inputs + 2 * outputs) * sizeof *numbers);
    int32_t found = NO_MEMORY;
    if (weights && numbers) {
        uint64_t state = 1;
        fill(weights, bytes, type == WIDE_MXFP4 ? SMALL_EXPONENTS : SMALL_HALVES, &state); /* as if packed */
        fill_floats(numbers, inputs, &state);
        found = products_agree(type, weights, numbers, numbers + inputs, numbers + inputs + outputs, threads);
    }
    free(weights);
    free(numbers);
    return found;
}

/* -- attention ------------------------------------------------------------------------------------------------------- */

static size_t element_bytes(int type, int64_t count) {
    return type == WIDE_F32 ? 4 * (size_t)count : type == WIDE_Q8_0 ? (size_t)(count / 32 * 34) : 2 * (size_t)count;
}

/* Rows [first, first + count) of `all`. */
static struct wide_attention some_rows(const struct wide_attention *all, int first, int count, float *out) {
    struct wide_attention a = *all;
    a.rows = count;
    a.q += (size_t)first * a.q_row;
    a.mask += (size_t)first * a.mask_row;
    a.out = out;
    return a;
}

static int32_t attentions_agree(const struct wide_attention *all, float *one, float *several, int32_t threads) {
    const size_t row = (size_t)(all->heads * all->value_size);
    for (int i = 0; i < ROWS; i++) {
        const struct wide_attention a = some_rows(all, i, 1, one + (size_t)i * row);
        const int32_t failed = lsw_attention(&a, 0, 1);
        if (failed) {
            return failed;
        }
    }
    for (int i = 0; i < WIDTHS; i++) {
        const int first = (ROWS - widths[i]) / 2;
        const struct wide_attention a = some_rows(all, first, widths[i], several);
        const int32_t failed = lsw_attention(&a, 0, threads);
        if (failed) {
            return failed;
        }
        if (memcmp(several, one + (size_t)first * row, sizeof(float) * row * (size_t)widths[i])) {
            return DIFFERS;
        }
    }
    return AGREES;
}

int32_t lsw_check_attention(int32_t type, int64_t head_size, int32_t threads) {
    if (head_size < 16 || head_size > 4096 || head_size % (type == WIDE_Q8_0 ? 32 : 16) || threads < 1) {
        return NOT_TAKEN;
    }
    const size_t cell = KV_HEADS * element_bytes(type, head_size), cache = CELLS * cell;
    const size_t row = (size_t)(HEADS * head_size), numbers = 3 * ROWS * row, masks = (size_t)ROWS * CELLS;
    float *queries = malloc(numbers * sizeof *queries);
    char *keys = malloc(2 * cache);
    uint16_t *mask = malloc(masks * sizeof *mask);
    int32_t found = NO_MEMORY;
    if (queries && keys && mask) {
        uint64_t state = 1;
        fill_floats(queries, ROWS * row, &state);
        fill(keys, 2 * cache, SMALL_HALVES, &state);
        for (size_t i = 0; i < masks; i++) {
            mask[i] = i % CELLS <= SEEN + i / CELLS ? 0 : 0xfc00; /* minus infinity */
        }
        struct wide_attention a = {
            .head_size = head_size, .value_size = head_size, .heads = HEADS, .kv_heads = KV_HEADS, .rows = ROWS,
            .cells = CELLS, .streams = 1, .kv_streams = 1, .q = (const char *)queries, .q_row = row * sizeof *queries,
            .q_head = (size_t)head_size * sizeof *queries, .k_type = type, .k = keys, .k_cell = cell,
            .k_head = cell / KV_HEADS, .v_type = type, .v = keys + cache, .v_cell = cell, .v_head = cell / KV_HEADS,
            .mask = (const char *)mask, .mask_row = CELLS * sizeof *mask, .mask_heads = 1, .mask_streams = 1,
            .scale = 0.125f};
        found = attentions_agree(&a, queries + ROWS * row, queries + 2 * ROWS * row, threads);
    }
    free(queries);
    free(keys);
    free(mask);
    return found;
}
