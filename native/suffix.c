/* Suffix decoding: what followed, wherever the longest end of a context stood before?
 *
 * Every token of every sequence is a place, and all places are sorted by the tokens before them, read backwards, up to
 * `depth` of them: a suffix array of the reversed text. Places after the same n tokens are neighbours, so the longest
 * match of a context is found by one search for where it would stand, and the number of places after any string is the
 * difference of two ranks (suffix_guess.c).
 *
 * The order is kept by a balanced tree whose nodes are the places themselves (suffix_order.c): 16 bytes a token in all,
 * a token comes or goes in O(depth + log n), and what a comparison reads lies before the node it is about. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "suffix.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define MAX_DEPTH 64
#define MAX_PLACES ((int64_t)1 << 30)
#define FEW 64 /* Tokens that are not worth making the tree anew. */

/* Asks for pages of 2 MB: going down a tree of 10 M places is a walk over 200 MB, a page or two a step. */
static void ask_for_large_pages(void *memory, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = (uintptr_t)2 << 20, start = ((uintptr_t)memory + page - 1) & ~(page - 1);
    const uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);
    if (end > start) {
        (void)madvise((void *)start, end - start, MADV_HUGEPAGE);
    }
#else
    (void)memory;
    (void)bytes;
#endif
}

static int32_t make_room(ls_suffix *x, int64_t places, int64_t sequences) {
    if (places > MAX_PLACES || sequences > MAX_PLACES) {
        return LS_BAD_ARGUMENT;
    }
    if (places > x->room) {
        const int64_t room = x->room ? places + places / 4 : places + 255;
        ls_place *grown = realloc(x->places, (size_t)room * sizeof *grown);
        if (!grown) {
            return LS_NO_MEMORY;
        }
        ask_for_large_pages(grown, (size_t)room * sizeof *grown);
        x->places = grown;
        x->room = room;
    }
    if (sequences > x->sequence_room) {
        const int64_t room = sequences + sequences / 4 + 8;
        int32_t *starts = realloc(x->starts, (size_t)room * sizeof *starts);
        x->starts = starts ? starts : x->starts;
        int32_t *lengths = starts ? realloc(x->lengths, (size_t)room * sizeof *lengths) : NULL;
        if (!lengths) {
            return LS_NO_MEMORY;
        }
        x->lengths = lengths;
        x->sequence_room = (int32_t)room;
    }
    return LS_OK;
}

static void put(ls_suffix *x, int64_t place, int32_t token) {
    x->places[place] = (ls_place){.token = token, .left = 0, .right = 0, .size = 0};
}

/* Writes tokens and the gap after them, from `place` on; they are in no tree yet. */
static void write(ls_suffix *x, int64_t place, const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        put(x, place + i, tokens[i]);
    }
    put(x, place + n, -1);
    x->length = place + n + 1;
}

static bool are_tokens(const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0) {
            return false;
        }
    }
    return true;
}

/* Closes the gaps that removed sequences left. Without memory for it they stay. */
static void close_gaps(ls_suffix *x) {
    ls_place *p = x->places;
    const int64_t n = p[x->root].size;
    int32_t *order = malloc((size_t)(n + 1) * sizeof *order);
    int32_t *fresh = malloc((size_t)x->n_sequences * sizeof *fresh); /* where the sequences will begin */
    if (order && fresh) {
        int32_t next = 1;
        for (int32_t i = 0; i < x->n_sequences; i++) {
            fresh[i] = next;
            next += x->lengths[i] < 0 ? 0 : x->lengths[i] + 1;
        }
        ls_suffix_listed(p, x->root, order);
        for (int64_t i = 0; i < n; i++) {
            const int32_t sequence = ls_suffix_sequence_of(x, order[i]);
            order[i] += fresh[sequence] - x->starts[sequence];
        }
        for (int32_t i = 0; i < x->n_sequences; i++) {
            if (x->lengths[i] >= 0) { /* with the gap after it */
                memmove(p + fresh[i], p + x->starts[i], (size_t)(x->lengths[i] + 1) * sizeof *p);
            }
            x->starts[i] = fresh[i];
        }
        x->length = next;
        x->dead = 0;
        x->root = ls_suffix_tree_of(p, order, n);
    }
    free(order);
    free(fresh);
}

/* ---- for callers ---- */

int32_t ls_suffix_new(int32_t depth, ls_suffix **out) {
    *out = NULL;
    if (depth < 1 || depth > MAX_DEPTH) {
        return LS_BAD_ARGUMENT;
    }
    ls_suffix *x = calloc(1, sizeof *x);
    if (!x || make_room(x, 1, 0)) {
        free(x);
        return LS_NO_MEMORY;
    }
    x->depth = depth;
    put(x, 0, -1);
    x->length = 1;
    *out = x;
    return LS_OK;
}

void ls_suffix_free(ls_suffix *index) {
    if (index) {
        free(index->places);
        free(index->starts);
        free(index->lengths);
        free(index);
    }
}

