/* The engine's loop in small, for tests: a table stands in for both models, and so many seeds are run that the distribution
 * of what comes out can be compared with the target's own. */
#include "internal.h"

#include <stdlib.h>

#define MAX_NODES 16
#define MAX_VOCAB 64

typedef struct draft_buffers {
    int32_t tokens[MAX_NODES], parents[MAX_NODES], depths[MAX_NODES];
    int32_t contexts[MAX_NODES + 1]; /* row of the table after the history and after each node */
    int64_t offsets[MAX_NODES + 1];
    int32_t q_tokens[MAX_NODES * MAX_VOCAB];
    double q_probs[MAX_NODES * MAX_VOCAB];
    int32_t n;
} draft_buffers;

static int32_t after(const ls_trial *t, int32_t context, int32_t token) {
    return context % t->n_vocab * t->n_vocab + token; /* the last two tokens, in base n_vocab */
}

/* The path's tokens after the history, as the window of a node's children. */
static int32_t write_path(const draft_buffers *d, int32_t node, int32_t *history, int32_t length) {
    const int32_t depth = node < 0 ? 0 : d->depths[node];
    for (int32_t i = node, at = length + depth; i >= 0; i = d->parents[i]) {
        history[--at] = d->tokens[i];
    }
    return length + depth;
}

/* Adds one node: its token was drawn from draft_probs without its earlier siblings, whose share is gone. */
static void add_node(const ls_trial *t, draft_buffers *d, int32_t parent, int32_t token, const int32_t *gone,
                     int32_t n_gone, const int32_t *tokens, const double *probs, int32_t n) {
    const int32_t node = d->n++;
    int64_t at = d->offsets[node];
    double left = 0.0;
    d->tokens[node] = token;
    d->parents[node] = parent;
    d->depths[node] = parent < 0 ? 1 : d->depths[parent] + 1;
    d->contexts[node + 1] = after(t, d->contexts[parent + 1], token);
    for (int32_t i = 0; i < n; i++) {
        bool kept = true;
        for (int32_t j = 0; j < n_gone; j++) {
            kept = kept && gone[j] != tokens[i];
        }
        if (kept) {
            d->q_tokens[at] = tokens[i];
            d->q_probs[at++] = probs[i];
            left += probs[i];
        }
    }
    if (at == d->offsets[node]) { /* nothing left (temperature 0): a deterministic guess */
        d->q_tokens[at] = token;
        d->q_probs[at++] = left = 1.0;
    }
    for (int64_t i = d->offsets[node]; i < at; i++) {
        d->q_probs[i] /= left;
    }
    d->offsets[node + 1] = at;
}

/* Draws children for `parent` from the draft's row, best first and without replacement. */
static int32_t branch(ls_workspace *w, const ls_trial *t, draft_buffers *d, int32_t parent, int32_t count,
                      int32_t *history, int32_t length, const ls_noise *noise) {
    int32_t drawn[MAX_VOCAB], tokens[MAX_VOCAB], n_drawn, n;
    double probs[MAX_VOCAB];
    float row[MAX_VOCAB];
    const int32_t end = write_path(d, parent, history, length);
    const size_t size = (size_t)t->n_vocab * sizeof(float), start = (size_t)d->contexts[parent + 1] * t->n_vocab;
    memcpy(row, t->draft + start, size);
    int32_t status = ls_sample(w, row, t->n_vocab, t->sampling, history, end, noise, (uint32_t)end,
                               count < t->n_vocab ? count : t->n_vocab, drawn, NULL, &n_drawn);
    memcpy(row, t->claimed + start, size);
    status = status ? status : ls_distribution(w, row, t->n_vocab, t->sampling, history, end, noise, (uint32_t)end,
                                               tokens, probs, &n);
    for (int32_t i = 0; i < n_drawn && !status; i++) {
        if (d->n < MAX_NODES) {
            add_node(t, d, parent, drawn[i], drawn, i, tokens, probs, n);
        }
    }
    return status;
}

/* One pass: draft, verify, append. */
static int32_t pass(ls_workspace *w, const ls_trial *t, uint64_t seed, int32_t *history, int32_t *length) {
    draft_buffers d = {.n = 0, .contexts = {history[*length - 2] * t->n_vocab + history[*length - 1]}};
    const uint32_t round = t->round >= 0 ? (uint32_t)t->round : (uint32_t)*length;
    const ls_noise noise = {seed, 0, t->rule == LS_COUPLED ? 0 : round};
    int32_t accepted[MAX_NODES], n_accepted = 0, next = 0, status = LS_OK, level_start = -1, level_end = 0;
    float *rows[MAX_NODES + 1], copies[(MAX_NODES + 1) * MAX_VOCAB];
    for (int32_t depth = 0; depth < t->depth && !status; depth++) {
        for (int32_t parent = level_start; parent < level_end && !status; parent++) {
            status = branch(w, t, &d, parent, t->siblings[depth], history, *length, &noise);
        }
        level_start = level_end;
        level_end = d.n;
    }
    for (int32_t i = 0; i <= d.n; i++) {
        rows[i] = copies + i * t->n_vocab;
        memcpy(rows[i], t->target + (size_t)d.contexts[i] * t->n_vocab, (size_t)t->n_vocab * sizeof(float));
    }
    const ls_draft draft = {d.n, d.tokens, d.parents, t->one_hot ? NULL : d.offsets, d.q_tokens, d.q_probs};
    status = status ? status
                    : ls_verify(w, rows, t->n_vocab, &draft, t->sampling, history, *length, &noise, (uint32_t)*length,
                                t->rule, accepted, &n_accepted, &next);
    for (int32_t i = 0; i < n_accepted && !status; i++) {
        history[(*length)++] = d.tokens[accepted[i]];
    }
    history[(*length)++] = next;
    return status;
}

int32_t ls_run_trial(ls_workspace *w, const ls_trial *t, uint64_t first_seed, int64_t n_seeds, int64_t *counts) {
    int32_t history[4 * MAX_NODES];
    if (t->n_vocab < 1 || t->n_vocab > MAX_VOCAB || t->depth < 0 || t->depth > 4 || t->length < 1 || t->length > 8) {
        return LS_BAD_ARGUMENT;
    }
    for (int64_t i = 0; i < n_seeds; i++) {
        int32_t length = 2;
        int64_t outcome = 0;
        history[0] = history[1] = 0;
        while (length < 2 + t->length) {
            const int32_t status = pass(w, t, first_seed + (uint64_t)i, history, &length);
            if (status) {
                return status;
            }
        }
        for (int32_t j = 0; j < t->length; j++) {
            outcome = outcome * t->n_vocab + history[2 + j];
        }
        counts[outcome]++;
    }
    return LS_OK;
}
