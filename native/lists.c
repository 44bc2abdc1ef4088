/* Rows of which only a list is there (native/gpu): what to ask of the kernel, and the coupled token of a list.
 *
 * A token with a bias or a penalty may win whatever its raw logit, so its logit is always asked for, and so many entries more
 * than the rule needs: however far the patched ones fall, enough others are listed. */
#include "internal.h"

#define SMALLEST_TEMPERATURE 1e-2 /* Outside these, 1 / temperature is not for float32. */
#define LARGEST_TEMPERATURE 1e2

int32_t ls_list_mode(const ls_sampling *s, int32_t rule) {
    if (rule != LS_COUPLED || ls_has_dry(s)) {
        return -1;
    }
    if (s->temperature < LS_COLD) {
        return LS_BY_LOGIT;
    }
    if (s->top_n_sigma > 0.0) {
        return -1;
    }
    if (s->top_k > 0) {
        return LS_BY_LOGIT;
    }
    if (s->typical_p < 1.0 || s->top_p < 1.0) {
        return -1;
    }
    if (s->min_p >= LS_TINY) {
        return LS_BY_SHARE;
    }
    if (s->xtc_probability > 0.0 || s->dynatemp_range > 0.0) {
        return -1;
    }
    return s->temperature >= SMALLEST_TEMPERATURE && s->temperature <= LARGEST_TEMPERATURE ? LS_BY_NOISE : -1;
}

static uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Adds the new ones of n tokens to the patched; false if there are too many. w->slots says which are new. */
static bool add_patched(ls_workspace *w, int32_t n_vocab, const int32_t *tokens, int64_t n, int32_t *patched,
                        int32_t *n_patched) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = tokens[i];
        if (token >= 0 && token < n_vocab && w->slots[token] < 0) {
            if (*n_patched == LS_MOST_PATCHED) {
                return false;
            }
            w->slots[token] = *n_patched;
            patched[(*n_patched)++] = token;
        }
    }
    return true;
}

/* Which tokens have a bias or can have a penalty in any row. */
static bool find_patched(ls_workspace *w, int32_t n_vocab, const ls_draft *draft, const ls_sampling *s,
                         const int32_t *window, int64_t n, int32_t *patched, int32_t *n_patched) {
    bool few = add_patched(w, n_vocab, s->bias_tokens, s->n_bias, patched, n_patched);
    if (ls_has_penalties(s)) {
        const int64_t tail = s->penalty_last_n >= 0 && s->penalty_last_n < n ? s->penalty_last_n : n;
        few = few && add_patched(w, n_vocab, window + n - tail, tail, patched, n_patched)
              && add_patched(w, n_vocab, draft->tokens, draft->n, patched, n_patched);
    }
    for (int32_t i = 0; i < *n_patched; i++) {
        w->slots[patched[i]] = -1;
    }
    return few;
}

int32_t ls_list_request(ls_workspace *w, int32_t n_vocab, const ls_draft *draft, const ls_sampling *sampling,
                        const int32_t *window, int32_t n_window, const ls_noise *noise, uint32_t position, int32_t rule,
                        uint32_t request[LS_REQUEST_WORDS], int32_t *patched, uint32_t *positions) {
    uint32_t key[2], counter[4];
    int32_t n_patched = 0;
    const int32_t mode = ls_list_mode(sampling, rule);
    w->fault_row = w->fault_token = -1;
    if (n_vocab < 1 || n_window < 0 || draft->n < 0 || sampling->n_bias < 0) {
        return ls_fail(w, LS_BAD_ARGUMENT, -1, -1);
    }
    const int32_t status = ls_reserve(w, n_vocab);
    if (status || mode < 0 || !find_patched(w, n_vocab, draft, sampling, window, n_window, patched, &n_patched)) {
        return status ? status : LS_NEED_ROW;
    }
    const bool many = mode == LS_BY_LOGIT && sampling->temperature >= LS_COLD;
    const int64_t wanted = (many ? sampling->top_k : 1) + (int64_t)n_patched;
    if (wanted + n_patched > LS_LIST_ROOM / 2) {
        return LS_NEED_ROW;
    }
    positions[0] = position;
    for (int32_t i = 0; i < draft->n; i++) {
        if (draft->parents[i] < -1 || draft->parents[i] >= i) {
            return ls_fail(w, LS_BAD_TREE, 1 + i, -1);
        }
        positions[1 + i] = positions[1 + draft->parents[i]] + 1;
    }
    ls_philox_start(noise, LS_SAMPLE, position, key, counter);
    request[LS_REQUEST_MODE] = (uint32_t)mode;
    request[LS_REQUEST_COUNT] = (uint32_t)wanted;
    request[LS_REQUEST_PATCHED] = (uint32_t)n_patched;
    request[LS_REQUEST_VOCAB] = (uint32_t)n_vocab;
    request[LS_REQUEST_SCALE] = float_bits(mode == LS_BY_NOISE ? (float)(1.0 / sampling->temperature) : 1.0f);
    request[LS_REQUEST_MARGIN] = float_bits(mode == LS_BY_SHARE ? nextafterf((float)ls_log1(sampling->min_p), -INFINITY) : 0.0f);
    memcpy(request + LS_REQUEST_KEY, key, sizeof key);
    request[LS_REQUEST_PURPOSE] = counter[2];
    request[LS_REQUEST_STREAM] = counter[3];
    return LS_OK;
}

