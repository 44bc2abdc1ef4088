/* What the target says to a draft: coupled, rejection and block verification (docs/exactness.md). */
#include "internal.h"

/* One call's constants, and where on the path it is. */
typedef struct walk {
    ls_workspace *w;
    float *const *rows;   /* or NULL: */
    const ls_row *listed; /* rows, whole or as lists */
    int32_t n_vocab;
    const ls_draft *draft;
    const ls_sampling *sampling;
    const int32_t *window;
    int32_t n_window;
    const ls_noise *noise;
    uint32_t position;
    int32_t *accepted;
    int32_t depth; /* nodes accepted so far */
    int32_t node;  /* the last of them, -1 = the history's last token */
} walk;

static int32_t fail_at(walk *v, int32_t row, int32_t status) {
    if (status && v->w->fault_row < 0) {
        v->w->fault_row = row;
    }
    return status;
}

static void accept(walk *v, int32_t node) {
    v->accepted[v->depth++] = node;
    v->node = node;
    ls_window_push(v->w, v->sampling, v->draft->tokens[node]);
}

static int32_t next_child(const walk *v, int32_t after) {
    for (int32_t i = after + 1; i < v->draft->n; i++) {
        if (v->draft->parents[i] == v->node) {
            return i;
        }
    }
    return -1;
}

static int32_t check_draft(walk *v, int32_t rule) {
    const ls_draft *d = v->draft;
    for (int32_t i = 0; i < d->n; i++) {
        const bool fork = rule == LS_BLOCK && d->parents[i] != i - 1;
        if (d->parents[i] < -1 || d->parents[i] >= i || fork) {
            return ls_fail(v->w, LS_BAD_TREE, 1 + i, -1);
        }
    }
    return LS_OK;
}

/* The whole row, or NULL: only a list of it is there. */
static float *whole_row(const walk *v, int32_t row) { return v->listed ? v->listed[row].logits : v->rows[row]; }

/* The row after `depth` nodes. */
static int32_t patch(const walk *v, int32_t depth, float *row) {
    return ls_patch(v->w, v->sampling, v->noise, v->position + (uint32_t)depth, row, v->n_vocab);
}

/* coupled: the target's own token, drawn with the same noise as plain decoding draws it, picks the child. */
static int32_t coupled_token(walk *v, int32_t *token) {
    uint32_t key[2], counter[4];
    ls_support support;
    ls_key best;
    int32_t n;
    float *row = whole_row(v, 1 + v->node);
    if (!row) {
        return ls_listed_token(v->w, &v->listed[1 + v->node], v->n_vocab, v->sampling, v->noise,
                               v->position + (uint32_t)v->depth, token);
    }
    int32_t status = patch(v, v->depth, row);
    if (status) {
        return status;
    }
    if (v->sampling->temperature < LS_COLD) {
        status = ls_top(v->w, row, v->n_vocab, &best);
        *token = ls_key_token(best);
    } else {
        ls_philox_start(v->noise, LS_SAMPLE, v->position + (uint32_t)v->depth, key, counter);
        status = ls_find_support(v->w, v->sampling, row, v->n_vocab, &support);
        status = status ? status : ls_draw(v->w, v->sampling, &support, key, counter, 1, token, &n);
    }
    ls_restore(v->w, row);
    return status;
}

static int32_t verify_coupled(walk *v, int32_t *next_token) {
    for (;;) {
        const int32_t status = coupled_token(v, next_token);
        if (status) {
            return status;
        }
        int32_t child = next_child(v, v->node);
        while (child >= 0 && v->draft->tokens[child] != *next_token) {
            child = next_child(v, child);
        }
        if (child < 0) {
            return LS_OK;
        }
        accept(v, child);
    }
}

/* Where a token is in the support: through w->slots for lists. */
static void index_support(ls_workspace *w, const ls_support *s, bool on) {
    for (int64_t i = 0; i < s->n && !s->full; i++) {
        w->slots[ls_key_token(s->keys[i])] = on ? (int32_t)i : -1;
    }
}

static int64_t index_of(const walk *v, const ls_support *s, int32_t token) {
    return token < 0 || token >= v->n_vocab ? -1 : s->full ? token : v->w->slots[token];
}

static double prob_of(const walk *v, const ls_target *t, int32_t token) {
    const int64_t i = index_of(v, &t->support, token);
    return i < 0 ? 0.0 : t->probs[i];
}

/* Probability with which the node's token was drawn. */
static double draft_prob(const walk *v, int32_t node) {
    const ls_draft *d = v->draft;
    if (!d->offsets) {
        return 1.0;
    }
    for (int64_t i = d->offsets[node]; i < d->offsets[node + 1]; i++) {
        if (d->q_tokens[i] == d->tokens[node]) {
            return d->q_probs[i];
        }
    }
    return 0.0;
}

