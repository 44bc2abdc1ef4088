/* What the files of the C library share; nothing here is exported. */
#ifndef LS_INTERNAL_H
#define LS_INTERNAL_H

#include "gpu/request.h"
#include "localspec.h"
#include "real.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#define LS_BLOCK_SIZE 64 /* Logits looked at together; one bit of a mask each. */
#define LS_COLD 1e-30    /* Temperatures below this are 0. */
#define LS_WORD_STEPS 208 /* see ls_fill_words */
#define LS_TINY 1e-300   /* Probabilities below this are 0. */

/* What differs between instruction sets; lanes.c is compiled once for each. Results never differ. */
typedef struct ls_lanes {
    /* First block start >= start (a multiple of 64) with a logit that is not <= limit (so: above it, or NaN), and
     * which (bit i = start + i); n when there is none. Full blocks only: n must be a multiple of 64. */
    int64_t (*next_above)(const float *row, int64_t start, int64_t n, float limit, uint64_t *mask);
    /* out[i] = the largest of the 64 logits from 64 i on; n must be a multiple of 64, nothing NaN. */
    void (*block_max)(const float *row, int64_t n, float *out);
    /* out[i] = exp((row[i] - top) / temperature); returns their sum over 8 interleaved lanes. out may be NULL. */
    double (*softmax)(const float *row, int64_t n, double top, double temperature, double *out);
    /* out[i] = gumbel of (key, {tokens[i], counter[1..3]}). */
    void (*gumbel)(const uint32_t key[2], const uint32_t counter[4], const int32_t *tokens, int64_t n, double *out);
    /* Which of the 64 tokens from `first` on draw a word >= limit. */
    uint64_t (*lucky)(const uint32_t key[2], const uint32_t counter[4], uint32_t first, uint32_t limit);
    void (*log)(const double *x, int64_t n, double *out);
    void (*exp)(const double *x, int64_t n, double *out);
    /* out[i * n_x + j] = sum of rows[i * n + k] * x[j * n + k], for |x| < 16,384. */
    void (*dots)(const int8_t *rows, int64_t n_rows, const int16_t *x, int64_t n_x, int64_t n, int64_t *out);
} ls_lanes;

extern const ls_lanes ls_lanes_scalar;
#if defined(LS_HAVE_AVX2)
extern const ls_lanes ls_lanes_avx2;
#endif
#if defined(LS_HAVE_AVX512)
extern const ls_lanes ls_lanes_avx512;
#endif
#if defined(LS_HAVE_NEON)
extern const ls_lanes ls_lanes_neon;
#endif

/* Logit and id as one integer: larger = higher logit, then lower id. Distinct for distinct ids. */
typedef uint64_t ls_key;

LS_INLINE ls_key ls_key_of(float logit, int32_t token) {
    const float x = logit + 0.0f; /* -0 becomes +0, which it equals */
    uint32_t b;
    memcpy(&b, &x, 4);
    b = (b & 0x80000000u) ? ~b : b | 0x80000000u;
    return (uint64_t)b << 32 | (uint32_t)~(uint32_t)token;
}

LS_INLINE int32_t ls_key_token(ls_key key) { return (int32_t)~(uint32_t)key; }

LS_INLINE float ls_key_logit(ls_key key) {
    uint32_t b = (uint32_t)(key >> 32);
    float x;
    b = (b & 0x80000000u) ? b & 0x7fffffffu : ~b;
    memcpy(&x, &b, 4);
    return x;
}

/* What is left of a row after some steps: either everything in id order, or a list, most likely first. */
typedef struct ls_support {
    float *row;      /* The patched row. */
    int32_t n_vocab; /* Its length. */
    bool full;       /* No step has removed anything: keys is not filled and n = n_vocab. */
    ls_key *keys;    /* Sorted, largest first, unless full. */
    int64_t n;       /* Entries. */
    float top;       /* Largest logit. */
    int64_t size;    /* Entries in llama.cpp's count: of those that top-k and before it kept, excluded ones (-inf) are in it. */
    double temperature; /* That the tokens are drawn at. */
} ls_support;

/* Tokens seen lately, with counts: a hash table that can slide over a path. */
typedef struct ls_seen {
    int32_t *tokens; /* [n_slots] */
    int32_t *counts; /* [n_slots] -1 = free */
    int32_t *used;   /* [n_slots] slots in use, oldest first */
    int64_t n_slots; /* a power of two, or 0 */
    int64_t n_used;
} ls_seen;

typedef struct ls_undo {
    int32_t token;
    float logit;
} ls_undo;

struct ls_workspace {
    const ls_lanes *lanes;
    int32_t isa;
    int32_t fault_row, fault_token;
    int64_t n_vocab;  /* what the next ones are sized for */
    ls_key *keys;     /* [n_vocab] */
    ls_key *others;   /* [n_vocab] typical sampling's order, and room to select in */
    double *weights;  /* [n_vocab] */
    double *scratch;  /* [n_vocab] */
    ls_key *spare;    /* [n_vocab] for sorting */
    uint32_t words[LS_WORD_STEPS]; /* ls_fill_words */
    float *logits;    /* [n_vocab] of a list, side by side */
    int32_t *slots;   /* [n_vocab] -1, or where a token is in the support; always -1 between calls */
    int64_t n_undo_room;
    ls_undo *undo; /* logits before bias and penalties */
    int64_t n_undo;
    int64_t n_repeats_room;
    int32_t *repeats; /* ls_patch_dry's */
    bool xtc; /* XTC's coin fell for the patched row */
    int64_t n_window_room;
    int32_t *window; /* the tail of the history that counts, then the path */
    int64_t window_start, window_end; /* penalties count from window_start on */
    ls_seen seen;
    int64_t n_sparse;
    float *sparse; /* [n_sparse] a row with little in it; all -inf between calls */
    int64_t n_inputs_room;
    int16_t *inputs; /* ls_matvec's, rounded */
};

