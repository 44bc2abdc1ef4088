/* The order of places: a weight-balanced tree (Adams 1993, with the constants of Hirai and Yamamoto 2011) whose nodes
 * are the places themselves. Many at once are sorted (multikey quicksort, Bentley and Sedgewick 1997) and the tree is
 * made anew. */
#include "suffix.h"

#include <stdlib.h>

#define MOST_LEVELS 80 /* Of a balanced tree of 2^30 nodes: 73. */

/* How many tokens before a and b are the same, at most `depth`; the first `known` are. */
static int32_t common(const ls_suffix *x, int32_t a, int32_t b, int32_t known) {
    const ls_place *p = x->places;
    while (known < x->depth && p[a - 1 - known].token == p[b - 1 - known].token && p[a - 1 - known].token >= 0) {
        known++;
    }
    return known;
}

/* Whether a stands before b, whose first `same` tokens are the same; among equals the older one does. */
static bool before(const ls_suffix *x, int32_t a, int32_t b, int32_t same) {
    const ls_place *p = x->places;
    if (same < x->depth && p[a - 1 - same].token != p[b - 1 - same].token) {
        return p[a - 1 - same].token < p[b - 1 - same].token;
    }
    return a < b;
}

static int64_t weight(const ls_place *p, int32_t t) { return (int64_t)p[t].size + 1; }

static int32_t sized(ls_place *p, int32_t t) {
    p[t].size = 1 + p[p[t].left].size + p[p[t].right].size;
    return t;
}

static int32_t turned_left(ls_place *p, int32_t t) {
    const int32_t up = p[t].right;
    p[t].right = p[up].left;
    p[up].left = sized(p, t);
    return sized(p, up);
}

static int32_t turned_right(ls_place *p, int32_t t) {
    const int32_t up = p[t].left;
    p[t].left = p[up].right;
    p[up].right = sized(p, t);
    return sized(p, up);
}

/* The tree t, one side of which may have gained or lost a node. */
static int32_t balanced(ls_place *p, int32_t t) {
    const int32_t left = p[t].left, right = p[t].right;
    if (weight(p, right) > 3 * weight(p, left)) {
        if (weight(p, p[right].left) >= 2 * weight(p, p[right].right)) {
            p[t].right = turned_right(p, right);
        }
        return turned_left(p, t);
    }
    if (weight(p, left) > 3 * weight(p, right)) {
        if (weight(p, p[left].right) >= 2 * weight(p, p[left].left)) {
            p[t].left = turned_left(p, left);
        }
        return turned_right(p, t);
    }
    return sized(p, t);
}

/* The tree t with a place. `low` and `high`: tokens it shares with the nodes between which t lies. */
static int32_t with(ls_suffix *x, int32_t t, int32_t place, int32_t low, int32_t high) {
    ls_place *p = x->places;
    if (!t) {
        p[place].left = p[place].right = 0;
        p[place].size = 1;
        return place;
    }
    ls_suffix_prefetch(p, p[t].left, low < high ? low : high);
    ls_suffix_prefetch(p, p[t].right, low < high ? low : high);
    const int32_t same = common(x, place, t, low < high ? low : high);
    if (before(x, place, t, same)) {
        p[t].left = with(x, p[t].left, place, low, same);
    } else {
        p[t].right = with(x, p[t].right, place, same, high);
    }
    return balanced(p, t);
}

static int32_t without_first(ls_place *p, int32_t t, int32_t *first) {
    if (!p[t].left) {
        *first = t;
        return p[t].right;
    }
    p[t].left = without_first(p, p[t].left, first);
    return balanced(p, t);
}

static int32_t without_last(ls_place *p, int32_t t, int32_t *last) {
    if (!p[t].right) {
        *last = t;
        return p[t].left;
    }
    p[t].right = without_last(p, p[t].right, last);
    return balanced(p, t);
}

/* The tree t without a place that it holds. */
static int32_t without(ls_suffix *x, int32_t t, int32_t place) {
    ls_place *p = x->places;
    if (!t) {
        return 0;
    }
    if (t == place) {
        int32_t left = p[t].left, right = p[t].right, top = 0;
        if (!left || !right) {
            return left ? left : right;
        }
        if (p[left].size > p[right].size) {
            left = without_last(p, left, &top);
        } else {
            right = without_first(p, right, &top);
        }
        p[top].left = left;
        p[top].right = right;
        return balanced(p, top);
    }
    if (before(x, place, t, common(x, place, t, 0))) {
        p[t].left = without(x, p[t].left, place);
    } else {
        p[t].right = without(x, p[t].right, place);
    }
    return balanced(p, t);
}

