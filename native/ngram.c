/* Prompt lookup: for every position and every n, where the same n tokens ended last before it.
 *
 * earlier[n][e] is that place for the n-gram that ends before token e (0 = nowhere), so a lookup reads one number per n.
 * A hash table per n maps an n-gram to the place where it ended last. Tokens leave in the reverse of the order in which they
 * came, so truncation undoes insertion step by step, and a slot of an open-addressed table can simply be emptied:
 * whatever was put after it came later and has left already. */
#include "internal.h"

#include <stdlib.h>

#define MAX_N 64
#define MAX_TOKENS ((int64_t)1 << 30)

struct ls_ngram {
    int32_t min_n, max_n;
    int64_t length;     /* tokens held */
    int64_t room;       /* tokens there is memory for */
    int64_t slots;      /* per table; a power of two, at least twice the room */
    int32_t *tokens;    /* [room] */
    int32_t *earlier;   /* [max_n - min_n + 1][room + 1] */
    int32_t *tables;    /* [max_n - min_n + 1][slots] place where an n-gram ended last, 0 = free */
};

static int32_t *earlier_of(const ls_ngram *g, int32_t n) { return g->earlier + (n - g->min_n) * (g->room + 1); }

static int32_t *table_of(const ls_ngram *g, int32_t n) { return g->tables + (n - g->min_n) * g->slots; }

