/* From packed weights (weights.c) to what dot products take: bytes without a sign, 4 columns of LANES rows in a vector, 8
 * vectors of 32 columns; and the scales of blocks of 256. */
#ifndef LOCALSPEC_WIDE_LANES_UNPACK_H
#define LOCALSPEC_WIDE_LANES_UNPACK_H

#include "lanes_types.h"
#include "lanes_grids.h"

/* -- quants ------------------------------------------------------------------------------------------------------------ */

/* ggml's IQ4_NL values, + 128; twice the values of four-bit floats (1 sign, 2 exponent, 1 mantissa), + 12. */
static const uint8_t iq4_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t fp4_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

INLINE void nibbles(const uint8_t *p, vbytes w[8]) {
    UNROLL for (int v = 0; v < 4; v++) {
        const vbytes both = vload(p + 64 * v);
        w[v] = vlow(both);
        w[v + 4] = vhigh(both);
    }
}

/* Pairs of bits from 2 dwords. */
INLINE void pairs_of_bits(const uint8_t *p, vbytes w[8]) {
    UNROLL for (int h = 0; h < 2; h++) {
        const vbytes all = vload(p + 64 * h);
        UNROLL for (int g = 0; g < 4; g++) {
            w[4 * h + g] = vbits(all, -2 * g, 3);
        }
    }
}

/* Bits `at` and above of the weights, from a dword of single ones or 2 of pairs. */
INLINE void add_bits(const uint8_t *p, int at, vbytes w[8]) {
    const vbytes all = vload(p);
    UNROLL for (int g = 0; g < 8; g++) {
        w[g] = vinsert(w[g], all, at - g, 1 << at);
    }
}
INLINE void add_pairs(const uint8_t *p, int at, vbytes w[8]) {
    UNROLL for (int h = 0; h < 2; h++) {
        const vbytes all = vload(p + 64 * h);
        UNROLL for (int g = 0; g < 4; g++) {
            w[4 * h + g] = vinsert(w[4 * h + g], all, at - 2 * g, 3 << at);
        }
    }
}

INLINE void look_up(const uint8_t table[16], vbytes w[8]) {
    UNROLL for (int v = 0; v < 8; v++) {
        w[v] = vtable(w[v], table);
    }
}

/* Those of a look-up at p. */
INLINE void add_signs(int type, const uint8_t *p, int j, vbytes w[8]) {
    const vbytes all = vload(p + SIGNS_AT + 64 * j);
    UNROLL for (int v = 0; v < 8; v++) {
        w[v] = vmirror(vload(p + 512 * j + 64 * v), all, v, 2 * wide_grid_offset(type));
    }
}

/* Columns 32 j and following of a block whose quants begin at p. */
INLINE void unpack(int type, const uint8_t *p, int j, vbytes w[8]) {
    switch (type) {
    case WIDE_Q8_0:
        UNROLL for (int v = 0; v < 8; v++) {
            w[v] = vload(p + 64 * v);
        }
        break;
    case WIDE_Q2_K:
    case WIDE_Q3_K:
    case WIDE_TQ2_0: pairs_of_bits(p + 128 * j, w); break;
    case WIDE_IQ2_XXS:
    case WIDE_IQ2_XS:
    case WIDE_IQ2_S:
    case WIDE_IQ3_XXS:
    case WIDE_IQ3_S: add_signs(type, p, j, w); break;
    default: nibbles(p + 256 * j, w);
    }
    switch (type) {
    case WIDE_Q5_0:
    case WIDE_Q5_1: add_bits(p + 256, 4, w); break;
    case WIDE_Q5_K: add_bits(p + 2048 + 64 * j, 4, w); break;
    case WIDE_Q6_K: add_pairs(p + 2048 + 128 * j, 4, w); break;
    case WIDE_Q3_K: add_bits(p + 1024 + 64 * j, 2, w); break;
    case WIDE_IQ4_NL:
    case WIDE_IQ4_XS: look_up(iq4_values, w); break;
    case WIDE_MXFP4: look_up(fp4_values, w); break;
    default: break;
    }
    if (bits_of(type) == 8) {
        UNROLL for (int v = 0; v < 8; v++) {
            w[v] = voffset(w[v]);
        }
    }
}