/* w->sparse: a row of n_vocab logits, all -inf between calls. */
static int32_t reserve_sparse(ls_workspace *w, int32_t n_vocab) {
    const int64_t before = w->n_sparse;
    const int32_t status = ls_grow((void **)&w->sparse, &w->n_sparse, n_vocab, sizeof *w->sparse);
    for (int64_t i = before; i < w->n_sparse; i++) {
        w->sparse[i] = -INFINITY;
    }
    return status;
}

/* The entries with bias and penalties as keys, sorted, each token once; false if one is not finite. */
static bool collect(ls_workspace *w, const ls_row *row, int64_t *n) {
    bool finite = true;
    *n = 0;
    for (int32_t i = 0; i < row->n; i++) {
        float *logit = &w->sparse[row->tokens[i]];
        finite = finite && *logit < INFINITY;
        if (finite && *logit > -INFINITY) {
            w->keys[(*n)++] = ls_key_of(*logit, row->tokens[i]);
        }
        *logit = -INFINITY;
    }
    ls_sort_down(w->keys, *n, w->spare);
    return finite;
}

static int32_t patched_keys(ls_workspace *w, const ls_row *row, int32_t n_vocab, const ls_sampling *s,
                            const ls_noise *noise, uint32_t position, int64_t *n) {
    for (int32_t i = 0; i < row->n; i++) {
        if (row->tokens[i] < 0 || row->tokens[i] >= n_vocab) {
            return LS_NEED_ROW;
        }
    }
    int32_t status = reserve_sparse(w, n_vocab);
    if (status) {
        return status;
    }
    for (int32_t i = 0; i < row->n; i++) {
        w->sparse[row->tokens[i]] = row->values[i];
    }
    status = ls_patch(w, s, noise, position, w->sparse, n_vocab);
    const bool finite = collect(w, row, n);
    while (w->n_undo > 0) { /* of tokens that the list should hold, and may not */
        w->sparse[w->undo[--w->n_undo].token] = -INFINITY;
    }
    return status ? status : finite && *n > 0 ? LS_OK : LS_NEED_ROW;
}

int32_t ls_listed_token(ls_workspace *w, const ls_row *row, int32_t n_vocab, const ls_sampling *s, const ls_noise *noise,
                        uint32_t position, int32_t *token) {
    uint32_t key[2], counter[4];
    ls_support support = {.row = NULL, .n_vocab = n_vocab, .full = false};
    int32_t found;
    if (ls_list_mode(s, LS_COUPLED) < 0 || row->n < 1 || row->n > LS_LIST_ROOM) {
        return LS_NEED_ROW;
    }
    int32_t status = patched_keys(w, row, n_vocab, s, noise, position, &support.n);
    if (status) {
        return status;
    }
    support.keys = w->keys;
    support.top = ls_key_logit(w->keys[0]);
    support.size = s->top_k > 0 && s->top_k < n_vocab ? s->top_k : n_vocab;
    support.n = s->top_k > 0 && s->top_k < support.n ? s->top_k : support.n;
    status = ls_filter_support(w, s, &support);
    ls_philox_start(noise, LS_SAMPLE, position, key, counter);
    return status ? status : ls_draw(w, s, &support, key, counter, 1, token, &found);
}
