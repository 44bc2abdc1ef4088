/* The loops of fused attention, compiled once per instruction set. All sets give the same bits: every multiply-add is one
 * rounding and the order of every sum is that of attention.c. */
#include "lanes_attention.h"

#include "lanes_cells.h"
#include "lanes_vector.h"

#if defined(LSW_BUILD_AVX512)
#define LANES wide_attention_avx512
#elif defined(LSW_BUILD_AVX2)
#define LANES wide_attention_avx2
#elif defined(LSW_BUILD_NEON)
#define LANES wide_attention_neon
#else
#define LANES wide_attention_scalar
#endif

#if defined(LSW_BUILD_AVX512) || defined(LSW_BUILD_AVX2) || defined(LSW_BUILD_NEON)
#define PER_SHAPE LSW_INLINE /* a copy of the code for every shape, its numbers of registers constant */
#else
#define PER_SHAPE static     /* one for all: copies of loops over sixteen lanes would take minutes to compile */
#endif
#if defined(LSW_BUILD_AVX512)
enum { STEP = 4 }; /* vectors of columns in registers at once; with TILE rows they fill the register file */
#else
enum { STEP = 1 };
#endif
enum { TILE = 6, MASKED = 0xfc00, PANELS = WIDE_CELLS / WIDE_PANEL, VECTORS = WIDE_PANEL / 16 };

/* What a tile of c starts from: SET and ADD from nothing, CONTINUE from c; ADD adds the finished sums to c. */
enum start { SET, ADD, CONTINUE };

#if !defined(LSW_BUILD_AVX512) && !defined(LSW_BUILD_AVX2) && !defined(LSW_BUILD_NEON)
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Memory that the thread reads later, fetched into the caches line by line between multiply-adds: in one go it would wait.
 * (gcc takes functions that only prefetch for ones without effect and drops their calls.) */
struct ahead {
    const char *at;
    size_t bytes; /* in `tile` for each k */
};

/* c[i][j] = sum over k of a[i][k] * b[k][j], k in order in one chain; j counts vectors. */
PER_SHAPE void tile(int rows, int vectors, enum start start, int64_t depth, const float *a, size_t a_stride,
                     const float *b, float *c, size_t c_stride, struct ahead ahead) {
    v16 sum[TILE][STEP];
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < vectors; j++) {
            sum[i][j] = start == CONTINUE ? v16_load(c + (size_t)i * c_stride + 16 * j) : v16_splat(0.0f);
        }
    }
    for (int64_t k = 0; k < depth; k++) {
        v16 x[STEP];
        __builtin_prefetch(ahead.at + (size_t)k * ahead.bytes, 0, 2);
        __builtin_prefetch(ahead.at + (size_t)k * ahead.bytes + 64, 0, 2);
        UNROLL for (int j = 0; j < vectors; j++) {
            x[j] = v16_load(b + k * WIDE_PANEL + 16 * j);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const v16 y = v16_splat(a[(size_t)i * a_stride + (size_t)k]);
            UNROLL for (int j = 0; j < vectors; j++) {
                sum[i][j] = v16_fma(y, x[j], sum[i][j]);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < vectors; j++) {
            float *to = c + (size_t)i * c_stride + 16 * j;
            v16_store(to, start == ADD ? v16_add(v16_load(to), sum[i][j]) : sum[i][j]);
        }
    }
}

