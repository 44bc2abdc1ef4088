/* Sixteen floats, whatever the instruction set: one register, two, four or an array. Every operation rounds like the scalar
 * one (multiply-adds with one rounding), so loops written with these give the same bits on all of them. */
#ifndef LOCALSPEC_WIDE_LANES_VECTOR_H
#define LOCALSPEC_WIDE_LANES_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(LSW_BUILD_AVX512) || defined(LSW_BUILD_AVX2)
#include <immintrin.h>
#elif defined(LSW_BUILD_NEON)
#include <arm_neon.h>
#endif

#define LSW_INLINE static inline __attribute__((always_inline))

LSW_INLINE float v16_one_half(uint16_t h) { /* float16 to float32, exact */
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    uint32_t bits = rest >= 0x7c00u ? 0x7f800000u | (rest & 0x3ffu) << 13 : (rest << 13) + (112u << 23);
    float x;
    if (rest < 0x400u) { /* subnormal: a whole number of 2^-24 */
        x = (float)rest * 0x1p-24f;
        memcpy(&bits, &x, sizeof x);
    }
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#if defined(LSW_BUILD_AVX512)

typedef __m512 v16;

LSW_INLINE v16 v16_splat(float x) { return _mm512_set1_ps(x); }
LSW_INLINE v16 v16_load(const void *p) { return _mm512_loadu_ps(p); }
LSW_INLINE void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
LSW_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
LSW_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
LSW_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
LSW_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
LSW_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
LSW_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
LSW_INLINE v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }
LSW_INLINE v16 v16_copysign(v16 a, v16 sign) {
    return _mm512_or_ps(_mm512_abs_ps(a), _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
/* a where x < limit, else b */
LSW_INLINE v16 v16_if_below(v16 x, v16 limit, v16 a, v16 b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}
/* x * 2^n, where the low bits of `shifted` hold n; no result may leave the normal range */
LSW_INLINE v16 v16_scale_by_power(v16 x, v16 shifted) {
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), n));
}
LSW_INLINE v16 v16_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LSW_INLINE v16 v16_bf16(const void *p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
LSW_INLINE v16 v16_int8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* x[i] lane j and x[j] lane i change places. */
LSW_INLINE void v16_transpose(v16 x[16]) {
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* u[i + j], quarter m: column 4 m + j of rows i to i + 3 */
        for (int j = 0; j < 2; j++) {
            const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88), b = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd), d = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
        x[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        x[4 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
        x[8 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
        x[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#elif defined(LSW_BUILD_AVX2)

typedef struct {
    __m256 a, b;
} v16;

LSW_INLINE v16 v16_splat(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LSW_INLINE v16 v16_load(const void *p) {
    return (v16){_mm256_loadu_ps((const float *)p), _mm256_loadu_ps((const float *)p + 8)};
}
LSW_INLINE void v16_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LSW_INLINE v16 v16_fma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}
LSW_INLINE v16 v16_add(v16 a, v16 b) { return (v16){_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)}; }
LSW_INLINE v16 v16_sub(v16 a, v16 b) { return (v16){_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)}; }
LSW_INLINE v16 v16_mul(v16 a, v16 b) { return (v16){_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)}; }
LSW_INLINE v16 v16_div(v16 a, v16 b) { return (v16){_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)}; }
LSW_INLINE v16 v16_max(v16 a, v16 b) { return (v16){_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)}; }
LSW_INLINE v16 v16_abs(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b)};
}
LSW_INLINE v16 v16_copysign(v16 a, v16 from) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const v16 x = v16_abs(a);
    return (v16){_mm256_or_ps(x.a, _mm256_and_ps(from.a, sign)), _mm256_or_ps(x.b, _mm256_and_ps(from.b, sign))};
}
LSW_INLINE v16 v16_if_below(v16 x, v16 limit, v16 a, v16 b) {
    return (v16){_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, limit.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, limit.b, _CMP_LT_OQ))};
}
LSW_INLINE v16 v16_scale_by_power(v16 x, v16 shifted) {
    const __m256i m = _mm256_slli_epi32(_mm256_castps_si256(shifted.a), 23);
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted.b), 23);
    return (v16){_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.a), m)),
                 _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.b), n))};
}
LSW_INLINE v16 v16_half(const void *p) {
    const __m128i *h = (const __m128i *)p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
LSW_INLINE v16 v16_bf16(const void *p) {
    const __m128i *h = (const __m128i *)p;
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1)), 16))};
}
LSW_INLINE v16 v16_int8(const void *p) {
    const __m128i q = _mm_loadu_si128((const __m128i *)p);
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q)))};
}

