/* Weights whose sizes are looked up in a grid (grids.h): those of 256 columns at once, before the input rows come. */
#ifndef LOCALSPEC_WIDE_LANES_GRIDS_H
#define LOCALSPEC_WIDE_LANES_GRIDS_H

#include "lanes_types.h"

/* A number for each of 16 rows; compilers cut it into what registers hold. */
typedef uint32_t vrows __attribute__((vector_size(4 * WIDE_TILE)));
typedef uint8_t row_bytes __attribute__((vector_size(WIDE_TILE)));

/* What a look-up leaves: 8 vectors of entries for every 32 columns, 64 bytes each for 16 rows; then, for every 32 columns, a
 * dword of signs for every row: bit g of byte i is the one of value 4g + i. */
enum { SIGNS_AT = 8 * 8 * 64, LOOKED_UP = SIGNS_AT + 8 * 64 };

/* Where a packed block (weights.c) has those dwords of columns 32 j and following. */
INLINE int signs_at(int type, int j) {
    switch (type) {
    case WIDE_IQ2_S: return scale_bytes(type) + 64 * (8 + j);
    case WIDE_IQ3_XXS: return 64 * (16 + j);
    case WIDE_IQ3_S: return scale_bytes(type) + 64 * (18 + j);
    default: return scale_bytes(type) + 64 * (2 * j + 1);
    }
}

/* Types but these have every eighth sign such that the number of signs set is even. In its place they have another bit. */
INLINE bool has_all_signs(int type) { return type == WIDE_IQ2_S || type == WIDE_IQ3_S; }
INLINE void all_signs(int type, const uint8_t *p, uint8_t *out) {
    vrows x;
    memcpy(&x, p, sizeof x);
    if (!has_all_signs(type)) {
        x &= 0x55ffffffu;
        vrows odd = x ^ x >> 16;
        odd ^= odd >> 8;
        x |= ((odd ^ odd << 1) & 0xaau) << 24;
    }
    memcpy(out, &x, sizeof x);
}

/* Those 4 other bits of the dwords at p, from bits 25, 27, 29 and 31. */
INLINE void other_bits(const uint8_t *p, vrows *out) {
    vrows x;
    memcpy(&x, p, sizeof x);
    x = x >> 25 & 0x55u;
    x = (x | x >> 1) & 0x33u;
    *out = (x | x >> 2) & 15u;
}

/* The bits of indices beyond the eighth, so many of each, for columns 32 j and following of the block at p. Those of IQ2_S
 * are in `bytes`. */
INLINE int bits_beyond(int type) { return type == WIDE_IQ2_S ? 2 : type == WIDE_IQ2_XS || type == WIDE_IQ3_S ? 1 : 0; }
INLINE void index_bits(int type, const uint8_t *p, int j, const uint32_t bytes[8 * WIDE_TILE], vrows *out) {
    if (type == WIDE_IQ2_XS) {
        other_bits(p + signs_at(type, j), out);
    } else if (type == WIDE_IQ2_S) {
        memcpy(out, bytes + WIDE_TILE * j, sizeof *out);
    } else {
        memcpy(out, p + scale_bytes(type) + 64 * (16 + j / 4), sizeof *out);
        *out >>= 8 * (j % 4);
    }
}

/* Entries of 4 rows: of 4 bytes each, or the first and the last 4 of 8. Stores of 16 bytes are what loads do not wait for. */
INLINE void four_entries(const uint8_t *grid, const size_t index[4], uint8_t *out) {
    uint32_t entries[4];
    UNROLL for (int r = 0; r < 4; r++) {
        memcpy(entries + r, grid + 4 * index[r], 4);
    }
    memcpy(out, entries, sizeof entries);
}
INLINE void four_long_entries(const uint8_t *grid, const size_t index[4], uint8_t *first, uint8_t *last) {
#if defined(__AVX2__)
    __m128 pairs[2];
    UNROLL for (int i = 0; i < 2; i++) {
        const __m128d one = _mm_load_sd((const double *)(const void *)(grid + 8 * index[2 * i]));
        pairs[i] = _mm_castpd_ps(_mm_loadh_pd(one, (const double *)(const void *)(grid + 8 * index[2 * i + 1])));
    }
    _mm_storeu_ps((float *)(void *)first, _mm_shuffle_ps(pairs[0], pairs[1], _MM_SHUFFLE(2, 0, 2, 0)));
    _mm_storeu_ps((float *)(void *)last, _mm_shuffle_ps(pairs[0], pairs[1], _MM_SHUFFLE(3, 1, 3, 1)));
#else
    UNROLL for (int r = 0; r < 4; r++) {
        memcpy(first + 4 * r, grid + 8 * index[r], 4);
        memcpy(last + 4 * r, grid + 8 * index[r] + 4, 4);
    }
#endif
}

/* Those of the block at p, into `out`: in columns 32 j and following index number i of every row; `low` has their 8 lower
 * bits. */
INLINE void long_indices(int type, const uint8_t *p, const uint8_t *low, int j, const uint32_t bytes[8 * WIDE_TILE],
                         uint32_t out[8][WIDE_TILE]) {
    const int bits = bits_beyond(type), each = 32 / wide_grid_values(type);
    vrows beyond;
    index_bits(type, p, j, bytes, &beyond);
    UNROLL for (int i = 0; i < each; i++) {
        vrows x;
        memcpy(&x, low + 64 * (i / 4), sizeof x);
        x = (x >> 8 * (i % 4) & 255u) | (beyond >> bits * i & ((1u << bits) - 1)) << 8;
        memcpy(out[i], &x, sizeof x);
    }
    __asm__ volatile("" : "+m"(*(uint32_t (*)[8][WIDE_TILE])out)); /* read one by one: picking them from vectors takes longer */
}