PER_SHAPE void tile_rows(int rows, int vectors, enum start start, int64_t depth, const float *a, size_t a_stride,
                          const float *b, float *c, size_t c_stride, struct ahead ahead) {
    switch (rows) {
    case 1: tile(1, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    case 2: tile(2, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    case 3: tile(3, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    case 4: tile(4, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    case 5: tile(5, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    default: tile(6, vectors, start, depth, a, a_stride, b, c, c_stride, ahead); break;
    }
}

/* As many tiles of nearly equal height as `rows` needs. */
PER_SHAPE void multiply(int64_t rows, int vectors, enum start start, int64_t depth, const float *a, size_t a_stride,
                         const float *b, float *c, size_t c_stride, struct ahead ahead) {
    const int64_t tiles = (rows + TILE - 1) / TILE;
    struct ahead part = {ahead.at, ahead.bytes / (size_t)(depth * tiles)};
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t first = t * rows / tiles, last = (t + 1) * rows / tiles;
        const float *from = a + (size_t)first * a_stride;
        float *to = c + (size_t)first * c_stride;
        int j = 0;
        part.at = ahead.at + part.bytes * (size_t)(depth * t);
        for (; j + STEP <= vectors; j += STEP) {
            tile_rows((int)(last - first), STEP, start, depth, from, a_stride, b + 16 * j, to + 16 * j, c_stride, part);
        }
        for (; j < vectors; j++) {
            tile_rows((int)(last - first), 1, start, depth, from, a_stride, b + 16 * j, to + 16 * j, c_stride, part);
        }
    }
}

/* -- one block ---------------------------------------------------------------------------------------------------------- */

struct work {
    const struct wide_attention_item *item;
    const struct wide_attention *a;
    int64_t group, queries, cells;      /* cells: how many of the block exist */
    size_t part_stride;
    bool masks_by_head;
    uint16_t live[WIDE_CELLS];          /* not 0: some query sees the cell */
    int64_t first[PANELS], last[PANELS]; /* the cells of each panel from its first to its last live one; empty if equal */
};

static const char *mask_of(const struct work *w, int64_t row, int64_t head) {
    const struct wide_attention *a = w->a;
    return a->mask + (size_t)(w->item->first_row + row) * a->mask_row + (size_t)(head % a->mask_heads) * a->mask_head
           + (size_t)(w->item->stream % a->mask_streams) * a->mask_stream
           + sizeof(uint16_t) * (size_t)(w->item->block * WIDE_CELLS);
}

/* Copies the masks of the block, cells past the end masked, and finds the live cells. */
static void stage_masks(struct work *w) {
    const int64_t count = w->masks_by_head ? w->queries : w->item->rows;
    memset(w->live, 0, sizeof w->live);
    for (int64_t i = 0; i < count; i++) {
        uint16_t *to = w->item->masks + i * WIDE_CELLS;
        const int64_t row = w->masks_by_head ? i / w->group : i;
        const int64_t head = w->item->kv_head * w->group + (w->masks_by_head ? i % w->group : 0);
        if (w->a->mask) {
            memcpy(to, mask_of(w, row, head), sizeof(uint16_t) * (size_t)w->cells);
        } else {
            memset(to, 0, sizeof(uint16_t) * (size_t)w->cells);
        }
        for (int64_t c = w->cells; c < WIDE_CELLS; c++) {
            to[c] = MASKED;
        }
        for (int c = 0; c < WIDE_CELLS; c++) {
            w->live[c] = (uint16_t)(w->live[c] | (to[c] ^ MASKED));
        }
    }
}

/* False if no cell of the block is live. */
static bool find_panels(struct work *w) {
    bool any = false;
    for (int p = 0; p < PANELS; p++) {
        int64_t first = p * WIDE_PANEL, last = first + WIDE_PANEL;
        while (last > first && !w->live[last - 1]) {
            last--;
        }
        while (first < last && !w->live[first]) {
            first++;
        }
        w->first[p] = first;
        w->last[p] = last;
        any |= first < last;
    }
    return any;
}

static const char *k_of(const struct work *w) {
    const struct wide_attention *a = w->a;
    return a->k + (size_t)(w->item->block * WIDE_CELLS) * a->k_cell + (size_t)w->item->kv_head * a->k_head
           + (size_t)(w->item->stream / (a->streams / a->kv_streams)) * a->k_stream;
}

static const char *v_of(const struct work *w) {
    const struct wide_attention *a = w->a;
    return a->v + (size_t)(w->item->block * WIDE_CELLS) * a->v_cell + (size_t)w->item->kv_head * a->v_head
           + (size_t)(w->item->stream / (a->streams / a->kv_streams)) * a->v_stream;
}

/* The share of dims [at, at + dims) of panel p in what keys (0) or values (1) have fetched. */
static struct ahead ahead_of(const struct work *w, int which, int64_t size, int p, int64_t at, int64_t dims) {
    const size_t total = w->item->ahead_bytes[which], parts = (size_t)(PANELS * size), part = (size_t)(p * size + at);
    const size_t first = total * part / parts, last = total * (part + (size_t)dims) / parts;
    return (struct ahead){w->item->ahead[which] + first, last - first};
}

static void score_panel(const struct work *w, int p) {
    const struct wide_attention *a = w->a;
    const int64_t start = p * WIDE_PANEL;
    const char *k = k_of(w) + (size_t)start * a->k_cell;
    float *panel = w->item->panel, *scores = w->item->weights + start;
    for (int64_t at = 0; at < a->head_size; at += WIDE_PANEL) {
        const int64_t dims = a->head_size - at < WIDE_PANEL ? a->head_size - at : WIDE_PANEL;
        const struct ahead ahead = ahead_of(w, 0, a->head_size, p, at, dims);
        const float *q = w->item->queries + at * w->queries;
        keys(a->k_type, k, a->k_cell, w->cells - start, at, dims, w->live + start, panel);
        if (at == 0) {
            multiply(w->queries, VECTORS, SET, dims, q, WIDE_PANEL, panel, scores, WIDE_WEIGHTS, ahead);
        } else {
            multiply(w->queries, VECTORS, ADD, dims, q, WIDE_PANEL, panel, scores, WIDE_WEIGHTS, ahead);
        }
    }
}

/* ggml's slope of ALiBi: a geometric series over the heads, and a second one between for those past a power of two. */
static float slope_of(const struct wide_attention *a, int64_t head) {
    if (!(a->max_bias > 0.0f)) {
        return 1.0f;
    }
    int64_t power = 1;
    while (2 * power <= a->heads) {
        power *= 2;
    }
    const float base = powf(2.0f, -a->max_bias / (float)power), between = powf(2.0f, -(a->max_bias / 2.0f) / (float)power);
    return head < power ? powf(base, (float)(head + 1)) : powf(between, (float)(2 * (head - power) + 1));
}

/* Scores to weights: scale, cap, mask; the maximum; exponentials and their sum (lane j: cells j, j + 16, ...). */
static void soften(const struct work *w, int64_t query) {
    const struct wide_attention *a = w->a;
    const uint16_t *mask = w->item->masks + (w->masks_by_head ? query : query / w->group) * WIDE_CELLS;
    float *s = w->item->weights + query * WIDE_WEIGHTS, *part = w->item->parts + (size_t)query * w->part_stride;
    const bool capped = a->soft_cap != 0.0f;
    const v16 scale = v16_splat(capped ? a->scale / a->soft_cap : a->scale), cap = v16_splat(a->soft_cap);
    const v16 slope = v16_splat(slope_of(a, w->item->kv_head * w->group + query % w->group));
    const v16 nothing = v16_splat(-INFINITY), lowest = v16_splat(-65504.0f);
    v16 top = nothing, sum = v16_splat(0.0f);
    for (int p = 0; p < PANELS; p++) {
        for (int c = p * WIDE_PANEL; w->first[p] < w->last[p] && c < (p + 1) * WIDE_PANEL; c += 16) {
            const v16 m = v16_half(mask + c);
            v16 x = v16_mul(v16_load(s + c), scale);
            x = capped ? v16_mul(v16_tanh(x), cap) : x;
            x = v16_if_below(m, lowest, nothing, v16_fma(m, slope, x));
            top = v16_max(x, top);
            v16_store(s + c, x);
        }
    }
    part[0] = v16_top(top);
    const bool blind = part[0] == -INFINITY;
    const v16 highest = v16_splat(blind ? 0.0f : part[0]);
    for (int p = 0; p < PANELS; p++) {
        for (int c = p * WIDE_PANEL; w->first[p] < w->last[p] && c < (p + 1) * WIDE_PANEL; c += 16) {
            const v16 x = v16_exp(v16_sub(v16_load(s + c), highest));
            v16_store(s + c, x);
            sum = v16_add(sum, x);
        }
    }
    part[1] = v16_sum(sum);
    if (blind && part[1] != 0.0f) { /* it sees cells, but every score is no number: neither is the row */
        part[0] = part[1];
    }
}

static void weigh_values(const struct work *w) {
    const struct wide_attention *a = w->a;
    for (int64_t i = 0; i < w->queries; i++) {
        memset(w->item->parts + (size_t)i * w->part_stride + WIDE_PART_HEAD, 0, sizeof(float) * (size_t)a->value_size);
    }
    for (int64_t at = 0; at < a->value_size; at += WIDE_PANEL) {
        const int64_t dims = a->value_size - at < WIDE_PANEL ? a->value_size - at : WIDE_PANEL;
        for (int p = 0; p < PANELS; p++) {
            const int64_t first = w->first[p], last = w->last[p];
            if (first < last) {
                values(a->v_type, v_of(w), a->v_cell, first, last, at, dims, w->live, w->item->panel);
                multiply(w->queries, (int)(dims / 16), CONTINUE, last - first, w->item->weights + first, WIDE_WEIGHTS,
                         w->item->panel, w->item->parts + WIDE_PART_HEAD + at, w->part_stride,
                         ahead_of(w, 1, a->value_size, p, at, dims));
            }
        }
    }
}

/* A value that is infinite or NaN reaches, as 0 * inf, queries that do not see its cell. Queries that came out that way are
 * done again without the cells whose weight is 0; for finite values both give the same. */
static void weigh_again(const struct work *w, int64_t query) {
    const struct wide_attention *a = w->a;
    const float *weights = w->item->weights + query * WIDE_WEIGHTS;
    float *sums = w->item->parts + (size_t)query * w->part_stride + WIDE_PART_HEAD;
    v16 bad = v16_splat(0.0f);
    for (int64_t d = 0; d < a->value_size; d += 16) {
        bad = v16_fma(v16_load(sums + d), v16_splat(0.0f), bad);
    }
    if (v16_sum(bad) == 0.0f) {
        return;
    }
    memset(sums, 0, sizeof(float) * (size_t)a->value_size);
    for (int p = 0; p < PANELS; p++) {
        for (int64_t c = w->first[p]; c < w->last[p]; c++) {
            for (int64_t d = 0; d < a->value_size && weights[c] != 0.0f; d += 16) {
                const v16 x = cell_values(a->v_type, v_of(w) + (size_t)c * a->v_cell, d);
                v16_store(sums + d, v16_fma(v16_splat(weights[c]), x, v16_load(sums + d)));
            }
        }
    }
}

static void block(const struct wide_attention_item *item) {
    const struct wide_attention *a = item->a;
    struct work w = {.item = item, .a = a};
    const int64_t start = item->block * WIDE_CELLS;
    w.group = a->heads / a->kv_heads;
    w.queries = item->rows * w.group;
    w.cells = a->cells - start < WIDE_CELLS ? a->cells - start : WIDE_CELLS;
    w.part_stride = (size_t)(WIDE_PART_HEAD + a->value_size);
    w.masks_by_head = a->mask && a->mask_heads > 1;
    stage_masks(&w);
    if (!find_panels(&w)) {
        for (int64_t i = 0; i < w.queries; i++) {
            item->parts[(size_t)i * w.part_stride] = -INFINITY;
        }
        return;
    }
    for (int p = 0; p < PANELS; p++) {
        if (w.first[p] < w.last[p]) {
            score_panel(&w, p);
        }
    }
    for (int64_t i = 0; i < w.queries; i++) {
        soften(&w, i);
    }
    weigh_values(&w);
    for (int64_t i = 0; i < w.queries; i++) {
        weigh_again(&w, i);
    }
}

/* -- putting blocks together -------------------------------------------------------------------------------------------- */

static void merge(float *state, const float *part, int64_t value_size) {
    if (part[0] == -INFINITY) {
        return;
    }
    if (state[0] == -INFINITY) {
        memcpy(state, part, sizeof(float) * (size_t)(WIDE_PART_HEAD + value_size));
        return;
    }
    const float top = part[0] > state[0] ? part[0] : state[0];
    const v16 old = v16_exp(v16_splat(state[0] - top)), new = v16_exp(v16_splat(part[0] - top));
    float lane[16];
    v16_store(lane, v16_fma(v16_splat(state[1]), old, v16_mul(v16_splat(part[1]), new)));
    state[0] = top;
    state[1] = lane[0];
    for (int64_t d = WIDE_PART_HEAD; d < WIDE_PART_HEAD + value_size; d += 16) {
        v16_store(state + d, v16_fma(v16_load(state + d), old, v16_mul(v16_load(part + d), new)));
    }
}

static void finish(const float *state, const float *sink, int64_t value_size, float *out) {
    const v16 none = v16_splat(0.0f);
    if (state[0] == -INFINITY) { /* nothing seen, or nothing but the sink */
        for (int64_t d = 0; d < value_size; d += 16) {
            v16_store(out + d, none);
        }
        return;
    }
    v16 factor = v16_splat(1.0f), sum = v16_splat(state[1]);
    if (sink) {
        const float top = *sink > state[0] ? *sink : state[0];
        factor = v16_exp(v16_splat(state[0] - top));
        sum = v16_fma(sum, factor, v16_exp(v16_splat(*sink - top)));
    }
    for (int64_t d = 0; d < value_size; d += 16) { /* adding 0 turns -0 to 0, the one trace that masked cells could leave */
        const v16 x = v16_mul(v16_load(state + WIDE_PART_HEAD + d), factor);
        v16_store(out + d, v16_add(v16_div(x, sum), none));
    }
}

const struct wide_attention_lanes LANES = {block, merge, finish};
