/* Grids are found by asking ggml for the values of blocks that we make up: scale 1, no sign set, every index once. */
#include "grids.h"
#include "localspec_wide.h"

#include <stdatomic.h>
#include <string.h>

enum { VALUES = 256, MOST_BYTES = 110, MOST_ENTRIES = 1024, KINDS = 5 };

static const struct kind {
    int type, entries;
    float unit;          /* the value of size 1 in such a block */
    uint8_t sizes[8];    /* all there are; 0 ends them */
} kinds[KINDS] = {{WIDE_IQ2_XXS, 256, 0.125f, {8, 25, 43}},
                  {WIDE_IQ2_XS, 512, 0.125f, {8, 25, 43}},
                  {WIDE_IQ2_S, 1024, 0.125f, {8, 25, 43}},
                  {WIDE_IQ3_XXS, 256, 0.25f, {4, 12, 20, 28, 36, 44, 52, 62}},
                  {WIDE_IQ3_S, 512, 1.0f, {1, 3, 5, 7, 9, 11, 13, 15}}};

static uint8_t grids[KINDS][MOST_ENTRIES * 8] __attribute__((aligned(64)));
static atomic_bool found[KINDS];

static int kind_of(int type) {
    int i = 0;
    while (i < KINDS && kinds[i].type != type) {
        i++;
    }
    return i;
}

/* Index number n of a block; as ggml stores it. */
static void put_index(int type, uint8_t *block, int n, int index) {
    const uint8_t low = (uint8_t)(index & 255);
    const int upper = index >> 8;
    switch (type) {
    case WIDE_IQ2_XXS: block[2 + n / 4 * 8 + n % 4] = low; break;
    case WIDE_IQ2_XS:
        block[2 + 2 * n] = low;
        block[3 + 2 * n] = (uint8_t)upper;
        break;
    case WIDE_IQ2_S:
        block[2 + n] = low;
        block[66 + n / 4] |= (uint8_t)(upper << 2 * (n % 4));
        break;
    case WIDE_IQ3_XXS: block[2 + n] = low; break;
    default: /* IQ3_S */
        block[2 + n] = low;
        block[66 + n / 8] |= (uint8_t)(upper << n % 8);
    }
}

/* To a byte of an entry; 0 if the type has no such value. */
static uint8_t entry_byte(const struct kind *k, float value) {
    for (int i = 0; i < 8 && k->sizes[i]; i++) {
        if (value == k->unit * (float)k->sizes[i]) {
            return (uint8_t)(k->sizes[i] + wide_grid_offset(k->type));
        }
    }
    return 0;
}

void lsw_find_grid(int32_t type, void (*to_float)(const void *blocks, float *values, int64_t count)) {
    const int i = kind_of(type), at_once = VALUES / wide_grid_values(type);
    if (i == KINDS || atomic_load(found + i)) {
        return;
    }
    uint8_t *out = grids[i];
    for (int first = 0; first < kinds[i].entries; first += at_once) {
        uint8_t block[MOST_BYTES] = {0x00, 0x3c}; /* 1 in half precision */
        float values[VALUES];
        for (int n = 0; n < at_once; n++) {
            put_index(type, block, n, first + n);
        }
        to_float(block, values, VALUES);
        for (int v = 0; v < VALUES; v++, out++) {
            *out = entry_byte(&kinds[i], values[v]);
            if (!*out) {
                return;
            }
        }
    }
    atomic_store(found + i, true);
}

const uint8_t *wide_grid(int type) {
    const int i = kind_of(type);
    return i < KINDS && atomic_load(found + i) ? grids[i] : NULL;
}
