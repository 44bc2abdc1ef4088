#include "holes.h"

#include <math.h>
#include <string.h>

enum { MASKED = 0xfc00, NONE = INT32_MAX };

/* A thread's scratch, in this order. */
struct room {
    int32_t *first;   /* [streams][rows]: the first cell of the first hole */
    float *queries;   /* [head_size / 64, rounded up][group][64] */
    char *keys, *values;
    uint16_t *mask;
};

static size_t cell_bytes(int type, int64_t values) {
    switch (type) {
    case WIDE_F32: return 4 * (size_t)values;
    case WIDE_Q8_0: return (size_t)values / 32 * 34;
    default: return 2 * (size_t)values;
    }
}

static size_t in_floats(size_t bytes) {
    return (bytes + 63) / 64 * 16;
}

static size_t query_floats(const struct wide_attention *a) {
    return (size_t)((a->head_size + WIDE_PANEL - 1) / WIDE_PANEL * WIDE_PANEL * (a->heads / a->kv_heads));
}

/* Where each part of the scratch starts, in floats; the last one is where it ends. */
struct plan {
    size_t queries, keys, values, mask, end;
};

static struct plan plan_of(const struct wide_attention *a) {
    struct plan p;
    p.queries = in_floats(sizeof(int32_t) * (size_t)(a->streams * a->rows));
    p.keys = p.queries + query_floats(a);
    p.values = p.keys + in_floats(WIDE_CELLS * cell_bytes(a->k_type, a->head_size));
    p.mask = p.values + in_floats(WIDE_CELLS * cell_bytes(a->v_type, a->value_size));
    p.end = p.mask + in_floats(WIDE_CELLS * sizeof(uint16_t));
    return p;
}

static struct room room_of(const struct wide_attention *a, float *scratch) {
    const struct plan p = plan_of(a);
    return (struct room){(int32_t *)scratch, scratch + p.queries, (char *)(scratch + p.keys),
                         (char *)(scratch + p.values), (uint16_t *)(scratch + p.mask)};
}

size_t wide_holes_floats(const struct wide_attention *a) {
    return plan_of(a).end;
}

static const uint16_t *mask_of(const struct wide_attention *a, int64_t stream, int64_t row) {
    return (const uint16_t *)(a->mask + (size_t)row * a->mask_row + (size_t)(stream % a->mask_streams) * a->mask_stream);
}

/* The first masked cell after a visible one that has a visible one after it. */
static int32_t first_hole(const uint16_t *mask, int64_t cells) {
    int64_t first = 0, last = cells, seen = 0;
    for (int64_t c = 0; c < cells; c++) {
        seen += mask[c] != MASKED;
    }
    while (first < cells && mask[first] == MASKED) {
        first++;
    }
    while (last > first && mask[last - 1] == MASKED) {
        last--;
    }
    if (last - first == seen) {
        return NONE;
    }
    while (mask[first] != MASKED) {
        first++;
    }
    return (int32_t)first;
}

void wide_find_holes(const struct wide_attention *a, float *scratch) {
    int32_t *first = room_of(a, scratch).first;
    const bool one_mask = a->mask && a->mask_heads == 1;
    for (int64_t stream = 0; stream < a->streams; stream++) {
        for (int64_t row = 0; row < a->rows; row++) {
            first[stream * a->rows + row] = one_mask ? first_hole(mask_of(a, stream, row), a->cells) : NONE;
        }
    }
}

/* Copies the cells of the block, its holes closed; returns how many there are. */
static int64_t gather(const struct wide_attention_item *item, const struct room *room, int64_t row, int64_t hole) {
    const struct wide_attention *a = item->a;
    const size_t k_bytes = cell_bytes(a->k_type, a->head_size), v_bytes = cell_bytes(a->v_type, a->value_size);
    const size_t stream = (size_t)(item->stream / (a->streams / a->kv_streams)), head = (size_t)item->kv_head;
    const char *k = a->k + head * a->k_head + stream * a->k_stream, *v = a->v + head * a->v_head + stream * a->v_stream;
    const uint16_t *mask = mask_of(a, item->stream, row);
    int64_t place = item->block * WIDE_CELLS < hole ? item->block * WIDE_CELLS : hole, count = 0;
    const int64_t first = item->block * WIDE_CELLS, end = first + WIDE_CELLS;
    for (int64_t c = place; c < a->cells && place < end; c++) {
        if (c >= hole && mask[c] == MASKED) {
            continue;
        }
        if (place >= first) {
            memcpy(room->keys + (size_t)count * k_bytes, k + (size_t)c * a->k_cell, k_bytes);
            memcpy(room->values + (size_t)count * v_bytes, v + (size_t)c * a->v_cell, v_bytes);
            room->mask[count++] = mask[c];
        }
        place++;
    }
    return count;
}

static void close_hole(const struct wide_attention_item *item, const struct wide_attention_lanes *lanes,
                       const struct room *room, int64_t row, int64_t hole) {
    const int64_t group = item->a->heads / item->a->kv_heads, queries = item->rows * group;
    struct wide_attention a = *item->a;
    struct wide_attention_item one = *item;
    one.a = &a;
    one.rows = 1;
    one.first_row = one.block = 0;
    one.queries = room->queries;
    one.parts = item->parts + (size_t)(row * group) * (size_t)(WIDE_PART_HEAD + a.value_size);
    one.ahead[0] = one.ahead[1] = room->keys;
    one.ahead_bytes[0] = one.ahead_bytes[1] = 0;
    a.cells = gather(item, room, item->first_row + row, hole);
    if (a.cells == 0) {
        for (int64_t i = 0; i < group; i++) {
            one.parts[i * (WIDE_PART_HEAD + a.value_size)] = -INFINITY;
        }
        return;
    }
    for (int64_t at = 0; at < a.head_size; at += WIDE_PANEL) {
        memcpy(one.queries + at * group, item->queries + at * queries + row * group * WIDE_PANEL,
               sizeof(float) * (size_t)(group * WIDE_PANEL));
    }
    a.k = room->keys;
    a.v = room->values;
    a.k_cell = cell_bytes(a.k_type, a.head_size);
    a.v_cell = cell_bytes(a.v_type, a.value_size);
    a.k_head = a.v_head = a.k_stream = a.v_stream = 0;
    a.mask = (const char *)room->mask;
    a.mask_row = a.mask_head = a.mask_stream = 0;
    lanes->block(&one);
}

void wide_close_holes(const struct wide_attention_item *item, const struct wide_attention_lanes *lanes, float *scratch) {
    const struct room room = room_of(item->a, scratch);
    const int32_t *first = room.first + item->stream * item->a->rows + item->first_row;
    for (int64_t row = 0; row < item->rows; row++) {
        if (first[row] < (item->block + 1) * WIDE_CELLS) {
            close_hole(item, lanes, &room, row, first[row]);
        }
    }
}
