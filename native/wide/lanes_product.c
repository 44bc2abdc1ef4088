/* The loops of matrix products, once per instruction set. A kernel keeps 16 weight rows by `count` input rows of sums in
 * registers and walks along the columns. Every sum is made by the same float operations in the same order whatever `count`
 * is and, as integers are exact, whatever the instruction set. */
#include "lanes.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#if defined(LSW_BUILD_AVX512)
#include "lanes_avx512.h"
#elif defined(LSW_BUILD_AVX2)
#include "lanes_avx2.h"
#elif defined(LSW_BUILD_NEON)
#include "lanes_neon.h"
#else
#include "lanes_scalar.h"
#endif

enum { PARTS = WIDE_TILE / LANES, PART_BYTES = 4 * LANES };
/* How far ahead weights are asked for, in bytes, and into which cache: 3 = the first level, 2 = the second. Measured (Zen 5,
 * packaging/bench/wide_kernels.py): the second is quicker for plain blocks only (8 rows of Q8_0: 0.131 instead of 0.175 ms),
 * and not for one or two rows of Q8_0, which wait for memory alone. Blocks of 256 are asked for whole, scales included: the
 * 256 bytes per block of Q6_K that were left out cost a quarter of the time of one row. */
enum { AHEAD_PLAIN = 8192, AHEAD_NARROW = 2048, AHEAD_MINIMA = 6720, AHEAD_SIX = 6656, AHEAD_FLOATS = 4096, FIRST = 3, SECOND = 2 };

#define EACH_COLUMN UNROLL for (int c = 0; c < count; c++)
#define EACH_PART UNROLL for (int part = from; part < to; part++)

/* Input rows whose dot products are made in one go, and a walk over the rows of a group in such steps. */
#if defined(DOT_PAIRS)
enum { TOGETHER = 2 };
#else
enum { TOGETHER = 1 };
#endif
#define EACH_STEP UNROLL for (int c = 0; c < count; c += TOGETHER)
#define EACH_ROW UNROLL for (int r = 0; r < TOGETHER; r++) if (c + r < count)