LSW_INLINE void v16_transpose8(__m256 x[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    }
    for (int j = 0; j < 4; j++) {
        x[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
        x[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
    }
}
LSW_INLINE void v16_transpose(v16 x[16]) {
    __m256 quarter[4][8];
    for (int i = 0; i < 8; i++) {
        quarter[0][i] = x[i].a;
        quarter[1][i] = x[8 + i].a;
        quarter[2][i] = x[i].b;
        quarter[3][i] = x[8 + i].b;
    }
    for (int i = 0; i < 4; i++) {
        v16_transpose8(quarter[i]);
    }
    for (int i = 0; i < 8; i++) {
        x[i] = (v16){quarter[0][i], quarter[1][i]};
        x[8 + i] = (v16){quarter[2][i], quarter[3][i]};
    }
}

#elif defined(LSW_BUILD_NEON)

typedef struct {
    float32x4_t x[4];
} v16;

#define V16_EACH(expression)                                                                                                  \
    v16 y;                                                                                                                    \
    for (int i = 0; i < 4; i++) {                                                                                             \
        y.x[i] = (expression);                                                                                                \
    }                                                                                                                         \
    return y

LSW_INLINE v16 v16_splat(float x) { V16_EACH(vdupq_n_f32(x)); }
LSW_INLINE v16 v16_load(const void *p) { V16_EACH(vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)p + 16 * i))); }
LSW_INLINE void v16_store(float *p, v16 x) {
    for (int i = 0; i < 4; i++) {
        vst1q_f32(p + 4 * i, x.x[i]);
    }
}
LSW_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { V16_EACH(vfmaq_f32(c.x[i], a.x[i], b.x[i])); }
LSW_INLINE v16 v16_add(v16 a, v16 b) { V16_EACH(vaddq_f32(a.x[i], b.x[i])); }
LSW_INLINE v16 v16_sub(v16 a, v16 b) { V16_EACH(vsubq_f32(a.x[i], b.x[i])); }
LSW_INLINE v16 v16_mul(v16 a, v16 b) { V16_EACH(vmulq_f32(a.x[i], b.x[i])); }
LSW_INLINE v16 v16_div(v16 a, v16 b) { V16_EACH(vdivq_f32(a.x[i], b.x[i])); }
LSW_INLINE v16 v16_max(v16 a, v16 b) { V16_EACH(vbslq_f32(vcgtq_f32(a.x[i], b.x[i]), a.x[i], b.x[i])); }
LSW_INLINE v16 v16_abs(v16 a) { V16_EACH(vabsq_f32(a.x[i])); }
LSW_INLINE v16 v16_copysign(v16 a, v16 from) { V16_EACH(vbslq_f32(vdupq_n_u32(0x80000000u), from.x[i], a.x[i])); }
LSW_INLINE v16 v16_if_below(v16 x, v16 limit, v16 a, v16 b) {
    V16_EACH(vbslq_f32(vcltq_f32(x.x[i], limit.x[i]), a.x[i], b.x[i]));
}
LSW_INLINE v16 v16_scale_by_power(v16 x, v16 shifted) {
    V16_EACH(vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(x.x[i]), vshlq_n_u32(vreinterpretq_u32_f32(shifted.x[i]), 23))));
}
LSW_INLINE v16 v16_half(const void *p) {
    V16_EACH(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p + 8 * i))));
}
LSW_INLINE v16 v16_bf16(const void *p) {
    V16_EACH(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * i)), 16)));
}
LSW_INLINE v16 v16_int8(const void *p) {
    const int8x16_t q = vld1q_s8((const int8_t *)p);
    const int16x8_t low = vmovl_s8(vget_low_s8(q)), high = vmovl_s8(vget_high_s8(q));
    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

LSW_INLINE void v16_transpose(v16 x[16]) {
    v16 y[16];
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) { /* four rows of four */
            const float32x4x2_t a = vtrnq_f32(x[4 * i].x[j], x[4 * i + 1].x[j]);
            const float32x4x2_t b = vtrnq_f32(x[4 * i + 2].x[j], x[4 * i + 3].x[j]);
            y[4 * j].x[i] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
            y[4 * j + 1].x[i] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
            y[4 * j + 2].x[i] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
            y[4 * j + 3].x[i] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
        }
    }
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}

#else

typedef struct {
    float x[16];
} v16;

#define V16_EACH(expression)                                                                                                  \
    v16 y;                                                                                                                    \
    for (int i = 0; i < 16; i++) {                                                                                            \
        y.x[i] = (expression);                                                                                                \
    }                                                                                                                         \
    return y