/* probs <- max(probs - the node's draft_probs, 0), not normalised; returns the sum. */
static double subtract_draft(const walk *v, const ls_support *support, double *probs, int32_t node) {
    const ls_draft *d = v->draft;
    const int32_t *tokens = d->offsets ? d->q_tokens + d->offsets[node] : d->tokens + node;
    const int64_t n = d->offsets ? d->offsets[node + 1] - d->offsets[node] : 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = index_of(v, support, tokens[i]);
        if (at >= 0) {
            const double left = probs[at] - (d->offsets ? d->q_probs[d->offsets[node] + i] : 1.0);
            probs[at] = left < LS_TINY ? 0.0 : left;
        }
    }
    return ls_lane_sum(probs, support->n);
}

static double accept_uniform(const walk *v, int32_t token, int32_t depth) {
    uint32_t key[2], counter[4];
    ls_philox_start(v->noise, LS_ACCEPT, v->position + (uint32_t)depth, key, counter);
    return ls_to_uniform(ls_word(key, counter, token));
}

/* The smallest random word that can win with a weight: only if 1 - uniform <= -log(uniform) <= weight / exp(best). */
static uint32_t word_to_win(double weight, double best) {
    const double reach = best > -INFINITY ? weight * ls_exp1(-best) * (1.0 + 1e-9) : 1.0;
    const double word = (1.0 - reach) * 0x1p+32 - 2.0;
    return word > 0.0 ? (uint32_t)word : 0;
}

/* Gumbel-max over any weights, with noise of its own. Most tokens of a whole row are ruled out 64 at a time. */
static int32_t draw_residual(const walk *v, const ls_target *t) {
    uint32_t key[2], counter[4];
    double best = -INFINITY;
    int32_t winner = -1;
    ls_philox_start(v->noise, LS_RESIDUAL, v->position + (uint32_t)v->depth, key, counter);
    for (int64_t start = 0; start < t->support.n; start += LS_BLOCK_SIZE) {
        const int64_t end = t->support.n - start < LS_BLOCK_SIZE ? t->support.n : start + LS_BLOCK_SIZE;
        uint64_t hits = ~(uint64_t)0;
        if (t->support.full) {
            double top = 0.0;
            for (int64_t i = start; i < end; i++) {
                top = t->probs[i] > top ? t->probs[i] : top;
            }
            hits = v->w->lanes->lucky(key, counter, (uint32_t)start, word_to_win(top, best));
        }
        for (int64_t i = start; hits && i < end; i++, hits >>= 1) {
            if (!(hits & 1) || !(t->probs[i] > 0.0)) {
                continue;
            }
            const int32_t token = ls_support_token(&t->support, i);
            const double score = ls_log1(t->probs[i]) + ls_to_gumbel(ls_word(key, counter, token));
            if (score > best || (score == best && token < winner)) {
                best = score;
                winner = token;
            }
        }
    }
    return winner;
}

/* rejection: Leviathan et al. 2023, Chen et al. 2023; siblings one after the other (recursive rejection sampling). */
static int32_t try_children(walk *v, float *row, ls_target *t, int32_t *child) {
    for (*child = next_child(v, v->node); *child >= 0; *child = next_child(v, *child)) {
        const int32_t token = v->draft->tokens[*child];
        const double q = draft_prob(v, *child);
        if (!(q > 0.0)) {
            return ls_fail(v->w, LS_BAD_DRAFT, 1 + *child, token);
        }
        if (accept_uniform(v, token, v->depth) * q < prob_of(v, t, token)) {
            return LS_OK;
        }
        const double sum = subtract_draft(v, &t->support, t->probs, *child);
        if (sum > 0.0) {
            for (int64_t i = 0; i < t->support.n; i++) {
                t->probs[i] = t->probs[i] / sum;
            }
        } else { /* target equals draft up to rounding: the refusal had next to no probability */
            ls_target_of(v->w, v->sampling, row, v->n_vocab, t);
        }
    }
    return LS_OK;
}

static int32_t verify_rejection(walk *v, int32_t *next_token) {
    int32_t child = 0;
    while (child >= 0) {
        ls_target target;
        float *row = whole_row(v, 1 + v->node);
        int32_t status = row ? LS_OK : LS_NEED_ROW;
        status = status ? status : patch(v, v->depth, row);
        if (status) {
            return status;
        }
        status = ls_target_of(v->w, v->sampling, row, v->n_vocab, &target);
        if (!status) {
            index_support(v->w, &target.support, true);
            status = try_children(v, row, &target, &child);
            index_support(v->w, &target.support, false);
        }
        ls_restore(v->w, row);
        if (status) {
            return status;
        }
        if (child < 0) {
            *next_token = draw_residual(v, &target);
        } else {
            accept(v, child);
        }
    }
    return LS_OK;
}

/* max(share * target_probs - draft_probs of node, 0) into `out`; returns the sum. */
static double block_residual(const walk *v, const ls_target *t, double share, int32_t node, double *out) {
    for (int64_t i = 0; i < t->support.n; i++) {
        out[i] = share * t->probs[i];
    }
    return subtract_draft(v, &t->support, out, node);
}

/* block: Sun et al. 2024 (arXiv 2403.10444), algorithm 2. One row: is the prefix before node `i` accepted, and what is
 * the share of the prefix that ends with it? */
