/* The self-test of a build of the kernel, on whatever runs it: lists against plain definitions in double. */
#ifndef LS_SELF_TEST_H
#define LS_SELF_TEST_H

#include "../localspec.h"
#include "../real.h"
#include "request.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SELF_TEST_LISTS 400
#define SELF_TEST_VOCAB 2999 /* The largest of a case. */
#define SELF_TEST_ROWS 3     /* Of a call. */

/* What runs the kernel; see ls_gpu_lists, but for rows that stand in the host's memory. */
typedef struct ls_runner {
    void *device; /* First argument. */
    int32_t (*lists)(void *device, const float *logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values);
} ls_runner;

/* What one row was asked for, as numbers. */
typedef struct self_test_case {
    uint32_t n_vocab, mode, count, position, key[2], purpose, stream, n_patched;
    double temperature, margin;
    int32_t patched[SELF_TEST_ROWS];
    float row[SELF_TEST_VOCAB];
} self_test_case;

/* All memory of a self-test. */
typedef struct self_test_room {
    uint64_t state; /* Of random numbers. */
    self_test_case one;
    float rows[SELF_TEST_ROWS * SELF_TEST_VOCAB];
    double scores[SELF_TEST_VOCAB], tops[SELF_TEST_VOCAB];
    bool listed[SELF_TEST_VOCAB];
    uint32_t found[SELF_TEST_ROWS];
    int32_t tokens[SELF_TEST_ROWS * LS_LIST_ROOM];
    float values[SELF_TEST_ROWS * LS_LIST_ROOM];
} self_test_room;

static uint32_t self_test_below(self_test_room *t, uint32_t n) {
    t->state = t->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((t->state >> 33) % n);
}

static uint32_t self_test_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float self_test_logit(self_test_room *t, uint32_t kind, double scale) {
    const double sum = (double)self_test_below(t, 1u << 20) + self_test_below(t, 1u << 20) + self_test_below(t, 1u << 20);
    const double x = sum * 0x1p-17 - 12.0;
    const float logit = (float)(scale * (kind == 0 ? floor(x) : x));
    return kind == 1 && self_test_below(t, 10) < 9 ? -INFINITY : logit;
}

/* Rows as models make them, and as they do not: ties, masks, huge numbers, one that is no number. */
static void self_test_make(self_test_room *t, uint32_t number) {
    static const uint32_t vocabularies[] = {1, 5, 64, 65, 200, 1000, SELF_TEST_VOCAB}, counts[] = {1, 2, 5, 40};
    static const double scales[] = {1.0, 0.01, 1e4, 1e31};
    self_test_case *c = &t->one;
    c->n_vocab = vocabularies[self_test_below(t, 7)];
    c->mode = number % 3;
    c->count = counts[self_test_below(t, 4)];
    c->position = self_test_below(t, 1u << 30);
    c->key[0] = self_test_below(t, 1u << 30);
    c->key[1] = self_test_below(t, 1u << 30);
    c->purpose = self_test_below(t, 1u << 30);
    c->stream = self_test_below(t, 4);
    c->temperature = self_test_below(t, 2) ? 1.0 : 0.25;
    c->margin = -(double)self_test_below(t, 6);
    const uint32_t kind = self_test_below(t, 6);
    const double scale = kind == 5 ? scales[self_test_below(t, 4)] : 1.0;
    for (uint32_t i = 0; i < c->n_vocab; i++) {
        c->row[i] = self_test_logit(t, kind, scale);
    }
    if (kind == 2) {
        c->row[self_test_below(t, c->n_vocab)] = self_test_below(t, 2) ? NAN : INFINITY;
    }
    c->n_patched = self_test_below(t, SELF_TEST_ROWS + 1);
    for (uint32_t i = 0; i < c->n_patched; i++) {
        c->patched[i] = (int32_t)self_test_below(t, c->n_vocab);
    }
}

/* What entry `i` is ranked by; infinite for NaN and +inf, -infinite for an excluded one. */
static double self_test_score(const self_test_case *c, uint32_t i) {
    const double x = c->row[i];
    if (!(x < INFINITY)) {
        return INFINITY;
    }
    if (c->mode != LS_BY_NOISE || x == -INFINITY) {
        return x;
    }
    uint32_t counter[4] = {i, c->position, c->purpose, c->stream};
    ls_philox(counter, c->key[0], c->key[1]);
    return fmax(-1e30, fmin(1e30, x / c->temperature)) + ls_to_gumbel(counter[0]);
}

static int self_test_larger(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x < y) - (x > y);
}

