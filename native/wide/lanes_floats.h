/* Products of F16 and BF16 weights: the rest of lanes_product.c, which includes this file. */
#ifndef LOCALSPEC_WIDE_LANES_FLOATS_H
#define LOCALSPEC_WIDE_LANES_FLOATS_H

/* -- F16 and BF16: sums of even and of odd columns --------------------------------------------------------------------- */

INLINE void floats(int type, int count, int from, int to, const struct wide_tile *t) {
    const uint8_t *p = t->weights;
    const float *in = t->input;
    vfloats even[PARTS][MOST_FLOATS], odd[PARTS][MOST_FLOATS];
    EACH_PART EACH_COLUMN { even[part][c] = odd[part][c] = vsplat(0.0f); }
    for (int64_t k = 0; k < t->columns; k += 2) {
        if (count > 4) { /* few rows: hardware does better by itself */
            ahead(p + AHEAD_FLOATS, 64, FIRST);
        }
        EACH_PART {
            vfloats x, y;
            if (type == WIDE_F16) {
                x = vhalf(p + part * 2 * LANES);
                y = vhalf(p + 32 + part * 2 * LANES);
            } else {
                const vbytes both = vload(p + part * PART_BYTES);
                x = vbf16_even(both);
                y = vbf16_odd(both);
            }
            EACH_COLUMN {
                even[part][c] = vfma(x, vsplat(in[c]), even[part][c]);
                odd[part][c] = vfma(y, vsplat(in[count + c]), odd[part][c]);
            }
        }
        p += 64;
        in += 2 * count;
    }
    EACH_COLUMN EACH_PART {
        vstore(t->output + (size_t)c * t->output_stride + part * LANES, vadd(even[part][c], odd[part][c]));
    }
}

#if defined(BF16_PAIRS)
static inline BF16_PAIRS __attribute__((always_inline)) void pairs(int type, int count, int from, int to,
                                                                   const struct wide_tile *t) {
    (void)type;
    (void)from;
    (void)to;
    const uint8_t *p = t->weights;
    const uint32_t *in = t->input;
    vfloats acc[MOST_FLOATS];
    EACH_COLUMN { acc[c] = vsplat(0.0f); }
    for (int64_t k = 0; k < t->columns; k += 2) {
        if (count > 4) {
            ahead(p + AHEAD_FLOATS, 64, FIRST);
        }
        const vbytes w = vload(p);
        EACH_COLUMN { acc[c] = vdot_pairs(acc[c], w, in[c]); }
        p += 64;
        in += count;
    }
    EACH_COLUMN { vstore(t->output + (size_t)c * t->output_stride, acc[c]); }
}
#endif

#endif
