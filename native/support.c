/* Which tokens of a row may be drawn: top-k, typical, top-p, min-p, in llama.cpp's order and with its edges, in double.
 * Most of a large row is never looked at twice: one scan with a rising threshold finds the k best. */
#include "internal.h"

#include <float.h>

static int32_t check(ls_workspace *w, float x, int64_t token) {
    return x <= FLT_MAX ? LS_OK : ls_fail(w, LS_NOT_FINITE, -1, (int32_t)token);
}

static int lowest_bit(uint64_t bits) {
#if defined(_MSC_VER)
    int i = 0;
    while (!(bits >> i & 1)) {
        i++;
    }
    return i;
#else
    return __builtin_ctzll(bits);
#endif
}

/* Like lanes->next_above, for rows of any length. */
static int64_t next_above(ls_workspace *w, const float *row, int64_t start, int64_t n, float limit, uint64_t *mask) {
    const int64_t whole = n - n % LS_BLOCK_SIZE;
    const int64_t i = start < whole ? w->lanes->next_above(row, start, whole, limit, mask) : whole;
    if (i < whole) {
        return i;
    }
    *mask = 0;
    for (int64_t j = whole; j < n; j++) {
        *mask |= (uint64_t) !(row[j] <= limit) << (j - whole);
    }
    return start <= whole && *mask ? whole : n;
}

int32_t ls_top(ls_workspace *w, const float *row, int32_t n_vocab, ls_key *best) {
    float top = -INFINITY;
    int32_t token = -1;
    uint64_t mask;
    for (int64_t i = 0; (i = next_above(w, row, i, n_vocab, top, &mask)) < n_vocab; i += LS_BLOCK_SIZE) {
        for (; mask; mask &= mask - 1) {
            const int64_t j = i + lowest_bit(mask);
            const int32_t status = check(w, row[j], j);
            if (status) {
                return status;
            }
            if (row[j] > top) {
                top = row[j];
                token = (int32_t)j;
            }
        }
    }
    *best = ls_key_of(top, token);
    return token < 0 ? ls_fail(w, LS_NO_SUPPORT, -1, -1) : LS_OK;
}

int32_t ls_top_k(ls_workspace *w, const float *row, int32_t n_vocab, int64_t k, ls_key *keys, int64_t *n) {
    const int64_t room = 3 * k < 128 ? 128 : 3 * k, full = room < n_vocab ? room : n_vocab;
    float limit = -INFINITY; /* at least k tokens so far are as good as this */
    int64_t count = 0;
    uint64_t mask;
    for (int64_t i = 0; (i = next_above(w, row, i, n_vocab, limit, &mask)) < n_vocab; i += LS_BLOCK_SIZE) {
        for (; mask; mask &= mask - 1) {
            const int64_t j = i + lowest_bit(mask);
            const float x = row[j];
            if (x <= limit) { /* the limit has risen within this block */
                continue;
            }
            const int32_t status = check(w, x, j);
            if (status) {
                return status;
            }
            keys[count++] = ls_key_of(x, (int32_t)j);
            if (count == full && full > k) {
                ls_keep_largest(keys, count, k);
                count = k;
                ls_key least = keys[0];
                for (int64_t m = 1; m < k; m++) {
                    least = keys[m] < least ? keys[m] : least;
                }
                limit = ls_key_logit(least);
            }
        }
    }
    ls_keep_largest(keys, count, k);
    *n = count < k ? count : k;
    ls_sort_down(keys, *n, w->spare);
    return *n ? LS_OK : ls_fail(w, LS_NO_SUPPORT, -1, -1);
}

