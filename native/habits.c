/* What a text says after its last tokens, as a chain or a tree of guesses.
 *
 * What followed the last four, three, two and one tokens is counted, in the conversation and in past answers, and the
 * counts are mixed as Witten and Bell (1991) do: a context that was met n times with k different sequels has a say of
 * n / (n + k), and the next shorter one has a say in the rest. What was said in the conversation counts several times.
 * After each guess the same is asked anew; the next is always the one that is likeliest to be reached. The order of the
 * places is that of suffix.c, so nothing is kept for it. */
#include "suffix.h"

#define LONGEST 4       /* Tokens of a context: with six, answers of a small model were guessed no better. */
#define OWN_TIMES 10.0  /* How often a sequel in the conversation counts: 1, 3 and 10 were tried on answers of a small model. */
#define KEPT LS_MOST_SUCCESSORS
#define LEAST 0.03      /* After a guess that is less likely to be reached nothing more is guessed. */
#define LEAST_SAY 0.02  /* A shorter context that has less of a say is not looked at. */
#define MOST_TOLD (2 * LS_SUFFIX_VOTERS)
#define MOST_MIXED (LONGEST * MOST_TOLD)

/* Sequels of a context, each once. */
typedef struct sequels {
    int32_t n;
    int32_t tokens[MOST_MIXED];
    double says[MOST_MIXED];
} sequels;

typedef struct candidate {
    double reach;  /* Chance that it and all before it are right. */
    double chance; /* Given its parent. */
    int32_t level, parent, rank, token;
    int32_t before[LONGEST]; /* What stands before it. */
} candidate;

/* Who asks, and what he may still be told. */
typedef struct growth {
    const ls_suffix *own, *past;
    const ls_workspace *w;
    const ls_noise *noise;
    double temperature;
    uint32_t position; /* Of a guess of level 1. */
    int32_t known;     /* Tokens of a context that are there, LONGEST at most. */
    int32_t breadth;
    int32_t n_open;
    candidate open[(LS_MOST_FOLLOWED + 1) * KEPT];
} growth;

static void say(sequels *to, int32_t token, double says) {
    int32_t i = 0;
    while (i < to->n && to->tokens[i] != token) {
        i++;
    }
    if (i == to->n) {
        to->tokens[to->n] = token;
        to->says[to->n++] = 0.0;
    }
    to->says[i] += says;
}

/* Counts what followed the last `length` tokens before `end`; how often they were met. */
static double count(const ls_suffix *x, const int32_t *end, int32_t length, double times, sequels *to) {
    int32_t places[LS_SUFFIX_VOTERS], match = 0;
    int64_t met = 0;
    const int32_t n = x && length <= x->depth ? ls_suffix_after(x, end, length, &match, places, &met) : 0;
    if (match < length) {
        return 0.0;
    }
    for (int32_t i = 0; i < n; i++) {
        LS_PREFETCH(x->places + places[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        say(to, x->places[places[i]].token, times * (double)met / n);
    }
    return times * (double)met;
}

/* What follows the tokens before `end`, by all lengths. */
static void mix(const growth *g, const int32_t *end, int32_t longest, sequels *mixed) {
    double left = 1.0;
    mixed->n = 0;
    for (int32_t length = longest; length && left > LEAST_SAY; length--) {
        sequels seen = {.n = 0};
        const double met = count(g->own, end, length, OWN_TIMES, &seen) + count(g->past, end, length, 1.0, &seen);
        for (int32_t i = 0; i < seen.n; i++) {
            say(mixed, seen.tokens[i], left * seen.says[i] / (met + seen.n));
        }
        left *= met > 0.0 ? seen.n / (met + seen.n) : 1.0;
    }
}

/* The likeliest guesses after some tokens join those that are open. */
static void open_children(growth *g, const int32_t *end, int32_t longest, int32_t parent, int32_t level, double reach) {
    sequels mixed;
    int32_t tokens[KEPT], n = 0;
    float shares[KEPT];
    double chances[KEPT];
    mix(g, end, longest, &mixed);
    for (; n < KEPT && n < mixed.n; n++) {
        int32_t best = 0;
        for (int32_t i = 1; i < mixed.n; i++) {
            best = mixed.says[i] > mixed.says[best] ? i : best;
        }
        tokens[n] = mixed.tokens[best];
        shares[n] = (float)mixed.says[best];
        mixed.says[best] = -1.0;
    }
    ls_rank(g->w, g->noise, g->temperature, g->position + (uint32_t)level - 1, tokens, shares, n, chances);
    for (int32_t rank = 0; rank < n && rank < g->breadth; rank++) {
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++) {
            best = chances[i] > chances[best] ? i : best;
        }
        candidate *to = g->open + g->n_open++;
        *to = (candidate){reach * chances[best], chances[best], level, parent, rank, tokens[best], {0}};
        memcpy(to->before + LONGEST - longest, end - longest, (size_t)longest * sizeof *end);
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

static void grow(growth *g, int32_t most, int32_t max_depth, ls_guess *out) {
    while (out->nodes < most && g->n_open) {
        int32_t best = 0, end[LONGEST + 1];
        for (int32_t i = 1; i < g->n_open; i++) {
            best = is_better(g->open + i, g->open + best) ? i : best;
        }
        const candidate taken = g->open[best];
        g->open[best] = g->open[--g->n_open];
        out->tokens[out->nodes] = taken.token;
        out->parents[out->nodes] = taken.parent;
        out->confidence[out->nodes++] = (float)taken.chance;
        if (taken.level < max_depth && taken.reach >= LEAST && out->nodes < most) {
            const int32_t known = g->known + taken.level;
            memcpy(end, taken.before, sizeof taken.before);
            end[LONGEST] = taken.token;
            open_children(g, end + LONGEST + 1, known < LONGEST ? known : LONGEST, out->nodes - 1, taken.level + 1,
                          taken.reach);
        }
    }
}

int32_t ls_habits_guess(ls_suffix *own, const ls_suffix *past, const ls_workspace *w, int64_t unchanged,
                        const int32_t *tokens, int64_t n, double temperature, const ls_noise *noise, int32_t max_nodes,
                        int32_t max_depth, int32_t breadth, ls_guess *out) {
    growth g = {.own = own, .past = past, .w = w, .noise = noise, .temperature = temperature, .breadth = breadth};
    out->nodes = 0;
    if (unchanged < 0 || unchanged > n || max_nodes < 0 || max_depth < 0 || breadth < 1 || breadth > KEPT) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = ls_suffix_sync(own, unchanged, tokens + unchanged, n - unchanged);
    if (status) {
        return status;
    }
    g.position = (uint32_t)n;
    g.known = n < LONGEST ? (int32_t)n : LONGEST;
    if (max_depth && max_nodes) {
        open_children(&g, tokens + n, g.known, -1, 1, 1.0);
    }
    grow(&g, max_nodes < LS_MOST_FOLLOWED ? max_nodes : LS_MOST_FOLLOWED, max_depth, out);
    return LS_OK;
}
