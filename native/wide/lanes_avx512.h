/* The operations of lanes_product.c with AVX-512 (F, BW, DQ, VL, VNNI): 16 lanes are one register. */
#ifndef LOCALSPEC_WIDE_LANES_AVX512_H
#define LOCALSPEC_WIDE_LANES_AVX512_H

#include <immintrin.h>

#define NAME wide_product_avx512
enum { LANES = 16, MOST_BLOCKS = 16, MOST_FLOATS = 12 };

typedef __m512 vfloats;
typedef __m512i vints;
typedef __m512i vbytes;

INLINE vfloats vsplat(float x) { return _mm512_set1_ps(x); }
INLINE vfloats vfloats_at(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vstore(float *p, vfloats a) { _mm512_storeu_ps(p, a); }
INLINE vfloats vadd(vfloats a, vfloats b) { return _mm512_add_ps(a, b); }
INLINE vfloats vmul(vfloats a, vfloats b) { return _mm512_mul_ps(a, b); }
INLINE vfloats vfma(vfloats a, vfloats b, vfloats c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vfloats vfloat(vints a) { return _mm512_cvtepi32_ps(a); }
INLINE vfloats vhalf(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vfloats vunsigned(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
INLINE vfloats vsigned(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE vints vsplat_int(int32_t x) { return _mm512_set1_epi32(x); }

INLINE vbytes vload(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE vfloats vbf16_even(vbytes a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
INLINE vfloats vbf16_odd(vbytes a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32((int)0xffff0000)));
}
INLINE vbytes vlow(vbytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE vbytes vhigh(vbytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
INLINE vbytes vshift(vbytes a, int left) {
    return left > 0 ? _mm512_slli_epi16(a, (unsigned)left) : left < 0 ? _mm512_srli_epi16(a, (unsigned)-left) : a;
}
/* The bits of a under a mask, after a shift to the left; negative ones go right. */
INLINE vbytes vbits(vbytes a, int left, int mask) {
    return _mm512_and_si512(vshift(a, left), _mm512_set1_epi8((char)mask));
}
INLINE vbytes vinsert(vbytes a, vbytes h, int left, int mask) { /* a, and those bits of h */
    return _mm512_ternarylogic_epi32(a, vshift(h, left), _mm512_set1_epi8((char)mask), 0xf8);
}
/* sum - a where that bit of b is set, else a. */
INLINE vbytes vmirror(vbytes a, vbytes b, int bit, int sum) {
    const __mmask64 set = _mm512_test_epi8_mask(b, _mm512_set1_epi8((char)(1 << bit)));
    return _mm512_mask_sub_epi8(a, set, _mm512_set1_epi8((char)sum), a);
}
INLINE vbytes vtable(vbytes a, const uint8_t table[16]) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), a);
}

INLINE vbytes voffset(vbytes a) { return a; }
INLINE vints vstart(int32_t start, int bits) {
    (void)bits;
    return vsplat_int(start);
}

INLINE vints vdot(vints acc, const vbytes *w, int vectors, const int8_t *a, int bits) {
    (void)bits;
    UNROLL for (int g = 0; g < vectors; g++) {
        int32_t four;
        memcpy(&four, a + 4 * g, sizeof four);
        acc = _mm512_dpbusd_epi32(acc, w[g], _mm512_set1_epi32(four));
    }
    return acc;
}

/* Not every CPU with the rest has these: functions that use them say so, and product.c asks first. A lane adds the products
 * of two BF16 pairs; subnormal numbers count as zero. */
#define BF16_PAIRS __attribute__((target("avx512bf16")))

static inline BF16_PAIRS __attribute__((always_inline)) vfloats vdot_pairs(vfloats acc, vbytes w, uint32_t pair) {
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32((int)pair));
}

#endif
