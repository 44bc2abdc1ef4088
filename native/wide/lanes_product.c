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
enum { AHEAD_PLAIN = 8192, AHEAD_NARROW = 2048, AHEAD_LARGE = 6720, AHEAD_FLOATS = 4096, FIRST = 3, SECOND = 2 };

#define EACH_COLUMN UNROLL for (int c = 0; c < count; c++)
#define EACH_PART UNROLL for (int part = from; part < to; part++)

/* Walks over the input rows of a group, `rows` of them. Where registers are few, sums of several rows lie in memory and a
 * loop goes over the rows; else the compiler knows how many there are and holds all sums in registers. */
#if defined(SUMS_IN_MEMORY)
#define COUNT_OR_ANY(count, t) (count == 1 ? 1 : (t)->count)
#define EACH_INPUT _Pragma("GCC unroll 1") for (int c = 0; c < rows; c++)
#define HOLD(sum) if (count != 1) KEEP_IN_MEMORY(sum)
#define HOLD_WEIGHTS(w) UNROLL for (int v = 0; v < 8; v++) KEEP_IN_REGISTER(w[v])
#else
#define COUNT_OR_ANY(count, t) (count)
#define EACH_INPUT UNROLL for (int c = 0; c < rows; c++)
#define HOLD(sum) (void)0
#define HOLD_WEIGHTS(w) (void)0
#endif

/* Input rows whose dot products are made in one go, and a walk over the rows of a group in such steps. */
#if defined(DOT_PAIRS)
enum { TOGETHER = 2 };
#define EACH_STEP UNROLL for (int c = 0; c < rows; c += TOGETHER)
#define EACH_ROW UNROLL for (int r = 0; r < TOGETHER; r++) if (c + r < rows)
#else
enum { TOGETHER = 1 };
#define EACH_STEP EACH_INPUT
#define EACH_ROW for (int r = 0; r < 1; r++)
#endif

#include "lanes_unpack.h"

/* -- preparing the input ----------------------------------------------------------------------------------------------- */

static int32_t float_bits_of(float x) {
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
        const int32_t b = float_bits_of(x[i]) & 0x7fffffff;
        top = b > top ? b : top;
    }
    float most;
    memcpy(&most, &top, sizeof most);
    const bool finite = top < 0x7f800000;
    const float lift = most < 0x1p-60f ? 0x1p+64f : 1.0f;
    const float inverse = finite && top ? 127.0f / (most * lift) : 0.0f;
    for (int i = 0; i < WIDE_BLOCK; i++) {
        const float y = finite ? x[i] * lift : 0.0f;
        out->quants[i] = (int8_t)(float_bits_of(y * inverse + magic) - float_bits_of(magic));
    }
    for (int i = 0; i < 16; i++) {
        sums[0] += out->quants[i];
        sums[1] += out->quants[16 + i];
    }
    const int32_t both = sums[0] + sums[1];
    out->scale = finite ? most * lift / 127.0f / lift : NAN;
    out->start = -offset(type) * (has_halves(type) ? sums[0] : both);
    out->second = -offset(type) * sums[1];
    out->total = minima_are_added(type) ? (float)both : -(float)both;
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
    sums[0] = vdot(sums[0], w, vectors, in[0].quants + at, bits);
}

/* -- blocks of 32 ------------------------------------------------------------------------------------------------------ */