/* ---- many at once ---- */

static int older(const void *a, const void *b) {
    const int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;
    return (one > other) - (one < other);
}

static void swap(int32_t *a, int32_t *b) {
    const int32_t kept = *a;
    *a = *b;
    *b = kept;
}

static void sort_few(const ls_suffix *x, int32_t *order, int64_t n, int32_t known) {
    for (int64_t i = 1; i < n; i++) {
        for (int64_t j = i; j > 0 && before(x, order[j], order[j - 1], common(x, order[j], order[j - 1], known)); j--) {
            swap(order + j, order + j - 1);
        }
    }
}

/* Sorts places whose first `known` tokens are the same: multikey quicksort. */
static void sort(const ls_suffix *x, int32_t *order, int64_t n, int32_t known) {
    const ls_place *p = x->places;
    while (n > 12 && known < x->depth) {
        const int32_t a = p[order[0] - 1 - known].token, b = p[order[n / 2] - 1 - known].token;
        const int32_t c = p[order[n - 1] - 1 - known].token;
        const int32_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        int64_t less = 0, i = 0, more = n;
        while (i < more) {
            const int32_t token = p[order[i] - 1 - known].token;
            if (token < pivot) {
                swap(order + less++, order + i++);
            } else if (token > pivot) {
                swap(order + i, order + --more);
            } else {
                i++;
            }
        }
        if (pivot < 0) { /* their sequences begin here */
            qsort(order, (size_t)more, sizeof *order, older);
            order += more;
            n -= more;
            continue;
        }
        /* The largest of the three parts is gone on with, so that the stack stays small. */
        const int64_t equal = more - less, rest = n - more;
        const bool first = less > equal && less > rest, last = !first && rest > equal;
        if (!first) {
            sort(x, order, less, known);
        }
        if (first || last) {
            sort(x, order + less, equal, known + 1);
        }
        if (!last) {
            sort(x, order + more, rest, known);
        }
        order += first ? 0 : last ? more : less;
        n = first ? less : last ? rest : equal;
        known += !first && !last;
    }
    if (known < x->depth) {
        sort_few(x, order, n, known);
    } else {
        qsort(order, (size_t)n, sizeof *order, older);
    }
}

int32_t ls_suffix_tree_of(ls_place *p, const int32_t *order, int64_t n) {
    if (!n) {
        return 0;
    }
    const int32_t t = order[n / 2];
    p[t].left = ls_suffix_tree_of(p, order, n / 2);
    p[t].right = ls_suffix_tree_of(p, order + n / 2 + 1, n - n / 2 - 1);
    return sized(p, t);
}

void ls_suffix_plant(ls_suffix *x, int32_t *order) {
    int64_t n = 0;
    for (int64_t i = 0; i < x->length; i++) {
        if (x->places[i].token >= 0) {
            order[n++] = (int32_t)i;
        }
    }
    sort(x, order, n, 0);
    x->root = ls_suffix_tree_of(x->places, order, n);
}

/* ---- for suffix.c ---- */

void ls_suffix_enter(ls_suffix *x, int32_t place) { x->root = with(x, x->root, place, 0, 0); }

void ls_suffix_leave(ls_suffix *x, int32_t place) { x->root = without(x, x->root, place); }

int32_t *ls_suffix_listed(const ls_place *p, int32_t t, int32_t *order) {
    for (; t; t = p[t].right) {
        order = ls_suffix_listed(p, p[t].left, order);
        *order++ = t;
    }
    return order;
}

/* Whether the tree t is sorted, balanced and of the sizes it says. `last`: the place before it, 0 = none. */
static bool is_sound(const ls_suffix *x, int32_t t, int32_t *last, int32_t levels) {
    const ls_place *p = x->places;
    if (!t) {
        return true;
    }
    const bool inside = t > 0 && t < x->length - 1 && p[t].token >= 0 && levels > 0;
    if (!inside || !is_sound(x, p[t].left, last, levels - 1)) {
        return false;
    }
    if (*last && !before(x, *last, t, common(x, *last, t, 0))) {
        return false;
    }
    *last = t;
    const int64_t left = weight(p, p[t].left), right = weight(p, p[t].right);
    return is_sound(x, p[t].right, last, levels - 1) && p[t].size == left + right - 1
           && 3 * left >= right && 3 * right >= left;
}

bool ls_suffix_is_sorted(const ls_suffix *x) {
    int32_t last = 0;
    return is_sound(x, x->root, &last, MOST_LEVELS);
}
