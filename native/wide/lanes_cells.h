/* Cells of the cache as float32 panels of lanes_attention.c, compiled into it once per instruction set. */
#ifndef LOCALSPEC_WIDE_LANES_CELLS_H
#define LOCALSPEC_WIDE_LANES_CELLS_H

#include "lanes_attention.h"
#include "lanes_vector.h"

/* Values [at, at + 16) of a cell of the cache. Every one of them is exact in float32. */
LSW_INLINE v16 cell_values(int type, const char *cell, int64_t at) {
    if (type == WIDE_F16) {
        return v16_half(cell + 2 * at);
    }
    if (type == WIDE_BF16) {
        return v16_bf16(cell + 2 * at);
    }
    if (type == WIDE_F32) {
        return v16_load(cell + 4 * at);
    }
    const char *block = cell + at / 32 * 34; /* Q8_0: a float16 scale and 32 signed bytes */
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    return v16_mul(v16_splat(v16_one_half(scale)), v16_int8(block + 2 + at % 32));
}

/* -- keys: panel[dim][cell] --------------------------------------------------------------------------------------------- */

LSW_INLINE void keys_as(int type, const char *cells, size_t stride, int64_t readable, int64_t at, int64_t dims,
                        const uint16_t *live, float *panel) {
    for (int64_t c = 0; c < WIDE_PANEL; c += 16) {
        uint32_t any = 0;
        for (int i = 0; i < 16; i++) {
            any |= live[c + i];
        }
        for (int64_t d = 0; d < dims; d += 16) {
            v16 x[16];
            for (int i = 0; i < 16; i++) { /* a cell past the end is masked: any readable one does */
                const int64_t cell = c + i < readable ? c + i : readable - 1;
                x[i] = any ? cell_values(type, cells + (size_t)cell * stride, at + d) : v16_splat(0.0f);
            }
            v16_transpose(x);
            for (int i = 0; i < 16; i++) {
                v16_store(panel + (d + i) * WIDE_PANEL + c, x[i]);
            }
        }
    }
}

static void keys(int type, const char *cells, size_t stride, int64_t readable, int64_t at, int64_t dims,
                 const uint16_t *live, float *panel) {
    switch (type) {
    case WIDE_F16: keys_as(WIDE_F16, cells, stride, readable, at, dims, live, panel); break;
    case WIDE_BF16: keys_as(WIDE_BF16, cells, stride, readable, at, dims, live, panel); break;
    case WIDE_F32: keys_as(WIDE_F32, cells, stride, readable, at, dims, live, panel); break;
    default: keys_as(WIDE_Q8_0, cells, stride, readable, at, dims, live, panel); break;
    }
}

/* -- values: panel[cell][dim] ------------------------------------------------------------------------------------------- */

LSW_INLINE void values_as(int type, const char *cells, size_t stride, int64_t first, int64_t last, int64_t at,
                          int64_t dims, const uint16_t *live, float *panel) {
    for (int64_t c = first; c < last; c++) {
        float *to = panel + (c - first) * WIDE_PANEL;
        for (int64_t d = 0; d < dims; d += 16) {
            v16_store(to + d, live[c] ? cell_values(type, cells + (size_t)c * stride, at + d) : v16_splat(0.0f));
        }
    }
}

static void values(int type, const char *cells, size_t stride, int64_t first, int64_t last, int64_t at, int64_t dims,
                   const uint16_t *live, float *panel) {
    switch (type) {
    case WIDE_F16: values_as(WIDE_F16, cells, stride, first, last, at, dims, live, panel); break;
    case WIDE_BF16: values_as(WIDE_BF16, cells, stride, first, last, at, dims, live, panel); break;
    case WIDE_F32: values_as(WIDE_F32, cells, stride, first, last, at, dims, live, panel); break;
    default: values_as(WIDE_Q8_0, cells, stride, first, last, at, dims, live, panel); break;
    }
}

#endif
