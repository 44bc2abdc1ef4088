/* Token recycling: the likeliest tokens after each token, as the target saw them last, and guesses that go from token to
 * token through them. */
#include "internal.h"

#include <stdlib.h>

#define KEPT LS_MOST_SUCCESSORS
#define AMONG 32   /* Likeliest tokens of a row, of which shares are: their probabilities among all take 20 to 50 times as long. */
#define LEAST 0.03 /* After a guess that is less likely to be reached nothing more is guessed. */

struct ls_successors {
    int32_t n_vocab; /* 0 = no row was seen. */
    int32_t *tokens; /* [n_vocab][KEPT], the likeliest first. */
    float *shares;   /* [n_vocab][KEPT], 0 = nothing is kept there. */
};

int32_t ls_successors_new(ls_successors **out) {
    *out = calloc(1, sizeof **out);
    return *out ? LS_OK : LS_NO_MEMORY;
}

void ls_successors_free(ls_successors *s) {
    if (s) {
        free(s->tokens);
        free(s->shares);
        free(s);
    }
}

int64_t ls_successors_bytes(const ls_successors *s) {
    return (int64_t)s->n_vocab * KEPT * (int64_t)(sizeof *s->tokens + sizeof *s->shares);
}

static int32_t fit(ls_successors *s, int32_t n_vocab) {
    if (n_vocab == s->n_vocab) {
        return LS_OK;
    }
    const ls_successors fresh = {.n_vocab = n_vocab,
                                 .tokens = calloc((size_t)n_vocab * KEPT, sizeof *s->tokens),
                                 .shares = calloc((size_t)n_vocab * KEPT, sizeof *s->shares)};
    if (!fresh.tokens || !fresh.shares) {
        free(fresh.tokens);
        free(fresh.shares);
        return LS_NO_MEMORY;
    }
    free(s->tokens);
    free(s->shares);
    *s = fresh;
    return LS_OK;
}

int32_t ls_successors_learn(ls_successors *s, ls_workspace *w, float *const *rows, int32_t n_vocab,
                            const int32_t *tokens, int32_t n) {
    static const ls_sampling likeliest = {.top_p = 1.0, .typical_p = 1.0, .repeat_penalty = 1.0f, .top_k = AMONG};
    static const ls_noise none = {0};
    int32_t status = n_vocab < 1 || n < 0 ? ls_fail(w, LS_BAD_ARGUMENT, -1, -1) : fit(s, n_vocab);
    for (int32_t i = 0; i < n && !status; i++) {
        int32_t best[KEPT] = {0}, found;
        float shares[KEPT] = {0};
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            continue;
        }
        status = ls_sample(w, rows[i], n_vocab, &likeliest, NULL, 0, &none, 0, n_vocab < KEPT ? n_vocab : KEPT, best,
                           shares, &found);
        if (status == LS_NOT_FINITE || status == LS_NO_SUPPORT) { /* after a wrong guess, a row not read before */
            status = LS_OK;
        } else if (!status) {
            memcpy(s->tokens + (int64_t)tokens[i] * KEPT, best, sizeof best);
            memcpy(s->shares + (int64_t)tokens[i] * KEPT, shares, sizeof shares);
        }
    }
    return status;
}

typedef struct candidate {
    double reach;  /* Chance that it and all before it are right. */
    double chance; /* Given its parent. */
    int32_t level, parent, rank, token;
} candidate;

/* Who asks, and what he may still be told. */
typedef struct growth {
    const ls_successors *from;
    const ls_workspace *w;
    const ls_noise *noise;
    double temperature;
    uint32_t position; /* Of a guess of level 1. */
    int32_t breadth;
    int32_t n_open;
    candidate open[(LS_MOST_FOLLOWED + 1) * KEPT];
} growth;

/* The likeliest guesses after a token join those that are open. */
static void open_children(growth *g, int32_t token, int32_t parent, int32_t level, double reach) {
    double chances[KEPT];
    int32_t n = 0;
    if (token < 0 || token >= g->from->n_vocab) {
        return;
    }
    const int32_t *tokens = g->from->tokens + (int64_t)token * KEPT;
    const float *shares = g->from->shares + (int64_t)token * KEPT;
    for (; n < KEPT && shares[n] > 0.0f; n++) {
    }
    ls_rank(g->w, g->noise, g->temperature, g->position + (uint32_t)level - 1, tokens, shares, n, chances);
    for (int32_t rank = 0; rank < n && rank < g->breadth; rank++) {
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++) {
            best = chances[i] > chances[best] ? i : best;
        }
        g->open[g->n_open++] = (candidate){reach * chances[best], chances[best], level, parent, rank, tokens[best]};
        chances[best] = -1.0;
    }
}

static bool is_better(const candidate *a, const candidate *b) {
    if (a->reach != b->reach) {
        return a->reach > b->reach;
    }
    if (a->level != b->level) {
        return a->level < b->level;
    }
    return a->parent != b->parent ? a->parent < b->parent : a->rank < b->rank;
}

int32_t ls_successors_guess(const ls_successors *s, const ls_workspace *w, int32_t token, double temperature,
                            const ls_noise *noise, uint32_t position, int32_t max_nodes, int32_t max_depth,
                            int32_t breadth, ls_guess *out) {
    growth g = {.from = s, .w = w, .noise = noise, .temperature = temperature, .position = position, .breadth = breadth};
    const int32_t most = max_nodes < LS_MOST_FOLLOWED ? max_nodes : LS_MOST_FOLLOWED;
    out->nodes = 0;
    if (max_nodes < 0 || max_depth < 0 || breadth < 1 || breadth > KEPT) {
        return LS_BAD_ARGUMENT;
    }
    if (max_depth) {
        open_children(&g, token, -1, 1, 1.0);
    }
    while (out->nodes < most && g.n_open) {
        int32_t best = 0;
        for (int32_t i = 1; i < g.n_open; i++) {
            best = is_better(g.open + i, g.open + best) ? i : best;
        }
        const candidate taken = g.open[best];
        g.open[best] = g.open[--g.n_open];
        out->tokens[out->nodes] = taken.token;
        out->parents[out->nodes] = taken.parent;
        out->confidence[out->nodes++] = (float)taken.chance;
        if (taken.level < max_depth && taken.reach >= LEAST) {
            open_children(&g, taken.token, out->nodes - 1, taken.level + 1, taken.reach);
        }
    }
    return LS_OK;
}