/* ggml's IQ4_NL values, + 128. */
static const uint8_t iq4_values[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* -- preparing the input ----------------------------------------------------------------------------------------------- */

static int32_t bits_of(float x) {
    int32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* Rounds to nearest, ties to even. Very small activations are lifted first, so that 127 / top stays finite. One that is
 * infinite or no number makes the scale of the block, and so every output of this input row, no number. */
static void quantise(int type, const float *x, struct wide_block *out) {
    const float magic = 0x1.8p+23f; /* its low bits take a rounded integer */
    int32_t top = 0, sums[2] = {0, 0};
    for (int i = 0; i < WIDE_BLOCK; i++) {
        const int32_t b = bits_of(x[i]) & 0x7fffffff;
        top = b > top ? b : top;
    }
    float most;
    memcpy(&most, &top, sizeof most);
    const bool finite = top < 0x7f800000;
    const float lift = most < 0x1p-60f ? 0x1p+64f : 1.0f;
    const float inverse = finite && top ? 127.0f / (most * lift) : 0.0f;
    for (int i = 0; i < WIDE_BLOCK; i++) {
        const float y = finite ? x[i] * lift : 0.0f;
        out->quants[i] = (int8_t)(bits_of(y * inverse + magic) - bits_of(magic));
    }
    for (int i = 0; i < 16; i++) {
        sums[0] += out->quants[i];
        sums[1] += out->quants[16 + i];
    }
    const int32_t both = sums[0] + sums[1];
    out->scale = finite ? most * lift / 127.0f / lift : NAN;
    out->second = -32 * sums[1];
    out->total = -(float)both;
    out->start = type == WIDE_Q8_0 || type == WIDE_IQ4_NL ? -128 * both : type == WIDE_Q4_0 ? -8 * both : -32 * sums[0];
}

/* Asks for the weights that follow: hardware alone does not look far enough ahead once several input rows keep it busy. */
INLINE void ahead(const uint8_t *p, int bytes, int level) {
    UNROLL for (int i = 0; i < bytes; i += 64) {
        if (level == FIRST) {
            __builtin_prefetch(p + i, 0, FIRST);
        } else {
            __builtin_prefetch(p + i, 0, SECOND);
        }
    }
}

/* Adds to the sums of a step the dot products of `vectors` vectors of weights (4 or 8, of 4 columns each) with activations
 * from column `at` on; `left` rows of the group are left. */
INLINE void dots(int left, vints sums[TOGETHER], const vbytes *w, int vectors, const struct wide_block *in, int at,
                 int bits) {
#if defined(DOT_PAIRS)
    if (left >= 2) {
        vdot_pair(sums, w, vectors, in, at);
        return;
    }
#else
    (void)left;
#endif
    sums[0] = vdot16(sums[0], w, in[0].quants + at, bits);
    if (vectors == 8) {
        sums[0] = vdot16(sums[0], w + 4, in[0].quants + at + 16, bits);
    }
}

/* -- blocks of 32 weights with one scale ------------------------------------------------------------------------------- */

/* The 8 vectors of 32 columns from 4 of nibbles. */
INLINE void nibbles(const uint8_t *p, vbytes w[8]) {
    UNROLL for (int v = 0; v < 4; v++) {
        const vbytes both = vload(p + 64 * v);
        w[v] = vlow(both);
        w[v + 4] = vhigh(both);
    }
}

INLINE void weights32(int type, const uint8_t *p, vbytes w[8]) {
    if (type == WIDE_Q8_0) {
        UNROLL for (int v = 0; v < 8; v++) {
            w[v] = voffset(vload(p + 64 * v));
        }
        return;
    }
    nibbles(p, w);
    if (type == WIDE_IQ4_NL) {
        UNROLL for (int v = 0; v < 8; v++) {
            w[v] = voffset(vtable(w[v], iq4_values));
        }
    }
}

INLINE void plain(int type, int count, int from, int to, const struct wide_tile *t) {
    const int bits = type == WIDE_Q4_0 ? 4 : 8, bytes = type == WIDE_Q8_0 ? 512 : 256;
    const int64_t blocks = t->columns / WIDE_BLOCK;
    const uint8_t *scale = t->weights, *p = t->weights + 32 * blocks;
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_PART EACH_COLUMN { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        if (type == WIDE_Q8_0 && count <= 2) {
            ahead(p + AHEAD_NARROW, bytes, FIRST);
        } else {
            ahead(p + AHEAD_PLAIN, bytes, SECOND);
        }
        EACH_PART {
            vbytes w[8];
            weights32(type, p + part * PART_BYTES, w);
            const vfloats ws = vhalf(scale + part * 2 * LANES);
            EACH_STEP {
                vints sums[TOGETHER];
                EACH_ROW { sums[r] = vstart(in[c + r].start, bits); }
                dots(count - c, sums, w, 8, in + c, 0, bits);
                EACH_ROW {
                    acc[part][c + r] = vfma(vmul(vfloat(sums[r]), ws), vsplat(in[c + r].scale), acc[part][c + r]);
                }
            }
        }
        p += bytes;
        scale += 32;
        in += count;
    }
    EACH_COLUMN EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

/* -- Q4_K and Q5_K: 8 blocks of 32 with 6-bit scales and minima -------------------------------------------------------- */

/* 12 bytes of 16 rows to 8 scales and 8 minima, [8][16 rows] each. */
INLINE void six_bits(const uint8_t *p, uint8_t *scales, uint8_t *minima) {
    for (int i = 0; i < 64; i++) {
        scales[i] = p[i] & 63;
        minima[i] = p[64 + i] & 63;
        scales[64 + i] = (uint8_t)((p[128 + i] & 15) | (p[i] >> 6) << 4);
        minima[64 + i] = (uint8_t)(p[128 + i] >> 4 | (p[64 + i] >> 6) << 4);
    }
}

INLINE void with_minima(int type, int count, int from, int to, const struct wide_tile *t) {
    const int bits = type == WIDE_Q4_K ? 4 : 5, eighth = type == WIDE_Q4_K ? 280 : 344;
    const int64_t blocks = t->columns / 256;
    const uint8_t *halves = t->weights, *p = t->weights + 64 * blocks;
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_PART EACH_COLUMN { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t scales[8 * WIDE_TILE], minima[8 * WIDE_TILE];
        six_bits(p, scales, minima);
        p += 192;
        for (int j = 0; j < 8; j++) {
            ahead(p - 192 + AHEAD_MINIMA + eighth * j, eighth, FIRST);
            EACH_PART {
                vbytes w[8];
                nibbles(p + 256 * j + part * PART_BYTES, w);
                if (type == WIDE_Q5_K) {
                    const vbytes h = vload(p + 2048 + 64 * j + part * PART_BYTES);
                    UNROLL for (int v = 0; v < 8; v++) {
                        w[v] = vfifth(w[v], h, v);
                    }
                }
                const vfloats ws = vmul(vhalf(halves + part * 2 * LANES), vunsigned(scales + WIDE_TILE * j + part * LANES));
                const vfloats wm = vmul(vhalf(halves + 32 + part * 2 * LANES), vunsigned(minima + WIDE_TILE * j + part * LANES));
                EACH_STEP {
                    vints sums[TOGETHER];
                    EACH_ROW { sums[r] = vsplat_int(0); }
                    dots(count - c, sums, w, 8, in + c, 0, bits);
                    EACH_ROW {
                        const vfloats y = vfma(vfloat(sums[r]), ws, vmul(wm, vsplat(in[c + r].total)));
                        acc[part][c + r] = vfma(y, vsplat(in[c + r].scale), acc[part][c + r]);
                    }
                }
            }
            in += count;
        }
        halves += 64;
        p += type == WIDE_Q4_K ? 2048 : 2560;
    }
    EACH_COLUMN EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

/* -- Q6_K: 16 blocks of 16 with 8-bit scales --------------------------------------------------------------------------- */

INLINE void six_bit(int type, int count, int from, int to, const struct wide_tile *t) {
    (void)type;
    const int64_t blocks = t->columns / 256;
    const uint8_t *halves = t->weights, *p = t->weights + 32 * blocks;
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_PART EACH_COLUMN { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *q = p + 256;
        for (int j = 0; j < 8; j++) {
            ahead(p + AHEAD_SIX + 416 * j, 416, FIRST);
            EACH_PART {
                vbytes w[8];
                nibbles(q + 256 * j + part * PART_BYTES, w);
                UNROLL for (int h = 0; h < 2; h++) {
                    const vbytes pairs = vload(q + 2048 + 128 * j + 64 * h + part * PART_BYTES);
                    UNROLL for (int g = 0; g < 4; g++) {
                        w[4 * h + g] = vpair(w[4 * h + g], pairs, g);
                    }
                }
                const vfloats d = vhalf(halves + part * 2 * LANES);
                const vfloats first = vmul(d, vsigned(p + 32 * j + part * LANES));
                const vfloats second = vmul(d, vsigned(p + 32 * j + 16 + part * LANES));
                EACH_STEP {
                    vints x[TOGETHER], y[TOGETHER];
                    EACH_ROW {
                        x[r] = vstart(in[c + r].start, 6);
                        y[r] = vstart(in[c + r].second, 6);
                    }
                    dots(count - c, x, w, 4, in + c, 0, 6);
                    dots(count - c, y, w + 4, 4, in + c, 16, 6);
                    EACH_ROW {
                        const vfloats both = vfma(vfloat(y[r]), second, vmul(vfloat(x[r]), first));
                        acc[part][c + r] = vfma(both, vsplat(in[c + r].scale), acc[part][c + r]);
                    }
                }
            }
            in += count;
        }
        halves += 32;
        p += 256 + 3072;
    }
    EACH_COLUMN EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

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

/* -- one function per type and number of input rows ---------------------------------------------------------------------- */

/* Parts of the tile whose sums fit the registers in one walk along the columns; what is left takes more walks, its weights
 * from the cache. */
#define BLOCK_PARTS(count) (count * PARTS <= 16 ? PARTS : PARTS / 2)
#define FLOAT_PARTS(count) (count <= 2 ? PARTS : 1)

#define TILE(name, count, most, at_once, kernel, type) \
    static TARGET void name##_##count(const struct wide_tile *t) { \
        if (count <= most) { \
            kernel(type, count, 0, at_once(count), t); \
            UNROLL for (int from = at_once(count); from < PARTS; from += at_once(count)) { \
                kernel(type, count, from, from + at_once(count), t); \
            } \
        } \
    }
#define TILES(name, ...) \
    TILE(name, 1, __VA_ARGS__) TILE(name, 2, __VA_ARGS__) TILE(name, 3, __VA_ARGS__) TILE(name, 4, __VA_ARGS__) \
    TILE(name, 5, __VA_ARGS__) TILE(name, 6, __VA_ARGS__) TILE(name, 7, __VA_ARGS__) TILE(name, 8, __VA_ARGS__) \
    TILE(name, 9, __VA_ARGS__) TILE(name, 10, __VA_ARGS__) TILE(name, 11, __VA_ARGS__) TILE(name, 12, __VA_ARGS__) \
    TILE(name, 13, __VA_ARGS__) TILE(name, 14, __VA_ARGS__) TILE(name, 15, __VA_ARGS__) TILE(name, 16, __VA_ARGS__) \
    static tile_function *const name[16] = { \
        name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, \
        name##_9, name##_10, name##_11, name##_12, name##_13, name##_14, name##_15, name##_16};

typedef void tile_function(const struct wide_tile *t);

#define TARGET
TILES(q8_0, MOST_BLOCKS, BLOCK_PARTS, plain, WIDE_Q8_0)
TILES(q4_0, MOST_BLOCKS, BLOCK_PARTS, plain, WIDE_Q4_0)
TILES(iq4_nl, MOST_BLOCKS, BLOCK_PARTS, plain, WIDE_IQ4_NL)
TILES(q4_k, MOST_BLOCKS, BLOCK_PARTS, with_minima, WIDE_Q4_K)
TILES(q5_k, MOST_BLOCKS, BLOCK_PARTS, with_minima, WIDE_Q5_K)
TILES(q6_k, MOST_BLOCKS, BLOCK_PARTS, six_bit, WIDE_Q6_K)
TILES(f16, MOST_FLOATS, FLOAT_PARTS, floats, WIDE_F16)
TILES(bf16, MOST_FLOATS, FLOAT_PARTS, floats, WIDE_BF16)
#if defined(BF16_PAIRS)
#undef TARGET
#define TARGET BF16_PAIRS
TILES(bf16_pairs, MOST_FLOATS, FLOAT_PARTS, pairs, WIDE_BF16_PAIRS)
enum { HAS_PAIRS = true };
#else
enum { HAS_PAIRS = false };
#endif

static void tile(int type, int count, const struct wide_tile *t) {
    switch (type) {
    case WIDE_Q8_0: q8_0[count - 1](t); break;
    case WIDE_Q4_0: q4_0[count - 1](t); break;
    case WIDE_IQ4_NL: iq4_nl[count - 1](t); break;
    case WIDE_Q4_K: q4_k[count - 1](t); break;
    case WIDE_Q5_K: q5_k[count - 1](t); break;
    case WIDE_Q6_K: q6_k[count - 1](t); break;
    case WIDE_F16: f16[count - 1](t); break;
#if defined(BF16_PAIRS)
    case WIDE_BF16_PAIRS: bf16_pairs[count - 1](t); break;
#endif
    default: bf16[count - 1](t);
    }
}

const struct wide_product_lanes NAME = {MOST_BLOCKS, MOST_FLOATS, TOGETHER, HAS_PAIRS, quantise, tile};
