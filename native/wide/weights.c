/* The packed layout of weights. WIDE_TILE rows make a tile, and a tile has the bytes of those rows in another order:
 *
 *   1. the half-precision numbers (scales; all of an F16 matrix): for every block, for every half of the block, 16 rows;
 *   2. for every block its 8-bit scales: byte by byte, 16 rows each; then its quants: dword by dword, 16 rows each.
 *
 * So 64 bytes of quants hold one dword of 16 rows, which is what a dot product instruction takes. Within a row's block
 * the quants are first rearranged so that 32 consecutive values (values 0 to 31 below) make 4 consecutive dwords of
 * nibbles: byte i of dword v holds value 4v + i in its low half and value 4v + i + 16 in its high half.
 *
 *   Q8_0    16 halves; 8 dwords: dword v is values 4v to 4v + 3, stored + 128 (unsigned).
 *   Q4_0    16 halves; 4 dwords of nibbles (ggml's own order).
 *   IQ4_NL  as Q4_0. MXFP4: so, but 1 byte of exponents instead of the halves.
 *   Q4_1    d, m: 2 x 16 halves; 4 dwords of nibbles.
 *   Q5_0, Q5_1  as Q4_0, Q4_1, then a dword of fifth bits: bit g of byte i is the one of value 4g + i.
 *   Q4_K    d, dmin: 2 x 16 halves; 12 bytes of 6-bit scales as in ggml; 8 blocks of 4 dwords of nibbles.
 *   Q5_K    as Q4_K, then 8 dwords of fifth bits: in dword j (block j) bit g of byte i is the one of value 4g + i.
 *   Q6_K    d: 16 halves; 16 bytes of scales; 8 blocks of 4 dwords of nibbles; 8 blocks of 2 dwords of upper bits: the
 *           pair of bits g of byte i of dword h is the one of value 4 (4h + g) + i.
 *   IQ4_XS  d: 16 halves; 6 bytes of scales; 8 blocks of 4 dwords of nibbles (ggml's own order).
 *   Q2_K    d, dmin: 2 x 16 halves; 16 bytes of scales and minima; 8 blocks of 2 dwords of pairs of bits, as in Q6_K.
 *   Q3_K    d: 16 halves; 12 bytes of scales; pairs of bits as Q2_K, then third bits as the fifth ones of Q5_K.
 *   TQ2_0   d: 16 halves; pairs of bits as Q2_K.
 *   IQ2_XXS d: 16 halves; 8 blocks of 2 dwords: 4 bytes of indices into the grid, and 28 signs, in the order of the fifth bits
 *           of Q5_0. Bits 1, 3, 5 and 7 of the last byte, where signs are missing, are the bits of the block's scale.
 *   IQ2_XS  so, but those 4 bits are ninth bits of the indices; and 8 bytes of scales.
 *   IQ2_S   d: 16 halves; 8 bytes of bits 8 and 9 of the indices, 8 bytes of scales; 8 dwords of indices, 8 of 32 signs.
 *   IQ3_XXS d: 16 halves; 8 blocks of 2 dwords of indices; 8 dwords of 28 signs and 4 bits of scales, as IQ2_XXS.
 *   IQ3_S   d: 16 halves; 4 bytes of scales; 16 dwords of indices, 2 of their ninth bits (ggml's order), 8 of 32 signs.
 *   F16     16 halves for every column.
 *   BF16    one dword for every two columns. */
#include "grids.h"
#include "lanes.h"

#include <string.h>

enum { MOST_DWORDS = 48 };

/* One row's block as ggml stores it: where its parts are. */
struct form {
    int values, bytes; /* of a block */
    int halves, half_at;
    int scales, scale_at;
    int dwords, dword_at;
};