double ls_lane_sum(const double *x, int64_t n) {
    double lane[8] = {0};
    for (int64_t i = 0; i < n; i++) {
        lane[i % 8] += x[i];
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double ls_softmax(ls_workspace *w, const ls_support *support, double temperature, double *out) {
    const float *logits = support->row;
    if (!support->full) {
        for (int64_t i = 0; i < support->n; i++) {
            w->logits[i] = ls_key_logit(support->keys[i]);
        }
        logits = w->logits;
    }
    return w->lanes->softmax(logits, support->n, support->top, temperature, out);
}

static void keep_list(ls_support *support, int64_t n) {
    support->full = false;
    support->n = n;
    support->top = ls_key_logit(support->keys[0]);
}

/* Probability nearest to the entropy first, in float32 distances as in llama.cpp; ties in the order of the entries. */
static void keep_typical(ls_workspace *w, ls_support *support, double typical_p) {
    const int64_t n = support->n;
    const double sum = ls_softmax(w, support, 1.0, w->weights), log_sum = ls_log1(sum);
    const float *logits = support->full ? support->row : w->logits;
    for (int64_t i = 0; i < n; i++) {
        w->weights[i] = w->weights[i] / sum;
        const double log_prob = ((double)logits[i] - support->top) - log_sum;
        w->scratch[i] = w->weights[i] > 0.0 ? -(w->weights[i] * log_prob) : 0.0;
    }
    const double entropy = ls_lane_sum(w->scratch, n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const float distance = (float)fabs(-(((double)logits[i] - support->top) - log_sum) - entropy);
        uint32_t bits;
        memcpy(&bits, &distance, 4);
        if (logits[i] > -INFINITY) {
            w->others[count++] = ~((uint64_t)bits << 32 | (uint32_t)i);
        }
    }
    double cumulative = 0.0;
    int64_t kept = 0, sorted = 0;
    while (kept < count && cumulative <= typical_p) {
        if (kept == sorted) { /* order only as many as turn out to be needed */
            sorted = sorted ? sorted * 8 : 256;
            sorted = sorted < count ? sorted : count;
            ls_keep_largest(w->others + kept, count - kept, sorted - kept);
            ls_sort_down(w->others + kept, sorted - kept, w->spare);
        }
        cumulative += w->weights[(uint32_t)~w->others[kept++]];
    }
    for (int64_t i = 0; i < kept; i++) {
        const int64_t entry = (uint32_t)~w->others[i];
        w->others[i] = support->full ? ls_key_of(logits[entry], (int32_t)entry) : support->keys[entry];
    }
    ls_sort_down(w->others, kept, w->spare);
    memcpy(support->keys, w->others, (size_t)kept * sizeof(ls_key));
    keep_list(support, kept);
}

static int32_t keep_top_p(ls_workspace *w, ls_support *support, double top_p) {
    const double sum = ls_softmax(w, support, 1.0, support->full ? NULL : w->weights);
    int64_t n = support->n, have = support->full ? 0 : n, kept = 0;
    double cumulative = 0.0;
    while (kept < n) {
        if (kept == have) { /* a full row: find and order only as many as turn out to be needed */
            const int64_t wanted = have ? have * 8 : 256;
            const int32_t status = ls_top_k(w, support->row, support->n_vocab, wanted, support->keys, &have);
            if (status) {
                return status;
            }
            const ls_support found = {.keys = support->keys, .n = have, .top = support->top};
            ls_softmax(w, &found, 1.0, w->weights);
            n = have < wanted ? have : n;
            if (kept == have) {
                break;
            }
        }
        cumulative += w->weights[kept++] / sum;
        if (cumulative >= top_p) {
            break;
        }
    }
    keep_list(support, kept);
    return LS_OK;
}

static void keep_min_p(ls_workspace *w, ls_support *support, double min_p) {
    const double limit = ls_log1(min_p), top = support->top;
    int64_t kept = 0;
    if (!support->full) {
        while (kept < support->n && (double)ls_key_logit(support->keys[kept]) - top >= limit) {
            kept++;
        }
    } else {
        const float rough = nextafterf(nextafterf((float)(top + limit), -INFINITY), -INFINITY);
        uint64_t mask;
        const int64_t n = support->n_vocab;
        for (int64_t i = 0; (i = next_above(w, support->row, i, n, rough, &mask)) < n; i += LS_BLOCK_SIZE) {
            for (; mask; mask &= mask - 1) {
                const int64_t j = i + lowest_bit(mask);
                if ((double)support->row[j] - top >= limit) {
                    support->keys[kept++] = ls_key_of(support->row[j], (int32_t)j);
                }
            }
        }
        ls_sort_down(support->keys, kept, w->spare);
    }
    keep_list(support, kept);
}

int32_t ls_find_support(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab, ls_support *out) {
    *out = (ls_support){.row = row, .n_vocab = n_vocab, .full = s->top_k <= 0, .keys = w->keys, .n = n_vocab};
    int32_t status;
    if (out->full) {
        status = ls_top(w, row, n_vocab, &w->keys[0]);
    } else {
        status = ls_top_k(w, row, n_vocab, s->top_k, w->keys, &out->n);
    }
    if (status) {
        return status;
    }
    out->top = ls_key_logit(w->keys[0]);
    return ls_filter_support(w, s, out);
}

int32_t ls_filter_support(ls_workspace *w, const ls_sampling *s, ls_support *out) {
    const bool warm = s->temperature >= LS_COLD;
    int32_t status = LS_OK;
    if (warm && s->typical_p < 1.0) {
        keep_typical(w, out, s->typical_p);
    }
    if (warm && s->top_p < 1.0) {
        status = keep_top_p(w, out, s->top_p);
    }
    if (warm && s->min_p >= LS_TINY && !status) {
        keep_min_p(w, out, s->min_p);
    }
    return status;
}
