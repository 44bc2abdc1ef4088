/* What this machine could do at best, measured on the spot: bytes read from memory and int8 multiply-adds a second. */
#define _GNU_SOURCE
#include "device.h"
#include "localspec_wide.h"

#include <string.h>
#include <time.h>

#include <omp.h>
#if defined(LSW_HAVE_AVX2) || defined(LSW_HAVE_AVX512)
#include <immintrin.h>
#elif defined(LSW_HAVE_NEON)
#include <arm_neon.h>
#endif

enum { BUFFER_BYTES = 1 << 28, SLICE_BYTES = 1 << 20, ROUNDS = 4096 };

/* Keeps the compiler from leaving out work whose result is not used. */
#define KEEP(x, letter) __asm__ volatile("" : "+" letter(x))

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* -- memory ---------------------------------------------------------------------------------------------------------- */

static uint64_t read_slice(const uint64_t *at) {
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < SLICE_BYTES / sizeof *at; i += 8) {
        for (size_t j = 0; j < 8; j++) {
            sums[j] ^= at[i + j];
        }
    }
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

/* Goes through this thread's part of the buffer again and again; returns the bytes read. */
static double read_for(const char *buffer, double seconds, int thread, int threads) {
    const int64_t slices = BUFFER_BYTES / SLICE_BYTES, first = slices * thread / threads;
    const int64_t last = slices * (thread + 1) / threads;
    const double end = now() + seconds;
    double bytes = 0;
    for (int64_t slice = first; slice < last && now() < end; slice = slice + 1 < last ? slice + 1 : first) {
        uint64_t sum = read_slice((const uint64_t *)(const void *)(buffer + slice * SLICE_BYTES));
        KEEP(sum, "r");
        bytes += SLICE_BYTES;
    }
    return bytes;
}

double lsw_memory_rate(int32_t threads, double seconds) {
    char *buffer = threads >= 1 && seconds > 0 ? wide_allocate(BUFFER_BYTES) : NULL;
    if (!buffer) {
        return 0;
    }
    memset(buffer, 1, BUFFER_BYTES);
    double bytes = 0;
    const double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : bytes)
    bytes += read_for(buffer, seconds, omp_get_thread_num(), omp_get_num_threads());
    const double took = now() - start;
    wide_free(buffer);
    return bytes / took;
}

/* -- int8 multiply-adds ---------------------------------------------------------------------------------------------- */

/* Each runs ROUNDS rounds of independent multiply-adds in registers and returns how many that were. */

#if defined(LSW_HAVE_AVX512)
__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double rounds_avx512(void) {
    __m512i sums[12], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
    for (int i = 0; i < 12; i++) {
        sums[i] = _mm512_setzero_si512();
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 12; i++) {
            __m512i sum = _mm512_dpbusd_epi32(sums[i], a, b);
            KEEP(sum, "v");
            sums[i] = sum;
        }
    }
    return 64.0 * 12 * ROUNDS;
}
#endif

#if defined(LSW_HAVE_AVX2)
__attribute__((target("avx2"))) static double rounds_avx2(void) {
    __m256i sums[8], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < 8; i++) {
        sums[i] = _mm256_setzero_si256();
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 8; i++) {
            __m256i pairs = _mm256_maddubs_epi16(a, b);
            KEEP(pairs, "x");
            __m256i sum = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
            KEEP(sum, "x");
            sums[i] = sum;
        }
    }
    return 32.0 * 8 * ROUNDS;
}
#endif

#if defined(LSW_HAVE_NEON)
#if defined(__clang__)
#define ARM_TARGET(feature) __attribute__((target(feature)))
#else /* gcc wants the architecture that its header names for the instruction */
#define ARM_TARGET(feature) __attribute__((target("arch=armv8.2-a+" feature)))
#endif

ARM_TARGET("dotprod") static double rounds_neon(void) {
    int32x4_t sums[16];
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-2);
    for (int i = 0; i < 16; i++) {
        sums[i] = vdupq_n_s32(0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 16; i++) {
            int32x4_t sum = vdotq_s32(sums[i], a, b);
            KEEP(sum, "w");
            sums[i] = sum;
        }
    }
    return 16.0 * 16 * ROUNDS;
}
#endif

#if defined(LSW_HAVE_I8MM)
ARM_TARGET("i8mm") static double rounds_i8mm(void) {
    int32x4_t sums[16];
    const int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-2);
    for (int i = 0; i < 16; i++) {
        sums[i] = vdupq_n_s32(0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 16; i++) {
            int32x4_t sum = vmmlaq_s32(sums[i], a, b);
            KEEP(sum, "w");
            sums[i] = sum;
        }
    }
    return 32.0 * 16 * ROUNDS;
}
#endif

static double rounds_scalar(void) {
    int32_t sums[8] = {0}, a = 3, b = -2;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 8; i++) {
            int32_t sum = sums[i] + a * b;
            KEEP(sum, "r");
            sums[i] = sum;
        }
    }
    return 8.0 * ROUNDS;
}

static double (*rounds_of(enum wide_isa isa))(void) {
    switch (isa) {
#if defined(LSW_HAVE_AVX512)
    case WIDE_AVX512:
        return rounds_avx512;
#endif
#if defined(LSW_HAVE_AVX2)
    case WIDE_AVX2:
        return rounds_avx2;
#endif
#if defined(LSW_HAVE_NEON)
    case WIDE_NEON:
        return rounds_neon;
#endif
#if defined(LSW_HAVE_I8MM)
    case WIDE_I8MM:
        return rounds_i8mm;
#endif
    default:
        return rounds_scalar;
    }
}

static double count_for(double (*rounds)(void), double seconds) {
    double count = 0;
    for (const double end = now() + seconds; now() < end;) {
        count += rounds();
    }
    return count;
}

double lsw_int8_rate(int32_t isa, int32_t threads, double seconds) {
    const enum wide_isa wanted = isa == 0 ? wide_best_isa() : (enum wide_isa)isa;
    if (!wide_has_isa(wanted) || threads < 1 || !(seconds > 0)) {
        return 0;
    }
    double (*rounds)(void) = rounds_of(wanted);
    double count = 0;
    const double start = now();
#pragma omp parallel num_threads(threads) reduction(+ : count)
    count += count_for(rounds, seconds);
    return count / (now() - start);
}
