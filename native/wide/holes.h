/* Rows with a hole: cells they do not see between cells they do. Such are the side branches of a tree of drafts, whose cells
 * lie after those of the branch before. For the bits of plain decoding, where the same cells lie side by side, the cells
 * after a hole are moved up to close it; below the first cell that a row sees (a sliding window) nothing moves. */
#ifndef LOCALSPEC_WIDE_HOLES_H
#define LOCALSPEC_WIDE_HOLES_H

#include "lanes_attention.h"

/* Floats of scratch that a thread needs. */
size_t wide_holes_floats(const struct wide_attention *a);
/* Looks for the holes of all rows; once per thread, into its scratch. */
void wide_find_holes(const struct wide_attention *a, float *scratch);
/* Computes the item's parts anew for rows whose block holds other cells once their holes are closed. */
void wide_close_holes(const struct wide_attention_item *item, const struct wide_attention_lanes *lanes, float *scratch);

#endif