static int32_t block_step(walk *v, int32_t i, double *share, double *share_kept) {
    ls_target target;
    float *row = whole_row(v, i);
    const ls_draft *d = v->draft;
    const double q = draft_prob(v, i);
    if (!(q > 0.0)) {
        return ls_fail(v->w, LS_BAD_DRAFT, 1 + i, d->tokens[i]);
    }
    int32_t status = row ? patch(v, i, row) : LS_NEED_ROW;
    if (status) {
        return fail_at(v, i, status);
    }
    status = ls_target_of(v->w, v->sampling, row, v->n_vocab, &target);
    if (!status) {
        index_support(v->w, &target.support, true);
        if (i > 0) {
            const double sum = block_residual(v, &target, *share, i, v->w->scratch);
            const double h = *share < 1.0 ? sum / (sum + (1.0 - *share)) : 1.0; /* 1 also for 0 / 0 */
            if (accept_uniform(v, d->tokens[i - 1], i - 1) < h) {
                v->depth = i;
                *share_kept = *share;
            }
        }
        const double ratio = *share * prob_of(v, &target, d->tokens[i]) / q;
        *share = ratio < 1.0 ? ratio : 1.0;
        index_support(v->w, &target.support, false);
    }
    ls_restore(v->w, row);
    return fail_at(v, i, status);
}

/* Draws the token after the `v->depth` accepted nodes. */
static int32_t block_next(walk *v, double share, int32_t *next_token) {
    ls_target target;
    float *row = whole_row(v, v->depth);
    int32_t status = ls_window_start(v->w, v->sampling, v->window, v->n_window, v->draft->n);
    for (int32_t i = 0; i < v->depth && !status; i++) {
        v->accepted[i] = i;
        ls_window_push(v->w, v->sampling, v->draft->tokens[i]);
    }
    status = status ? status : row ? patch(v, v->depth, row) : LS_NEED_ROW;
    if (status) {
        return fail_at(v, v->depth, status);
    }
    status = ls_target_of(v->w, v->sampling, row, v->n_vocab, &target);
    if (!status && v->depth < v->draft->n) {
        ls_target residual = {target.support, v->w->scratch};
        index_support(v->w, &target.support, true);
        if (block_residual(v, &target, share, v->depth, v->w->scratch) > 0.0) {
            target = residual;
        }
        index_support(v->w, &target.support, false);
    }
    ls_restore(v->w, row);
    *next_token = status ? -1 : draw_residual(v, &target);
    return fail_at(v, v->depth, status);
}

static int32_t verify_block(walk *v, int32_t *next_token) {
    const int32_t n = v->draft->n;
    double share = 1.0, share_kept = 1.0;
    for (int32_t i = 0; i < n && share > 0.0; i++) {
        const int32_t status = block_step(v, i, &share, &share_kept);
        if (status) {
            return status;
        }
        ls_window_push(v->w, v->sampling, v->draft->tokens[i]);
    }
    if (n > 0 && share > 0.0 && accept_uniform(v, v->draft->tokens[n - 1], n - 1) < share) {
        v->depth = n;
    }
    return block_next(v, share_kept, next_token);
}

static int32_t verify(walk *v, int32_t rule, int32_t *n_accepted, int32_t *next_token) {
    ls_workspace *w = v->w;
    const ls_draft *d = v->draft;
    *n_accepted = 0;
    *next_token = -1;
    w->fault_row = w->fault_token = -1;
    if (v->n_vocab < 1 || v->n_window < 0 || d->n < 0 || v->sampling->n_bias < 0 || rule < LS_COUPLED || rule > LS_BLOCK) {
        return ls_fail(w, LS_BAD_ARGUMENT, -1, -1);
    }
    int32_t status = ls_reserve(w, v->n_vocab);
    status = status ? status : check_draft(v, rule);
    status = status ? status : ls_window_start(w, v->sampling, v->window, v->n_window, d->n);
    if (!status) {
        status = rule == LS_COUPLED     ? verify_coupled(v, next_token)
                 : rule == LS_REJECTION ? verify_rejection(v, next_token)
                                        : verify_block(v, next_token);
        status = fail_at(v, 1 + v->node, status);
    }
    *n_accepted = status ? 0 : v->depth;
    return status;
}

int32_t ls_verify(ls_workspace *w, float *const *rows, int32_t n_vocab, const ls_draft *draft,
                  const ls_sampling *sampling, const int32_t *window, int32_t n_window, const ls_noise *noise,
                  uint32_t position, int32_t rule, int32_t *accepted, int32_t *n_accepted, int32_t *next_token) {
    walk v = {w, rows, NULL, n_vocab, draft, sampling, window, n_window, noise, position, accepted, 0, -1};
    return verify(&v, rule, n_accepted, next_token);
}

int32_t ls_verify_rows(ls_workspace *w, const ls_row *rows, int32_t n_vocab, const ls_draft *draft,
                       const ls_sampling *sampling, const int32_t *window, int32_t n_window, const ls_noise *noise,
                       uint32_t position, int32_t rule, int32_t *accepted, int32_t *n_accepted, int32_t *next_token) {
    walk v = {w, NULL, rows, n_vocab, draft, sampling, window, n_window, noise, position, accepted, 0, -1};
    return verify(&v, rule, n_accepted, next_token);
}
