/* Which tokens of a row may be drawn, and at which temperature: top-n-sigma, top-k, typical, top-p, min-p, XTC and dynamic
 * temperature, in llama.cpp's order and with its edges, in double.
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

/* The entropy, with w->weights = the probabilities; *logits = those of the entries. */
static double entropy_of(ls_workspace *w, const ls_support *support, double *log_sum, const float **logits) {
    const int64_t n = support->n;
    const double sum = ls_softmax(w, support, 1.0, w->weights);
    *log_sum = ls_log1(sum);
    *logits = support->full ? support->row : w->logits;
    for (int64_t i = 0; i < n; i++) {
        w->weights[i] = w->weights[i] / sum;
        const double log_prob = ((double)(*logits)[i] - support->top) - *log_sum;
        w->scratch[i] = w->weights[i] > 0.0 ? -(w->weights[i] * log_prob) : 0.0;
    }
    return ls_lane_sum(w->scratch, n);
}

/* Probability nearest to the entropy first, in float32 distances as in llama.cpp; ties in the order of the entries. */
static void keep_typical(ls_workspace *w, ls_support *support, double typical_p) {
    const int64_t n = support->n;
    double log_sum;
    const float *logits;
    const double entropy = entropy_of(w, support, &log_sum, &logits);
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

/* Keeps what is at most -limit below the largest logit. */
static void keep_near(ls_workspace *w, ls_support *support, double limit) {
    const double top = support->top;
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

/* The standard deviation of the logits that are not excluded. */
static double deviation(ls_workspace *w, const float *row, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool counts = row[i] > -INFINITY;
        w->scratch[i] = counts ? (double)row[i] : 0.0;
        count += counts;
    }
    const double mean = ls_lane_sum(w->scratch, n) / (double)count;
    for (int64_t i = 0; i < n; i++) {
        const double off = row[i] > -INFINITY ? (double)row[i] - mean : 0.0;
        w->scratch[i] = off * off;
    }
    return sqrt(ls_lane_sum(w->scratch, n) / (double)count);
}

/* XTC: where two tokens or more are likely, all of these but the least likely go. */
static int32_t drop_likely(ls_workspace *w, ls_support *support, double threshold) {
    const double sum = ls_softmax(w, support, 1.0, w->weights);
    int64_t likely = 0;
    for (int64_t i = 0; i < support->n; i++) {
        likely += w->weights[i] / sum >= threshold && (!support->full || support->row[i] > -INFINITY);
    }
    if (likely < 2) {
        return LS_OK;
    }
    if (support->full) {
        const int32_t status = ls_top_k(w, support->row, support->n_vocab, support->n_vocab, support->keys, &support->n);
        if (status) {
            return status;
        }
    }
    support->keys += likely - 1;
    support->size -= likely - 1;
    keep_list(support, support->n - (likely - 1));
    return LS_OK;
}

/* Hotter, the more even the support is. */
static double dynamic_temperature(ls_workspace *w, const ls_sampling *s, const ls_support *support) {
    double log_sum;
    const float *logits;
    const double low = s->temperature > s->dynatemp_range ? s->temperature - s->dynatemp_range : 0.0;
    const double high = s->temperature + s->dynatemp_range;
    const double share = entropy_of(w, support, &log_sum, &logits) / ls_log1((double)support->size);
    const double power = share >= LS_TINY ? ls_exp1(s->dynatemp_exponent * ls_log1(share)) : s->dynatemp_exponent > 0.0 ? 0.0 : 1.0;
    return low + (high - low) * power;
}

int32_t ls_find_support(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab, ls_support *out) {
    const bool sigma = s->temperature >= LS_COLD && s->top_n_sigma > 0.0;
    const int32_t k = s->top_k > 0 && s->top_k < n_vocab ? s->top_k : n_vocab;
    *out = (ls_support){.row = row, .n_vocab = n_vocab, .full = sigma || s->top_k <= 0, .keys = w->keys, .n = n_vocab, .size = k};
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
    if (sigma) {
        keep_near(w, out, -(s->top_n_sigma * deviation(w, row, n_vocab)));
        out->n = out->n < k ? out->n : k;
    }
    return ls_filter_support(w, s, out);
}

int32_t ls_filter_support(ls_workspace *w, const ls_sampling *s, ls_support *out) {
    const bool typical = s->typical_p < 1.0, top_p = s->top_p < 1.0, min_p = s->min_p >= LS_TINY;
    int32_t status = LS_OK;
    out->temperature = s->temperature;
    if (s->temperature < LS_COLD) {
        return status;
    }
    if (typical) {
        keep_typical(w, out, s->typical_p);
    }
    if (top_p) {
        status = keep_top_p(w, out, s->top_p);
    }
    if (min_p && !status) {
        keep_near(w, out, ls_log1(s->min_p));
    }
    out->size = typical || top_p || min_p ? out->n : out->size;
    if (w->xtc && s->xtc_threshold <= 0.5 && !status) {
        status = drop_likely(w, out, s->xtc_threshold);
    }
    if (s->dynatemp_range > 0.0 && out->size > 1 && !status) {
        out->temperature = dynamic_temperature(w, s, out);
    }
    if (out->temperature < LS_COLD && !status) { /* of which only dynamic temperature is the cause */
        keep_list(out, 1);
        out->temperature = 1.0;
    }
    return status;
}
