/* Fused attention on every instruction set of this machine beside the scalar one, bit for bit: every type of cache, masks,
 * head sizes and numbers of rows. */
#include "check.h"

enum { HEADS = 4, KV_HEADS = 2, CELLS = 600, MOST_SIZE = 80, MOST_ROWS = 9, MOST_CELL = KV_HEADS * MOST_SIZE * 4 };

static char keys[CELLS * MOST_CELL], values[CELLS * MOST_CELL];
static float queries[MOST_ROWS * HEADS * MOST_SIZE];
static float expected[MOST_ROWS * HEADS * MOST_SIZE], found[MOST_ROWS * HEADS * MOST_SIZE];
static uint16_t mask[MOST_ROWS * CELLS];

/* Bytes of `size` values. */
static size_t bytes_of(int type, size_t size) {
    return type == WIDE_F32 ? 4 * size : type == WIDE_Q8_0 ? size / 32 * 34 : 2 * size;
}

static void fill(int type, char *cells, size_t count) {
    const size_t bytes = bytes_of(type, count);
    for (size_t i = 0; i < bytes; i += 2) {
        const uint16_t sign = (uint16_t)(random_bits() & 0x8000);
        uint16_t x = (uint16_t)random_bits();
        if (type == WIDE_F16 || (type == WIDE_Q8_0 && i % 34 == 0)) {
            x = (uint16_t)(sign | random_bits() % 0x3c00); /* below one, subnormal ones among them */
        } else if (type == WIDE_BF16 || (type == WIDE_F32 && i % 4 == 2)) {
            x = (uint16_t)(sign | (0x3a80 + random_bits() % 0x500));
        }
        memcpy(cells + i, &x, sizeof x);
    }
}

static struct wide_attention describe(int type, int64_t size, int64_t rows, bool masked, float *out) {
    const size_t head = bytes_of(type, (size_t)size), cell = KV_HEADS * head, row = (size_t)size * sizeof(float);
    return (struct wide_attention){
        .head_size = size, .value_size = size, .heads = HEADS, .kv_heads = KV_HEADS, .rows = rows, .cells = CELLS,
        .streams = 1, .kv_streams = 1, .q = (const char *)queries, .q_row = HEADS * row, .q_head = row,
        .q_stream = (size_t)rows * HEADS * row, .k_type = type, .k = keys, .k_cell = cell, .k_head = head,
        .k_stream = CELLS * cell, .v_type = type, .v = values, .v_cell = cell, .v_head = head, .v_stream = CELLS * cell,
        .mask = masked ? (const char *)mask : NULL, .mask_row = CELLS * sizeof *mask, .mask_head = 0, .mask_stream = 0,
        .mask_heads = 1, .mask_streams = 1, .scale = 0.1f, .soft_cap = masked ? 30.0f : 0.0f, .out = out};
}

static void compare(int type, int64_t size, int64_t rows, bool masked) {
    struct wide_attention a = describe(type, size, rows, masked, expected);
    if (lsw_attention(&a, WIDE_SCALAR, 1)) {
        fail("attention: type %d, head size %d is refused", type, (int)size);
    }
    a.out = found;
    for (int isa = WIDE_NEON; isa <= WIDE_I8MM; isa++) {
        if (!has_isa(isa)) {
            continue;
        }
        memset(found, 0xff, sizeof found);
        if (lsw_attention(&a, isa, 2)) {
            fail("attention: %s refuses", isa_names[isa]);
        }
        for (int64_t i = 0; i < rows * HEADS * size; i++) {
            if (!same_bits(found[i], expected[i])) {
                fail("attention: %s, type %d, head size %d, rows %d, output %d: %a instead of %a", isa_names[isa], type,
                     (int)size, (int)rows, (int)i, (double)found[i], (double)expected[i]);
            }
        }
        compared++;
    }
}

void check_attention(void) {
    static const int cache_types[] = {WIDE_F16, WIDE_BF16, WIDE_F32, WIDE_Q8_0};
    for (int i = 0; i < MOST_ROWS * HEADS * MOST_SIZE; i++) {
        queries[i] = random_float();
    }
    for (int i = 0; i < MOST_ROWS * CELLS; i++) {
        mask[i] = random_bits() % 3 ? 0 : 0xfc00; /* 0 or -inf */
    }
    for (size_t t = 0; t < sizeof cache_types / sizeof *cache_types; t++) {
        for (int64_t size = 64; size <= MOST_SIZE; size += cache_types[t] == WIDE_Q8_0 ? 32 : 16) {
            fill(cache_types[t], keys, (size_t)(CELLS * KV_HEADS * size));
            fill(cache_types[t], values, (size_t)(CELLS * KV_HEADS * size));
            for (int64_t rows = 1; rows <= MOST_ROWS; rows++) {
                compare(cache_types[t], size, rows, rows % 2);
            }
        }
    }
}
