/* The whole C interface of localspec's C library, on one page.
 *
 * Rules of the house: every buffer belongs to the caller; nothing is printed, no process is ended, there are no
 * globals; functions return an ls_status (0 is good) unless said otherwise. A workspace serves one thread at a time.
 * tests/reference/ is the same in numpy and is the specification: both agree bit for bit, on every ISA. */
#ifndef LOCALSPEC_H
#define LOCALSPEC_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LS_API __declspec(dllexport)
#else
#define LS_API __attribute__((visibility("default")))
#endif

#define LS_ABI_VERSION 7 /* Raised by every change of this page that a caller can notice. */

typedef enum ls_status {
    LS_OK = 0,           /* All went well. */
    LS_NO_MEMORY = 1,    /* An allocation failed; nothing was changed. */
    LS_BAD_ARGUMENT = 2, /* A count, index or setting is out of range. */
    LS_NOT_FINITE = 3,   /* A row holds NaN or +inf; ls_fault says where. */
    LS_NO_SUPPORT = 4,   /* Every token of a row is excluded (-inf); ls_fault says which row. */
    LS_BAD_TREE = 5,     /* A node comes before its parent, or the block rule met a fork; ls_fault: row = 1 + node. */
    LS_BAD_DRAFT = 6,    /* A draft token has no probability in its own draft distribution; ls_fault: row = 1 + node. */
    LS_NO_ISA = 7,       /* This machine or build cannot run the instruction set asked for. */
    LS_NEED_ROW = 8,     /* A list is not enough; ls_fault: the row that is needed whole, -1 = no list would do. */
    LS_NO_DEVICE = 9,    /* There is no such GPU, or no driver. */
    LS_DEVICE_FAILED = 10 /* A GPU or its driver cannot serve, or no longer; ls_gpu_reason says why. */
} ls_status;

typedef enum ls_isa { LS_ISA_BEST = 0, LS_ISA_SCALAR = 1, LS_ISA_NEON = 2, LS_ISA_AVX2 = 3, LS_ISA_AVX512 = 4 } ls_isa;
typedef enum ls_purpose { LS_SAMPLE = 0, LS_ACCEPT = 1, LS_RESIDUAL = 2, LS_BRANCH = 3 } ls_purpose;
/* A tree of guesses; where the index ends it goes on with what is guessed (for an index of one sequence). */
typedef enum ls_suffix_shape { LS_SUFFIX_TREE = 1, LS_SUFFIX_RUNS_ON = 2 } ls_suffix_shape;
typedef enum ls_rule { LS_COUPLED = 0, LS_REJECTION = 1, LS_BLOCK = 2 } ls_rule;

/* Names a stream of random numbers: Philox4x32-10, key = seed (low word first), counter = (token, position,
 * purpose | round << 2, stream); x = first output word, uniform = (x + 0.5) / 2^32, gumbel = -log(-log(uniform)). */
typedef struct ls_noise {
    uint64_t seed;   /* Key. */
    uint32_t stream; /* Last counter word: index of the choice. */
    uint32_t round;  /* History length at draft time for rejection and block, 0 for coupled; below 2^30. */
} ls_noise;

/* How a token is drawn; order: bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature. */
typedef struct ls_sampling {
    double temperature;         /* Below 1e-30: the most likely token; only bias, penalties, DRY and top-k apply. */
    double top_p;               /* Smallest set of most likely tokens with this much probability; 1 is off. */
    double min_p;               /* Least share of the most likely token's probability; 0 is off. */
    double typical_p;           /* Probability kept nearest to the entropy; 1 is off. */
    double top_n_sigma;         /* Most standard deviations below the largest logit; 0 or less is off. */
    double xtc_probability;     /* Chance that all likely tokens but the least likely of them go; 0 is off. */
    double xtc_threshold;       /* Probability from which on a token is likely; above 0.5 is off. */
    double dynatemp_range;      /* The temperature goes this much down and up with the entropy; 0 is off. */
    double dynatemp_exponent;   /* Of the entropy's share of the largest possible one. */
    double dry_multiplier;      /* DRY's penalty of a token that goes on with a repetition of dry_allowed_length; 0 is off. */
    double dry_base;            /* The penalty grows by this factor for each token more; below 1 is off. */
    float repeat_penalty;       /* Divides a positive logit of a seen token, multiplies others; 1 is off. */
    float presence_penalty;     /* Subtracted once from a seen token's logit. */
    float frequency_penalty;    /* Subtracted once per sighting. */
    int32_t penalty_last_n;     /* How many last tokens count as seen; 0 none, -1 all. */
    int32_t top_k;              /* Keep this many; 0 is off. */
    int32_t dry_allowed_length; /* Shortest repetition that DRY minds. */
    int32_t dry_penalty_last_n; /* How many last tokens it looks at; 0 none, -1 all. */
    int32_t n_breaks;           /* Sequences of tokens that no repetition goes across. */
    const int32_t *break_heads; /* int32[n_breaks], the first token of each, ascending. */
    const int32_t *break_offsets; /* int32[n_breaks + 1] into the next one. */
    const int32_t *break_tails; /* The other tokens. */
    int32_t n_bias;             /* Length of the next two. */
    const int32_t *bias_tokens; /* int32[n_bias], ids; those outside the vocabulary are ignored. */
    const float *bias_values;   /* float32[n_bias], added to the logits; -inf bans. */
} ls_sampling;

