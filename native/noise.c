/* Counter-based random numbers: any entry can be computed alone and in any order. */
#include "internal.h"

void ls_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c[4];
    memcpy(c, counter, sizeof c);
    ls_philox(c, key[0], key[1]);
    memcpy(out, c, sizeof c);
}

void ls_uniform(const ls_noise *noise, int32_t purpose, uint32_t position, const int32_t *tokens, int64_t n,
                double *out) {
    uint32_t key[2], counter[4];
    ls_philox_start(noise, purpose, position, key, counter);
    for (int64_t i = 0; i < n; i++) {
        out[i] = ls_to_uniform(ls_word(key, counter, tokens[i]));
    }
}

void ls_gumbel(const ls_workspace *w, const ls_noise *noise, int32_t purpose, uint32_t position, const int32_t *tokens,
               int64_t n, double *out) {
    uint32_t key[2], counter[4];
    ls_philox_start(noise, purpose, position, key, counter);
    w->lanes->gumbel(key, counter, tokens, n, out);
}

void ls_rank(const ls_workspace *w, const ls_noise *noise, double temperature, uint32_t position, const int32_t *tokens,
             const float *shares, int32_t n, double *out) {
    uint32_t key[2], counter[4];
    double known = 0.0, sum = 0.0, top = -INFINITY;
    if (temperature < LS_COLD) {
        for (int32_t i = 0; i < n; i++) {
            out[i] = (double)shares[i];
        }
        return;
    }
    ls_philox_start(noise, LS_SAMPLE, position, key, counter);
    w->lanes->gumbel(key, counter, tokens, n, out);
    for (int32_t i = 0; i < n; i++) {
        out[i] = ls_log1((double)shares[i]) + temperature * out[i];
        top = out[i] > top ? out[i] : top;
    }
    for (int32_t i = 0; i < n; i++) {
        out[i] = ls_exp1(out[i] - top);
        sum += out[i];
        known += (double)shares[i];
    }
    for (int32_t i = 0; i < n; i++) {
        out[i] *= known / sum;
    }
}

void ls_log(const ls_workspace *w, const double *x, int64_t n, double *out) { w->lanes->log(x, n, out); }

void ls_exp(const ls_workspace *w, const double *x, int64_t n, double *out) { w->lanes->exp(x, n, out); }
