/* The operations of lanes_product.c with AVX2, FMA and F16C, and with AVX-VNNI where the compiler may use it: 8 lanes are
 * one register. There are 16 registers: 8 hold 32 columns of weights, and the sums of the input rows lie in memory. */
#ifndef LOCALSPEC_WIDE_LANES_AVX2_H
#define LOCALSPEC_WIDE_LANES_AVX2_H

#include <immintrin.h>

#if defined(__AVXVNNI__)
#define NAME wide_product_avx2_vnni
#define DOT4 1
#define DPBUSD(acc, w, a) _mm256_dpbusd_avx_epi32(acc, w, a)
#else
#define NAME wide_product_avx2
#define DOT4 0
#endif
enum { LANES = 8, MOST_BLOCKS = 16, MOST_FLOATS = 6 };
#define SUMS_IN_MEMORY

typedef __m256 vfloats;
typedef __m256i vints;
typedef __m256i vbytes;

INLINE vfloats vsplat(float x) { return _mm256_set1_ps(x); }
INLINE vfloats vfloats_at(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vstore(float *p, vfloats a) { _mm256_storeu_ps(p, a); }
INLINE vfloats vadd(vfloats a, vfloats b) { return _mm256_add_ps(a, b); }
INLINE vfloats vmul(vfloats a, vfloats b) { return _mm256_mul_ps(a, b); }
INLINE vfloats vfma(vfloats a, vfloats b, vfloats c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vfloats vfloat(vints a) { return _mm256_cvtepi32_ps(a); }
INLINE vfloats vhalf(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vfloats vunsigned(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE vfloats vsigned(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE vints vsplat_int(int32_t x) { return _mm256_set1_epi32(x); }

INLINE vbytes vload(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE vfloats vbf16_even(vbytes a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }
INLINE vfloats vbf16_odd(vbytes a) {
    return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE vbytes vlow(vbytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
INLINE vbytes vhigh(vbytes a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
/* The bits of a under a mask, after a shift to the left; negative ones go right. */
INLINE vbytes vbits(vbytes a, int left, int mask) {
    const __m256i bits = left > 0 ? _mm256_slli_epi16(a, left) : left < 0 ? _mm256_srli_epi16(a, -left) : a;
    return _mm256_and_si256(bits, _mm256_set1_epi8((char)mask));
}
INLINE vbytes vinsert(vbytes a, vbytes h, int left, int mask) { return _mm256_or_si256(a, vbits(h, left, mask)); }
/* sum - a where that bit of b is set, else a. */
INLINE vbytes vmirror(vbytes a, vbytes b, int bit, int sum) {
    return _mm256_blendv_epi8(a, _mm256_sub_epi8(_mm256_set1_epi8((char)sum), a), _mm256_slli_epi16(b, 7 - bit));
}
INLINE vbytes vtable(vbytes a, const uint8_t table[16]) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), a);
}

/* Without VNNI pairs of products are summed in 16 bits. 8-bit weights leave room for that only as signed ones, whose sign
 * goes over to the activation: |w| * (a with w's sign), at most 2 * 128 * 127. */
INLINE vbytes voffset(vbytes a) { return DOT4 ? a : _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80)); }
INLINE vints vstart(int32_t start, int bits) { return vsplat_int(bits == 8 && !DOT4 ? 0 : start); }

/* Keeps the compiler from holding sums in registers that the weights need, and from loading weights again. */
#define KEEP_IN_MEMORY(sum) __asm__ volatile("" : "+m"(sum))
#define KEEP_IN_REGISTER(weights) __asm__ volatile("" : "+x"(weights))

INLINE vints vdot(vints acc, const vbytes *w, int vectors, const int8_t *a, int bits) {
#if DOT4
    (void)bits;
#else
    const __m256i ones = _mm256_set1_epi16(1);
    const int room = bits >= 7 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8; /* dwords whose 16-bit sums cannot overflow */
    __m256i narrow = _mm256_setzero_si256();
#endif
    UNROLL for (int g = 0; g < vectors; g++) {
        int32_t four;
        memcpy(&four, a + 4 * g, sizeof four);
        const __m256i x = _mm256_set1_epi32(four);
#if DOT4
        acc = DPBUSD(acc, w[g], x);
#else
        const __m256i y = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(x, w[g]))
                                    : _mm256_maddubs_epi16(w[g], x);
        narrow = g % room ? _mm256_add_epi16(narrow, y) : y;
        if (g % room == room - 1 || g == vectors - 1) {
            acc = _mm256_add_epi32(acc, _mm256_madd_epi16(narrow, ones));
        }
#endif
    }
    return acc;
}

#endif
