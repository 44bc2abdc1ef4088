/* One row: drawing tokens by Gumbel-max, and the distribution itself. */
#include "internal.h"

/* The best few so far, best first. */
typedef struct ranking {
    double *scores;
    int32_t *tokens;
    int32_t n, room;
} ranking;

static void offer(ranking *b, double score, int32_t token) {
    int32_t i = b->n;
    if (i == b->room) {
        const int32_t last = i - 1;
        if (score < b->scores[last] || (score == b->scores[last] && token > b->tokens[last])) {
            return;
        }
        i = last;
    } else {
        b->n++;
    }
    for (; i > 0 && (score > b->scores[i - 1] || (score == b->scores[i - 1] && token < b->tokens[i - 1])); i--) {
        b->scores[i] = b->scores[i - 1];
        b->tokens[i] = b->tokens[i - 1];
    }
    b->scores[i] = score;
    b->tokens[i] = token;
}

static double to_beat(const ranking *b) { return b->n < b->room ? -INFINITY : b->scores[b->n - 1]; }

static void draw_from_list(ls_workspace *w, const ls_support *support, double temperature, const uint32_t key[2],
                           const uint32_t counter[4], ranking *b) {
    for (int64_t i = 0; i < support->n; i += 8) {
        const int64_t m = support->n - i < 8 ? support->n - i : 8;
        int32_t tokens[8];
        double noise[8];
        if ((double)ls_key_logit(support->keys[i]) / temperature + LS_GUMBEL_MAX < to_beat(b)) {
            return; /* the list is sorted: nothing after can win */
        }
        for (int64_t j = 0; j < m; j++) {
            tokens[j] = ls_key_token(support->keys[i + j]);
        }
        w->lanes->gumbel(key, counter, tokens, m, noise);
        for (int64_t j = 0; j < m; j++) {
            offer(b, (double)ls_key_logit(support->keys[i + j]) / temperature + noise[j], tokens[j]);
        }
    }
}

/* words[i] = a little less than the smallest random word whose gumbel exceeds i / 8 - 3. */
void ls_fill_words(uint32_t words[LS_WORD_STEPS]) {
    for (int i = 0; i < LS_WORD_STEPS; i++) {
        const double word = ls_exp1(-ls_exp1(3.0 - i / 8.0)) * 0x1p+32 - 4.0;
        words[i] = word <= 0.0 ? 0 : (uint32_t)word;
    }
}

/* No smaller random word can lift `scaled` to the goal. Goals so large that rounding could matter are not judged. */
static uint32_t word_to_beat(const ls_workspace *w, double scaled, double goal) {
    const double step = (goal - scaled + 3.0) * 8.0;
    if (!(fabs(goal) < 1e6 && step > 0.0)) {
        return 0;
    }
    return w->words[step < LS_WORD_STEPS - 1 ? (int)step : LS_WORD_STEPS - 1];
}

/* One block of a whole row: only tokens whose random word can lift the block's best logit get a gumbel. */
static void draw_from_block(ls_workspace *w, const ls_support *support, double temperature, const uint32_t key[2],
                            const uint32_t counter[4], int64_t start, float top, ranking *b) {
    const double best = (double)top / temperature;
    if (best + LS_GUMBEL_MAX < to_beat(b) || top == -INFINITY) {
        return;
    }
    uint64_t hits = w->lanes->lucky(key, counter, (uint32_t)start, word_to_beat(w, best, to_beat(b)));
    for (int64_t i = start; hits && i < support->n_vocab; i++, hits >>= 1) {
        const double scaled = (double)support->row[i] / temperature;
        if (hits & 1 && scaled + LS_GUMBEL_MAX >= to_beat(b) && support->row[i] > -INFINITY) {
            offer(b, scaled + ls_to_gumbel(ls_word(key, counter, (int32_t)i)), (int32_t)i);
        }
    }
}

/* A whole row, the block with the best logit first: it sets a goal that few others reach. */
static void draw_from_row(ls_workspace *w, const ls_support *support, double temperature, const uint32_t key[2],
                          const uint32_t counter[4], ranking *b) {
    const int64_t n = support->n_vocab, whole = n - n % LS_BLOCK_SIZE;
    const int64_t first = ls_key_token(w->keys[0]) / LS_BLOCK_SIZE * LS_BLOCK_SIZE; /* from ls_top */
    float *tops = w->logits, last = -INFINITY;
    w->lanes->block_max(support->row, whole, tops);
    for (int64_t i = whole; i < n; i++) {
        last = support->row[i] > last ? support->row[i] : last;
    }
    draw_from_block(w, support, temperature, key, counter, first, support->top, b);
    for (int64_t i = 0; i < n; i += LS_BLOCK_SIZE) {
        if (i != first) {
            draw_from_block(w, support, temperature, key, counter, i, i < whole ? tops[i / LS_BLOCK_SIZE] : last, b);
        }
    }
}

int32_t ls_draw(ls_workspace *w, const ls_sampling *s, const ls_support *support, const uint32_t key[2],
                const uint32_t counter[4], int32_t count, int32_t *tokens, int32_t *n_out) {
    if (s->temperature < LS_COLD) {
        int64_t n = support->n;
        if (support->full) {
            const int32_t status = ls_top_k(w, support->row, support->n_vocab, count, w->keys, &n);
            if (status) {
                return status;
            }
        }
        *n_out = n < count ? (int32_t)n : count;
        for (int32_t i = 0; i < *n_out; i++) {
            tokens[i] = ls_key_token(w->keys[i]);
        }
        return LS_OK;
    }
    ranking b = {.scores = w->scratch, .tokens = tokens, .n = 0, .room = count};
    if (support->full) {
        draw_from_row(w, support, support->temperature, key, counter, &b);
    } else {
        draw_from_list(w, support, support->temperature, key, counter, &b);
    }
    *n_out = b.n;
    return LS_OK;
}