/* A draft: a tree of nodes (a chain is one without forks). Row 0 of a pass follows the history, row 1 + i node i. */
typedef struct ls_draft {
    int32_t n;              /* Nodes; may be 0. */
    const int32_t *tokens;  /* int32[n]. */
    const int32_t *parents; /* int32[n], -1 = the last history token; parents before children, siblings in trial order. */
    const int64_t *offsets; /* int64[n + 1] into the next two, or NULL for deterministic guesses. */
    const int32_t *q_tokens; /* Draft distribution of node i: ids at offsets[i] .. offsets[i + 1]. */
    const double *q_probs;   /* And their probabilities. */
} ls_draft;

#define LS_MOST_FOLLOWED 64 /* Nodes of a guess. */
/* What a drafter needs of a suffix guess. */
typedef struct ls_followed {
    double score;     /* Tokens expected to be right. */
    int32_t nodes;    /* How many of the next three are filled in. */
    int32_t match;    /* Tokens that matched. */
    int32_t sequence; /* Of the other index, where the first node stood last; -1 = own. */
    int32_t tokens[LS_MOST_FOLLOWED];
    int32_t parents[LS_MOST_FOLLOWED];
    float confidence[LS_MOST_FOLLOWED]; /* Chance given the parent below one half, odds from there on. */
} ls_followed;

/* A tree of guesses; parents as in a draft. */
typedef struct ls_guess {
    int32_t nodes; /* How many of the next three are filled in. */
    int32_t tokens[LS_MOST_FOLLOWED];
    int32_t parents[LS_MOST_FOLLOWED];
    float confidence[LS_MOST_FOLLOWED]; /* Chance given the parent. */
} ls_guess;

typedef struct ls_gpu ls_gpu;             /* The kernel of native/gpu on a GPU. Serves one thread at a time. */
typedef struct ls_workspace ls_workspace; /* Scratch memory and the chosen instruction set. */
typedef struct ls_ngram ls_ngram;         /* Index of the n-grams of one history. */
typedef struct ls_suffix ls_suffix;       /* Index of many sequences, sorted by what stands before each token. */
typedef struct ls_counts ls_counts;       /* What followed one to four tokens, and how often. */

/* backend.c: what this build is, and scratch memory. */
LS_API int32_t ls_abi_version(void);          /* LS_ABI_VERSION of the library. */
LS_API const char *ls_cpu_features(void);     /* Static text, e.g. "x86-64 avx2 avx512"; what the dispatcher saw. */
LS_API const char *ls_isa_name(int32_t isa);  /* Static text, e.g. "avx512"; "" if unknown. */
/* Makes scratch memory; isa = LS_ISA_BEST or one to force. NULL into *out on failure. */
LS_API int32_t ls_workspace_new(int32_t isa, ls_workspace **out);
LS_API void ls_workspace_free(ls_workspace *w);           /* NULL is fine. */
LS_API int32_t ls_workspace_isa(const ls_workspace *w);   /* The ls_isa in use. */
/* Where the last failing call failed: row index within that call and token id, each -1 if it does not apply. */
LS_API void ls_fault(const ls_workspace *w, int32_t *row, int32_t *token);

/* noise.c: random numbers and the log and exp everything uses. Pure. */
LS_API void ls_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* out[i] = uniform of (purpose, position, tokens[i]). */
LS_API void ls_uniform(const ls_noise *noise, int32_t purpose, uint32_t position, const int32_t *tokens, int64_t n,
                       double *out);
/* out[i] = gumbel of (purpose, position, tokens[i]), on the workspace's ISA. */
LS_API void ls_gumbel(const ls_workspace *w, const ls_noise *noise, int32_t purpose, uint32_t position,
                      const int32_t *tokens, int64_t n, double *out);