LSW_INLINE float v16_shift_exponent(float x, float shifted) {
    uint32_t a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &shifted, sizeof b);
    a += b << 23;
    memcpy(&x, &a, sizeof x);
    return x;
}
LSW_INLINE v16 v16_splat(float x) { V16_EACH(x); }
LSW_INLINE v16 v16_load(const void *p) {
    v16 y;
    memcpy(&y, p, sizeof y);
    return y;
}
LSW_INLINE void v16_store(float *p, v16 x) { memcpy(p, &x, sizeof x); }
LSW_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { V16_EACH(fmaf(a.x[i], b.x[i], c.x[i])); }
LSW_INLINE v16 v16_add(v16 a, v16 b) { V16_EACH(a.x[i] + b.x[i]); }
LSW_INLINE v16 v16_sub(v16 a, v16 b) { V16_EACH(a.x[i] - b.x[i]); }
LSW_INLINE v16 v16_mul(v16 a, v16 b) { V16_EACH(a.x[i] * b.x[i]); }
LSW_INLINE v16 v16_div(v16 a, v16 b) { V16_EACH(a.x[i] / b.x[i]); }
LSW_INLINE v16 v16_max(v16 a, v16 b) { V16_EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }
LSW_INLINE v16 v16_abs(v16 a) { V16_EACH(fabsf(a.x[i])); }
LSW_INLINE v16 v16_copysign(v16 a, v16 from) { V16_EACH(copysignf(a.x[i], from.x[i])); }
LSW_INLINE v16 v16_if_below(v16 x, v16 limit, v16 a, v16 b) { V16_EACH(x.x[i] < limit.x[i] ? a.x[i] : b.x[i]); }
LSW_INLINE v16 v16_scale_by_power(v16 x, v16 shifted) { V16_EACH(v16_shift_exponent(x.x[i], shifted.x[i])); }
LSW_INLINE v16 v16_half(const void *p) {
    uint16_t h[16];
    memcpy(h, p, sizeof h);
    V16_EACH(v16_one_half(h[i]));
}
LSW_INLINE v16 v16_bf16(const void *p) {
    uint16_t h[16];
    uint32_t wide[16];
    memcpy(h, p, sizeof h);
    for (int i = 0; i < 16; i++) {
        wide[i] = (uint32_t)h[i] << 16;
    }
    return v16_load(wide);
}
LSW_INLINE v16 v16_int8(const void *p) {
    int8_t q[16];
    memcpy(q, p, sizeof q);
    V16_EACH((float)q[i]);
}

LSW_INLINE void v16_transpose(v16 x[16]) {
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < i; j++) {
            const float swap = x[i].x[j];
            x[i].x[j] = x[j].x[i];
            x[j].x[i] = swap;
        }
    }
}

#endif

/* exp(x) for x <= 0 to about an ulp; exactly 1 at 0, exactly 0 below -87 and for -inf. The reduction is Cody and Waite's;
 * the polynomial is a minimax fit of (exp(r) - 1 - r) / r^2 over |r| <= ln(2) / 2. */
LSW_INLINE v16 v16_exp(v16 x) {
    const v16 magic = v16_splat(0x1.8p+23f); /* added, it leaves the nearest whole number in the low bits */
    const v16 shifted = v16_fma(x, v16_splat(0x1.715476p+0f), magic);
    const v16 n = v16_sub(shifted, magic);
    v16 r = v16_fma(n, v16_splat(-0x1.62e4p-1f), x);
    r = v16_fma(n, v16_splat(-0x1.7f7d1cp-20f), r);
    v16 y = v16_splat(0x1.6a2434p-10f);
    y = v16_fma(y, r, v16_splat(0x1.1239e2p-7f));
    y = v16_fma(y, r, v16_splat(0x1.5558f2p-5f));
    y = v16_fma(y, r, v16_splat(0x1.555492p-3f));
    y = v16_fma(y, r, v16_splat(0x1.fffffcp-2f));
    y = v16_fma(y, v16_mul(r, r), r);
    y = v16_add(y, v16_splat(1.0f));
    return v16_if_below(x, v16_splat(-87.0f), v16_splat(0.0f), v16_scale_by_power(y, shifted));
}

/* tanh to about two ulps: a minimax fit of (tanh(x) - x) / x^3 in x^2 near 0, by exp elsewhere. */
LSW_INLINE v16 v16_tanh(v16 x) {
    const v16 one = v16_splat(1.0f), size = v16_abs(x), z = v16_mul(x, x);
    v16 y = v16_splat(0.0021464997f);
    y = v16_fma(y, z, v16_splat(-0.008181582f));
    y = v16_fma(y, z, v16_splat(0.021702543f));
    y = v16_fma(y, z, v16_splat(-0.053947132f));
    y = v16_fma(y, z, v16_splat(0.13333209f));
    y = v16_fma(y, z, v16_splat(-0.3333333f));
    y = v16_fma(v16_mul(y, z), x, x);
    const v16 e = v16_exp(v16_mul(size, v16_splat(-2.0f)));
    const v16 far = v16_sub(one, v16_div(v16_add(e, e), v16_add(one, e)));
    return v16_if_below(size, v16_splat(0.625f), y, v16_copysign(far, x));
}

/* Lane by lane in a tree: (0 + 8), (0 + 4), (0 + 2), (0 + 1). */
LSW_INLINE float v16_sum(v16 x) {
    float lane[16];
    v16_store(lane, x);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

LSW_INLINE float v16_top(v16 x) {
    float lane[16];
    v16_store(lane, x);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
        }
    }
    return lane[0];
}

#endif
