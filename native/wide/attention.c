/* Fused attention: softmax(scale * q k + slope * mask) v for every row and head, as ggml's FLASH_ATTN_EXT.
 *
 * One order of operations, whatever the width of the pass, the place of a row in it and the number of threads:
 *
 *   cells     cut into blocks of 256 from cell 0 on
 *   score     dims in chunks of 64; inside a chunk one chain of multiply-adds over the dims from 0 on, each rounded once;
 *             then the chunks are added in order; times scale (with a soft cap: times scale / cap, tanh, times cap); then
 *             one multiply-add for slope * mask; -inf where the mask is -inf
 *   block     maximum m of its scores; weights exp(score - m); their sum s, lane j of 16 over cells j, j + 16, ... in order,
 *             the lanes in a tree; for each dim of the values one chain a of multiply-adds over the cells in order
 *   blocks    in order: M = max(M, m), S = S exp(M' - M) + s exp(m - M), likewise A; a block in which a row sees nothing
 *             changes nothing, the first one that it sees is taken as it is
 *   row       the sink joins S like a cell without a value; A / S; zeros for a row that sees nothing
 *
 * Masked cells weigh exactly 0 and adding 0 changes no bit but the sign of a zero, which the row loses at its end; so cells
 * that no row of a tile sees can be left out, and caches padded with masked cells give the same bits. Rows that do not see
 * some cells between others (branches of a tree) are done again with those closed up: holes.c. Keys and values of
 * all types we take are exact in float32, in which everything is added up.
 *
 * The work is cut in two ways that give the same bits. Few rows: an item is one block of one kv head for a group of rows;
 * the parts are written out and put together after the barrier. Many rows: an item is one kv head and a group of rows; it
 * goes through the blocks in order and puts each onto the ones before. */
#include "holes.h"

#include <math.h>
#include <string.h>

enum {
    QUERIES = 128,                    /* about how many (row, head) pairs share one reading of keys and values */
    FEW_ROWS = 64,
    MOST_PART_BYTES = 32 << 20,       /* of all blocks of all rows; with more the blocks are put together at once */
    MOST_HEADS_OF_GROUP = 256
};

static const struct wide_attention_lanes *lanes_of(enum wide_isa isa) {
    switch (isa) {
#if defined(LSW_HAVE_AVX512)
    case WIDE_AVX512: return &wide_attention_avx512;
#endif
#if defined(LSW_HAVE_AVX2)
    case WIDE_AVX2: return &wide_attention_avx2;
#endif
#if defined(LSW_HAVE_NEON)
    case WIDE_NEON:
    case WIDE_I8MM: return &wide_attention_neon;
#endif
    default: return &wide_attention_scalar;
    }
}

/* -- how the work is cut ------------------------------------------------------------------------------------------------ */

struct plan {
    int64_t group, group_rows, row_groups, blocks, queries; /* queries: of a full item */
    int64_t part;                                           /* floats */
    bool few;                                               /* parts are written out */
};

static struct plan plan_of(const struct wide_attention *a) {
    struct plan p;
    p.group = a->heads / a->kv_heads;
    p.group_rows = p.group < QUERIES ? QUERIES / p.group : 1;
    p.group_rows = p.group_rows < a->rows ? p.group_rows : a->rows;
    p.row_groups = (a->rows + p.group_rows - 1) / p.group_rows;
    p.blocks = (a->cells + WIDE_CELLS - 1) / WIDE_CELLS;
    p.queries = p.group_rows * p.group;
    p.part = WIDE_PART_HEAD + a->value_size;
    const double bytes = (double)(a->streams * p.blocks * a->kv_heads * p.row_groups) * (double)(p.queries * p.part) * 4;
    p.few = a->rows <= FEW_ROWS && bytes <= MOST_PART_BYTES;
    return p;
}

static size_t part_floats(const struct wide_attention *a, const struct plan *p) {
    return p->few ? (size_t)(a->streams * p->blocks * a->kv_heads * p->row_groups * p->queries * p->part) : 0;
}

static size_t query_floats(const struct wide_attention *a, const struct plan *p) {
    return (size_t)((a->head_size + WIDE_PANEL - 1) / WIDE_PANEL * WIDE_PANEL * p->queries);
}

/* A thread's own: queries, weights, a panel, masks, and with many rows what came before and the block's parts. */
static size_t thread_floats(const struct wide_attention *a, const struct plan *p) {
    const size_t queries = (size_t)p->queries;
    return query_floats(a, p) + queries * WIDE_WEIGHTS + WIDE_PANEL * WIDE_PANEL + queries * WIDE_CELLS / 2
           + queries * (size_t)p->part * (p->few ? 1 : 2) + wide_holes_floats(a);
}