static const struct form *form_of(int type) {
    static const struct form q8_0 = {32, 34, 1, 0, 0, 0, 8, 2}, q4_0 = {32, 18, 1, 0, 0, 0, 4, 2},
                             q4_1 = {32, 20, 2, 0, 0, 0, 4, 4}, q5_0 = {32, 22, 1, 0, 0, 0, 5, 2},
                             q5_1 = {32, 24, 2, 0, 0, 0, 5, 4}, mxfp4 = {32, 17, 0, 0, 1, 0, 4, 1},
                             q2_k = {256, 84, 2, 80, 16, 0, 16, 16}, q3_k = {256, 110, 1, 108, 12, 96, 24, 0},
                             q4_k = {256, 144, 2, 0, 12, 4, 32, 16}, q5_k = {256, 176, 2, 0, 12, 4, 40, 16},
                             q6_k = {256, 210, 1, 208, 16, 192, 48, 0}, iq4_xs = {256, 136, 1, 0, 6, 2, 32, 8},
                             tq2_0 = {256, 66, 1, 64, 0, 0, 16, 0}, iq2_xxs = {256, 66, 1, 0, 0, 0, 16, 2},
                             iq2_xs = {256, 74, 1, 0, 8, 66, 16, 2}, iq2_s = {256, 82, 1, 0, 16, 66, 16, 2},
                             iq3_xxs = {256, 98, 1, 0, 0, 0, 24, 2}, iq3_s = {256, 110, 1, 0, 4, 106, 26, 2}, f16 = {1, 2, 1, 0, 0, 0, 0, 0},
                             bf16 = {2, 4, 0, 0, 0, 0, 1, 0};
    switch (type) {
    case WIDE_Q8_0: return &q8_0;
    case WIDE_Q4_0:
    case WIDE_IQ4_NL: return &q4_0;
    case WIDE_Q4_1: return &q4_1;
    case WIDE_Q5_0: return &q5_0;
    case WIDE_Q5_1: return &q5_1;
    case WIDE_MXFP4: return &mxfp4;
    case WIDE_IQ4_XS: return &iq4_xs;
    case WIDE_TQ2_0: return &tq2_0;
    case WIDE_Q2_K: return &q2_k;
    case WIDE_Q3_K: return &q3_k;
    case WIDE_Q4_K: return &q4_k;
    case WIDE_Q5_K: return &q5_k;
    case WIDE_Q6_K: return &q6_k;
    case WIDE_IQ2_XXS: return &iq2_xxs;
    case WIDE_IQ2_XS: return &iq2_xs;
    case WIDE_IQ2_S: return &iq2_s;
    case WIDE_IQ3_XXS: return &iq3_xxs;
    case WIDE_IQ3_S: return &iq3_s;
    case WIDE_F16: return &f16;
    case WIDE_BF16: return &bf16;
    default: return NULL;
    }
}

bool wide_can_pack(int type, int64_t columns, int64_t rows) {
    const struct form *f = form_of(type);
    const bool fits = f && columns > 0 && rows > 0 && columns % f->values == 0 && columns % 2 == 0 && rows % WIDE_TILE == 0;
    return fits && (!wide_has_grid(type) || wide_grid(type));
}

size_t wide_row_bytes(int type, int64_t columns) {
    const struct form *f = form_of(type);
    return f ? (size_t)(columns / f->values) * (size_t)f->bytes : 0;
}

size_t wide_tile_records(int type, int64_t columns) {
    const struct form *f = form_of(type);
    return (size_t)(columns / f->values) * (size_t)f->halves * (WIDE_TILE * sizeof(uint16_t));
}

size_t wide_pack_scratch(int type, int64_t columns) { return WIDE_TILE * wide_row_bytes(type, columns); }

/* -- rearranging the dwords of one row's block; each function is its own inverse --------------------------------------- */

/* Low nibbles of x and y, high nibbles of x and y. */
static void swap_nibbles(uint32_t *x, uint32_t *y) {
    const uint32_t low = 0x0f0f0f0fu, a = (*x & low) | (*y & low) << 4, b = (*x >> 4 & low) | (*y & ~low);
    *x = a;
    *y = b;
}

