/* What followed the longest end of a context, as a chain or a tree of guesses (suffix.c has the order of the places).
 *
 * The places after the longest match vote for what comes next; when there are many, some of them, evenly spaced. Those
 * that agree with a guess vote for what follows it, and so on. A token for which c of n places vote is said with
 * probability c / (n + 1 / m), m being the length of the match so far: the more evidence and the longer the match, the
 * surer. A guess is worth the product of the probabilities on its way, and the sum over all guesses is the number of
 * tokens expected to be accepted. */
#include "suffix.h"

#define MOST_VOTERS 32
#define MOST_NODES LS_MOST_FOLLOWED

typedef struct candidate {
    int32_t token;
    int32_t parent;  /* Node, -1 = the context. */
    int32_t depth;   /* Tokens from the context on, this one included. */
    int32_t latest;  /* The last place that votes for it. */
    double chance;   /* Given its parent. */
    double reach;    /* Product of the chances from the context on. */
    uint32_t voters; /* Bit i = place i. */
} candidate;

typedef struct guess {
    const ls_suffix *x;
    int32_t match;
    bool chain, runs_on;
    int32_t n_voters;
    int32_t places[MOST_VOTERS];
    int32_t ends[MOST_VOTERS]; /* Tokens from the place to the end of its sequence, 0 = not met yet. */
    int32_t n_nodes;
    candidate nodes[MOST_NODES];
    int32_t n_open;
    candidate open[MOST_VOTERS]; /* Their voters differ, so there are never more. */
} guess;

/* How many tokens at the end of a context stand before a place, at most `limit`; the first `known` do. */
static int32_t agreed(const ls_place *p, int32_t place, const int32_t *end, int32_t limit, int32_t known) {
    while (known < limit && p[place - 1 - known].token == end[-1 - known] && end[-1 - known] >= 0) {
        known++;
    }
    return known;
}

/* The top of the longest match's places in the tree; 0 if there are none. */
static int32_t find(const ls_suffix *x, const int32_t *end, int32_t limit, int32_t *match) {
    const ls_place *p = x->places;
    int32_t low = 0, high = 0, top = 0;
    *match = 0;
    for (int32_t t = x->root; t && *match < limit;) {
        ls_suffix_prefetch(p, p[t].left, low < high ? low : high);
        ls_suffix_prefetch(p, p[t].right, low < high ? low : high);
        const int32_t same = agreed(p, t, end, limit, low < high ? low : high);
        if (same > *match) {
            *match = same;
            top = t;
        }
        if (same < limit && p[t - 1 - same].token < end[-1 - same]) {
            low = same;
            t = p[t].right;
        } else {
            high = same;
            t = p[t].left;
        }
    }
    return top;
}

/* How many places of a subtree beside the top are of the match: those on the side of the top. */
static int32_t beside(const ls_place *p, int32_t t, const int32_t *end, int32_t match, bool on_the_left) {
    int32_t count = 0, known = 0;
    while (t) {
        const int32_t same = agreed(p, t, end, match, known);
        const int32_t inner = on_the_left ? p[t].right : p[t].left, outer = on_the_left ? p[t].left : p[t].right;
        if (same == match) {
            count += 1 + p[inner].size;
            t = outer;
        } else {
            known = same;
            t = inner;
        }
    }
    return count;
}

/* The places of these ranks, in order. */
static int32_t *select_ranks(const ls_place *p, int32_t t, int64_t base, const int64_t *ranks, int32_t n,
                             int32_t *out) {
    while (n) {
        const int64_t rank = base + p[p[t].left].size;
        int32_t less = 0;
        while (less < n && ranks[less] < rank) {
            less++;
        }
        out = less ? select_ranks(p, p[t].left, base, ranks, less, out) : out;
        if (less < n && ranks[less] == rank) {
            *out++ = t;
            less++;
        }
        ranks += less;
        n -= less;
        base = rank + 1;
        t = p[t].right;
    }
    return out;
}

/* What a place votes for after a node of `depth` tokens on whose way it agrees; -1 = nothing. */
static int32_t vote(guess *g, int32_t voter, int32_t node, int32_t depth) {
    if (!g->ends[voter]) {
        const int32_t token = g->x->places[g->places[voter] + depth].token;
        if (token >= 0) {
            return token;
        }
        g->ends[voter] = depth;
    }
    if (!g->runs_on) {
        return -1;
    }
    while (g->nodes[node].depth > depth - g->ends[voter] + 1) { /* it goes on with what is guessed */
        node = g->nodes[node].parent;
    }
    return g->nodes[node].token;
}

static bool is_better(const candidate *a, const candidate *b) {
    if (a->reach != b->reach) {
        return a->reach > b->reach;
    }
    return a->parent != b->parent ? a->parent < b->parent : a->latest > b->latest;
}

/* Opens what may follow a node, -1 = the context; of a chain the best of it only. */
static void open_children(guess *g, int32_t node, int32_t depth, double reach, uint32_t voters) {
    int32_t tokens[MOST_VOTERS], n = 0;
    for (int32_t i = 0; i < g->n_voters; i++) {
        tokens[i] = voters >> i & 1 ? vote(g, i, node, depth) : -1;
        n += tokens[i] >= 0;
    }
    const double total = (double)n + 1.0 / (double)(g->match + depth);
    candidate best = {.reach = -1.0};
    for (int32_t i = 0; i < g->n_voters; i++) {
        if (tokens[i] < 0) {
            continue;
        }
        candidate found = {.token = tokens[i], .parent = node, .depth = depth + 1};
        int32_t count = 0;
        for (int32_t j = g->n_voters - 1; j >= i; j--) {
            if (tokens[j] == found.token) {
                found.latest = g->places[j] > found.latest ? g->places[j] : found.latest;
                found.voters |= (uint32_t)1 << j;
                count++;
                tokens[j] = -1;
            }
        }
        found.chance = (double)count / total;
        found.reach = reach * found.chance;
        if (!g->chain) {
            g->open[g->n_open++] = found;
        } else if (is_better(&found, &best)) {
            best = found;
        }
    }
    if (g->chain && n) {
        g->open[g->n_open++] = best;
    }
}

