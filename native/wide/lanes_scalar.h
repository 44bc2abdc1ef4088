/* The operations of lanes_product.c in plain C: 16 lanes are arrays, which compilers may vectorise. */
#ifndef LOCALSPEC_WIDE_LANES_SCALAR_H
#define LOCALSPEC_WIDE_LANES_SCALAR_H

#include <math.h>
#include <string.h>

#define NAME wide_product_scalar
enum { LANES = 16, MOST_BLOCKS = 4, MOST_FLOATS = 4 };
#define SUMS_IN_MEMORY
#define KEEP_IN_MEMORY(sum) (void)0
#define KEEP_IN_REGISTER(weights) (void)0

typedef struct { float x[16]; } vfloats;
typedef struct { int32_t x[16]; } vints;
typedef struct { uint8_t x[64]; } vbytes;

#define EACH_LANE for (int i = 0; i < 16; i++)
#define EACH_BYTE for (int i = 0; i < 64; i++)

INLINE float float_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE float half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest < 0x400) { /* subnormal: a multiple of 2^-24 */
        return sign ? -(float)rest * 0x1p-24f : (float)rest * 0x1p-24f;
    }
    return float_bits(sign | (rest < 0x7c00 ? (rest << 13) + (112u << 23) : rest << 13 | 0x7f800000u));
}

INLINE vfloats vsplat(float x) {
    vfloats a;
    EACH_LANE { a.x[i] = x; }
    return a;
}
INLINE vfloats vfloats_at(const float *p) {
    vfloats a;
    memcpy(a.x, p, sizeof a.x);
    return a;
}
INLINE void vstore(float *p, vfloats a) { memcpy(p, a.x, sizeof a.x); }
INLINE vfloats vadd(vfloats a, vfloats b) {
    EACH_LANE { a.x[i] += b.x[i]; }
    return a;
}
INLINE vfloats vmul(vfloats a, vfloats b) {
    EACH_LANE { a.x[i] *= b.x[i]; }
    return a;
}
INLINE vfloats vfma(vfloats a, vfloats b, vfloats c) { /* a b + c */
    EACH_LANE { a.x[i] = fmaf(a.x[i], b.x[i], c.x[i]); }
    return a;
}
INLINE vfloats vfloat(vints a) {
    vfloats f;
    EACH_LANE { f.x[i] = (float)a.x[i]; }
    return f;
}
INLINE vfloats vhalf(const uint8_t *p) {
    vfloats a;
    uint16_t h[16];
    memcpy(h, p, sizeof h);
    EACH_LANE { a.x[i] = half(h[i]); }
    return a;
}
INLINE vfloats vunsigned(const uint8_t *p) {
    vfloats a;
    EACH_LANE { a.x[i] = (float)p[i]; }
    return a;
}
INLINE vfloats vsigned(const uint8_t *p) {
    vfloats a;
    EACH_LANE { a.x[i] = (float)(int8_t)p[i]; }
    return a;
}

INLINE vints vsplat_int(int32_t x) {
    vints a;
    EACH_LANE { a.x[i] = x; }
    return a;
}

INLINE vbytes vload(const uint8_t *p) {
    vbytes a;
    memcpy(a.x, p, sizeof a.x);
    return a;
}
INLINE vfloats vbf16_even(vbytes a) {
    vfloats f;
    uint32_t w[16];
    memcpy(w, a.x, sizeof w);
    EACH_LANE { f.x[i] = float_bits(w[i] << 16); }
    return f;
}
INLINE vfloats vbf16_odd(vbytes a) {
    vfloats f;
    uint32_t w[16];
    memcpy(w, a.x, sizeof w);
    EACH_LANE { f.x[i] = float_bits(w[i] & 0xffff0000u); }
    return f;
}
INLINE vbytes vlow(vbytes a) {
    EACH_BYTE { a.x[i] &= 15; }
    return a;
}
INLINE vbytes vhigh(vbytes a) {
    EACH_BYTE { a.x[i] >>= 4; }
    return a;
}
/* The bits of a under a mask, after a shift to the left; negative ones go right. */
INLINE vbytes vbits(vbytes a, int left, int mask) {
    EACH_BYTE { a.x[i] = (uint8_t)((left > 0 ? a.x[i] << left : a.x[i] >> -left) & mask); }
    return a;
}
INLINE vbytes vinsert(vbytes a, vbytes h, int left, int mask) {
    h = vbits(h, left, mask);
    EACH_BYTE { a.x[i] |= h.x[i]; }
    return a;
}
/* sum - a where that bit of b is set, else a. */
INLINE vbytes vmirror(vbytes a, vbytes b, int bit, int sum) {
    EACH_BYTE { a.x[i] = b.x[i] >> bit & 1 ? (uint8_t)(sum - a.x[i]) : a.x[i]; }
    return a;
}
INLINE vbytes vtable(vbytes a, const uint8_t table[16]) {
    EACH_BYTE { a.x[i] = table[a.x[i]]; }
    return a;
}

/* Bytes stored + 128 as the dot product wants them, and what it starts from: see `start` in lanes.h. */
INLINE vbytes voffset(vbytes a) { return a; }
INLINE vints vstart(int32_t start, int bits) {
    (void)bits;
    return vsplat_int(start);
}

/* acc += sum of w[g] byte i of a lane, times a[4g + i]. Weights have at most `bits` bits. */
INLINE vints vdot(vints acc, const vbytes *w, int vectors, const int8_t *a, int bits) {
    (void)bits;
    for (int g = 0; g < vectors; g++) {
        EACH_LANE {
            const uint8_t *x = w[g].x + 4 * i;
            acc.x[i] += x[0] * a[4 * g] + x[1] * a[4 * g + 1] + x[2] * a[4 * g + 2] + x[3] * a[4 * g + 3];
        }
    }
    return acc;
}

#endif
