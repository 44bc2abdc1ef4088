/* Products of every type on every instruction set of this machine beside the scalar ones, bit for bit: random and extreme
 * weights and inputs, widths 1 to 17 and 33, one and two threads. */
#include "check.h"

enum { COLUMNS = 512, ROWS = 48, MOST_WIDTH = 33, MOST_BYTES = ROWS * COLUMNS * 2 };

static const struct type {
    const char *name;
    int number, values, bytes; /* of a block */
    int halves[2];             /* where it has scales in half precision; -1: none. F16 and BF16: every value */
} types[] = {
    {"Q8_0", WIDE_Q8_0, 32, 34, {0, -1}},    {"Q4_0", WIDE_Q4_0, 32, 18, {0, -1}},
    {"Q4_1", WIDE_Q4_1, 32, 20, {0, 2}},     {"Q5_0", WIDE_Q5_0, 32, 22, {0, -1}},
    {"Q5_1", WIDE_Q5_1, 32, 24, {0, 2}},     {"MXFP4", WIDE_MXFP4, 32, 17, {-1, -1}},
    {"Q2_K", WIDE_Q2_K, 256, 84, {80, 82}},  {"Q3_K", WIDE_Q3_K, 256, 110, {108, -1}},
    {"TQ2_0", WIDE_TQ2_0, 256, 66, {64, -1}}, {"IQ4_XS", WIDE_IQ4_XS, 256, 136, {0, -1}},
    {"IQ2_XXS", WIDE_IQ2_XXS, 256, 66, {0, -1}}, {"IQ2_XS", WIDE_IQ2_XS, 256, 74, {0, -1}},
    {"IQ2_S", WIDE_IQ2_S, 256, 82, {0, -1}}, {"IQ3_XXS", WIDE_IQ3_XXS, 256, 98, {0, -1}},
    {"IQ3_S", WIDE_IQ3_S, 256, 110, {0, -1}}, {"IQ4_NL", WIDE_IQ4_NL, 32, 18, {0, -1}}, {"Q4_K", WIDE_Q4_K, 256, 144, {0, 2}},
    {"Q5_K", WIDE_Q5_K, 256, 176, {0, 2}},   {"Q6_K", WIDE_Q6_K, 256, 210, {208, -1}},
    {"F16", WIDE_F16, 1, 2, {0, -1}},        {"BF16", WIDE_BF16, 1, 2, {0, -1}}};

/* -- weights and inputs ------------------------------------------------------------------------------------------------- */

static const int fills[] = {-1, 0x00, 0x7f, 0x80, 0xff}; /* of every byte of quants; -1: random ones */
static const char *const scales[] = {"ordinary", "subnormal", "large"};

static uint16_t scale(const struct type *t, int which) {
    const uint16_t sign = (uint16_t)(random_bits() & 0x8000);
    if (t->number == WIDE_BF16) { /* from a thousandth to one; subnormal; about 1e30 */
        const uint16_t low[] = {0x3a80, 0x0001, 0x7140};
        return (uint16_t)(sign | (low[which] + random_bits() % (which ? 0x7f : 0x500)));
    }
    const uint16_t low[] = {0x1400, 0x0001, 0x7800}; /* of half precision: 0.001 to 0.06; subnormal; 32768 to 65504 */
    return (uint16_t)(sign | (low[which] + random_bits() % (which == 0 ? 0x1600 : 0x3ff)));
}

static void make_weights(const struct type *t, int fill, int which, uint8_t *out) {
    const size_t blocks = (size_t)ROWS * COLUMNS / (size_t)t->values;
    for (size_t b = 0; b < blocks; b++, out += t->bytes) {
        for (int i = 0; i < t->bytes; i++) {
            out[i] = (uint8_t)(fill < 0 ? random_bits() : (uint32_t)fill);
        }
        for (int i = 0; i < 2; i++) {
            const uint16_t half = scale(t, which);
            if (t->halves[i] >= 0) {
                memcpy(out + t->halves[i], &half, sizeof half);
            }
        }
    }
}