LS_API void ls_log(const ls_workspace *w, const double *x, int64_t n, double *out); /* x positive and normal. */
LS_API void ls_exp(const ls_workspace *w, const double *x, int64_t n, double *out); /* x <= 700; 0 below -690. */

/* sampling.c: one row. Rows are written while bias and penalties apply and are restored before return.
 * `window` = the tokens before this row; the last penalty_last_n of them count (for DRY: dry_penalty_last_n). */

/* The `count` best tokens by log prob + gumbel (LS_SAMPLE noise at `position`), best first, ties to the lower id; by
 * logit at temperature 0. tokens int32[count]; probs float32[count] or NULL: after the transform (at temperature 0:
 * softmax over top-k). *n_out <= count = how many there were. */
LS_API int32_t ls_sample(ls_workspace *w, float *row, int32_t n_vocab, const ls_sampling *sampling,
                         const int32_t *window, int32_t n_window, const ls_noise *noise, uint32_t position,
                         int32_t count, int32_t *tokens, float *probs, int32_t *n_out);
/* The row after the transform (noise and position as for ls_sample: XTC asks them), most likely first.
 * tokens int32[n_vocab], probs float64[n_vocab], *n_out of them set. */
LS_API int32_t ls_distribution(ls_workspace *w, float *row, int32_t n_vocab, const ls_sampling *sampling,
                               const int32_t *window, int32_t n_window, const ls_noise *noise, uint32_t position,
                               int32_t *tokens, double *probs, int32_t *n_out);
/* out[i] = log-softmax of the raw row at tokens[i]. */
LS_API int32_t ls_log_probs(ls_workspace *w, const float *row, int32_t n_vocab, const int32_t *tokens, int32_t n,
                            double *out);
/* The `count` most likely tokens of the raw row and their log-softmax. */
LS_API int32_t ls_top_log_probs(ls_workspace *w, const float *row, int32_t n_vocab, int32_t count, int32_t *tokens,
                                double *out, int32_t *n_out);

/* verify.c: what the target says to a draft. rows float32*[1 + draft->n], each n_vocab long; only rows on the path
 * (for block: all) are touched. `window` = the whole history or at least as many last tokens as count; `position`
 * = absolute position of the token sampled from row 0. accepted int32[draft->n] gets *n_accepted node indices. */
LS_API int32_t ls_verify(ls_workspace *w, float *const *rows, int32_t n_vocab, const ls_draft *draft,
                         const ls_sampling *sampling, const int32_t *window, int32_t n_window, const ls_noise *noise,
                         uint32_t position, int32_t rule, int32_t *accepted, int32_t *n_accepted, int32_t *next_token);

/* lists.c: rows that stay where they were computed (native/gpu); of each only a list of entries comes here. */
#define LS_REQUEST_WORDS 10 /* What the kernel is asked for (native/gpu/request.h). */
#define LS_LIST_ROOM 512    /* Entries of a list. */
#define LS_MOST_PATCHED 192 /* Tokens with a bias or a penalty, of which each list holds the logit. */
/* A row, whole or as a list. */
typedef struct ls_row {
    float *logits;         /* float32[n_vocab], or NULL: the list is all there is. */
    int32_t n;             /* Entries found; more than LS_LIST_ROOM: the list is cut off and not used. */
    const int32_t *tokens; /* int32[n]; the patched ones of the request first, then in no order. */
    const float *values;   /* float32[n], raw logits. */
} ls_row;
/* What to ask for before a verdict with the same arguments: request uint32[LS_REQUEST_WORDS], patched
 * int32[LS_MOST_PATCHED], positions uint32[1 + draft->n]. LS_NEED_ROW where lists cannot decide: another rule than coupled,
 * top-p or typical without top-k, top-n-sigma, DRY, a temperature beside 0 that is not from 0.01 to 100, too many entries or penalties. */
LS_API int32_t ls_list_request(ls_workspace *w, int32_t n_vocab, const ls_draft *draft, const ls_sampling *sampling,
                               const int32_t *window, int32_t n_window, const ls_noise *noise, uint32_t position,
                               int32_t rule, uint32_t request[LS_REQUEST_WORDS], int32_t *patched, uint32_t *positions);
/* ls_verify on rows[1 + draft->n], each whole or as a list: the same verdict, or LS_NEED_ROW; then call again with the
 * row that ls_fault names made whole. */
LS_API int32_t ls_verify_rows(ls_workspace *w, const ls_row *rows, int32_t n_vocab, const ls_draft *draft,
                              const ls_sampling *sampling, const int32_t *window, int32_t n_window, const ls_noise *noise,
                              uint32_t position, int32_t rule, int32_t *accepted, int32_t *n_accepted,
                              int32_t *next_token);

