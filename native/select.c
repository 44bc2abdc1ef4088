/* Order among keys: selection and sorting of distinct 64-bit integers, largest first. */
#include "internal.h"

#define SMALL 24
#define LARGE 2048

static void insertion_sort(ls_key *keys, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const ls_key key = keys[i];
        int64_t j = i;
        for (; j > 0 && keys[j - 1] < key; j--) {
            keys[j] = keys[j - 1];
        }
        keys[j] = key;
    }
}

static ls_key median(ls_key a, ls_key b, ls_key c) {
    const ls_key high = a > b ? a : b, low = a > b ? b : a;
    return c > high ? high : c < low ? low : c;
}

/* Splits around a pivot: returns m with 0 < m < n, everything before m >= everything from m on. */
static int64_t partition(ls_key *keys, int64_t n, uint64_t *random) {
    ls_key picks[3];
    for (int i = 0; i < 3; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        picks[i] = keys[(*random >> 33) % (uint64_t)n];
    }
    const ls_key pivot = median(picks[0], picks[1], picks[2]);
    int64_t i = -1, j = n;
    for (;;) { /* Hoare */
        do {
            i++;
        } while (keys[i] > pivot);
        do {
            j--;
        } while (keys[j] < pivot);
        if (i >= j) {
            break;
        }
        const ls_key swap = keys[i];
        keys[i] = keys[j];
        keys[j] = swap;
    }
    return j + 1 < n ? j + 1 : j; /* the pivot alone at the end splits before it */
}

void ls_keep_largest(ls_key *keys, int64_t n, int64_t k) {
    uint64_t random = (uint64_t)n;
    while (k > 0 && k < n) {
        if (n <= SMALL) {
            insertion_sort(keys, n);
            return;
        }
        const int64_t m = partition(keys, n, &random);
        if (k <= m) {
            n = m;
        } else {
            keys += m;
            n -= m;
            k -= m;
        }
    }
}

static void quicksort(ls_key *keys, int64_t n) {
    uint64_t random = (uint64_t)n;
    while (n > SMALL) {
        const int64_t m = partition(keys, n, &random);
        if (m < n - m) {
            quicksort(keys, m);
            keys += m;
            n -= m;
        } else {
            quicksort(keys + m, n - m);
            n = m;
        }
    }
    insertion_sort(keys, n);
}

/* Byte by byte from the lowest, skipping bytes that all keys share. */
static void radix_sort(ls_key *keys, int64_t n, ls_key *spare) {
    uint32_t counts[8][256] = {{0}};
    ls_key *from = keys, *to = spare;
    for (int64_t i = 0; i < n; i++) {
        for (int byte = 0; byte < 8; byte++) {
            counts[byte][keys[i] >> (8 * byte) & 255]++;
        }
    }
    for (int byte = 0; byte < 8; byte++) {
        uint32_t *start = counts[byte], total = 0;
        if (start[keys[0] >> (8 * byte) & 255] == (uint32_t)n) {
            continue;
        }
        for (int digit = 255; digit >= 0; digit--) {
            const uint32_t count = start[digit];
            start[digit] = total;
            total += count;
        }
        for (int64_t i = 0; i < n; i++) {
            to[start[from[i] >> (8 * byte) & 255]++] = from[i];
        }
        ls_key *const swap = from;
        from = to;
        to = swap;
    }
    if (from != keys) {
        memcpy(keys, from, (size_t)n * sizeof *keys);
    }
}

void ls_sort_down(ls_key *keys, int64_t n, ls_key *spare) {
    if (n < LARGE) {
        quicksort(keys, n);
    } else {
        radix_sort(keys, n, spare);
    }
}