bool wide_can_attend(const struct wide_attention *a) {
    const int types[2] = {a->k_type, a->v_type};
    const int64_t sizes[2] = {a->head_size, a->value_size};
    for (int i = 0; i < 2; i++) {
        const bool known = types[i] == WIDE_F16 || types[i] == WIDE_BF16 || types[i] == WIDE_F32 || types[i] == WIDE_Q8_0;
        if (!known || sizes[i] < WIDE_SMALLEST || sizes[i] > WIDE_LARGEST
            || sizes[i] % (types[i] == WIDE_Q8_0 ? WIDE_BLOCK : WIDE_SMALLEST)) {
            return false;
        }
    }
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads || a->heads / a->kv_heads > MOST_HEADS_OF_GROUP) {
        return false;
    }
    if (a->rows < 1 || a->cells < 1 || a->streams < 1 || a->kv_streams < 1 || a->streams % a->kv_streams) {
        return false;
    }
    if (!isfinite(a->scale) || !isfinite(a->max_bias) || !isfinite(a->soft_cap)) {
        return false;
    }
    /* a mask that a graph asks for has no memory yet */
    return a->mask_heads ? a->mask_heads > 0 && a->mask_streams > 0 : !a->mask && !(a->max_bias > 0.0f);
}

/* At most 32 MiB of parts and, a thread, about 128 queries' worth: 0.4 MB at head size 64, 1.6 MB at 576. */
size_t wide_attention_scratch(const struct wide_attention *a, int threads) {
    const struct plan p = plan_of(a);
    return sizeof(float) * (part_floats(a, &p) + (size_t)threads * thread_floats(a, &p));
}

/* -- running it --------------------------------------------------------------------------------------------------------- */

static struct wide_attention_item item_of(const struct wide_attention *a, const struct plan *p, int thread) {
    const size_t queries = (size_t)p->queries;
    float *own = (float *)a->scratch + part_floats(a, p) + (size_t)thread * thread_floats(a, p);
    struct wide_attention_item item = {.a = a, .queries = own, .ahead = {a->k, a->v}};
    item.weights = item.queries + query_floats(a, p);
    item.panel = item.weights + queries * WIDE_WEIGHTS;
    item.masks = (uint16_t *)(item.panel + WIDE_PANEL * WIDE_PANEL);
    item.parts = item.panel + WIDE_PANEL * WIDE_PANEL + queries * WIDE_CELLS / 2;
    return item;
}

/* Last in a thread's scratch. */
static float *holes_of(const struct wide_attention *a, const struct plan *p, int thread) {
    const size_t own = part_floats(a, p) + (size_t)(thread + 1) * thread_floats(a, p);
    return (float *)a->scratch + own - wide_holes_floats(a);
}

static void take_rows(struct wide_attention_item *item, const struct plan *p, int64_t row_group) {
    const struct wide_attention *a = item->a;
    item->first_row = row_group * p->group_rows;
    item->rows = a->rows - item->first_row < p->group_rows ? a->rows - item->first_row : p->group_rows;
    const int64_t queries = item->rows * p->group;
    for (int64_t i = 0; i < queries; i++) {
        const char *q = a->q + (size_t)(item->first_row + i / p->group) * a->q_row
                        + (size_t)(item->kv_head * p->group + i % p->group) * a->q_head
                        + (size_t)item->stream * a->q_stream;
        for (int64_t at = 0; at < a->head_size; at += WIDE_PANEL) {
            const int64_t dims = a->head_size - at < WIDE_PANEL ? a->head_size - at : WIDE_PANEL;
            memcpy(item->queries + at * queries + i * WIDE_PANEL, q + sizeof(float) * (size_t)at,
                   sizeof(float) * (size_t)dims);
        }
    }
}

static void finish_query(const struct wide_attention *a, const struct wide_attention_lanes *lanes, const float *state,
                         int64_t stream, int64_t row, int64_t head) {
    float *out = a->out + ((stream * a->rows + row) * a->heads + head) * a->value_size;
    lanes->finish(state, a->sinks ? a->sinks + head : NULL, a->value_size, out);
}

/* Memory is read fastest in the order of its addresses, but heads mostly lie strided, side by side in every cell. So each
 * item has its share of the thread's next block fetched, which the items of a block together fetch whole; none past the
 * last block. */
