/* The operations of lanes_product.c with NEON and its dot product (ARMv8.2), and with its product of 8-bit matrices (ARMv8.6,
 * "i8mm") where the compiler may use it: 4 lanes are one register. */
#ifndef LOCALSPEC_WIDE_LANES_NEON_H
#define LOCALSPEC_WIDE_LANES_NEON_H

#include <arm_neon.h>

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define NAME wide_product_i8mm
#define DOT_PAIRS
#else
#define NAME wide_product_neon
#endif
enum { LANES = 4, MOST_BLOCKS = 8, MOST_FLOATS = 8 };

typedef float32x4_t vfloats;
typedef int32x4_t vints;
typedef uint8x16_t vbytes;

INLINE vfloats vsplat(float x) { return vdupq_n_f32(x); }
INLINE vfloats vfloats_at(const float *p) { return vld1q_f32(p); }
INLINE void vstore(float *p, vfloats a) { vst1q_f32(p, a); }
INLINE vfloats vadd(vfloats a, vfloats b) { return vaddq_f32(a, b); }
INLINE vfloats vmul(vfloats a, vfloats b) { return vmulq_f32(a, b); }
INLINE vfloats vfma(vfloats a, vfloats b, vfloats c) { return vfmaq_f32(c, a, b); }
INLINE vfloats vfloat(vints a) { return vcvtq_f32_s32(a); }
INLINE vfloats vhalf(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE vfloats vunsigned(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
INLINE vfloats vsigned(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four)))));
}

INLINE vints vsplat_int(int32_t x) { return vdupq_n_s32(x); }

INLINE vbytes vload(const uint8_t *p) { return vld1q_u8(p); }
INLINE vfloats vbf16_even(vbytes a) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u8(a), 16)); }
INLINE vfloats vbf16_odd(vbytes a) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u8(a), vdupq_n_u32(0xffff0000u)));
}
INLINE vbytes vlow(vbytes a) { return vandq_u8(a, vdupq_n_u8(15)); }
INLINE vbytes vhigh(vbytes a) { return vshrq_n_u8(a, 4); }
/* The bits of a under a mask, after a shift to the left; negative ones go right. */
INLINE vbytes vbits(vbytes a, int left, int mask) {
    return vandq_u8(vshlq_u8(a, vdupq_n_s8((int8_t)left)), vdupq_n_u8((uint8_t)mask));
}
INLINE vbytes vinsert(vbytes a, vbytes h, int left, int mask) { return vorrq_u8(a, vbits(h, left, mask)); }
/* sum - a where that bit of b is set, else a. */
INLINE vbytes vmirror(vbytes a, vbytes b, int bit, int sum) {
    return vbslq_u8(vtstq_u8(b, vdupq_n_u8((uint8_t)(1 << bit))), vsubq_u8(vdupq_n_u8((uint8_t)sum), a), a);
}
INLINE vbytes vtable(vbytes a, const uint8_t table[16]) { return vqtbl1q_u8(vld1q_u8(table), a); }

/* The dot product takes signed weights: those of 8 bits lose their offset here, fewer bits are non-negative anyway. */
INLINE vbytes voffset(vbytes a) { return veorq_u8(a, vdupq_n_u8(0x80)); }
INLINE vints vstart(int32_t start, int bits) { return vdupq_n_s32(bits == 8 ? 0 : start); }

INLINE vints vdot(vints acc, const vbytes *w, int vectors, const int8_t *a, int bits) {
    (void)bits;
    UNROLL for (int g = 0; g < vectors; g += 4) {
        const int8x16_t x = vld1q_s8(a + 4 * g);
        acc = vdotq_laneq_s32(acc, vreinterpretq_s8_u8(w[g]), x, 0);
        acc = vdotq_laneq_s32(acc, vreinterpretq_s8_u8(w[g + 1]), x, 1);
        acc = vdotq_laneq_s32(acc, vreinterpretq_s8_u8(w[g + 2]), x, 2);
        acc = vdotq_laneq_s32(acc, vreinterpretq_s8_u8(w[g + 3]), x, 3);
    }
    return acc;
}

#if defined(DOT_PAIRS)
/* The vectors of two neighbouring dwords, 4 weight rows by 4 columns each, zip to 2 x 2 rows by 8 columns, which is what the
 * instruction takes; its other side is 8 columns of both input rows, and it gives sums of 2 weight rows by 2 input rows. */
INLINE vints vrows01(vints acc, const vbytes w[2], int8x16_t both) {
    return vmmlaq_s32(acc, vreinterpretq_s8_u32(vzip1q_u32(vreinterpretq_u32_u8(w[0]), vreinterpretq_u32_u8(w[1]))), both);
}
INLINE vints vrows23(vints acc, const vbytes w[2], int8x16_t both) {
    return vmmlaq_s32(acc, vreinterpretq_s8_u32(vzip2q_u32(vreinterpretq_u32_u8(w[0]), vreinterpretq_u32_u8(w[1]))), both);
}
/* Adds the dot products of `vectors` vectors of weights with the activations of two input rows from column `at` on. */
INLINE void vdot_pair(vints sums[2], const vbytes *w, int vectors, const struct wide_block pair[2], int at) {
    vints upper = vzip1q_s32(sums[0], sums[1]), lower = vzip2q_s32(sums[0], sums[1]);
    UNROLL for (int v = 0; v < vectors; v += 2) {
        const int column = at + 4 * v;
        const int8x16_t both = vld1q_s8(pair[column / 16].quants + 2 * (column % 16));
        upper = vrows01(upper, w + v, both);
        lower = vrows23(lower, w + v, both);
    }
    sums[0] = vuzp1q_s32(upper, lower);
    sums[1] = vuzp2q_s32(upper, lower);
}
#endif

#endif