/* Grids of random values that IQ2, IQ3_XXS and IQ3_S can have; those of ggml are not at hand. */
static void two_bits(const void *blocks, float *values, int64_t count) {
    static const float all[] = {1.0f, 3.125f, 5.375f};
    for (int64_t i = 0; i < count; i++) {
        values[i] = all[random_bits() % 3];
    }
    (void)blocks;
}
static void three_bits(const void *blocks, float *values, int64_t count) {
    static const float all[] = {1.0f, 3.0f, 5.0f, 7.0f, 9.0f, 11.0f, 13.0f, 15.5f};
    for (int64_t i = 0; i < count; i++) {
        values[i] = all[random_bits() % 8];
    }
    (void)blocks;
}
static void odd_numbers(const void *blocks, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)(1 + 2 * (random_bits() % 8));
    }
    (void)blocks;
}

static const char *const inputs[] = {"ordinary", "one outlier in a block", "largest", "smallest", "largest in turn",
                                     "huge", "tiny", "subnormal", "zeros", "infinite in a row", "no number in a row"};
enum { INPUTS = sizeof inputs / sizeof *inputs };

static float input_value(int which, int row, int column) {
    const float x = random_float();
    switch (which) {
    case 1: return column % 32 == 5 ? 1000.0f * x : x;
    case 2: return 0.37f;
    case 3: return -0.37f;
    case 4: return (row + column) % 2 ? 0.37f : -0.37f;
    case 5: return 1e30f * x;
    case 6: return 1e-36f * x;
    case 7: return 1e-42f * x;
    case 8: return 0.0f;
    case 9: return row % 5 == 3 && column == 100 ? INFINITY : x;
    case 10: return row % 5 == 3 && column == 100 ? NAN : x;
    default: return x;
    }
}

/* -- comparing ---------------------------------------------------------------------------------------------------------- */

static uint8_t weights[MOST_BYTES] __attribute__((aligned(64)));
static float input[MOST_WIDTH * COLUMNS], expected[MOST_WIDTH * ROWS], found[MOST_WIDTH * ROWS];

static int product(const struct type *t, int width, const float *x, float *out, int isa, int threads) {
    return lsw_product(t->number, COLUMNS, ROWS, width, weights, x, out, isa, threads);
}

/* The last `width` rows by an instruction set. */
static void compare(const struct type *t, int width, int isa, const char *what) {
    const int first = MOST_WIDTH - width;
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        found[i] = -1.0f;
    }
    if (product(t, width, input + first * COLUMNS, found, isa, 1 + width % 2)) {
        fail("%s: %s, width %d is refused", isa_names[isa], t->name, width);
    }
    for (int i = 0; i < width * ROWS; i++) {
        if (!same_bits(found[i], expected[first * ROWS + i])) {
            fail("%s: %s, %s, width %d, row %d, output %d: %a instead of %a", isa_names[isa], t->name, what, width, i / ROWS,
                 i % ROWS, (double)found[i], (double)expected[first * ROWS + i]);
        }
    }
    compared++;
}

static void check_inputs(const struct type *t, const char *what) {
    for (int which = 0; which < INPUTS; which++) {
        char name[128];
        snprintf(name, sizeof name, "%s, inputs %s", what, inputs[which]);
        for (int i = 0; i < MOST_WIDTH * COLUMNS; i++) {
            input[i] = input_value(which, i / COLUMNS, i % COLUMNS);
        }
        product(t, MOST_WIDTH, input, expected, WIDE_SCALAR, 1);
        for (int isa = WIDE_SCALAR; isa <= WIDE_I8MM; isa++) {
            for (int width = 1; has_isa(isa) && width <= MOST_WIDTH; width += width < 17 ? 1 : 16) {
                compare(t, width, isa, name);
            }
        }
    }
}

void check_products(void) {
    lsw_find_grid(WIDE_IQ2_XXS, two_bits);
    lsw_find_grid(WIDE_IQ2_XS, two_bits);
    lsw_find_grid(WIDE_IQ2_S, two_bits);
    lsw_find_grid(WIDE_IQ3_XXS, three_bits);
    lsw_find_grid(WIDE_IQ3_S, odd_numbers);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const struct type *t = &types[i];
        const bool quantised = t->values > 1;
        for (size_t fill = 0; fill < (quantised ? sizeof fills / sizeof *fills : 1); fill++) {
            for (int which = 0; which < 3; which++) {
                char name[64];
                snprintf(name, sizeof name, "bytes %#x, scales %s", (unsigned)fills[fill], scales[which]);
                make_weights(t, fills[fill], which, weights);
                if (lsw_pack(t->number, COLUMNS, ROWS, weights)) {
                    fail("%s cannot be packed", t->name);
                }
                check_inputs(t, name);
            }
        }
    }
}