/* Dwords a[i], a[i + 4] hold values i and i + 16 of a block in low nibbles and of another in high ones: one block each. */
static void split_blocks(uint32_t *a) {
    for (int v = 0; v < 4; v++) {
        swap_nibbles(a + v, a + v + 4);
    }
}

/* Q6_K keeps blocks s and s + 2 of every 4 together: {s, s + 2} pairs to blocks in order, by exchanging the middle ones. */
static void order_blocks(uint32_t *a) {
    for (int v = 0; v < 4; v++) {
        const uint32_t x = a[4 + v];
        a[4 + v] = a[8 + v];
        a[8 + v] = x;
    }
}

/* 8 x 8 bits: byte g, bit j becomes byte j, bit g (Warren, Hacker's Delight, 7-3). */
static uint64_t transpose_bits(uint64_t x) {
    uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
    return x ^ t ^ (t << 28);
}

/* Q5_K's fifth bits, 8 dwords: bit j of byte i of dword g to bit g of byte i of dword j. */
static void transpose_fifth_bits(uint32_t *h) {
    uint32_t out[8] = {0};
    for (int i = 0; i < 4; i++) {
        uint64_t x = 0;
        for (int g = 0; g < 8; g++) {
            x |= (uint64_t)(h[g] >> 8 * i & 255) << 8 * g;
        }
        x = transpose_bits(x);
        for (int j = 0; j < 8; j++) {
            out[j] |= (uint32_t)(x >> 8 * j & 255) << 8 * i;
        }
    }
    memcpy(h, out, sizeof out);
}

/* Q6_K's upper bits of 4 blocks, 8 dwords: pair q of dword 4h + g to pair g of dword 2q + h, and back. */
static void transpose_pairs(uint32_t *a, bool back) {
    uint32_t out[8] = {0};
    for (int h = 0; h < 2; h++) {
        for (int g = 0; g < 4; g++) {
            for (int q = 0; q < 4; q++) {
                if (back) {
                    out[4 * h + g] |= (a[2 * q + h] >> 2 * g & 0x03030303u) << 2 * q;
                } else {
                    out[2 * q + h] |= (a[4 * h + g] >> 2 * q & 0x03030303u) << 2 * g;
                }
            }
        }
    }
    memcpy(a, out, sizeof out);
}

/* Single bits of 32 values, a dword: bit 4g + i to bit g of byte i, and back. */
static uint32_t spread_bits(uint32_t x, bool back) {
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t bits = back ? x >> 8 * i & 0xffu : x >> i & 0x11111111u;
        if (back) {
            bits = (bits | bits << 12) & 0x000f000fu;
            bits = (bits | bits << 6) & 0x03030303u;
            out |= ((bits | bits << 3) & 0x11111111u) << i;
        } else {
            bits = (bits | bits >> 3) & 0x03030303u;
            bits = (bits | bits >> 6) & 0x000f000fu;
            out |= ((bits | bits >> 12) & 0xffu) << 8 * i;
        }
    }
    return out;
}

/* 4 times 7 signs, then 4 other bits: to one of these after every 7 signs, and back. */
static uint32_t mix_signs(uint32_t x, bool back) {
    uint32_t out = 0;
    for (int l = 0; l < 4; l++) {
        out |= back ? (x >> 8 * l & 127) << 7 * l | (x >> (8 * l + 7) & 1) << (28 + l)
                    : (x >> 7 * l & 127) << 8 * l | (x >> (28 + l) & 1) << (8 * l + 7);
    }
    return out;
}

/* 8 dwords of signs, `step` apart; mixed with other bits or not. */
static void rearrange_signs(uint32_t *a, int step, bool mixed, bool back) {
    for (int j = 0; j < 8; j++, a += step) {
        *a = mixed && !back ? mix_signs(*a, false) : *a;
        *a = spread_bits(*a, back);
        *a = mixed && back ? mix_signs(*a, true) : *a;
    }
}