static uint64_t hash_more(uint64_t hash, int32_t token) {
    hash = (hash ^ (uint32_t)token) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

/* The slot that holds the n-gram ending before `end`, or the free slot where it would go. */
static int32_t *find(const ls_ngram *g, int32_t n, int64_t end, uint64_t hash) {
    int32_t *table = table_of(g, n);
    const uint64_t mask = (uint64_t)g->slots - 1;
    uint64_t slot = (hash >> 20) & mask;
    while (table[slot]
           && memcmp(g->tokens + table[slot] - n, g->tokens + end - n, (size_t)n * sizeof(int32_t)) != 0) {
        slot = (slot + 1) & mask;
    }
    return table + slot;
}

/* Puts the n-grams that end before `end` in (or takes them out: they must be the last). */
static void enter(ls_ngram *g, int64_t end, bool in) {
    uint64_t hash = 0;
    for (int32_t n = 1; n <= g->max_n && n <= end; n++) {
        hash = hash_more(hash, g->tokens[end - n]);
        if (n < g->min_n) {
            continue;
        }
        int32_t *slot = find(g, n, end, hash);
        if (in) {
            earlier_of(g, n)[end] = *slot;
            *slot = (int32_t)end;
        } else {
            *slot = earlier_of(g, n)[end];
        }
    }
}

static int32_t make_room(ls_ngram *g, int64_t needed) {
    if (needed <= g->room) {
        return LS_OK;
    }
    const int64_t kinds = g->max_n - g->min_n + 1;
    ls_ngram fresh = *g;
    fresh.room = needed < 2 * g->room ? 2 * g->room : needed < 256 ? 256 : needed;
    for (fresh.slots = 512; fresh.slots < 2 * fresh.room; fresh.slots *= 2) {
    }
    fresh.tokens = calloc((size_t)fresh.room, sizeof(int32_t));
    fresh.earlier = calloc((size_t)(kinds * (fresh.room + 1)), sizeof(int32_t));
    fresh.tables = calloc((size_t)(kinds * fresh.slots), sizeof(int32_t));
    if (!fresh.tokens || !fresh.earlier || !fresh.tables) {
        free(fresh.tokens);
        free(fresh.earlier);
        free(fresh.tables);
        return LS_NO_MEMORY;
    }
    if (g->length > 0) {
        memcpy(fresh.tokens, g->tokens, (size_t)g->length * sizeof(int32_t));
    }
    for (int64_t end = 1; end <= g->length; end++) {
        enter(&fresh, end, true);
    }
    free(g->tokens);
    free(g->earlier);
    free(g->tables);
    *g = fresh;
    return LS_OK;
}

int32_t ls_ngram_new(int32_t min_ngram, int32_t max_ngram, ls_ngram **out) {
    *out = NULL;
    if (min_ngram < 1 || max_ngram < min_ngram || max_ngram > MAX_N) {
        return LS_BAD_ARGUMENT;
    }
    ls_ngram *g = calloc(1, sizeof *g);
    if (!g) {
        return LS_NO_MEMORY;
    }
    g->min_n = min_ngram;
    g->max_n = max_ngram;
    *out = g;
    return LS_OK;
}

void ls_ngram_free(ls_ngram *index) {
    if (index) {
        free(index->tokens);
        free(index->earlier);
        free(index->tables);
        free(index);
    }
}

int32_t ls_ngram_sync(ls_ngram *index, int64_t unchanged, const int32_t *tail, int64_t n_tail) {
    if (unchanged < 0 || unchanged > index->length || n_tail < 0 || unchanged + n_tail > MAX_TOKENS) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = make_room(index, unchanged + n_tail);
    if (status) {
        return status;
    }
    int64_t same = 0;
    while (same < n_tail && unchanged + same < index->length && index->tokens[unchanged + same] == tail[same]) {
        same++;
    }
    while (index->length > unchanged + same) {
        enter(index, index->length, false);
        index->length--;
    }
    for (; same < n_tail; same++) {
        index->tokens[index->length++] = tail[same];
        enter(index, index->length, true);
    }
    return LS_OK;
}

int32_t ls_ngram_lookup(const ls_ngram *index, int32_t max_tokens, int32_t *out, int32_t *n_out, int32_t *match) {
    *n_out = *match = 0;
    if (max_tokens < 1) {
        return max_tokens ? LS_BAD_ARGUMENT : LS_OK;
    }
    const int64_t length = index->length;
    for (int32_t n = index->max_n; n >= index->min_n; n--) {
        const int64_t end = n < length ? earlier_of(index, n)[length] : 0;
        if (end) {
            const int64_t period = length - end;
            for (int64_t i = 0; i < max_tokens; i++) {
                out[i] = i < period ? index->tokens[end + i] : out[i - period];
            }
            *n_out = max_tokens;
            *match = n;
            return LS_OK;
        }
    }
    return LS_OK;
}

/* The first n-gram on which `index` and a fresh one disagree. */
static void compare(const ls_ngram *index, const ls_ngram *fresh, int32_t *fault_n, int64_t *fault_end) {
    for (int32_t n = index->min_n; n <= index->max_n; n++) {
        int64_t used = 0, distinct = 0;
        for (int64_t i = 0; i < index->slots; i++) {
            used += table_of(index, n)[i] != 0;
        }
        for (int64_t end = n; end <= index->length; end++) {
            uint64_t hash = 0;
            for (int32_t i = 1; i <= n; i++) {
                hash = hash_more(hash, index->tokens[end - i]);
            }
            distinct += earlier_of(index, n)[end] == 0;
            if (earlier_of(index, n)[end] != earlier_of(fresh, n)[end]
                || *find(index, n, end, hash) != *find(fresh, n, end, hash)) {
                *fault_n = n;
                *fault_end = end;
                return;
            }
        }
        if (used != distinct) {
            *fault_n = n;
            *fault_end = index->length;
            return;
        }
    }
}

int32_t ls_ngram_check(const ls_ngram *index, int32_t *fault_n, int64_t *fault_end) {
    ls_ngram *fresh;
    *fault_n = 0;
    *fault_end = 0;
    int32_t status = ls_ngram_new(index->min_n, index->max_n, &fresh);
    if (status) {
        return status;
    }
    status = index->length ? ls_ngram_sync(fresh, 0, index->tokens, index->length) : LS_OK;
    if (!status && index->length) {
        compare(index, fresh, fault_n, fault_end);
    }
    ls_ngram_free(fresh);
    return status;
}

int64_t ls_ngram_length(const ls_ngram *index) { return index->length; }

int64_t ls_ngram_bytes(const ls_ngram *index) {
    const int64_t kinds = index->max_n - index->min_n + 1;
    const int64_t numbers = index->room ? index->room + kinds * (index->room + 1 + index->slots) : 0;
    return (int64_t)sizeof *index + numbers * (int64_t)sizeof(int32_t);
}
