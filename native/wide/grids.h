/* The grids in which the formats IQ2 and IQ3 look their values up. A block holds indices; an entry of a grid is the sizes of 8
 * neighbouring values (IQ2) or of 4 (IQ3). Signs lie apart. Files have no grids, so they are taken from ggml. */
#ifndef LOCALSPEC_WIDE_GRIDS_H
#define LOCALSPEC_WIDE_GRIDS_H

#include "wide.h"

static inline bool wide_has_grid(int type) {
    return type == WIDE_IQ2_XXS || type == WIDE_IQ2_XS || type == WIDE_IQ2_S || type == WIDE_IQ3_XXS || type == WIDE_IQ3_S;
}
/* Bytes of an entry, one a value. */
static inline int wide_grid_values(int type) { return type == WIDE_IQ3_XXS || type == WIDE_IQ3_S ? 4 : 8; }
/* What a byte of an entry is larger by than the size it stands for, so that the negative one is a byte without a sign, too. */
static inline int wide_grid_offset(int type) { return type == WIDE_IQ3_S ? 16 : 64; }

/* The entries of a type's grid; NULL if it was not found (lsw_find_grid). */
const uint8_t *wide_grid(int type);

#endif
