/* Our own exp, log and Philox: fixed polynomials in a fixed order of IEEE double operations, no FMA, no branches, so that
 * every compiler, ISA and numpy give the same bits. exp: Cody-Waite reduction and the Taylor series to degree 13. log: the
 * method and coefficients of FreeBSD's e_log.c: "Copyright (C) 1993 by Sun Microsystems, Inc. All rights reserved.
 * Permission to use, copy, modify, and distribute this software is freely granted, provided that this notice is
 * preserved." */
#ifndef LS_REAL_H
#define LS_REAL_H

#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#pragma fp_contract(off)
#define LS_INLINE static __forceinline
#else
#define LS_INLINE static inline __attribute__((always_inline))
#endif

#define LS_GUMBEL_MAX 22.875 /* no gumbel is larger: the largest uniform is 1 - 2^-33. */

LS_INLINE uint64_t ls_bits(double x) {
    uint64_t b;
    memcpy(&b, &x, 8);
    return b;
}

LS_INLINE double ls_real(uint64_t b) {
    double x;
    memcpy(&x, &b, 8);
    return x;
}

/* exp(x) for x <= 700; exactly 0 below -690 (and for -inf), so that no subnormal ever appears. */
LS_INLINE double ls_exp1(double x) {
    const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p+52; /* the low bits now hold round(x / ln 2) */
    const double k = shifted - 0x1.8p+52;
    const double r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    double y = 1.0 / 6227020800.0;
    y = y * r + 1.0 / 479001600.0;
    y = y * r + 1.0 / 39916800.0;
    y = y * r + 1.0 / 3628800.0;
    y = y * r + 1.0 / 362880.0;
    y = y * r + 1.0 / 40320.0;
    y = y * r + 1.0 / 5040.0;
    y = y * r + 1.0 / 720.0;
    y = y * r + 1.0 / 120.0;
    y = y * r + 1.0 / 24.0;
    y = y * r + 1.0 / 6.0;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    y = y * ls_real((ls_bits(shifted) + 1023) << 52);
    return x < -690.0 ? 0.0 : y;
}

/* log(x) for positive normal x. */
LS_INLINE double ls_log1(double x) {
    const uint64_t b = ls_bits(x);
    const uint64_t k = (b - 0x3fe6a09e667f3bcdu + ((uint64_t)1024 << 52)) >> 52; /* exponent + 1024 */
    const double kd = ls_real(0x4330000000000000u | k) - (0x1p+52 + 1024.0);
    const double f = ls_real(b - (k << 52) + ((uint64_t)1024 << 52)) - 1.0; /* in [sqrt(1/2) - 1, sqrt(2) - 1) */
    const double s = f / (2.0 + f);
    const double z = s * s;
    const double w = z * z;
    const double t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    const double t2 = z * (6.666666666666735130e-01
                           + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    const double half = 0.5 * f * f;
    const double tail = s * (half + (t2 + t1)) + kd * 1.90821492927058770002e-10;
    return kd * 6.93147180369123816490e-01 - ((half - tail) - f);
}

/* Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw 2011). */
LS_INLINE void ls_philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0];
        const uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

LS_INLINE double ls_to_uniform(uint32_t x) { return ((double)x + 0.5) * 0x1p-32; }

LS_INLINE double ls_to_gumbel(uint32_t x) { return -ls_log1(-ls_log1(ls_to_uniform(x))); }

#endif
