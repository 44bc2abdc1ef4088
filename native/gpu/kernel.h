/* Preselection of logits for GPUs: the one source for the host, CUDA and Metal.
 *
 * Every phase is a function of a row and a thread; barriers stand only between phases. Who includes this file
 * defines first:
 *   LS_FN            qualifiers of a function
 *   LS_GLOBAL        address space of buffers; LS_GROUP: of memory that the threads of one row share
 *   ls_counter       a 32-bit number that threads change at the same time
 *   LS_ADD(p, n), LS_MAX(p, n), LS_READ(p), LS_WRITE(p, n)   on an ls_counter; LS_ADD gives what was there before
 *   LS_BITS(x), LS_REAL(b)   the bits of a float32 and back
 *   LS_HIGH(a, b)    the upper half of a 64-bit product
 * Contraction to FMA and fast-math must be off: then every device finds the same lists, bit for bit.
 *
 * A row's list holds every entry whose rank is at least the limit, and the limit is at most the rank of the `count`-th best
 * entry, since that many stripes have a best entry at or above it. Ranks by logit are exact. Ranks by noise differ by at
 * most `e` from logit / temperature + gumbel in double, so the limit is lowered by more than 2 e (see lowered). */
#ifndef LS_KERNEL_H
#define LS_KERNEL_H

#include "request.h"

#define LS_EXCLUDED 0u            /* Rank of -inf: never listed. */
#define LS_NOT_A_LOGIT 0xFFFFFFFFu /* Rank of NaN and +inf: always listed, so that C sees them. */
#define LS_LARGEST 1e30f          /* Scaled logits stop here; all that do are ties, and listed together. */
#define LS_ROUNDS 32              /* Bits of a rank: one round of counting each. */
#define LS_HIGHEST LS_ROUNDS      /* The counter after those of the rounds: the largest top. */

/* A float32 as an integer of the same order. -0 is 0. */
LS_FN uint32_t ordered(float x) {
    const uint32_t bits = LS_BITS(x);
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) {
        return bits == 0xFF800000u ? LS_EXCLUDED : LS_NOT_A_LOGIT;
    }
    return (bits & 0x7FFFFFFFu) == 0 ? 0x80000000u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

LS_FN float unordered(uint32_t rank) { return LS_REAL(rank & 0x80000000u ? rank & 0x7FFFFFFFu : ~rank); }

/* log(x) for positive normal x, within 1 ulp: the method and coefficients of FreeBSD's e_logf.c: "Copyright (C) 1993 by Sun
 * Microsystems, Inc. All rights reserved. Permission to use, copy, modify, and distribute this software is freely granted,
 * provided that this notice is preserved." */
