/* What a text says after its last tokens: counts of what followed each one to four of them, and guesses by them.
 *
 * Each context has one line of memory in a table of hashes, so that a look waits for memory once, however much was
 * counted: a pass of the target has emptied the caches. The counts of all lengths are mixed as Witten and Bell (1991) do: a
 * context that was met n times with k different sequels has a say of n / (n + k), and the next shorter one has a say in the
 * rest. Of contexts of one length the conversation's is asked first. After each guess the same is asked anew; the next
 * guess is always the one that is likeliest to be reached.
 *
 * Whatever makes room lowers counts, so no count is ever higher than what was added and not taken out again: a sequence
 * that was taken out leaves nothing. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "internal.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define LONGEST 4             /* Tokens of a context: with six, answers of a small model were guessed no better. */
#define SEQUELS 9             /* Of a context. */
#define WAYS 4                /* Lines that a context may have. */
#define FIRST_LINES 1024
#define MOST_LINES (1 << 18)  /* 16 MB. */
#define KEPT 8                /* Guesses after a token. */
#define LEAST 0.03            /* After a guess that is less likely to be reached nothing more is guessed. */
#define LEAST_SAY 0.02        /* A shorter context that has less of a say is not looked at. */
#define HIGHEST 0.999         /* No share is as good as a long match. */
#define MOST_MIXED (2 * LONGEST * SEQUELS)

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif

/* A context; met 0 = none. */
typedef struct line {
    uint32_t hash;
    uint32_t met; /* How often something followed. */
    int32_t tokens[SEQUELS];
    uint16_t counts[SEQUELS]; /* 0 = no sequel. */
} line;

struct ls_counts {
    line *lines; /* [n_lines], on borders of cache lines */
    void *memory;
    int64_t n_lines; /* A power of 2. */
    int64_t used;
    int32_t *tokens; /* Of the conversation. */
    int64_t length, room;
};

/* ---- the table ---- */