/* backend.c */
int32_t ls_reserve(ls_workspace *w, int64_t n_vocab);
int32_t ls_grow(void **buffer, int64_t *room, int64_t needed, size_t item);
int32_t ls_fail(ls_workspace *w, int32_t status, int32_t row, int32_t token);

/* select.c: order among keys. */
void ls_sort_down(ls_key *keys, int64_t n, ls_key *spare); /* spare: [n], for large n */
void ls_keep_largest(ls_key *keys, int64_t n, int64_t k); /* the k largest come first, in no order */

/* penalties.c: bias and penalties, applied to a row in place and taken back. */
bool ls_has_penalties(const ls_sampling *s);
/* Counts the last tokens of the history, with room for `path` more; push adds one of them. */
int32_t ls_window_start(ls_workspace *w, const ls_sampling *s, const int32_t *window, int64_t n, int64_t path);
void ls_window_push(ls_workspace *w, const ls_sampling *s, int32_t token);
/* Also throws XTC's coin for the row, whose token stands at `position`. */
int32_t ls_patch(ls_workspace *w, const ls_sampling *s, const ls_noise *noise, uint32_t position, float *row,
                 int32_t n_vocab);
void ls_restore(ls_workspace *w, float *row);
/* Writes a logit, for which there is room in `undo`, and notes what was there. */
void ls_write_logit(ls_workspace *w, float *row, int32_t token, float logit);
/* How many of the last n tokens count, by a setting of which -1 means all. */
int64_t ls_tail(int32_t last_n, int64_t n);

/* dry.c */
bool ls_has_dry(const ls_sampling *s);
int32_t ls_patch_dry(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab);

/* noise.c. out[i]: how likely each is to be the target's token at a position, together as likely as their shares are. With
 * p its share, the target takes the largest log p / T + g, or log p + T g, where g is the noise at that place. */
void ls_rank(const ls_workspace *w, const ls_noise *noise, double temperature, uint32_t position, const int32_t *tokens,
             const float *shares, int32_t n, double *out);

/* support.c: top-n-sigma, top-k, typical, top-p, min-p, XTC, dynamic temperature. */
int32_t ls_top(ls_workspace *w, const float *row, int32_t n_vocab, ls_key *best);
int32_t ls_top_k(ls_workspace *w, const float *row, int32_t n_vocab, int64_t k, ls_key *keys, int64_t *n);
/* Fills `out` on a patched row. */
int32_t ls_find_support(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab, ls_support *out);
/* Its last steps, on a top-k: from typical on. */
int32_t ls_filter_support(ls_workspace *w, const ls_sampling *s, ls_support *out);
/* out[i] (may be NULL) = exp((logit - top) / temperature) over the support; returns their sum. */
double ls_softmax(ls_workspace *w, const ls_support *support, double temperature, double *out);
double ls_lane_sum(const double *x, int64_t n);

/* sampling.c */
typedef struct ls_target { /* target_probs over a support */
    ls_support support;
    double *probs; /* [support.n], summing to 1 */
} ls_target;
int32_t ls_target_of(ls_workspace *w, const ls_sampling *s, float *row, int32_t n_vocab, ls_target *out);
void ls_fill_words(uint32_t words[LS_WORD_STEPS]);
int32_t ls_draw(ls_workspace *w, const ls_sampling *s, const ls_support *support, const uint32_t key[2],
                const uint32_t counter[4], int32_t count, int32_t *tokens, int32_t *n_out);

/* lists.c */
int32_t ls_list_mode(const ls_sampling *s, int32_t rule); /* of native/gpu/request.h, or -1: no list is enough. */
/* The token that a row draws, of which a list is there, or LS_NEED_ROW. */
int32_t ls_listed_token(ls_workspace *w, const ls_row *row, int32_t n_vocab, const ls_sampling *s, const ls_noise *noise,
                        uint32_t position, int32_t *token);

LS_INLINE int32_t ls_support_token(const ls_support *s, int64_t i) {
    return s->full ? (int32_t)i : ls_key_token(s->keys[i]);
}

LS_INLINE void ls_philox_start(const ls_noise *noise, int32_t purpose, uint32_t position, uint32_t key[2],
                               uint32_t counter[4]) {
    key[0] = (uint32_t)noise->seed;
    key[1] = (uint32_t)(noise->seed >> 32);
    counter[0] = 0;
    counter[1] = position;
    counter[2] = (uint32_t)purpose | noise->round << 2;
    counter[3] = noise->stream;
}

LS_INLINE uint32_t ls_word(const uint32_t key[2], const uint32_t counter[4], int32_t token) {
    uint32_t c[4] = {(uint32_t)token, counter[1], counter[2], counter[3]};
    ls_philox(c, key[0], key[1]);
    return c[0];
}

#endif