int32_t ls_suffix_add(ls_suffix *index, const int32_t *tokens, const int64_t *lengths, int32_t n, int32_t *first) {
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        if (lengths[i] < 0 || lengths[i] > MAX_PLACES - total) {
            return LS_BAD_ARGUMENT;
        }
        total += lengths[i];
    }
    if (n < 0 || !are_tokens(tokens, total)) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = make_room(index, index->length + total + n, (int64_t)index->n_sequences + n);
    if (status) {
        return status;
    }
    const int64_t held = index->places[index->root].size;
    int32_t *order = total > FEW && 4 * total > held ? malloc((size_t)(held + total) * sizeof *order) : NULL;
    *first = index->n_sequences;
    for (int32_t i = 0; i < n; i++) {
        const int64_t start = index->length;
        write(index, start, tokens, lengths[i]);
        index->starts[index->n_sequences] = (int32_t)start;
        index->lengths[index->n_sequences++] = (int32_t)lengths[i];
        for (int64_t at = start; !order && at < start + lengths[i]; at++) {
            ls_suffix_enter(index, (int32_t)at);
        }
        tokens += lengths[i];
    }
    if (order) {
        ls_suffix_plant(index, order);
        free(order);
    }
    return LS_OK;
}

int32_t ls_suffix_remove(ls_suffix *index, int32_t sequence) {
    if (sequence < 0 || sequence >= index->n_sequences || index->lengths[sequence] < 0) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t start = index->starts[sequence], end = start + index->lengths[sequence];
    for (int32_t place = start; place < end; place++) {
        ls_suffix_leave(index, place);
    }
    for (int32_t place = start; place < end; place++) {
        put(index, place, -1);
    }
    index->dead += end - start + 1;
    index->lengths[sequence] = -1;
    if (2 * index->dead > index->length) {
        close_gaps(index);
    }
    return LS_OK;
}

int32_t ls_suffix_sync(ls_suffix *index, int64_t unchanged, const int32_t *tail, int64_t n_tail) {
    const int32_t newest = index->n_sequences - 1;
    if (newest < 0 || index->lengths[newest] < 0) {
        int32_t first;
        const int64_t none = 0;
        const int32_t status = unchanged ? LS_BAD_ARGUMENT : ls_suffix_add(index, tail, &none, 1, &first);
        return status ? status : ls_suffix_sync(index, 0, tail, n_tail);
    }
    const int32_t start = index->starts[newest];
    const int64_t had = index->lengths[newest];
    if (unchanged < 0 || unchanged > had || n_tail < 0 || n_tail > MAX_PLACES || !are_tokens(tail, n_tail)) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = make_room(index, start + unchanged + n_tail + 1, 0);
    if (status) {
        return status;
    }
    const ls_place *p = index->places;
    int64_t same = 0;
    while (same < n_tail && unchanged + same < had && p[start + unchanged + same].token == tail[same]) {
        same++;
    }
    const int64_t keep = unchanged + same, have = unchanged + n_tail;
    const int64_t changed = had + have - 2 * keep, after = p[index->root].size - had + have;
    int32_t *order = changed > FEW && 4 * changed > after ? malloc((size_t)(after + 1) * sizeof *order) : NULL;
    for (int64_t at = had; !order && at > keep; at--) {
        ls_suffix_leave(index, (int32_t)(start + at - 1));
    }
    write(index, start + keep, tail + same, n_tail - same);
    index->lengths[newest] = (int32_t)have;
    for (int64_t at = keep; !order && at < have; at++) {
        ls_suffix_enter(index, (int32_t)(start + at));
    }
    if (order) {
        ls_suffix_plant(index, order);
        free(order);
    }
    return LS_OK;
}

int64_t ls_suffix_tokens(const ls_suffix *index) { return index->places[index->root].size; }

int64_t ls_suffix_bytes(const ls_suffix *index) {
    return (int64_t)sizeof *index + index->room * (int64_t)sizeof(ls_place)
           + index->sequence_room * 2 * (int64_t)sizeof(int32_t);
}

int32_t ls_suffix_check(const ls_suffix *index) {
    int64_t held = 0, next = 1, dead = 0;
    for (int32_t i = 0; i < index->n_sequences; i++) {
        const int32_t length = index->lengths[i];
        if (length >= 0 ? index->starts[i] < next : index->starts[i] < (i ? index->starts[i - 1] : 1)) {
            return LS_BAD_ARGUMENT;
        }
        if (length >= 0) {
            dead += index->starts[i] - next;
            next = (int64_t)index->starts[i] + length + 1;
            held += length;
        }
    }
    dead += index->length - next;
    int64_t tokens = 0;
    for (int64_t i = 0; i < index->length; i++) {
        tokens += index->places[i].token >= 0;
    }
    const ls_place *p = index->places;
    const bool counts = tokens == held && p[index->root].size == held && dead == index->dead && !p[0].size;
    const bool ends = next <= index->length && p[0].token < 0 && p[index->length - 1].token < 0;
    return counts && ends && ls_suffix_is_sorted(index) ? LS_OK : LS_BAD_ARGUMENT;
}
