/* The loops that instruction sets make fast. Compiled once per ISA with LS_BUILD_* set and the ISA's own flags; the plain C
 * loops are written so that compilers vectorise them, the scans use intrinsics. All give the same bits. */
#include "internal.h"

#if defined(LS_BUILD_AVX512)
#include <immintrin.h>
#define LS_LANES ls_lanes_avx512
#elif defined(LS_BUILD_AVX2)
#include <immintrin.h>
#define LS_LANES ls_lanes_avx2
#elif defined(LS_BUILD_NEON)
#include <arm_neon.h>
#define LS_LANES ls_lanes_neon
#else
#define LS_LANES ls_lanes_scalar
#endif

#if defined(LS_BUILD_AVX512)

static uint64_t above64(const float *x, __m512 limit) {
    const uint64_t a = _mm512_cmp_ps_mask(_mm512_loadu_ps(x), limit, _CMP_NLE_UQ);
    const uint64_t b = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16), limit, _CMP_NLE_UQ);
    const uint64_t c = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 32), limit, _CMP_NLE_UQ);
    const uint64_t d = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 48), limit, _CMP_NLE_UQ);
    return a | b << 16 | c << 32 | d << 48;
}

static int64_t next_above(const float *row, int64_t start, int64_t n, float limit, uint64_t *mask) {
    const __m512 l = _mm512_set1_ps(limit);
    for (int64_t i = start; i < n; i += LS_BLOCK_SIZE) {
        const float *x = row + i;
        const __mmask16 a = _mm512_cmp_ps_mask(_mm512_loadu_ps(x), l, _CMP_NLE_UQ);
        const __mmask16 b = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16), l, _CMP_NLE_UQ);
        const __mmask16 c = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 32), l, _CMP_NLE_UQ);
        const __mmask16 d = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 48), l, _CMP_NLE_UQ);
        if (!_kortestz_mask16_u8(_kor_mask16(a, b), _kor_mask16(c, d))) {
            *mask = above64(x, l);
            return i;
        }
    }
    return n;
}

#elif defined(LS_BUILD_AVX2)

static int64_t next_above(const float *row, int64_t start, int64_t n, float limit, uint64_t *mask) {
    const __m256 l = _mm256_set1_ps(limit);
    for (int64_t i = start; i < n; i += LS_BLOCK_SIZE) {
        __m256 hit[8], any;
        for (int j = 0; j < 8; j++) {
            hit[j] = _mm256_cmp_ps(_mm256_loadu_ps(row + i + 8 * j), l, _CMP_NLE_UQ);
        }
        any = _mm256_or_ps(_mm256_or_ps(_mm256_or_ps(hit[0], hit[1]), _mm256_or_ps(hit[2], hit[3])),
                           _mm256_or_ps(_mm256_or_ps(hit[4], hit[5]), _mm256_or_ps(hit[6], hit[7])));
        if (_mm256_movemask_ps(any)) {
            uint64_t bits = 0;
            for (int j = 0; j < 8; j++) {
                bits |= (uint64_t)(uint32_t)_mm256_movemask_ps(hit[j]) << (8 * j);
            }
            *mask = bits;
            return i;
        }
    }
    return n;
}

#else

static uint64_t above64(const float *x, float limit) {
    uint64_t bits = 0;
    for (int j = 0; j < LS_BLOCK_SIZE; j++) {
        bits |= (uint64_t) !(x[j] <= limit) << j;
    }
    return bits;
}

static int64_t next_above(const float *row, int64_t start, int64_t n, float limit, uint64_t *mask) {
#if defined(LS_BUILD_NEON)
    const float32x4_t l = vdupq_n_f32(limit);
#endif
    for (int64_t i = start; i < n; i += LS_BLOCK_SIZE) {
        const float *x = row + i;
#if defined(LS_BUILD_NEON)
        uint32x4_t below = vcleq_f32(vld1q_f32(x), l);
        for (int j = 4; j < LS_BLOCK_SIZE; j += 4) {
            below = vandq_u32(below, vcleq_f32(vld1q_f32(x + j), l));
        }
        const bool any = vminvq_u32(below) == 0;
#else
        int below = 1;
        for (int j = 0; j < LS_BLOCK_SIZE; j++) {
            below &= x[j] <= limit;
        }
        const bool any = !below;
#endif
        if (any) {
            *mask = above64(x, limit);
            return i;
        }
    }
    return n;
}

#endif