/* -- scales ------------------------------------------------------------------------------------------------------------ */

/* 2^(e - 128) of 16 bytes e, the exponent that goes with fp4_values, from two factors that are normal numbers. */
INLINE void powers_of_two(const uint8_t *p, float out[WIDE_TILE]) {
    uint32_t first[WIDE_TILE], second[WIDE_TILE];
    float other[WIDE_TILE];
    for (int i = 0; i < WIDE_TILE; i++) {
        const uint32_t e = p[i], half = e / 2;
        first[i] = (half + 63) << 23;
        second[i] = (e - half + 63) << 23;
    }
    memcpy(out, first, sizeof first);
    memcpy(other, second, sizeof second);
    for (int i = 0; i < WIDE_TILE; i++) {
        out[i] *= other[i];
    }
}

/* 12 bytes of 16 rows to 8 scales and 8 minima of 6 bits, [8][16 rows] each. */
INLINE void six_bits(const uint8_t *p, uint8_t *scales, uint8_t *minima) {
    for (int i = 0; i < 64; i++) {
        scales[i] = p[i] & 63;
        minima[i] = p[64 + i] & 63;
        scales[64 + i] = (uint8_t)((p[128 + i] & 15) | (p[i] >> 6) << 4);
        minima[64 + i] = (uint8_t)(p[128 + i] >> 4 | (p[64 + i] >> 6) << 4);
    }
}

/* Of IQ4_XS: 2 bytes of upper pairs of bits, 4 of lower nibbles; less 32. */
INLINE void shared_bits(const uint8_t *p, uint8_t *scales) {
    UNROLL for (int j = 0; j < 8; j++) {
        for (int i = 0; i < WIDE_TILE; i++) {
            const uint8_t upper = p[WIDE_TILE * (j / 4) + i] >> 2 * (j % 4) & 3;
            const uint8_t lower = p[WIDE_TILE * (2 + j / 2) + i] >> 4 * (j % 2) & 15;
            scales[WIDE_TILE * j + i] = (uint8_t)((lower | upper << 4) - 32);
        }
    }
}

/* Of Q3_K: 8 bytes of lower nibbles, of scales 0 to 7 and 8 to 15, and 4 of upper pairs of bits; less 32. */
INLINE void split_bits(const uint8_t *p, uint8_t *scales) {
    for (int i = 0; i < 8 * WIDE_TILE; i++) {
        scales[i] = p[i] & 15;
        scales[8 * WIDE_TILE + i] = p[i] >> 4;
    }
    UNROLL for (int q = 0; q < 4; q++) {
        for (int i = 4 * WIDE_TILE * q; i < 4 * WIDE_TILE * (q + 1); i++) {
            const uint8_t upper = p[(8 - 4 * q) * WIDE_TILE + i] >> 2 * q & 3;
            scales[i] = (uint8_t)((scales[i] | upper << 4) - 32);
        }
    }
}

/* The scales of 8 blocks of 32; with minima they have no sign. */
INLINE void eighth_scales(int type, const uint8_t *p, uint8_t *scales, uint8_t *minima) {
    if (has_minima(type)) {
        six_bits(p, scales, minima);
    } else if (type == WIDE_IQ4_XS) {
        shared_bits(p, scales);
    } else if (wide_has_grid(type)) {
        odd_eighths(type, p, scales);
    }
}

/* Those of 16 blocks of 16, in `room` if they must be unpacked. Minima have no sign. */
INLINE const uint8_t *sixteenth_scales(int type, const uint8_t *p, uint8_t *room, uint8_t *minima) {
    if (type == WIDE_Q6_K) {
        return p;
    }
    if (type == WIDE_Q3_K) {
        split_bits(p, room);
        return room;
    }
    if (wide_has_grid(type)) {
        odd_sixteenths(type, p, room);
        return room;
    }
    for (int i = 0; i < 16 * WIDE_TILE; i++) {
        room[i] = p[i] & 15;
        minima[i] = p[i] >> 4;
    }
    return room;
}

#endif