static void look_ahead(struct wide_attention_item *item, int64_t block, int64_t share, int64_t shares) {
    const struct wide_attention *a = item->a;
    const int64_t first = block * WIDE_CELLS, left = a->cells - first, cells = left < WIDE_CELLS ? left : WIDE_CELLS;
    const size_t stream = (size_t)(item->stream / (a->streams / a->kv_streams));
    const char *start[2] = {a->k + stream * a->k_stream, a->v + stream * a->v_stream};
    const size_t cell[2] = {a->k_cell, a->v_cell}, head[2] = {a->k_head, a->v_head};
    for (int i = 0; i < 2; i++) {
        const bool strided = a->kv_heads == 1 || head[i] < cell[i];
        const size_t bytes = strided && cells > 0 ? (size_t)cells * cell[i] : 0;
        const size_t from = bytes ? (size_t)first * cell[i] + bytes * (size_t)share / (size_t)shares : 0;
        item->ahead[i] = start[i] + from;
        item->ahead_bytes[i] = bytes / (size_t)shares;
    }
}

/* Threads take runs of items, so that each reads on where it was. */
static void run_few(const struct wide_attention *a, const struct plan *p, const struct wide_attention_lanes *lanes,
                    int thread, int threads) {
    struct wide_attention_item item = item_of(a, p, thread);
    const int64_t items = a->streams * p->blocks * a->kv_heads * p->row_groups;
    const int64_t first = items * thread / threads, last = items * (thread + 1) / threads;
    const int64_t shares = a->kv_heads * p->row_groups; /* items of a block */
    float *holes = holes_of(a, p, thread);
    wide_find_holes(a, holes);
    for (int64_t i = first; i < last; i++) {
        const int64_t run = i / p->row_groups;
        item.kv_head = run % a->kv_heads;
        item.block = run / a->kv_heads % p->blocks;
        item.stream = run / a->kv_heads / p->blocks;
        item.parts = (float *)a->scratch + i * p->queries * p->part;
        look_ahead(&item, i + shares < last ? item.block + 1 : p->blocks, i % shares, shares);
        take_rows(&item, p, i % p->row_groups);
        lanes->block(&item);
        wide_close_holes(&item, lanes, holes);
    }
}

static void run_many(const struct wide_attention *a, const struct plan *p, const struct wide_attention_lanes *lanes,
                     int thread, int threads) {
    struct wide_attention_item item = item_of(a, p, thread);
    float *states = item.parts + p->queries * p->part, *holes = holes_of(a, p, thread);
    const int64_t items = a->streams * a->kv_heads * p->row_groups;
    wide_find_holes(a, holes);
    for (int64_t i = thread; i < items; i += threads) {
        item.kv_head = i / p->row_groups % a->kv_heads;
        item.stream = i / p->row_groups / a->kv_heads;
        take_rows(&item, p, i % p->row_groups);
        const int64_t queries = item.rows * p->group;
        for (int64_t j = 0; j < queries; j++) {
            states[j * p->part] = -INFINITY;
        }
        for (item.block = 0; item.block < p->blocks; item.block++) {
            lanes->block(&item);
            wide_close_holes(&item, lanes, holes);
            for (int64_t j = 0; j < queries; j++) {
                lanes->merge(states + j * p->part, item.parts + j * p->part, a->value_size);
            }
        }
        for (int64_t j = 0; j < queries; j++) {
            finish_query(a, lanes, states + j * p->part, item.stream, item.first_row + j / p->group,
                         item.kv_head * p->group + j % p->group);
        }
    }
}

void wide_attention_run(const struct wide_attention *a, enum wide_isa isa, int thread, int threads) {
    const struct plan p = plan_of(a);
    (p.few ? run_few : run_many)(a, &p, lanes_of(isa), thread, threads);
}

void wide_attention_combine(const struct wide_attention *a, enum wide_isa isa, int thread, int threads) {
    const struct plan p = plan_of(a);
    const struct wide_attention_lanes *lanes = lanes_of(isa);
    const int64_t outputs = p.few ? a->streams * a->rows * a->heads : 0;
    float *state = item_of(a, &p, thread).parts;
    for (int64_t i = thread; i < outputs; i += threads) {
        const int64_t head = i % a->heads, row = i / a->heads % a->rows, stream = i / a->heads / a->rows;
        const int64_t query = row % p.group_rows * p.group + head % p.group;
        state[0] = -INFINITY;
        for (int64_t b = 0; b < p.blocks; b++) {
            const int64_t item = ((stream * p.blocks + b) * a->kv_heads + head / p.group) * p.row_groups + row / p.group_rows;
            lanes->merge(state, (float *)a->scratch + (item * p.queries + query) * p.part, a->value_size);
        }
        finish_query(a, lanes, state, stream, row, head);
    }
}
