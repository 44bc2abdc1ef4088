/* Matrix products: preparing the input rows and cutting the work. Input rows go in groups, as many as the kernels of the
 * instruction set take at once; the prepared input of a group lies block by block, its rows side by side. */
#include "lanes.h"

#include <string.h>

enum { PANEL_BYTES = 384 * 1024 }; /* packed weights that stay in a core's cache while all input rows pass */

static const struct wide_product_lanes *lanes_of(enum wide_isa isa) {
    switch (isa) {
#if defined(LSW_HAVE_AVX512)
    case WIDE_AVX512: return &wide_product_avx512;
#endif
#if defined(LSW_HAVE_AVX2)
    case WIDE_AVX2:
#if defined(LSW_HAVE_AVX2_VNNI)
        __builtin_cpu_init();
        return __builtin_cpu_supports("avxvnni") ? &wide_product_avx2_vnni : &wide_product_avx2;
#else
        return &wide_product_avx2;
#endif
#endif
#if defined(LSW_HAVE_NEON)
    case WIDE_NEON: return &wide_product_neon;
#endif
#if defined(LSW_HAVE_I8MM)
    case WIDE_I8MM: return &wide_product_i8mm;
#endif
    default: return &wide_product_scalar;
    }
}

/* The type as the kernels take it. */
static int kernel_type(const struct wide_product_lanes *lanes, int type) {
#if defined(LSW_HAVE_AVX512)
    if (type == WIDE_BF16 && lanes->bf16_pairs) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512bf16") ? WIDE_BF16_PAIRS : type;
    }
#else
    (void)lanes;
#endif
    return type;
}

static bool is_float(int type) { return type == WIDE_F16 || type == WIDE_BF16; }

/* Bytes of one prepared input row, at most. */
static size_t prepared_bytes(int type, int64_t columns) {
    return is_float(type) ? (size_t)columns * sizeof(float) : (size_t)(columns / WIDE_BLOCK) * sizeof(struct wide_block);
}

size_t wide_product_scratch(int type, int64_t columns, int64_t width) {
    return prepared_bytes(type, columns) * (size_t)width;
}

/* Groups of nearly equal size, cut between rows that go together. */
struct groups { int64_t width, count, together; };
/* Rows [first, first + count). */
struct group { int64_t first; int count; };

static struct groups groups_of(const struct wide_product *p, const struct wide_product_lanes *lanes) {
    const bool simple = is_float(p->type);
    const int64_t most = simple ? lanes->most_floats : lanes->most_blocks;
    return (struct groups){p->width, (p->width + most - 1) / most, simple ? 1 : lanes->together};
}

static int64_t group_start(struct groups all, int64_t g) {
    const int64_t units = (all.width + all.together - 1) / all.together, first = units * g / all.count * all.together;
    return first < all.width ? first : all.width;
}

static struct group group_at(struct groups all, int64_t g) {
    const int64_t first = group_start(all, g);
    return (struct group){first, (int)(group_start(all, g + 1) - first)};
}

/* To bfloat16, ties to even; what is no number stays none. */
static uint32_t to_bf16(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    if ((b & 0x7fffffffu) > 0x7f800000u) {
        return b >> 16 | 0x40u;
    }
    return (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
}

static void prepare_floats(const struct wide_product *p, bool pairs, struct group g, int c, int64_t from, int64_t to) {
    const float *x = p->input + (size_t)(g.first + c) * p->input_stride;
    if (pairs) {
        uint32_t *out = (uint32_t *)p->scratch + g.first * (p->columns / 2) + c;
        for (int64_t k = from / 2; k < to / 2; k++) {
            out[k * g.count] = to_bf16(x[2 * k]) | to_bf16(x[2 * k + 1]) << 16;
        }
    } else {
        float *out = (float *)p->scratch + g.first * p->columns + c;
        for (int64_t k = from; k < to; k++) {
            out[k * g.count] = x[k];
        }
    }
}

/* The quants of a pair of rows, 8 of the one and 8 of the other in turn. */
static void alternate(struct wide_block pair[2]) {
    int8_t apart[2][WIDE_BLOCK];
    for (int r = 0; r < 2; r++) {
        memcpy(apart[r], pair[r].quants, WIDE_BLOCK);
    }
    for (int i = 0; i < WIDE_BLOCK / 4; i++) {
        memcpy(pair[i / 4].quants + 8 * (i % 4), apart[i % 2] + 8 * (i / 2), 8);
    }
}

static void prepare_blocks(const struct wide_product *p, const struct wide_product_lanes *lanes, struct group g, int c,
                           int64_t from, int64_t to) {
    const float *x = p->input + (size_t)(g.first + c) * p->input_stride;
    struct wide_block *out = (struct wide_block *)p->scratch + g.first * (p->columns / WIDE_BLOCK) + c;
    for (int64_t b = from / WIDE_BLOCK; b < to / WIDE_BLOCK; b++) {
        lanes->quantise(p->type, x + b * WIDE_BLOCK, out + b * g.count);
        if (lanes->together == 2 && c % 2) {
            alternate(out + b * g.count - 1);
        }
    }
}

/* A thread takes the same columns of every row, so that one long row is shared out too. */
void wide_product_prepare(const struct wide_product *p, enum wide_isa isa, int thread, int threads) {
    const struct wide_product_lanes *lanes = lanes_of(isa);
    const bool simple = is_float(p->type);
    const int64_t unit = simple ? 2 : WIDE_BLOCK, units = p->columns / unit;
    const int64_t from = units * thread / threads * unit, to = units * (thread + 1) / threads * unit;
    const struct groups groups = groups_of(p, lanes);
    for (int64_t i = 0; i < groups.count; i++) {
        const struct group g = group_at(groups, i);
        for (int c = 0; c < g.count; c++) {
            if (simple) {
                prepare_floats(p, kernel_type(lanes, p->type) == WIDE_BF16_PAIRS, g, c, from, to);
            } else {
                prepare_blocks(p, lanes, g, c, from, to);
            }
        }
    }
}

/* A thread takes a run of tiles, in panels that fit its cache; every group of input rows passes over a panel. */
void wide_product_run(const struct wide_product *p, enum wide_isa isa, int thread, int threads) {
    const struct wide_product_lanes *lanes = lanes_of(isa);
    const int type = kernel_type(lanes, p->type);
    const size_t row = prepared_bytes(p->type, p->columns) / (type == WIDE_BF16_PAIRS ? 2 : 1);
    const size_t tile_bytes = WIDE_TILE * wide_row_bytes(p->type, p->columns);
    const int64_t tiles = p->rows / WIDE_TILE, last = tiles * (thread + 1) / threads;
    const int64_t panel = (int64_t)(PANEL_BYTES / tile_bytes) + 1;
    const struct groups groups = groups_of(p, lanes);
    for (int64_t first = tiles * thread / threads; first < last; first += panel) {
        const int64_t end = last - first < panel ? last : first + panel;
        for (int64_t i = 0; i < groups.count; i++) {
            const struct group g = group_at(groups, i);
            struct wide_tile t = {.columns = p->columns, .count = g.count, .output_stride = p->output_stride};
            t.input = (const char *)p->scratch + (size_t)g.first * row;
            for (int64_t at = first; at < end; at++) {
                t.weights = (const uint8_t *)p->weights + (size_t)at * tile_bytes;
                t.output = p->output + (size_t)g.first * p->output_stride + at * WIDE_TILE;
                lanes->tile(type, &t);
            }
        }
    }
}
