/* What suffix.c and suffix_guess.c share: places of tokens, sorted by what stands before them. */
#ifndef LS_SUFFIX_H
#define LS_SUFFIX_H

#include "internal.h"

/* A token, and its place in the order. `token` is -1 between sequences and where one was removed. */
typedef struct ls_place {
    int32_t token;
    int32_t left, right; /* Subtrees, 0 = none. */
    int32_t size;        /* Of the subtree; 0 = the place holds no token. */
} ls_place;

struct ls_suffix {
    int32_t depth;       /* Tokens before a place that count. */
    int32_t root;
    int32_t n_sequences; /* Ever added; the newest is the last. */
    int32_t sequence_room;
    int64_t length;      /* Places in use; the first and the last hold no token, nor does one between two sequences. */
    int64_t room;        /* Places there is memory for. */
    int64_t dead;        /* Places in use that removed sequences left. */
    ls_place *places;    /* [room] */
    int32_t *starts;     /* [sequence_room] place of the first token; never falls. */
    int32_t *lengths;    /* [sequence_room] tokens, -1 = removed. */
};

#if defined(__GNUC__) || defined(__clang__)
#define LS_PREFETCH(address) __builtin_prefetch(address)
#else
#define LS_PREFETCH(address) ((void)(address))
#endif

/* Asks for what a comparison with node t will read: going down the tree is waiting for memory, mostly. */
static inline void ls_suffix_prefetch(const ls_place *p, int32_t t, int32_t known) {
    if (t > known) {
        LS_PREFETCH(p + t);
        LS_PREFETCH(p + t - 1 - known);
    }
}

/* The sequence that a place belongs to. */
static inline int32_t ls_suffix_sequence_of(const ls_suffix *x, int32_t place) {
    int32_t low = 0, high = x->n_sequences; /* the last one that starts at or before it */
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (x->starts[middle] <= place) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* suffix_order.c. A place comes and goes with its token and those before it in place. */
void ls_suffix_enter(ls_suffix *x, int32_t place);
void ls_suffix_leave(ls_suffix *x, int32_t place);
/* Makes the tree anew of all places that hold a token. `order` has room for them. */
void ls_suffix_plant(ls_suffix *x, int32_t *order);
/* A tree of places that are in order; its top. */
int32_t ls_suffix_tree_of(ls_place *p, const int32_t *order, int64_t n);
/* Writes the places of the tree t in order; returns the end of them. */
int32_t *ls_suffix_listed(const ls_place *p, int32_t t, int32_t *order);
/* Whether the tree is sorted, balanced and of the sizes it says. */
bool ls_suffix_is_sorted(const ls_suffix *x);

#endif
