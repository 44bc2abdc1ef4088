/* Logit bias and penalties: written into the row, taken back afterwards, so that no row is ever copied. And XTC's coin. */
#include "internal.h"

bool ls_has_penalties(const ls_sampling *s) {
    return s->penalty_last_n != 0
           && (s->repeat_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f);
}

static int64_t slot_of(const ls_seen *seen, int32_t token) {
    const uint64_t mask = (uint64_t)seen->n_slots - 1;
    uint64_t slot = ((uint64_t)(uint32_t)token * 0x9E3779B97F4A7C15u >> 32) & mask;
    while (seen->counts[slot] >= 0 && seen->tokens[slot] != token) {
        slot = (slot + 1) & mask;
    }
    return (int64_t)slot;
}

static void see(ls_seen *seen, int32_t token, int32_t times) {
    const int64_t slot = slot_of(seen, token);
    if (seen->counts[slot] < 0) {
        seen->tokens[slot] = token;
        seen->counts[slot] = 0;
        seen->used[seen->n_used++] = (int32_t)slot;
    }
    seen->counts[slot] += times;
}

/* Makes the table empty, with room for `needed` distinct tokens. */
static int32_t seen_clear(ls_seen *seen, int64_t needed) {
    int64_t slots = 64;
    while (slots < 2 * needed) {
        slots *= 2;
    }
    if (slots > seen->n_slots) {
        int64_t a = seen->n_slots, b = a, c = a;
        int32_t status = ls_grow((void **)&seen->tokens, &a, slots, sizeof(int32_t));
        status = status ? status : ls_grow((void **)&seen->used, &b, slots, sizeof(int32_t));
        status = status ? status : ls_grow((void **)&seen->counts, &c, slots, sizeof(int32_t));
        if (status) {
            return status;
        }
        seen->n_slots = slots;
        memset(seen->counts, -1, (size_t)slots * sizeof(int32_t));
    } else {
        for (int64_t i = 0; i < seen->n_used; i++) {
            seen->counts[seen->used[i]] = -1;
        }
    }
    seen->n_used = 0;
    return LS_OK;
}

int64_t ls_tail(int32_t last_n, int64_t n) { return last_n >= 0 && last_n < n ? last_n : n; }

int32_t ls_window_start(ls_workspace *w, const ls_sampling *s, const int32_t *window, int64_t n, int64_t path) {
    const int64_t counted = ls_has_penalties(s) ? ls_tail(s->penalty_last_n, n) : 0;
    const int64_t read = ls_has_dry(s) ? ls_tail(s->dry_penalty_last_n, n) : 0, tail = counted > read ? counted : read;
    w->window_start = w->window_end = 0;
    if (!ls_has_penalties(s) && !ls_has_dry(s)) {
        return LS_OK;
    }
    int32_t status = ls_grow((void **)&w->window, &w->n_window_room, tail + path + 1, sizeof(int32_t));
    status = status ? status : seen_clear(&w->seen, counted + path + 1);
    if (status) {
        return status;
    }
    if (tail > 0) {
        memcpy(w->window, window + n - tail, (size_t)tail * sizeof *window);
    }
    w->window_start = tail - counted;
    w->window_end = tail;
    for (int64_t i = w->window_start; i < tail; i++) {
        see(&w->seen, w->window[i], 1);
    }
    return LS_OK;
}

void ls_window_push(ls_workspace *w, const ls_sampling *s, int32_t token) {
    if (ls_has_penalties(s) || ls_has_dry(s)) {
        w->window[w->window_end++] = token;
    }
    if (!ls_has_penalties(s)) {
        return;
    }
    see(&w->seen, token, 1);
    if (s->penalty_last_n >= 0 && w->window_end - w->window_start > s->penalty_last_n) {
        see(&w->seen, w->window[w->window_start++], -1);
    }
}

void ls_write_logit(ls_workspace *w, float *row, int32_t token, float logit) {
    w->undo[w->n_undo++] = (ls_undo){token, row[token]};
    row[token] = logit;
}

/* The number of a token that no vocabulary has, and of no round: plain decoding throws the same coin at this position. */
static bool xtc_falls(const ls_sampling *s, const ls_noise *noise, uint32_t position) {
    uint32_t key[2], counter[4];
    if (!(s->xtc_probability > 0.0)) {
        return false;
    }
    ls_philox_start(noise, LS_SAMPLE, position, key, counter);
    counter[2] = LS_SAMPLE;
    return ls_to_uniform(ls_word(key, counter, -1)) <= s->xtc_probability;
}

int32_t ls_patch(ls_workspace *w, const ls_sampling *s, const ls_noise *noise, uint32_t position, float *row,
                 int32_t n_vocab) {
    const int64_t n_seen = ls_has_penalties(s) ? w->seen.n_used : 0;
    w->n_undo = 0;
    w->xtc = xtc_falls(s, noise, position);
    int32_t status = ls_grow((void **)&w->undo, &w->n_undo_room, s->n_bias + n_seen, sizeof(ls_undo));
    if (status) {
        return status;
    }
    for (int32_t i = 0; i < s->n_bias; i++) {
        const int32_t token = s->bias_tokens[i];
        if (token >= 0 && token < n_vocab) {
            ls_write_logit(w, row, token, row[token] + s->bias_values[i]);
        }
    }
    for (int64_t i = 0; i < n_seen; i++) {
        const int32_t slot = w->seen.used[i], token = w->seen.tokens[slot], count = w->seen.counts[slot];
        if (count > 0 && token >= 0 && token < n_vocab) {
            const float x = row[token];
            const float scaled = x <= 0.0f ? x * s->repeat_penalty : x / s->repeat_penalty;
            ls_write_logit(w, row, token, scaled - ((float)count * s->frequency_penalty + s->presence_penalty));
        }
    }
    if (ls_has_dry(s)) {
        status = ls_patch_dry(w, s, row, n_vocab);
    }
    if (status) {
        ls_restore(w, row);
    }
    return status;
}

void ls_restore(ls_workspace *w, float *row) {
    while (w->n_undo > 0) {
        w->n_undo--;
        row[w->undo[w->n_undo].token] = w->undo[w->n_undo].logit;
    }
}