int32_t ls_target_of(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab, ls_target *out) {
    out->probs = w->weights;
    if (s->temperature < LS_COLD) {
        out->support = (ls_support){.row = row, .n_vocab = n_vocab, .keys = w->keys, .n = 1};
        w->weights[0] = 1.0;
        return ls_top(w, row, n_vocab, w->keys);
    }
    const int32_t status = ls_find_support(w, s, row, n_vocab, &out->support);
    if (!status) {
        const double sum = ls_softmax(w, &out->support, out->support.temperature, w->weights);
        for (int64_t i = 0; i < out->support.n; i++) {
            w->weights[i] = w->weights[i] / sum;
        }
    }
    return status;
}

/* Gets a row ready: memory, history, bias and penalties. ls_restore must follow a success. */
static int32_t prepare(ls_workspace *w, float *row, int32_t n_vocab, const ls_sampling *s, const int32_t *window,
                       int32_t n_window, const ls_noise *noise, uint32_t position) {
    if (n_vocab < 1 || n_window < 0 || s->n_bias < 0) {
        return ls_fail(w, LS_BAD_ARGUMENT, -1, -1);
    }
    int32_t status = ls_reserve(w, n_vocab);
    status = status ? status : ls_window_start(w, s, window, n_window, 0);
    return status ? status : ls_patch(w, s, noise, position, row, n_vocab);
}

int32_t ls_sample(ls_workspace *w, float *row, int32_t n_vocab, const ls_sampling *sampling, const int32_t *window,
                  int32_t n_window, const ls_noise *noise, uint32_t position, int32_t count, int32_t *tokens,
                  float *probs, int32_t *n_out) {
    uint32_t key[2], counter[4];
    ls_support support;
    *n_out = 0;
    if (count < 1 || count > n_vocab) {
        return ls_fail(w, LS_BAD_ARGUMENT, -1, -1);
    }
    int32_t status = prepare(w, row, n_vocab, sampling, window, n_window, noise, position);
    if (status) {
        return status;
    }
    ls_philox_start(noise, LS_SAMPLE, position, key, counter);
    status = ls_find_support(w, sampling, row, n_vocab, &support);
    status = status ? status : ls_draw(w, sampling, &support, key, counter, count, tokens, n_out);
    if (!status && probs) {
        const double temperature = sampling->temperature < LS_COLD ? 1.0 : support.temperature;
        const double sum = ls_softmax(w, &support, temperature, NULL);
        for (int32_t i = 0; i < *n_out; i++) {
            probs[i] = (float)(ls_exp1(((double)row[tokens[i]] - support.top) / temperature) / sum);
        }
    }
    ls_restore(w, row);
    return status;
}

int32_t ls_distribution(ls_workspace *w, float *row, int32_t n_vocab, const ls_sampling *sampling,
                        const int32_t *window, int32_t n_window, const ls_noise *noise, uint32_t position,
                        int32_t *tokens, double *probs, int32_t *n_out) {
    ls_target target;
    *n_out = 0;
    int32_t status = prepare(w, row, n_vocab, sampling, window, n_window, noise, position);
    if (status) {
        return status;
    }
    status = ls_target_of(w, sampling, row, n_vocab, &target);
    if (!status) {
        const ls_key *order = target.support.keys;
        int64_t n = target.support.n;
        if (target.support.full) {
            status = ls_top_k(w, row, n_vocab, n_vocab, w->keys, &n);
        }
        for (int64_t i = 0; i < n && !status; i++) {
            tokens[*n_out] = ls_key_token(order[i]);
            probs[*n_out] = target.probs[target.support.full ? tokens[*n_out] : i];
            *n_out += probs[*n_out] > 0.0;
        }
    }
    ls_restore(w, row);
    return status;
}

/* Largest logit of a raw row and the log of its softmax's denominator. */
static int32_t log_normaliser(ls_workspace *w, const float *row, int32_t n_vocab, double *top, double *log_sum) {
    ls_key best;
    int32_t status = n_vocab < 1 ? ls_fail(w, LS_BAD_ARGUMENT, -1, -1) : ls_reserve(w, n_vocab);
    status = status ? status : ls_top(w, row, n_vocab, &best);
    if (!status) {
        *top = ls_key_logit(best);
        *log_sum = ls_log1(w->lanes->softmax(row, n_vocab, *top, 1.0, NULL));
    }
    return status;
}

int32_t ls_log_probs(ls_workspace *w, const float *row, int32_t n_vocab, const int32_t *tokens, int32_t n,
                     double *out) {
    double top, log_sum;
    const int32_t status = log_normaliser(w, row, n_vocab, &top, &log_sum);
    for (int32_t i = 0; i < n && !status; i++) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            return ls_fail(w, LS_BAD_ARGUMENT, -1, tokens[i]);
        }
        out[i] = ((double)row[tokens[i]] - top) - log_sum;
    }
    return status;
}

int32_t ls_top_log_probs(ls_workspace *w, const float *row, int32_t n_vocab, int32_t count, int32_t *tokens,
                         double *out, int32_t *n_out) {
    double top, log_sum;
    int64_t n = 0;
    int32_t status = count < 1 ? ls_fail(w, LS_BAD_ARGUMENT, -1, -1) : log_normaliser(w, row, n_vocab, &top, &log_sum);
    status = status ? status : ls_top_k(w, row, n_vocab, count, w->keys, &n);
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = ls_key_token(w->keys[i]);
        out[i] = ((double)row[tokens[i]] - top) - log_sum;
    }
    *n_out = (int32_t)n;
    return status;
}