/* Scores that must be listed begin at *must, those that may be a little below, at *may. */
static void self_test_limits(self_test_room *t, double *must, double *may) {
    const self_test_case *c = &t->one;
    const uint32_t stripes = (c->n_vocab + LS_STRIPE - 1) / LS_STRIPE;
    for (uint32_t i = 0; i < c->n_vocab; i++) {
        t->scores[i] = self_test_score(c, i);
        t->tops[i % stripes] = i < stripes ? t->scores[i] : fmax(t->tops[i % stripes], t->scores[i]);
    }
    qsort(t->tops, stripes, sizeof t->tops[0], self_test_larger);
    *must = *may = c->count <= stripes ? t->tops[c->count - 1] : -INFINITY;
    if (t->tops[0] == INFINITY) { /* all that counts is that C sees it */
        *must = INFINITY;
        *may = -INFINITY;
    } else if (*must > -INFINITY && c->mode != LS_BY_LOGIT) {
        const double size = fabs(c->mode == LS_BY_SHARE ? *must : fmax(fabs(*must), fabs(t->tops[0])));
        *must += c->mode == LS_BY_SHARE ? c->margin : 0.0;
        *may = *must - ((24.0 + size) * 0x1p-19 + 2e-4);
    }
}

/* Is the list of n entries what the case asks for? */
static bool self_test_list_is_right(self_test_room *t, uint32_t n, const int32_t *tokens, const float *values) {
    const self_test_case *c = &t->one;
    double must, may;
    self_test_limits(t, &must, &may);
    memset(t->listed, 0, sizeof t->listed);
    for (uint32_t i = 0; i < n && i < LS_LIST_ROOM; i++) {
        const uint32_t token = (uint32_t)tokens[i];
        if (token >= c->n_vocab || self_test_bits(values[i]) != self_test_bits(c->row[token])) {
            return false;
        }
        if (i < c->n_patched ? tokens[i] != c->patched[i]
                             : t->listed[token] || t->scores[token] < may || t->scores[token] == -INFINITY) {
            return false;
        }
        t->listed[token] = i >= c->n_patched;
    }
    uint32_t least = c->n_patched, most = c->n_patched;
    for (uint32_t i = 0; i < c->n_vocab; i++) {
        const bool kept = t->scores[i] >= must && t->scores[i] > -INFINITY;
        if (kept && !t->listed[i] && n <= LS_LIST_ROOM) {
            return false;
        }
        least += kept;
        most += t->scores[i] >= may && t->scores[i] > -INFINITY;
    }
    return n >= least && n <= most;
}

/* 0, the number of a wrong case, or minus the status of a failure. */
static int32_t self_test_lists(self_test_room *t, const ls_runner *run) {
    self_test_case *c = &t->one;
    t->state = 1;
    for (int32_t number = 0; number < SELF_TEST_LISTS; number++) {
        /* Three rows alike but for their position and where they begin: a row that reads another's is found out. */
        uint32_t positions[SELF_TEST_ROWS];
        self_test_make(t, (uint32_t)number);
        const float scale = (float)(1.0 / c->temperature), low = (float)c->margin;
        const uint32_t request[LS_REQUEST_WORDS] = {c->mode, c->count, c->n_patched, c->n_vocab, self_test_bits(scale),
                                                    self_test_bits(low), c->key[0], c->key[1], c->purpose, c->stream};
        for (uint32_t i = 0; i < SELF_TEST_ROWS; i++) {
            positions[i] = c->position + i;
            for (uint32_t k = 0; k < c->n_vocab; k++) {
                t->rows[i * c->n_vocab + k] = c->row[(k + i) % c->n_vocab];
            }
        }
        const int32_t status = run->lists(run->device, t->rows, SELF_TEST_ROWS, request, c->patched, positions, t->found,
                                          t->tokens, t->values);
        if (status) {
            return -status;
        }
        for (uint32_t i = 0; i < SELF_TEST_ROWS; i++) {
            c->position = positions[i];
            memcpy(c->row, t->rows + i * c->n_vocab, c->n_vocab * sizeof *c->row);
            if (!self_test_list_is_right(t, t->found[i], t->tokens + i * LS_LIST_ROOM, t->values + i * LS_LIST_ROOM)) {
                return 1 + number;
            }
        }
    }
    return 0;
}

/* 0; or the number, from 1 on, of the first case that is wrong; or minus the ls_status of a call that failed. */
static int32_t self_test(const ls_runner *run) {
    self_test_room *t = (self_test_room *)calloc(1, sizeof *t);
    if (!t) {
        return -LS_NO_MEMORY;
    }
    const int32_t wrong = self_test_lists(t, run);
    free(t);
    return wrong;
}

#endif