LS_FN float log32(float x) {
    const uint32_t bits = LS_BITS(x) + (0x3F800000u - 0x3F3504F3u);
    const float k = (float)((int32_t)(bits >> 23) - 127);
    const float f = LS_REAL((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    const float s = f / (2.0f + f);
    const float z = s * s;
    const float w = z * z;
    const float r = z * (0.66666662693f + w * 0.28498786688f) + w * (0.40000972152f + w * 0.24279078841f);
    const float hfsq = 0.5f * f * f;
    return s * (hfsq + r) + k * 9.0580006145e-06f - hfsq + f + k * 6.9313812256e-01f;
}

/* The gumbel of a random word; see ls_to_gumbel. The upper half goes by 1 - uniform, where uniform itself would be rounded
 * away; log(y) / (1 - y) is smooth, so that the rounding of y = 1 - v does no harm. */
LS_FN float gumbel32(uint32_t word) {
    float t;
    if (word < 0x80000000u) {
        t = -log32(((float)word + 0.5f) * 2.3283064365386963e-10f);
    } else {
        const float v = ((float)~word + 0.5f) * 2.3283064365386963e-10f;
        const float y = 1.0f - v;
        t = y == 1.0f ? v : -log32(y) * (v / (1.0f - y));
    }
    return -log32(t);
}

/* First output word of Philox4x32-10; see ls_philox. */
LS_FN uint32_t philox_word(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = LS_HIGH(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const uint32_t high2 = LS_HIGH(0xCD9E8D57u, c2), low2 = 0xCD9E8D57u * c2;
        c0 = high2 ^ c1 ^ k0;
        c1 = low2;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

/* What an entry is ordered by. */
LS_FN uint32_t rank_of(LS_GLOBAL const uint32_t *request, uint32_t position, uint32_t token, float logit) {
    const uint32_t rank = ordered(logit);
    if (request[LS_REQUEST_MODE] != LS_BY_NOISE || rank == LS_EXCLUDED || rank == LS_NOT_A_LOGIT) {
        return rank;
    }
    const float scaled = logit * LS_REAL(request[LS_REQUEST_SCALE]);
    const float kept = scaled > LS_LARGEST ? LS_LARGEST : scaled < -LS_LARGEST ? -LS_LARGEST : scaled;
    const uint32_t word = philox_word(token, position, request[LS_REQUEST_PURPOSE], request[LS_REQUEST_STREAM],
                                      request[LS_REQUEST_KEY], request[LS_REQUEST_KEY + 1]);
    return ordered(kept + gumbel32(word));
}

LS_FN uint32_t stripes_of(uint32_t n_vocab) { return (n_vocab + LS_STRIPE - 1) / LS_STRIPE; }

/* Phase 1, a thread for each stripe: its best rank. Stripe i holds tokens i, i + stripes, i + 2 stripes, ...: threads side
 * by side read logits side by side. */
LS_FN void tops_phase(uint32_t row, uint32_t tid, LS_GLOBAL const float *logits, LS_GLOBAL const uint32_t *request,
                      LS_GLOBAL const uint32_t *positions, LS_GLOBAL uint32_t *tops) {
    const uint32_t n_vocab = request[LS_REQUEST_VOCAB], stripes = stripes_of(n_vocab);
    uint32_t best = LS_EXCLUDED;
    if (tid >= stripes) {
        return;
    }
    for (uint32_t token = tid; token < n_vocab; token += stripes) {
        const uint32_t rank = rank_of(request, positions[row], token, logits[row * n_vocab + token]);
        best = rank > best ? rank : best;
    }
    tops[row * stripes + tid] = best;
}

/* Phase 2 begins: the counters are 0. */
LS_FN void limit_start_phase(uint32_t tid, uint32_t threads, LS_GROUP ls_counter *counters) {
    for (uint32_t i = tid; i <= LS_HIGHEST; i += threads) {
        LS_WRITE(counters + i, 0u);
    }
}

/* The bits of the limit that `rounds` rounds have found: the largest number that `count` tops reach. */
LS_FN uint32_t found_so_far(LS_GROUP ls_counter *counters, uint32_t rounds, uint32_t count) {
    uint32_t limit = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        limit |= LS_READ(counters + round) >= count ? 0x80000000u >> round : 0u;
    }
    return limit;
}

/* Phase 2, one group of threads for each row and a barrier after each round: how many tops have the next bit? */
LS_FN void limit_round_phase(uint32_t row, uint32_t tid, uint32_t threads, uint32_t round,
                             LS_GLOBAL const uint32_t *request, LS_GLOBAL const uint32_t *tops,
                             LS_GROUP ls_counter *counters) {
    const uint32_t stripes = stripes_of(request[LS_REQUEST_VOCAB]);
    const uint32_t wanted = found_so_far(counters, round, request[LS_REQUEST_COUNT]) | 0x80000000u >> round;
    uint32_t reach = 0, highest = 0;
    for (uint32_t i = tid; i < stripes; i += threads) {
        const uint32_t top = tops[row * stripes + i];
        reach += top >= wanted;
        highest = top > highest ? top : highest;
    }
    LS_ADD(counters + round, reach);
    if (round == 0) {
        LS_MAX(counters + LS_HIGHEST, highest);
    }
}

/* The limit below which nothing can win, given the count-th top `t` and the largest top.
 *
 * By noise: let B bound |logit| / temperature of the entries that matter. A gumbel is between -3.2 and 22.9, so B is at most
 * 24 + the larger of |t| and |highest|. The scaled logit is off by at most 2.1 B 2^-24 (1 / temperature, the product), the
 * sum by (B + 23) 2^-24, gumbel32 by 3e-6 (tests/native/gpu/test_gumbel.py goes through all words), so 2 e < B 2^-21 + 1e-5;
 * taken off are B 2^-20 + 1e-4, which leaves room for the rounding of this line.
 * By share: C keeps logit - top >= log(min-p) in double, where top is at least t. */
LS_FN uint32_t lowered(LS_GLOBAL const uint32_t *request, uint32_t limit, uint32_t highest) {
    const uint32_t mode = request[LS_REQUEST_MODE];
    if (limit == LS_EXCLUDED) {
        return LS_EXCLUDED + 1u;
    }
    if (mode == LS_BY_LOGIT || highest == LS_NOT_A_LOGIT) {
        return limit;
    }
    const float t = unordered(limit), h = unordered(highest), margin = LS_REAL(request[LS_REQUEST_MARGIN]);
    const float at = t < 0.0f ? -t : t, ah = h < 0.0f ? -h : h, slack = 9.5367431640625e-07f;
    const float low = mode == LS_BY_NOISE ? t - ((24.0f + (at > ah ? at : ah)) * slack + 1e-4f)
                                          : (t + margin) - (at - margin) * slack;
    const uint32_t rank = ordered(low);
    return rank == LS_EXCLUDED ? LS_EXCLUDED + 1u : rank;
}

/* Phase 2 ends, one thread for each row: the limit, and how many entries a list begins with. */
LS_FN void limit_end_phase(uint32_t row, LS_GLOBAL const uint32_t *request, LS_GROUP ls_counter *counters,
                           LS_GLOBAL uint32_t *limits, LS_GLOBAL ls_counter *found) {
    const uint32_t limit = found_so_far(counters, LS_ROUNDS, request[LS_REQUEST_COUNT]);
    limits[row] = lowered(request, limit, LS_READ(counters + LS_HIGHEST));
    LS_WRITE(found + row, request[LS_REQUEST_PATCHED]);
}

/* Phase 3, a thread for each stripe: the patched tokens, then every entry at or above the limit, in no order. `found` goes
 * on counting where the list is full. */
LS_FN void list_phase(uint32_t row, uint32_t tid, uint32_t threads, uint32_t room, LS_GLOBAL const float *logits,
                      LS_GLOBAL const uint32_t *request, LS_GLOBAL const uint32_t *positions,
                      LS_GLOBAL const int32_t *patched, LS_GLOBAL const uint32_t *tops,
                      LS_GLOBAL const uint32_t *limits, LS_GLOBAL ls_counter *found, LS_GLOBAL int32_t *tokens,
                      LS_GLOBAL float *values) {
    const uint32_t n_vocab = request[LS_REQUEST_VOCAB], stripes = stripes_of(n_vocab);
    for (uint32_t i = tid; i < request[LS_REQUEST_PATCHED]; i += threads) {
        tokens[row * room + i] = patched[i];
        values[row * room + i] = logits[row * n_vocab + (uint32_t)patched[i]];
    }
    if (tid >= stripes || tops[row * stripes + tid] < limits[row]) {
        return;
    }
    for (uint32_t token = tid; token < n_vocab; token += stripes) {
        const float logit = logits[row * n_vocab + token];
        if (rank_of(request, positions[row], token, logit) >= limits[row]) {
            const uint32_t place = LS_ADD(found + row, 1u);
            if (place < room) {
                tokens[row * room + place] = (int32_t)token;
                values[row * room + place] = logit;
            }
        }
    }
}

#endif