/* 4 numbers of 16 bits, 9 of an index and 7 signs: to 4 bytes of indices, 4 of signs with the ninth bits on top, and back. */
static void part_indices(uint32_t *a, bool back) {
    uint8_t from[8], to[8];
    memcpy(from, a, sizeof from);
    for (int i = 0; i < 4; i++) {
        const uint8_t high = from[back ? 4 + i : 2 * i + 1];
        to[back ? 2 * i : i] = from[back ? i : 2 * i];
        to[back ? 2 * i + 1 : 4 + i] = (uint8_t)(back ? high << 1 | high >> 7 : high >> 1 | high << 7);
    }
    memcpy(a, to, sizeof to);
}

/* Some types store `count` dwords of single bits before the other quants; packed they come after, if `back` is false. */
static void rotate(uint32_t *a, int all, int count, bool back) {
    uint32_t t[8];
    const size_t rest = (size_t)(all - count) * sizeof *a, few = (size_t)count * sizeof *a;
    memcpy(t, back ? a + all - count : a, few);
    memmove(back ? a + count : a, back ? a : a + count, rest);
    memcpy(back ? a : a + all - count, t, few);
}

/* 32 nibbles each, in 8 blocks. */
static void split_all_blocks(uint32_t *a) {
    for (int j = 0; j < 32; j += 8) {
        split_blocks(a + j);
    }
}

static void rearrange_q5_k(uint32_t *a, bool back) {
    if (!back) {
        rotate(a, 40, 8, false);
    }
    split_all_blocks(a);
    transpose_fifth_bits(a + 32);
    if (back) {
        rotate(a, 40, 8, true);
    }
}

static void rearrange_q6_k(uint32_t *a, bool back) {
    for (int n = 0; n < 2; n++) {
        uint32_t *nibbles = a + 16 * n;
        if (back) {
            order_blocks(nibbles);
        }
        split_blocks(nibbles);
        split_blocks(nibbles + 8);
        if (!back) {
            order_blocks(nibbles);
        }
        transpose_pairs(a + 32 + 8 * n, back);
    }
}

static void rearrange_iq2_xs(uint32_t *a, bool back) {
    for (int j = 0; j < 16; j += 2) {
        if (!back) {
            part_indices(a + j, false);
        }
        a[j + 1] = spread_bits(a[j + 1], back);
        if (back) {
            part_indices(a + j, true);
        }
    }
}

static void rearrange_pairs(uint32_t *a, bool back) {
    transpose_pairs(a, back);
    transpose_pairs(a + 8, back);
}

static void rearrange(int type, uint32_t *a, bool back) {
    switch (type) {
    case WIDE_Q8_0:
        for (int v = 0; v < 8; v++) {
            a[v] ^= 0x80808080u;
        }
        break;
    case WIDE_Q5_0:
    case WIDE_Q5_1:
        if (back) {
            rotate(a, 5, 1, true);
            a[0] = spread_bits(a[0], true);
        } else {
            a[0] = spread_bits(a[0], false);
            rotate(a, 5, 1, false);
        }
        break;
    case WIDE_Q4_K: split_all_blocks(a); break;
    case WIDE_Q5_K: rearrange_q5_k(a, back); break;
    case WIDE_Q6_K: rearrange_q6_k(a, back); break;
    case WIDE_Q2_K:
    case WIDE_TQ2_0: rearrange_pairs(a, back); break;
    case WIDE_Q3_K: /* third bits, then pairs */
        if (back) {
            rotate(a, 24, 8, true);
        }
        transpose_fifth_bits(a);
        rearrange_pairs(a + 8, back);
        if (!back) {
            rotate(a, 24, 8, false);
        }
        break;
    case WIDE_IQ2_XXS: rearrange_signs(a + 1, 2, true, back); break;
    case WIDE_IQ2_XS: rearrange_iq2_xs(a, back); break;
    case WIDE_IQ2_S: rearrange_signs(a + 8, 1, false, back); break;
    case WIDE_IQ3_XXS: rearrange_signs(a + 16, 1, true, back); break;
    case WIDE_IQ3_S: rearrange_signs(a + 18, 1, false, back); break;
    default: break;
    }
}

