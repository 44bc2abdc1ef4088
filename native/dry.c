/* DRY, as in llama.cpp: a token that would go on with what stood in the text before gets a penalty, which grows with the
 * length of the repetition. It depends on the tokens before the row alone. */
#include "internal.h"

#include <float.h>

#define LOG_OF_LARGEST 88.7228391 /* of float32: the power stays below it, as in llama.cpp */

bool ls_has_dry(const ls_sampling *s) {
    return s->dry_multiplier != 0.0 && s->dry_base >= 1.0 && s->dry_penalty_last_n != 0;
}

/* The first breaker that begins with a token, or the one after where it would be. */
static int32_t first_break(const ls_sampling *s, int32_t token) {
    int32_t low = 0, high = s->n_breaks;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (s->break_heads[middle] < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* How many tokens from `at` on are the longest breaker that stands there, of the text's last n; 0 if none does. */
static int64_t break_at(const ls_sampling *s, const int32_t *text, int64_t n, int64_t at) {
    int64_t longest = 0;
    for (int32_t i = first_break(s, text[at]); i < s->n_breaks && s->break_heads[i] == text[at]; i++) {
        const int32_t *tail = s->break_tails + s->break_offsets[i];
        const int64_t length = s->break_offsets[i + 1] - s->break_offsets[i];
        if (length + 1 > longest && at + length < n && !memcmp(tail, text + at + 1, (size_t)length * sizeof *tail)) {
            longest = length + 1;
        }
    }
    return longest;
}

static bool breaks_alone(const ls_sampling *s, int32_t token) {
    for (int32_t i = first_break(s, token); i < s->n_breaks && s->break_heads[i] == token; i++) {
        if (s->break_offsets[i + 1] == s->break_offsets[i]) {
            return true;
        }
    }
    return false;
}

/* common[k] = how many of the text's last tokens stand k tokens before its end, too (the Z-algorithm, backwards). */
static void find_repetitions(const int32_t *text, int64_t n, int32_t *common) {
    const int32_t *last = text + n - 1;
    int64_t left = 0, right = 0; /* common[left] reaches up to `right` */
    common[0] = 0;
    for (int64_t k = 1; k < n; k++) {
        int64_t same = k < right ? (common[k - left] < right - k ? common[k - left] : right - k) : 0;
        while (k + same < n && last[-same] == last[-(k + same)]) {
            same++;
        }
        if (k + same > right) {
            left = k;
            right = k + same;
        }
        common[k] = (int32_t)same;
    }
}

static double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        result = exponent & 1 ? result * base : result;
        base *= base;
    }
    return result;
}

/* Notes in w->slots the longest repetition that each token would go on with; returns how many are in `tokens`. */
static int64_t find_candidates(ls_workspace *w, const ls_sampling *s, int32_t n_vocab, const int32_t *text, int64_t n,
                               int64_t limit, const int32_t *common, int32_t *tokens) {
    int64_t count = 0;
    for (int64_t k = 1; k < n; k++) {
        const int32_t token = text[n - k], length = common[k] < limit ? common[k] : (int32_t)limit;
        if (length < s->dry_allowed_length || token < 0 || token >= n_vocab) {
            continue;
        }
        if (w->slots[token] < 0) {
            tokens[count++] = token;
        }
        w->slots[token] = length > w->slots[token] ? length : w->slots[token];
    }
    return count;
}

int32_t ls_patch_dry(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab) {
    const int64_t all = w->window_end, n = ls_tail(s->dry_penalty_last_n, all);
    const int32_t *text = w->window + all - n;
    int64_t limit = n; /* a repetition is no longer than what stands after the last breaker */
    for (int64_t i = n - 1; i >= 0 && limit == n; i--) {
        const int64_t length = break_at(s, text, n, i);
        limit = length ? n - i - length : limit;
    }
    if (n <= s->dry_allowed_length || limit < s->dry_allowed_length) {
        return LS_OK;
    }
    int32_t status = ls_grow((void **)&w->repeats, &w->n_repeats_room, 2 * n, sizeof *w->repeats);
    if (status) {
        return status;
    }
    int32_t *tokens = w->repeats + n;
    find_repetitions(text, n, w->repeats);
    const int64_t count = find_candidates(w, s, n_vocab, text, n, limit, w->repeats, tokens);
    status = ls_grow((void **)&w->undo, &w->n_undo_room, w->n_undo + count, sizeof *w->undo);
    const int64_t most = s->dry_base > 1.000001 ? (int64_t)(LOG_OF_LARGEST / ls_log1(s->dry_base)) : INT32_MAX;
    for (int64_t i = 0; i < count; i++) {
        const int32_t token = tokens[i];
        const int64_t exponent = w->slots[token] - s->dry_allowed_length;
        w->slots[token] = -1;
        if (!status && !breaks_alone(s, token)) {
            const double penalty = s->dry_multiplier * power(s->dry_base, exponent < most ? exponent : most);
            ls_write_logit(w, row, token, row[token] - (penalty < FLT_MAX ? (float)penalty : INFINITY));
        }
    }
    return status;
}