/* Takes the best open candidates until there are enough; the sum of what they are worth. */
static double grow(guess *g, int32_t max_nodes, int32_t max_depth) {
    double score = 0.0;
    while (g->n_nodes < max_nodes && g->n_open) {
        int32_t best = 0;
        for (int32_t i = 1; i < g->n_open; i++) {
            best = is_better(g->open + i, g->open + best) ? i : best;
        }
        const candidate taken = g->open[best];
        g->open[best] = g->open[--g->n_open];
        g->nodes[g->n_nodes++] = taken;
        score += taken.reach;
        if (taken.depth < max_depth) {
            open_children(g, g->n_nodes - 1, taken.depth, taken.reach, taken.voters);
        }
    }
    return score;
}

static void choose_voters(guess *g, const int32_t *end, int32_t top) {
    const ls_place *p = g->x->places;
    const int64_t left = beside(p, p[top].left, end, g->match, true);
    const int64_t right = beside(p, p[top].right, end, g->match, false);
    const int64_t count = left + 1 + right, used = count < MOST_VOTERS ? count : MOST_VOTERS;
    int64_t ranks[MOST_VOTERS];
    for (int64_t i = 0; i < used; i++) {
        ranks[i] = p[p[top].left].size - left + i * count / used;
    }
    g->n_voters = (int32_t)used;
    select_ranks(p, top, 0, ranks, g->n_voters, g->places);
    for (int32_t i = 0; i < g->n_voters; i++) {
        g->ends[i] = 0;
        LS_PREFETCH(p + g->places[i] + 4); /* what follows the first tokens */
    }
}

/* Fills in a guess after the context that ends at `end`; what it is worth. No nodes = nothing is known. */
static double guessed(guess *g, const ls_suffix *index, const int32_t *end, int64_t n_context, int32_t max_nodes,
                      int32_t max_depth, int32_t shape) {
    g->x = index;
    g->chain = !(shape & LS_SUFFIX_TREE);
    g->runs_on = (shape & LS_SUFFIX_RUNS_ON) != 0;
    g->n_nodes = g->n_open = g->match = 0;
    if (max_nodes < 1 || max_depth < 1) {
        return 0.0;
    }
    const int32_t top = find(index, end, n_context < index->depth ? (int32_t)n_context : index->depth, &g->match);
    if (!top) {
        return 0.0;
    }
    choose_voters(g, end, top);
    open_children(g, -1, 0, 1.0, (uint32_t)((UINT64_C(1) << g->n_voters) - 1));
    return grow(g, max_nodes < MOST_NODES ? max_nodes : MOST_NODES, max_depth);
}

int32_t ls_suffix_guess(const ls_suffix *index, const int32_t *context, int64_t n_context, int32_t max_nodes,
                        int32_t max_depth, int32_t shape, int32_t *tokens, int32_t *parents, double *chances,
                        int32_t found[3], double *score) {
    guess g;
    found[0] = found[1] = 0;
    found[2] = -1;
    *score = 0.0;
    if (n_context < 0 || max_nodes < 0 || max_depth < 0) {
        return LS_BAD_ARGUMENT;
    }
    *score = guessed(&g, index, context + n_context, n_context, max_nodes, max_depth, shape);
    for (int32_t i = 0; i < g.n_nodes; i++) {
        tokens[i] = g.nodes[i].token;
        parents[i] = g.nodes[i].parent;
        chances[i] = g.nodes[i].chance;
    }
    if (g.n_nodes) {
        found[0] = g.n_nodes;
        found[1] = g.match;
        found[2] = ls_suffix_sequence_of(index, g.nodes[0].latest);
    }
    return LS_OK;
}

int32_t ls_suffix_follow(ls_suffix *own, const ls_suffix *other, int32_t least, int64_t unchanged,
                         const int32_t *tokens, int64_t n, int32_t max_nodes, int32_t max_depth, int32_t shape,
                         ls_followed *out) {
    guess mine, theirs;
    *out = (ls_followed){.sequence = -1};
    if (unchanged < 0 || unchanged > n || max_nodes < 0 || max_depth < 0) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = ls_suffix_sync(own, unchanged, tokens + unchanged, n - unchanged);
    if (status) {
        return status;
    }
    const guess *best = &mine;
    const int32_t tree = shape & LS_SUFFIX_TREE;
    out->score = guessed(&mine, own, tokens + n, n, max_nodes, max_depth, tree | LS_SUFFIX_RUNS_ON);
    if (other) {
        const double score = guessed(&theirs, other, tokens + n, n, max_nodes, max_depth, tree);
        if (score > out->score && theirs.match >= least) {
            best = &theirs;
            out->score = score;
            out->sequence = ls_suffix_sequence_of(other, theirs.nodes[0].latest);
        }
    }
    out->nodes = best->n_nodes;
    out->match = best->n_nodes ? best->match : 0;
    for (int32_t i = 0; i < best->n_nodes; i++) {
        const double chance = best->nodes[i].chance;
        out->tokens[i] = best->nodes[i].token;
        out->parents[i] = best->nodes[i].parent;
        out->confidence[i] = (float)(chance < 0.5 ? chance : chance / (1.0 - chance));
    }
    return LS_OK;
}