/* -- tiles ------------------------------------------------------------------------------------------------------------- */

/* `rows` is the tile as ggml has it, `tile` the packed one; they do not overlap. */
static void pack_tile(int type, const struct form *f, int64_t blocks, const uint8_t *rows, uint8_t *tile) {
    const size_t row_bytes = (size_t)blocks * (size_t)f->bytes;
    uint8_t *half = tile, *out = tile + (size_t)(blocks * f->halves) * 32;
    for (int64_t b = 0; b < blocks; b++) {
        for (int r = 0; r < WIDE_TILE; r++) {
            const uint8_t *in = rows + (size_t)r * row_bytes + (size_t)b * (size_t)f->bytes;
            uint32_t a[MOST_DWORDS];
            for (int i = 0; i < f->halves; i++) {
                memcpy(half + 32 * i + 2 * r, in + f->half_at + 2 * i, 2);
            }
            for (int i = 0; i < f->scales; i++) {
                out[16 * i + r] = in[f->scale_at + i];
            }
            memcpy(a, in + f->dword_at, 4 * (size_t)f->dwords);
            rearrange(type, a, false);
            for (int i = 0; i < f->dwords; i++) {
                memcpy(out + 16 * f->scales + 64 * i + 4 * r, a + i, 4);
            }
        }
        half += 32 * f->halves;
        out += 16 * f->scales + 64 * f->dwords;
    }
}

static void unpack_tile(int type, const struct form *f, int64_t blocks, const uint8_t *tile, uint8_t *rows) {
    const size_t row_bytes = (size_t)blocks * (size_t)f->bytes;
    const uint8_t *half = tile, *in = tile + (size_t)(blocks * f->halves) * 32;
    for (int64_t b = 0; b < blocks; b++) {
        for (int r = 0; r < WIDE_TILE; r++) {
            uint8_t *out = rows + (size_t)r * row_bytes + (size_t)b * (size_t)f->bytes;
            uint32_t a[MOST_DWORDS];
            for (int i = 0; i < f->halves; i++) {
                memcpy(out + f->half_at + 2 * i, half + 32 * i + 2 * r, 2);
            }
            for (int i = 0; i < f->scales; i++) {
                out[f->scale_at + i] = in[16 * i + r];
            }
            for (int i = 0; i < f->dwords; i++) {
                memcpy(a + i, in + 16 * f->scales + 64 * i + 4 * r, 4);
            }
            rearrange(type, a, true);
            memcpy(out + f->dword_at, a, 4 * (size_t)f->dwords);
        }
        half += 32 * f->halves;
        in += 16 * f->scales + 64 * f->dwords;
    }
}

typedef void tile_function(int type, const struct form *f, int64_t blocks, const uint8_t *from, uint8_t *to);

static void each_tile(tile_function *function, int type, int64_t columns, void *matrix, int64_t first, int64_t last,
                      void *scratch) {
    const struct form *f = form_of(type);
    const size_t bytes = wide_pack_scratch(type, columns);
    for (int64_t t = first; t < last; t++) {
        uint8_t *tile = (uint8_t *)matrix + (size_t)t * bytes;
        memcpy(scratch, tile, bytes);
        function(type, f, columns / f->values, scratch, tile);
    }
}

void wide_pack(int type, int64_t columns, void *matrix, int64_t first, int64_t last, void *scratch) {
    each_tile(pack_tile, type, columns, matrix, first, last, scratch);
}

void wide_unpack(int type, int64_t columns, void *matrix, int64_t first, int64_t last, void *scratch) {
    each_tile(unpack_tile, type, columns, matrix, first, last, scratch);
}