/* Rows [first, last) of the packed block at p. */
INLINE void look_up_sizes(int type, const uint8_t *p, const uint8_t *grid, int first, int last, uint8_t *out) {
    const int values = wide_grid_values(type), each = 32 / values, bits = bits_beyond(type);
    uint32_t bytes[8 * WIDE_TILE], index[8][WIDE_TILE];
    for (int i = 0; type == WIDE_IQ2_S && i < 8 * WIDE_TILE; i++) {
        bytes[i] = p[i];
    }
    UNROLL for (int j = 0; j < 8; j++) {
        const uint8_t *low = p + scale_bytes(type) + (type == WIDE_IQ2_S ? 64 : 128) * j;
        if (bits) {
            long_indices(type, p, low, j, bytes, index);
        }
        UNROLL for (int i = 0; i < each; i++) {
            uint8_t *to = out + 512 * j + 16 * values * i;
            UNROLL for (int row = first; row < last; row += 4) {
                size_t four[4];
                UNROLL for (int r = 0; r < 4; r++) {
                    four[r] = bits ? index[i][row + r] : low[64 * (i / 4) + i % 4 + 4 * (row + r)];
                }
                if (values == 8) {
                    four_long_entries(grid, four, to + 4 * row, to + 64 + 4 * row);
                } else {
                    four_entries(grid, four, to + 4 * row);
                }
            }
        }
        all_signs(type, p + signs_at(type, j), out + SIGNS_AT + 64 * j);
    }
}

/* One function per type, not one in every kernel: they are long. */
#define LOOK_UP(name, type) \
    static __attribute__((noinline)) void look_up_##name(const uint8_t *p, const uint8_t *grid, int first, int last, \
                                                         uint8_t *out) { \
        look_up_sizes(type, p, grid, first, last, out); \
    }
LOOK_UP(iq2_xxs, WIDE_IQ2_XXS)
LOOK_UP(iq2_xs, WIDE_IQ2_XS)
LOOK_UP(iq2_s, WIDE_IQ2_S)
LOOK_UP(iq3_xxs, WIDE_IQ3_XXS)
LOOK_UP(iq3_s, WIDE_IQ3_S)

/* Where the quants of the packed block at p begin, after a look-up if the type has a grid. */
INLINE const uint8_t *quants_of(int type, const uint8_t *p, const uint8_t *grid, int first, int last, uint8_t *room) {
    switch (type) {
    case WIDE_IQ2_XXS: look_up_iq2_xxs(p, grid, first, last, room); return room;
    case WIDE_IQ2_XS: look_up_iq2_xs(p, grid, first, last, room); return room;
    case WIDE_IQ2_S: look_up_iq2_s(p, grid, first, last, room); return room;
    case WIDE_IQ3_XXS: look_up_iq3_xxs(p, grid, first, last, room); return room;
    case WIDE_IQ3_S: look_up_iq3_s(p, grid, first, last, room); return room;
    default: return p + scale_bytes(type);
    }
}

/* -- scales: an odd number, of 4 bits and a last one that is always set --------------------------------------------------- */

/* What size 1 stands for where a block's scale is 1 and the other one is 1. */
INLINE float grid_unit(int type) { return type == WIDE_IQ3_S ? 1.0f : type == WIDE_IQ3_XXS ? 0.25f : 0.125f; }

INLINE vfloats unit_scales(int type, const uint8_t *half) {
    const vfloats d = vhalf(half);
    return wide_has_grid(type) && grid_unit(type) != 1.0f ? vmul(d, vsplat(grid_unit(type))) : d;
}

/* Two for every byte: `count` times 16 bytes to 32. */
INLINE void odd_nibbles(const uint8_t *p, int count, uint8_t *scales) {
    UNROLL for (int j = 0; j < count; j++, p += WIDE_TILE, scales += 2 * WIDE_TILE) {
        row_bytes low, high;
        memcpy(&high, p, sizeof high);
        low = (high & 15) * 2 + 1;
        high = (high >> 4) * 2 + 1;
        memcpy(scales, &low, sizeof low);
        memcpy(scales + WIDE_TILE, &high, sizeof high);
    }
}

INLINE void odd_eighths(int type, const uint8_t *p, uint8_t *scales) {
    if (type == WIDE_IQ3_S) {
        odd_nibbles(p, 4, scales);
        return;
    }
    uint32_t bits[8 * WIDE_TILE];
    UNROLL for (int j = 0; j < 8; j++) {
        vrows four;
        other_bits(p + signs_at(type, j), &four);
        memcpy(bits + WIDE_TILE * j, &four, sizeof four);
    }
    for (int i = 0; i < 8 * WIDE_TILE; i++) {
        scales[i] = (uint8_t)(2 * bits[i] + 1);
    }
}

INLINE void odd_sixteenths(int type, const uint8_t *p, uint8_t *scales) {
    odd_nibbles(type == WIDE_IQ2_S ? p + 8 * WIDE_TILE : p, 8, scales); /* after bits of indices */
}

#endif