/* gpu/device.c: the kernel of native/gpu on a GPU. */
#define LS_METAL (-1)      /* The GPU of a Mac, as an ordinal; others are CUDA's devices. */
#define LS_REASON_ROOM 256 /* Bytes of a sentence, with the 0 at its end. */
/* Opens device `ordinal` and runs the self-test on it; *out = NULL after a failure, and `reason` says why in a sentence
 * (empty where the machine has no driver). library = path of the driver's, NULL = the system's. CUDA: the primary context. */
LS_API int32_t ls_gpu_open(const char *library, int32_t ordinal, ls_gpu **out, char reason[LS_REASON_ROOM]);
LS_API void ls_gpu_close(ls_gpu *gpu);              /* NULL is fine. */
LS_API const char *ls_gpu_reason(const ls_gpu *gpu); /* What failed last, in a sentence; "" if nothing did. */
/* Lists of `rows` rows that follow one another in the device's memory from address `logits` on; no pass may be writing them.
 * request, patched and positions are ls_list_request's. found uint32[rows] = entries, tokens int32[rows][LS_LIST_ROOM],
 * values float32[rows][LS_LIST_ROOM]. After LS_DEVICE_FAILED every call fails. */
LS_API int32_t ls_gpu_lists(ls_gpu *gpu, uint64_t logits, int32_t rows, const uint32_t request[LS_REQUEST_WORDS],
                            const int32_t *patched, const uint32_t *positions, uint32_t *found, int32_t *tokens,
                            float *values);

/* guard.cpp: calls of llama.cpp that return LS_THROWN, with its words in `reason`, where it throws a C++ exception. */
#define LS_THROWN (-1000)
typedef struct {
  int32_t n_tokens;
  void *token, *embd, *pos, *n_seq_id, *seq_id, *logits;
} ls_batch; /* llama_batch. */
typedef int32_t (*ls_pass_function)(void *context, ls_batch batch);
typedef void (*ls_wait_function)(void *context);
typedef void (*ls_get_function)(void *tensor, void *to, size_t offset, size_t bytes);
LS_API int32_t ls_guard_pass(ls_pass_function pass, void *context, const ls_batch *batch, char reason[LS_REASON_ROOM]);
LS_API int32_t ls_guard_wait(ls_wait_function wait, void *context, char reason[LS_REASON_ROOM]);
LS_API int32_t ls_guard_get(ls_get_function get, void *tensor, void *to, size_t offset, size_t bytes,
                            char reason[LS_REASON_ROOM]);

/* trial.c: for tests. The engine's loop on order-2 Markov tables: row a * n_vocab + b follows tokens a, b. */
typedef struct ls_trial {
    int32_t n_vocab;             /* At most 64. */
    int32_t depth;               /* Levels of the draft tree, at most 4. */
    int32_t siblings[4];         /* Children drawn for every node of a level, without replacement; 1 each is a chain. */
    int32_t length;              /* Tokens to generate, at most 8, by as many passes as it takes. */
    int32_t rule;                /* ls_rule. */
    int32_t one_hot;             /* 1: the draft_probs are kept from the rule. */
    int32_t round;               /* -1: the history length, as it should be; else a constant, which is a mistake. */
    const float *target;         /* float32[n_vocab^2][n_vocab], logits. */
    const float *draft;          /* The same, of the model that tokens are drawn from. */
    const float *claimed;        /* The same, of the draft_probs handed to the rule: draft, if honest. */
    const ls_sampling *sampling; /* For both models. */
} ls_trial;
/* Runs n_seeds generations after the history 0, 0; counts int64[n_vocab^length] of what came out are added to. */
LS_API int32_t ls_run_trial(ls_workspace *w, const ls_trial *trial, uint64_t first_seed, int64_t n_seeds,
                            int64_t *counts);

/* matvec.c: drafter heads. */
#define LS_MOST_INPUTS 64
/* out[j * n_rows + i] = scales[i] * sum over k of weights[i * n + k] * x[j * n + k], for n_x <= LS_MOST_INPUTS inputs;
 * x is rounded to 15 bits beside its largest entry. An input that is not finite gives NaN. */
LS_API int32_t ls_matvec(ls_workspace *w, const int8_t *weights, const float *scales, int64_t n_rows, int64_t n,
                         const float *x, int64_t n_x, float *out);

