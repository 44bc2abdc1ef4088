/* What this build and this CPU can do, and scratch memory. */
#include "internal.h"

#include <stdlib.h>

#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
#include <immintrin.h>
#include <intrin.h>
#endif

static inline bool cpu_has(int32_t isa) {
#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
    __builtin_cpu_init();
    return isa == LS_ISA_AVX512 ? __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
                                      && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
                                : isa == LS_ISA_AVX2 && __builtin_cpu_supports("avx2");
#elif defined(_MSC_VER) && defined(_M_X64)
    int regs[4];
    __cpuid(regs, 0);
    if (regs[0] < 7) {
        return false;
    }
    __cpuid(regs, 1);
    if (!(regs[2] >> 27 & 1)) { /* OSXSAVE */
        return false;
    }
    const uint64_t saved = _xgetbv(0);
    __cpuidex(regs, 7, 0);
    const int avx512 = 1 << 16 | 1 << 17 | 1 << 30 | (int)(1u << 31); /* F, DQ, BW, VL */
    return isa == LS_ISA_AVX512 ? (saved & 0xe6) == 0xe6 && (regs[1] & avx512) == avx512
                                : isa == LS_ISA_AVX2 && (saved & 6) == 6 && (regs[1] >> 5 & 1);
#else
    return isa == LS_ISA_NEON; /* part of every aarch64; only asked for where it was built */
#endif
}

static const ls_lanes *lanes_of(int32_t isa) {
    switch (isa) {
#if defined(LS_HAVE_AVX512)
    case LS_ISA_AVX512:
        return cpu_has(isa) ? &ls_lanes_avx512 : NULL;
#endif
#if defined(LS_HAVE_AVX2)
    case LS_ISA_AVX2:
        return cpu_has(isa) ? &ls_lanes_avx2 : NULL;
#endif
#if defined(LS_HAVE_NEON)
    case LS_ISA_NEON:
        return cpu_has(isa) ? &ls_lanes_neon : NULL;
#endif
    case LS_ISA_SCALAR:
        return &ls_lanes_scalar;
    default:
        return NULL;
    }
}

int32_t ls_abi_version(void) { return LS_ABI_VERSION; }

const char *ls_isa_name(int32_t isa) {
    static const char *const names[] = {"", "scalar", "neon", "avx2", "avx512"};
    return isa >= LS_ISA_SCALAR && isa <= LS_ISA_AVX512 ? names[isa] : "";
}

const char *ls_cpu_features(void) {
#if defined(__x86_64__) || defined(_M_X64)
    return cpu_has(LS_ISA_AVX512) ? "x86-64 avx2 avx512" : cpu_has(LS_ISA_AVX2) ? "x86-64 avx2" : "x86-64";
#elif defined(__aarch64__) || defined(_M_ARM64)
    return "aarch64 neon";
#else
    return "generic";
#endif
}

int32_t ls_workspace_new(int32_t isa, ls_workspace **out) {
    *out = NULL;
    for (int32_t i = LS_ISA_AVX512; isa == LS_ISA_BEST && i >= LS_ISA_SCALAR; i--) {
        isa = lanes_of(i) ? i : isa;
    }
    if (!lanes_of(isa)) {
        return LS_NO_ISA;
    }
    ls_workspace *w = calloc(1, sizeof *w);
    if (!w) {
        return LS_NO_MEMORY;
    }
    w->lanes = lanes_of(isa);
    w->isa = isa;
    ls_fill_words(w->words);
    w->fault_row = w->fault_token = -1;
    *out = w;
    return LS_OK;
}

void ls_workspace_free(ls_workspace *w) {
    if (w) {
        void *const all[] = {w->keys, w->others, w->spare, w->weights, w->scratch, w->logits, w->slots, w->undo, w->window,
                             w->seen.tokens, w->seen.counts, w->seen.used, w->inputs, w->sparse, w->repeats, w};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            free(all[i]);
        }
    }
}

int32_t ls_workspace_isa(const ls_workspace *w) { return w->isa; }

void ls_fault(const ls_workspace *w, int32_t *row, int32_t *token) {
    *row = w->fault_row;
    *token = w->fault_token;
}

int32_t ls_fail(ls_workspace *w, int32_t status, int32_t row, int32_t token) {
    w->fault_row = row;
    w->fault_token = token;
    return status;
}

int32_t ls_grow(void **buffer, int64_t *room, int64_t needed, size_t item) {
    if (needed <= *room) {
        return LS_OK;
    }
    const int64_t wanted = needed < 2 * *room ? 2 * *room : needed;
    void *grown = realloc(*buffer, (size_t)wanted * item);
    if (!grown) {
        return LS_NO_MEMORY;
    }
    *buffer = grown;
    *room = wanted;
    return LS_OK;
}

int32_t ls_reserve(ls_workspace *w, int64_t n_vocab) {
    if (n_vocab <= w->n_vocab) {
        return LS_OK;
    }
    int64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0;
    int32_t status = ls_grow((void **)&w->keys, &a, n_vocab, sizeof *w->keys);
    status = status ? status : ls_grow((void **)&w->others, &b, n_vocab, sizeof *w->others);
    status = status ? status : ls_grow((void **)&w->weights, &c, n_vocab, sizeof *w->weights);
    status = status ? status : ls_grow((void **)&w->scratch, &d, n_vocab, sizeof *w->scratch);
    status = status ? status : ls_grow((void **)&w->logits, &e, n_vocab, sizeof *w->logits);
    status = status ? status : ls_grow((void **)&w->spare, &g, n_vocab, sizeof *w->spare);
    status = status ? status : ls_grow((void **)&w->slots, &f, n_vocab, sizeof *w->slots);
    if (!status) {
        memset(w->slots, -1, (size_t)n_vocab * sizeof *w->slots);
        w->n_vocab = n_vocab;
    }
    return status;
}