INLINE void small_blocks(int type, int count, int from, int to, const struct wide_tile *t) {
    const bool minima = minima_are_added(type);
    const int bits = bits_of(type), scales = type == WIDE_MXFP4 ? WIDE_TILE : 0, bytes = scales + 64 * dwords_of(type);
    const int rows = COUNT_OR_ANY(count, t);
    const int64_t blocks = t->columns / WIDE_BLOCK;
    const uint8_t *half = t->weights, *p = t->weights + wide_tile_records(type, t->columns);
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_INPUT EACH_PART { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        float powers[WIDE_TILE];
        if (type == WIDE_Q8_0 && count && count <= 2) {
            ahead(p + AHEAD_NARROW, bytes, FIRST);
        } else {
            ahead(p + AHEAD_PLAIN, bytes, SECOND);
        }
        if (type == WIDE_MXFP4) {
            powers_of_two(p, powers);
        }
        EACH_PART {
            vbytes w[8];
            unpack(type, p + scales + part * PART_BYTES, 0, w);
            HOLD_WEIGHTS(w);
            const vfloats ws = type == WIDE_MXFP4 ? vfloats_at(powers + part * LANES) : vhalf(half + part * 2 * LANES);
            const vfloats wm = minima ? vhalf(half + 32 + part * 2 * LANES) : ws;
            EACH_STEP {
                vints sums[TOGETHER];
                EACH_ROW { sums[r] = minima ? vsplat_int(0) : vstart(in[c + r].start, bits); }
                dots(rows - c, sums, w, 8, in + c, 0, bits);
                EACH_ROW {
                    const vfloats x = vfloat(sums[r]);
                    const vfloats y = minima ? vfma(x, ws, vmul(wm, vsplat(in[c + r].total))) : vmul(x, ws);
                    acc[part][c + r] = vfma(y, vsplat(in[c + r].scale), acc[part][c + r]);
                    HOLD(acc[part][c + r]);
                }
            }
        }
        p += bytes;
        half += type == WIDE_MXFP4 ? 0 : minima ? 64 : 32;
        in += rows;
    }
    EACH_INPUT EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

/* -- blocks of 256, in eighths of 32 columns --------------------------------------------------------------------------- */

/* With a scale for every eighth, and a minimum if the type has one. */
INLINE void eighths(int type, int count, int from, int to, const struct wide_tile *t) {
    const bool minima = has_minima(type), whole = type == WIDE_TQ2_0; /* the latter: one scale for all */
    const int bits = bits_of(type), packed = scale_bytes(type), bytes = packed + 64 * dwords_of(type);
    const int rows = COUNT_OR_ANY(count, t);
    const int64_t blocks = t->columns / 256;
    const uint8_t *grid = wide_has_grid(type) ? wide_grid(type) : NULL;
    const uint8_t *half = t->weights, *p = t->weights + wide_tile_records(type, t->columns);
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_INPUT EACH_PART { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t scales[8 * WIDE_TILE], minimum[8 * WIDE_TILE], room[LOOKED_UP];
        eighth_scales(type, p, scales, minimum);
        const uint8_t *quants = quants_of(type, p, grid, from * LANES, to * LANES, room);
        for (int j = 0; j < 8; j++) {
            ahead(p + AHEAD_LARGE + bytes / 8 * j, bytes / 8, FIRST);
            EACH_PART {
                vbytes w[8];
                unpack(type, quants + part * PART_BYTES, j, w);
                HOLD_WEIGHTS(w);
                const uint8_t *at = scales + WIDE_TILE * j + part * LANES;
                const vfloats d = unit_scales(type, half + part * 2 * LANES);
                const vfloats ws = whole ? d : vmul(d, minima ? vunsigned(at) : vsigned(at));
                const vfloats wm = minima ? vmul(vhalf(half + 32 + part * 2 * LANES),
                                                 vunsigned(minimum + WIDE_TILE * j + part * LANES)) : ws;
                EACH_STEP {
                    vints sums[TOGETHER];
                    EACH_ROW { sums[r] = minima ? vsplat_int(0) : vstart(in[c + r].start, bits); }
                    dots(rows - c, sums, w, 8, in + c, 0, bits);
                    EACH_ROW {
                        const vfloats x = vfloat(sums[r]);
                        const vfloats y = minima ? vfma(x, ws, vmul(wm, vsplat(in[c + r].total))) : vmul(x, ws);
                        acc[part][c + r] = vfma(y, vsplat(in[c + r].scale), acc[part][c + r]);
                        HOLD(acc[part][c + r]);
                    }
                }
            }
            in += rows;
        }
        half += minima ? 64 : 32;
        p += bytes;
    }
    EACH_INPUT EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

/* With two scales for every eighth, 16 columns each, and two minima if the type has them. */
INLINE void sixteenths(int type, int count, int from, int to, const struct wide_tile *t) {
    const bool minima = has_minima(type);
    const int bits = bits_of(type), packed = scale_bytes(type), bytes = packed + 64 * dwords_of(type);
    const int rows = COUNT_OR_ANY(count, t);
    const int64_t blocks = t->columns / 256;
    const uint8_t *grid = wide_has_grid(type) ? wide_grid(type) : NULL;
    const uint8_t *half = t->weights, *p = t->weights + wide_tile_records(type, t->columns);
    const struct wide_block *in = t->input;
    vfloats acc[PARTS][MOST_BLOCKS];
    EACH_INPUT EACH_PART { acc[part][c] = vsplat(0.0f); }
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t unpacked[16 * WIDE_TILE], minimum[16 * WIDE_TILE], room[LOOKED_UP];
        const uint8_t *scales = sixteenth_scales(type, p, unpacked, minimum);
        const uint8_t *quants = quants_of(type, p, grid, from * LANES, to * LANES, room);
        for (int j = 0; j < 8; j++) {
            ahead(p + AHEAD_LARGE + bytes / 8 * j, bytes / 8, FIRST);
            EACH_PART {
                vbytes w[8];
                unpack(type, quants + part * PART_BYTES, j, w);
                HOLD_WEIGHTS(w);
                const vfloats d = unit_scales(type, half + part * 2 * LANES);
                const uint8_t *at = scales + 2 * WIDE_TILE * j + part * LANES, *low = minimum + (at - scales);
                const vfloats first = vmul(d, vsigned(at)), second = vmul(d, vsigned(at + WIDE_TILE));
                const vfloats m = minima ? vhalf(half + 32 + part * 2 * LANES) : d;
                const vfloats m1 = minima ? vmul(m, vunsigned(low)) : d, m2 = minima ? vmul(m, vunsigned(low + WIDE_TILE)) : d;
                EACH_STEP {
                    vints x[TOGETHER], y[TOGETHER];
                    EACH_ROW {
                        x[r] = minima ? vsplat_int(0) : vstart(in[c + r].start, bits);
                        y[r] = minima ? vsplat_int(0) : vstart(in[c + r].second, bits);
                    }
                    dots(rows - c, x, w, 4, in + c, 0, bits);
                    dots(rows - c, y, w + 4, 4, in + c, 16, bits);
                    EACH_ROW {
                        vfloats both = vfma(vfloat(y[r]), second, vmul(vfloat(x[r]), first));
                        if (minima) {
                            both = vfma(vfloat(vsplat_int(in[c + r].start)), m1, both);
                            both = vfma(vfloat(vsplat_int(in[c + r].second)), m2, both);
                        }
                        acc[part][c + r] = vfma(both, vsplat(in[c + r].scale), acc[part][c + r]);
                        HOLD(acc[part][c + r]);
                    }
                }
            }
            in += rows;
        }
        half += minima ? 64 : 32;
        p += bytes;
    }
    EACH_INPUT EACH_PART { vstore(t->output + (size_t)c * t->output_stride + part * LANES, acc[part][c]); }
}

#include "lanes_floats.h"

/* -- one function per type and number of input rows ---------------------------------------------------------------------- */

/* Parts of the tile whose sums fit the registers in one walk along the columns; what is left takes more walks, its weights
 * from the cache. */
#if defined(SUMS_IN_MEMORY)
#define BLOCK_PARTS(count) PARTS
#else
#define BLOCK_PARTS(count) (count * PARTS <= 16 ? PARTS : PARTS / 2)
#endif
#define FLOAT_PARTS(count) (count <= 2 ? PARTS : 1)

typedef void tile_function(const struct wide_tile *t);

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
    static void name(const struct wide_tile *t) { \
        static tile_function *const by_count[16] = { \
            name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, \
            name##_9, name##_10, name##_11, name##_12, name##_13, name##_14, name##_15, name##_16}; \
        by_count[t->count - 1](t); \
    }
#if defined(SUMS_IN_MEMORY) /* 0: any number */
#define BLOCK_TILES(name, kernel, type) \
    TILE(name, 0, MOST_BLOCKS, BLOCK_PARTS, kernel, type) TILE(name, 1, MOST_BLOCKS, BLOCK_PARTS, kernel, type) \
    static void name(const struct wide_tile *t) { (t->count == 1 ? name##_1 : name##_0)(t); }
#else
#define BLOCK_TILES(name, kernel, type) TILES(name, MOST_BLOCKS, BLOCK_PARTS, kernel, type)
#endif

#define TARGET
BLOCK_TILES(q8_0, small_blocks, WIDE_Q8_0)
BLOCK_TILES(q4_0, small_blocks, WIDE_Q4_0)
BLOCK_TILES(q4_1, small_blocks, WIDE_Q4_1)
BLOCK_TILES(q5_0, small_blocks, WIDE_Q5_0)
BLOCK_TILES(q5_1, small_blocks, WIDE_Q5_1)
BLOCK_TILES(iq4_nl, small_blocks, WIDE_IQ4_NL)
BLOCK_TILES(mxfp4, small_blocks, WIDE_MXFP4)
BLOCK_TILES(q4_k, eighths, WIDE_Q4_K)
BLOCK_TILES(q5_k, eighths, WIDE_Q5_K)
BLOCK_TILES(iq4_xs, eighths, WIDE_IQ4_XS)
BLOCK_TILES(tq2_0, eighths, WIDE_TQ2_0)
BLOCK_TILES(q2_k, sixteenths, WIDE_Q2_K)
BLOCK_TILES(q3_k, sixteenths, WIDE_Q3_K)
BLOCK_TILES(q6_k, sixteenths, WIDE_Q6_K)
BLOCK_TILES(iq2_xxs, eighths, WIDE_IQ2_XXS)
BLOCK_TILES(iq2_xs, sixteenths, WIDE_IQ2_XS)
BLOCK_TILES(iq2_s, sixteenths, WIDE_IQ2_S)
BLOCK_TILES(iq3_xxs, eighths, WIDE_IQ3_XXS)
BLOCK_TILES(iq3_s, eighths, WIDE_IQ3_S)
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

static void tile(int type, const struct wide_tile *t) {
    switch (type) {
    case WIDE_Q8_0: q8_0(t); break;
    case WIDE_Q4_0: q4_0(t); break;
    case WIDE_Q4_1: q4_1(t); break;
    case WIDE_Q5_0: q5_0(t); break;
    case WIDE_Q5_1: q5_1(t); break;
    case WIDE_IQ4_NL: iq4_nl(t); break;
    case WIDE_MXFP4: mxfp4(t); break;
    case WIDE_Q4_K: q4_k(t); break;
    case WIDE_Q5_K: q5_k(t); break;
    case WIDE_IQ4_XS: iq4_xs(t); break;
    case WIDE_TQ2_0: tq2_0(t); break;
    case WIDE_Q2_K: q2_k(t); break;
    case WIDE_Q3_K: q3_k(t); break;
    case WIDE_Q6_K: q6_k(t); break;
    case WIDE_IQ2_XXS: iq2_xxs(t); break;
    case WIDE_IQ2_XS: iq2_xs(t); break;
    case WIDE_IQ2_S: iq2_s(t); break;
    case WIDE_IQ3_XXS: iq3_xxs(t); break;
    case WIDE_IQ3_S: iq3_s(t); break;
    case WIDE_F16: f16(t); break;
#if defined(BF16_PAIRS)
    case WIDE_BF16_PAIRS: bf16_pairs(t); break;
#endif
    default: bf16(t);
    }
}

const struct wide_product_lanes NAME = {MOST_BLOCKS, MOST_FLOATS, TOGETHER, HAS_PAIRS, quantise, tile};