/* Chunks keep many independent polynomials in flight; lane j sums entries j, j + 8, ... whatever the chunk. */
static double softmax(const float *row, int64_t n, double top, double temperature, double *out) {
    double lane[8] = {0}, y[LS_BLOCK_SIZE];
    for (int64_t i = 0; i < n; i += LS_BLOCK_SIZE) {
        if (n - i >= LS_BLOCK_SIZE) {
            for (int j = 0; j < LS_BLOCK_SIZE; j++) {
                y[j] = ls_exp1(((double)row[i + j] - top) / temperature);
            }
        } else {
            for (int j = 0; j < LS_BLOCK_SIZE; j++) {
                y[j] = j < n - i ? ls_exp1(((double)row[i + j] - top) / temperature) : 0.0;
            }
        }
        for (int j = 0; j < LS_BLOCK_SIZE; j += 8) {
            for (int k = 0; k < 8; k++) {
                lane[k] += y[j + k];
            }
        }
        if (out) {
            memcpy(out + i, y, sizeof(double) * (size_t)(n - i < LS_BLOCK_SIZE ? n - i : LS_BLOCK_SIZE));
        }
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void block_max(const float *row, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += LS_BLOCK_SIZE) {
        float top[16];
        memcpy(top, row + i, sizeof top);
        for (int j = 16; j < LS_BLOCK_SIZE; j += 16) {
            for (int k = 0; k < 16; k++) {
                top[k] = row[i + j + k] > top[k] ? row[i + j + k] : top[k];
            }
        }
        for (int half = 8; half; half /= 2) {
            for (int k = 0; k < half; k++) {
                top[k] = top[k + half] > top[k] ? top[k + half] : top[k];
            }
        }
        out[i / LS_BLOCK_SIZE] = top[0];
    }
}

/* First Philox words of 8 counters that differ in their first word only: 32-bit values in 64-bit lanes, whose upper
 * halves may hold anything, because the multiplication takes the lower ones. */
#if defined(LS_BUILD_AVX512) || defined(LS_BUILD_AVX2)

#if defined(LS_BUILD_AVX512)
typedef __m512i vec;
#define WIDTH 8
#define OP(name) _mm512_##name
#define XOR(a, b) _mm512_xor_si512(a, b)
#define LOAD(p) _mm512_loadu_si512((const void *)(p))
#define STORE(p, x) _mm512_storeu_si512((void *)(p), x)
#define SPLAT(x) _mm512_set1_epi64((long long)(x))
#else
typedef __m256i vec;
#define WIDTH 4
#define OP(name) _mm256_##name
#define XOR(a, b) _mm256_xor_si256(a, b)
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define STORE(p, x) _mm256_storeu_si256((__m256i *)(p), x)
#define SPLAT(x) _mm256_set1_epi64x((long long)(x))
#endif

LS_INLINE void words8(const uint32_t key[2], const uint32_t counter[4], const uint64_t tokens[8], uint64_t out[8]) {
    const vec low = SPLAT(0xffffffffu), m0 = SPLAT(0xD2511F53u), m1 = SPLAT(0xCD9E8D57u);
    for (int i = 0; i < 8; i += WIDTH) {
        vec c0 = LOAD(tokens + i), c1 = SPLAT(counter[1]), c2 = SPLAT(counter[2]), c3 = SPLAT(counter[3]);
        uint32_t k0 = key[0], k1 = key[1];
        for (int round = 0; round < 10; round++) {
            const vec a = OP(mul_epu32)(c0, m0), b = OP(mul_epu32)(c2, m1);
            c0 = XOR(XOR(OP(srli_epi64)(b, 32), c1), SPLAT(k0));
            c2 = XOR(XOR(OP(srli_epi64)(a, 32), c3), SPLAT(k1));
            c1 = b;
            c3 = a;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
#if defined(LS_BUILD_AVX512)
        STORE(out + i, _mm512_and_si512(c0, low));
#else
        STORE(out + i, _mm256_and_si256(c0, low));
#endif
    }
}

#else

LS_INLINE void words8(const uint32_t key[2], const uint32_t counter[4], const uint64_t tokens[8], uint64_t out[8]) {
    for (int j = 0; j < 8; j++) {
        uint32_t c[4] = {(uint32_t)tokens[j], counter[1], counter[2], counter[3]};
        ls_philox(c, key[0], key[1]);
        out[j] = c[0];
    }
}

#endif

static void gumbel(const uint32_t key[2], const uint32_t counter[4], const int32_t *tokens, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t m = n - i < 8 ? n - i : 8;
        uint64_t ids[8] = {0}, words[8];
        double g[8];
        for (int64_t j = 0; j < m; j++) {
            ids[j] = (uint32_t)tokens[i + j];
        }
        words8(key, counter, ids, words);
        for (int j = 0; j < 8; j++) { /* word to double without a conversion instruction: 2^52 + word - 2^52 */
            const double x = ls_real(0x4330000000000000u | words[j]) - 0x1p+52;
            g[j] = -ls_log1(-ls_log1((x + 0.5) * 0x1p-32));
        }
        memcpy(out + i, g, (size_t)m * sizeof(double));
    }
}

static uint64_t lucky(const uint32_t key[2], const uint32_t counter[4], uint32_t first, uint32_t limit) {
    uint64_t words[LS_BLOCK_SIZE], bits = 0;
    for (uint32_t i = 0; i < LS_BLOCK_SIZE; i += 8) {
        uint64_t ids[8];
        for (uint32_t j = 0; j < 8; j++) {
            ids[j] = first + i + j;
        }
        words8(key, counter, ids, words + i);
    }
    for (int i = 0; i < LS_BLOCK_SIZE; i++) {
        bits |= (uint64_t)(words[i] >= limit) << i;
    }
    return bits;
}

static void log_all(const double *x, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = ls_log1(x[i]);
    }
}

static void exp_all(const double *x, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = ls_exp1(x[i]);
    }
}

/* Sums of 1,024 products stay within 32 bits (see matvec.c). */
static void dots(const int8_t *rows, int64_t n_rows, const int16_t *x, int64_t n_x, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n_rows; i++) {
        for (int64_t j = 0; j < n_x; j++) {
            const int8_t *a = rows + i * n;
            const int16_t *b = x + j * n;
            int64_t sum = 0;
            for (int64_t start = 0; start < n; start += 1024) {
                const int64_t end = n - start < 1024 ? n : start + 1024;
                int32_t part = 0;
                for (int64_t k = start; k < end; k++) {
                    part += (int32_t)a[k] * (int32_t)b[k];
                }
                sum += part;
            }
            out[i * n_x + j] = sum;
        }
    }
}

const ls_lanes LS_LANES = {next_above, block_max, softmax, gumbel, lucky, log_all, exp_all, dots};