static uint32_t hash_of(const int32_t *end, int32_t length) {
    uint64_t h = (uint64_t)length * 0x9E3779B97F4A7C15u;
    for (int32_t i = 1; i <= length; i++) {
        h = (h ^ (uint32_t)end[-i]) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static line *way(const ls_counts *c, uint32_t hash, int32_t i) {
    return c->lines + ((hash & ~(uint32_t)(WAYS - 1) & (uint32_t)(c->n_lines - 1)) | ((hash + (uint32_t)i) & (WAYS - 1)));
}

static line *find(const ls_counts *c, uint32_t hash) {
    for (int32_t i = 0; c->n_lines && i < WAYS; i++) {
        line *at = way(c, hash, i);
        if (at->met && at->hash == hash) {
            return at;
        }
    }
    return NULL;
}

/* The line of a context, made if there is none: of those it may have the one that was met least. */
static line *made(ls_counts *c, uint32_t hash) {
    line *at = find(c, hash);
    for (int32_t i = 0; !at && i < WAYS; i++) {
        line *const free = way(c, hash, i);
        at = free->met ? NULL : free;
        c->used += !free->met;
    }
    if (!at) {
        at = way(c, hash, 0);
        for (int32_t i = 1; i < WAYS; i++) {
            at = way(c, hash, i)->met < at->met ? way(c, hash, i) : at;
        }
        at->met = 0;
    }
    if (!at->met) {
        *at = (line){.hash = hash};
    }
    return at;
}

static int32_t resize(ls_counts *c, int64_t n) {
    const size_t bytes = (size_t)n * sizeof(line);
    void *memory = calloc(bytes + 63, 1);
    if (!memory) {
        return LS_NO_MEMORY;
    }
    ls_counts grown = *c;
    grown.memory = memory;
    grown.lines = (line *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
    grown.n_lines = n;
    grown.used = 0;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = (uintptr_t)2 << 20, start = ((uintptr_t)grown.lines + page - 1) & ~(page - 1);
    if (start + page <= (uintptr_t)grown.lines + bytes) {
        (void)madvise((void *)start, ((uintptr_t)grown.lines + bytes - start) & ~(page - 1), MADV_HUGEPAGE);
    }
#endif
    for (int64_t i = 0; i < c->n_lines; i++) {
        if (c->lines[i].met) {
            *made(&grown, c->lines[i].hash) = c->lines[i];
        }
    }
    free(c->memory);
    *c = grown;
    return LS_OK;
}

static void add(line *at, int32_t token) {
    int32_t lowest = 0;
    for (int32_t i = 0; i < SEQUELS; i++) {
        if (at->counts[i] && at->tokens[i] == token) {
            lowest = i;
            break;
        }
        lowest = at->counts[i] < at->counts[lowest] ? i : lowest;
    }
    if (at->counts[lowest] && at->tokens[lowest] != token) { /* full: what is rarest fades */
        at->counts[lowest]--;
    }
    if (!at->counts[lowest] || at->tokens[lowest] == token) {
        at->tokens[lowest] = token;
        at->counts[lowest]++;
    }
    at->met++;
    if (at->counts[lowest] == UINT16_MAX) {
        for (int32_t i = 0; i < SEQUELS; i++) {
            at->counts[i] /= 2;
        }
        at->met /= 2;
    }
}

static void take(ls_counts *c, line *at, int32_t token) {
    for (int32_t i = 0; i < SEQUELS; i++) {
        if (at->counts[i] && at->tokens[i] == token) {
            at->counts[i]--;
        }
    }
    uint32_t left = 0;
    for (int32_t i = 0; i < SEQUELS; i++) {
        left += at->counts[i];
    }
    at->met = at->met - 1 > left ? at->met - 1 : left;
    if (!left) {
        at->met = 0;
        c->used--;
    }
}

/* Counts the token at `at`, or takes it out again, after all contexts that begin at `start` or later. */
static int32_t count(ls_counts *c, const int32_t *start, const int32_t *at, bool in) {
    for (int32_t length = 1; length <= LONGEST && length <= at - start; length++) {
        const uint32_t hash = hash_of(at, length);
        if (in && 2 * c->used >= c->n_lines && c->n_lines < MOST_LINES) {
            const int32_t status = resize(c, c->n_lines ? 2 * c->n_lines : FIRST_LINES);
            if (status && !c->n_lines) {
                return status;
            }
        }
        line *const found = in ? made(c, hash) : find(c, hash);
        if (found && in) {
            add(found, *at);
        } else if (found) {
            take(c, found, *at);
        }
    }
    return LS_OK;
}

/* ---- guesses ---- */

/* Sequels of contexts, each once. */
typedef struct sequels {
    int32_t n;
    int32_t tokens[MOST_MIXED];
    double says[MOST_MIXED];
} sequels;

typedef struct candidate {
    double reach;  /* Chance that it and all before it are right. */
    double chance; /* Given its parent. */
    int32_t level, parent, rank, token;
    int32_t before[LONGEST]; /* What stands before it, at the end. */
} candidate;

/* Who asks, and what he may still be told. */
typedef struct growth {
    const ls_counts *own, *past;
    const ls_workspace *w;
    const ls_noise *noise;
    double temperature;
    uint32_t position; /* Of a guess of level 1. */
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

/* What followed a context joins in by what is left of the say; what then is left. */
static double tell(const line *from, double left, sequels *mixed) {
    int32_t n = 0;
    for (int32_t i = 0; from && i < SEQUELS; i++) {
        n += from->counts[i] > 0;
    }
    for (int32_t i = 0; n && i < SEQUELS; i++) {
        if (from->counts[i]) {
            say(mixed, from->tokens[i], left * from->counts[i] / (from->met + n));
        }
    }
    return n ? left * ((double)n / (from->met + n)) : left;
}

/* What follows the tokens before `end`, by all lengths. */
static void mix(const growth *g, const int32_t *end, int32_t longest, sequels *mixed) {
    uint32_t hashes[LONGEST + 1];
    double left = 1.0;
    for (int32_t length = 1; length <= longest; length++) {
        hashes[length] = hash_of(end, length);
        if (g->own->n_lines) {
            PREFETCH(way(g->own, hashes[length], 0));
        }
        if (g->past && g->past->n_lines) {
            PREFETCH(way(g->past, hashes[length], 0));
        }
    }
    mixed->n = 0;
    for (int32_t length = longest; length && left > LEAST_SAY; length--) {
        left = tell(find(g->own, hashes[length]), left, mixed);
        left = tell(g->past ? find(g->past, hashes[length]) : NULL, left, mixed);
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

static void grow(growth *g, int32_t known, int32_t most, int32_t max_depth, ls_guess *out) {
    while (out->nodes < most && g->n_open) {
        int32_t best = 0, end[LONGEST + 1];
        for (int32_t i = 1; i < g->n_open; i++) {
            best = is_better(g->open + i, g->open + best) ? i : best;
        }
        const candidate taken = g->open[best];
        g->open[best] = g->open[--g->n_open];
        out->tokens[out->nodes] = taken.token;
        out->parents[out->nodes] = taken.parent;
        out->confidence[out->nodes++] = (float)(taken.chance < HIGHEST ? taken.chance : HIGHEST);
        if (taken.level < max_depth && taken.reach >= LEAST && out->nodes < most) {
            const int32_t there = known + taken.level;
            memcpy(end, taken.before, sizeof taken.before);
            end[LONGEST] = taken.token;
            open_children(g, end + LONGEST + 1, there < LONGEST ? there : LONGEST, out->nodes - 1, taken.level + 1,
                          taken.reach);
        }
    }
}

/* ---- for callers ---- */

int32_t ls_counts_new(ls_counts **out) {
    *out = calloc(1, sizeof **out);
    return *out ? LS_OK : LS_NO_MEMORY;
}

void ls_counts_free(ls_counts *counts) {
    if (counts) {
        free(counts->memory);
        free(counts->tokens);
        free(counts);
    }
}

int64_t ls_counts_bytes(const ls_counts *counts) {
    return counts->n_lines * (int64_t)sizeof(line) + counts->room * (int64_t)sizeof *counts->tokens;
}

int32_t ls_counts_add(ls_counts *counts, const int32_t *tokens, int64_t n, int32_t times) {
    int32_t status = times == 1 || times == -1 ? LS_OK : LS_BAD_ARGUMENT;
    for (int64_t i = 1; i < n && !status; i++) {
        status = count(counts, tokens, tokens + i, times == 1);
    }
    return status;
}

int32_t ls_counts_sync(ls_counts *counts, int64_t unchanged, const int32_t *tail, int64_t n_tail) {
    if (unchanged < 0 || unchanged > counts->length || n_tail < 0) {
        return LS_BAD_ARGUMENT;
    }
    int64_t same = 0;
    while (same < n_tail && unchanged + same < counts->length && counts->tokens[unchanged + same] == tail[same]) {
        same++;
    }
    const int64_t keep = unchanged + same, have = unchanged + n_tail;
    if (have > counts->room) {
        int32_t *tokens = realloc(counts->tokens, (size_t)(have + have / 4 + 256) * sizeof *tokens);
        if (!tokens) {
            return LS_NO_MEMORY;
        }
        counts->tokens = tokens;
        counts->room = have + have / 4 + 256;
    }
    if (!keep) { /* another conversation, which is counted as by fresh counts */
        free(counts->memory);
        counts->memory = NULL;
        counts->lines = NULL;
        counts->n_lines = counts->used = counts->length = 0;
    }
    for (int64_t i = counts->length; i > keep; i--) {
        count(counts, counts->tokens, counts->tokens + i - 1, false);
    }
    int32_t status = LS_OK;
    counts->length = keep;
    for (int64_t i = keep; i < have && !status; i++) {
        counts->tokens[i] = tail[i - unchanged];
        status = count(counts, counts->tokens, counts->tokens + i, true);
        counts->length = i + 1;
    }
    return status;
}

int32_t ls_counts_guess(ls_counts *own, const ls_counts *past, const ls_workspace *w, int64_t unchanged,
                        const int32_t *tokens, int64_t n, double temperature, const ls_noise *noise, int32_t max_nodes,
                        int32_t max_depth, int32_t breadth, ls_guess *out) {
    growth g = {.own = own, .past = past, .w = w, .noise = noise, .temperature = temperature, .breadth = breadth};
    out->nodes = 0;
    if (unchanged < 0 || unchanged > n || max_nodes < 0 || max_depth < 0 || breadth < 1 || breadth > KEPT) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = ls_counts_sync(own, unchanged, tokens + unchanged, n - unchanged);
    if (status) {
        return status;
    }
    const int32_t known = n < LONGEST ? (int32_t)n : LONGEST;
    g.position = (uint32_t)n;
    if (max_depth && max_nodes) {
        open_children(&g, tokens + n, known, -1, 1, 1.0);
    }
    grow(&g, known, max_nodes < LS_MOST_FOLLOWED ? max_nodes : LS_MOST_FOLLOWED, max_depth, out);
    return LS_OK;
}
