/* What the packed types are to the kernels. */
#ifndef LOCALSPEC_WIDE_LANES_TYPES_H
#define LOCALSPEC_WIDE_LANES_TYPES_H

#include "grids.h"

/* What the unpacked bytes are too large by. */
INLINE int offset(int type) {
    switch (type) {
    case WIDE_Q8_0:
    case WIDE_IQ4_NL:
    case WIDE_IQ4_XS: return 128;
    case WIDE_Q6_K: return 32;
    case WIDE_Q5_0: return 16;
    case WIDE_MXFP4: return 12;
    case WIDE_Q4_0: return 8;
    case WIDE_Q3_K: return 4;
    default: return wide_has_grid(type) ? wide_grid_offset(type) : 1;
    }
}

/* Whether the two halves of 32 columns have scales of their own. */
INLINE bool has_halves(int type) {
    return type == WIDE_Q6_K || type == WIDE_Q3_K || type == WIDE_Q2_K || type == WIDE_IQ2_XS || type == WIDE_IQ2_S;
}

/* Whether a block has a minimum, which is added; that of blocks of 256 is subtracted. */
INLINE bool minima_are_added(int type) { return type == WIDE_Q4_1 || type == WIDE_Q5_1; }
INLINE bool has_minima(int type) { return type == WIDE_Q4_K || type == WIDE_Q5_K || type == WIDE_Q2_K; }

/* The most bits of an unpacked byte; at least 4. */
INLINE int bits_of(int type) {
    switch (type) {
    case WIDE_Q8_0:
    case WIDE_IQ4_NL:
    case WIDE_IQ4_XS: return 8;
    case WIDE_IQ2_XXS:
    case WIDE_IQ2_XS:
    case WIDE_IQ2_S:
    case WIDE_IQ3_XXS: return 7;
    case WIDE_Q6_K: return 6;
    case WIDE_Q5_0:
    case WIDE_Q5_1:
    case WIDE_Q5_K:
    case WIDE_IQ3_S:
    case WIDE_MXFP4: return 5;
    default: return 4;
    }
}

/* Of a row's block, as weights.c has them: dwords of quants, bytes of scales. */
INLINE int dwords_of(int type) {
    switch (type) {
    case WIDE_Q8_0: return 8;
    case WIDE_Q5_0:
    case WIDE_Q5_1: return 5;
    case WIDE_Q4_K:
    case WIDE_IQ4_XS: return 32;
    case WIDE_Q5_K: return 40;
    case WIDE_Q6_K: return 48;
    case WIDE_IQ3_S: return 26;
    case WIDE_Q3_K:
    case WIDE_IQ3_XXS: return 24;
    case WIDE_Q2_K:
    case WIDE_IQ2_XXS:
    case WIDE_IQ2_XS:
    case WIDE_IQ2_S:
    case WIDE_TQ2_0: return 16;
    default: return 4;
    }
}
INLINE int scale_bytes(int type) {
    switch (type) {
    case WIDE_Q2_K:
    case WIDE_Q6_K:
    case WIDE_IQ2_S: return 16 * WIDE_TILE;
    case WIDE_Q3_K:
    case WIDE_Q4_K:
    case WIDE_Q5_K: return 12 * WIDE_TILE;
    case WIDE_IQ2_XS: return 8 * WIDE_TILE;
    case WIDE_IQ4_XS: return 6 * WIDE_TILE;
    case WIDE_IQ3_S: return 4 * WIDE_TILE;
    default: return 0;
    }
}

#endif