/* ngram.c: prompt lookup. */
LS_API int32_t ls_ngram_new(int32_t min_ngram, int32_t max_ngram, ls_ngram **out); /* 1 <= min <= max <= 64. */
LS_API void ls_ngram_free(ls_ngram *index);                                        /* NULL is fine. */
/* Makes the index hold `unchanged` tokens of what it held (at most) and then `tail`: truncates and appends. */
LS_API int32_t ls_ngram_sync(ls_ngram *index, int64_t unchanged, const int32_t *tail, int64_t n_tail);
/* What followed the most recent earlier occurrence of the longest matching suffix; out int32[max_tokens]. */
LS_API int32_t ls_ngram_lookup(const ls_ngram *index, int32_t max_tokens, int32_t *out, int32_t *n_out,
                               int32_t *match);
/* Rebuilds the index beside itself and compares; *fault_n and *fault_end name the first wrong n-gram, 0 if none. */
LS_API int32_t ls_ngram_check(const ls_ngram *index, int32_t *fault_n, int64_t *fault_end);
LS_API int64_t ls_ngram_length(const ls_ngram *index); /* Tokens held. */
LS_API int64_t ls_ngram_bytes(const ls_ngram *index);  /* Memory held. */

/* suffix.c: suffix decoding. Tokens are 0 or more; `depth` (1 to 64) of those before a token count. */
LS_API int32_t ls_suffix_new(int32_t depth, ls_suffix **out);
LS_API void ls_suffix_free(ls_suffix *index); /* NULL is fine. */
/* Adds n sequences that stand one after the other in `tokens`; they are called *first, *first + 1, ... */
LS_API int32_t ls_suffix_add(ls_suffix *index, const int32_t *tokens, const int64_t *lengths, int32_t n,
                             int32_t *first);
LS_API int32_t ls_suffix_remove(ls_suffix *index, int32_t sequence);
/* Makes the newest sequence hold `unchanged` tokens of what it held and then `tail`; begins one if it was removed. */
LS_API int32_t ls_suffix_sync(ls_suffix *index, int64_t unchanged, const int32_t *tail, int64_t n_tail);
/* What followed the longest end of a context wherever it stood: at most max_nodes (64 at most), max_depth in a row.
 * shape: of ls_suffix_shape, 0 = a chain. tokens, parents, chances (given the parent): [max_nodes]. found: nodes, tokens
 * that matched, sequence of the first node's last occurrence or -1. score: tokens expected to be right. */
LS_API int32_t ls_suffix_guess(const ls_suffix *index, const int32_t *context, int64_t n_context, int32_t max_nodes,
                               int32_t max_depth, int32_t shape, int32_t *tokens, int32_t *parents, double *chances,
                               int32_t found[3], double *score);
/* A drafter's pass in one call: `sync` to the whole int32[n] tokens, of which the first `unchanged` need not be looked
 * at, then what follows their end in `own` (running on) or, where that promises more after a match of at least `least`
 * tokens, in `other` (NULL = none). */
LS_API int32_t ls_suffix_follow(ls_suffix *own, const ls_suffix *other, int32_t least, int64_t unchanged,
                                const int32_t *tokens, int64_t n, int32_t max_nodes, int32_t max_depth, int32_t shape,
                                ls_followed *out);
LS_API int32_t ls_suffix_check(const ls_suffix *index);   /* LS_OK, or LS_BAD_ARGUMENT if the index is damaged. */
LS_API int64_t ls_suffix_tokens(const ls_suffix *index);  /* Tokens held. */
LS_API int64_t ls_suffix_bytes(const ls_suffix *index);   /* Memory held. */

/* counts.c: what followed one to four tokens, in a conversation or in many sequences; 16 MB at most. */
LS_API int32_t ls_counts_new(ls_counts **out);
LS_API void ls_counts_free(ls_counts *counts); /* NULL is fine. */
/* Counts a sequence (times = 1), or takes one out again (-1). Tokens are 0 or more. */
LS_API int32_t ls_counts_add(ls_counts *counts, const int32_t *tokens, int64_t n, int32_t times);
/* Makes the only sequence `unchanged` tokens of what it was and then `tail`. */
LS_API int32_t ls_counts_sync(ls_counts *counts, int64_t unchanged, const int32_t *tail, int64_t n_tail);
/* `sync` of `own` to the whole int32[n] tokens, of which the first `unchanged` need not be looked at, then what follows
 * them by `own` and `past` (NULL = none): max_nodes at most (64 at most), max_depth in a row, `breadth` (1 to 8) after a
 * token. */
LS_API int32_t ls_counts_guess(ls_counts *own, const ls_counts *past, const ls_workspace *w, int64_t unchanged,
                               const int32_t *tokens, int64_t n, double temperature, const ls_noise *noise,
                               int32_t max_nodes, int32_t max_depth, int32_t breadth, ls_guess *out);
LS_API int64_t ls_counts_bytes(const ls_counts *counts); /* Memory held. */

#endif
