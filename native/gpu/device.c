/* GPUs of every kind: arguments are checked here, and no device serves before it has passed the self-test. */
#include "device.h"

#include "self_test.h"

#include <stdarg.h>
#include <stdio.h>

#define MOST_ROWS 65535u /* Of a grid. */

int32_t ls_gpu_say(ls_gpu *gpu, int32_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(gpu->reason, sizeof gpu->reason, format, arguments);
    va_end(arguments);
    return status;
}

ls_list_places ls_places_of(uint32_t rows, uint32_t n_vocab, uint32_t n_patched) {
    ls_list_places p;
    p.positions = LS_REQUEST_WORDS;
    p.patched = p.positions + rows;
    p.found = p.patched + n_patched;
    p.tokens = p.found + rows;
    p.values = p.tokens + (size_t)rows * LS_LIST_ROOM;
    p.limits = p.values + (size_t)rows * LS_LIST_ROOM;
    p.tops = p.limits + rows;
    p.end = p.tops + (size_t)rows * ((n_vocab + LS_STRIPE - 1) / LS_STRIPE);
    return p;
}

void ls_take_lists(const uint32_t *answer, uint32_t rows, uint32_t *found, int32_t *tokens, float *values) {
    memcpy(found, answer, rows * LS_WORD);
    for (uint32_t row = 0; row < rows; row++) {
        const size_t n = found[row] < LS_LIST_ROOM ? found[row] : LS_LIST_ROOM, at = (size_t)row * LS_LIST_ROOM;
        memcpy(tokens + at, answer + rows + at, n * LS_WORD);
        memcpy(values + at, answer + rows + (size_t)rows * LS_LIST_ROOM + at, n * LS_WORD);
    }
}

static int32_t refuse(ls_gpu *g, const char *why) {
    return ls_gpu_say(g, LS_BAD_ARGUMENT, "%s device %d: %s.", g->kind->name, g->ordinal, why);
}

static int32_t check_request(ls_gpu *g, int32_t rows, const uint32_t *request, const int32_t *patched) {
    const uint32_t n_vocab = request[LS_REQUEST_VOCAB], n_patched = request[LS_REQUEST_PATCHED];
    if (rows < 1 || (uint32_t)rows > MOST_ROWS || n_vocab < 1 || (uint64_t)(uint32_t)rows * n_vocab > INT32_MAX) {
        return refuse(g, "there are no rows, or more logits than the kernel can count");
    }
    if (request[LS_REQUEST_MODE] > LS_BY_SHARE || request[LS_REQUEST_COUNT] < 1 || n_patched > LS_MOST_PATCHED) {
        return refuse(g, "this is no request of ls_list_request");
    }
    for (uint32_t i = 0; i < n_patched; i++) {
        if (patched[i] < 0 || (uint32_t)patched[i] >= n_vocab) {
            return refuse(g, "a patched token is outside the vocabulary");
        }
    }
    return LS_OK;
}

int32_t ls_gpu_lists(ls_gpu *g, uint64_t logits, int32_t rows, const uint32_t request[LS_REQUEST_WORDS],
                     const int32_t *patched, const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    const int32_t status = g->lost ? LS_DEVICE_FAILED : check_request(g, rows, request, patched);
    return status ? status
                  : g->kind->lists(g, logits, (uint32_t)rows, request, patched, positions, found, tokens, values);
}

/* For the self-test, whose logits are the host's. */
static int32_t lists_of_host(void *device, const float *logits, uint32_t rows, const uint32_t *request,
                             const int32_t *patched, const uint32_t *positions, uint32_t *found, int32_t *tokens,
                             float *values) {
    ls_gpu *g = (ls_gpu *)device;
    uint64_t address = 0;
    const int32_t placed = g->kind->place(g, logits, (size_t)rows * request[LS_REQUEST_VOCAB] * LS_WORD, &address);
    if (placed) {
        return placed;
    }
    const int32_t status = ls_gpu_lists(g, address, (int32_t)rows, request, patched, positions, found, tokens, values);
    const int32_t given = g->kind->give_back(g, address);
    return status ? status : given;
}

static int32_t test(ls_gpu *g) {
    const ls_runner runner = {g, lists_of_host};
    const int32_t wrong = self_test(&runner);
    return wrong > 0 ? ls_gpu_say(g, LS_DEVICE_FAILED, "%s device %d: the kernel's self-test found case %d wrong.",
                                  g->kind->name, g->ordinal, wrong)
                     : -wrong;
}

static int32_t open_kind(const char *library, int32_t ordinal, ls_gpu **out) {
#if defined(LS_HAVE_METAL)
    if (ordinal == LS_METAL) {
        return ls_metal_open(library, out);
    }
#endif
    return ls_cuda_open(library, ordinal, out);
}

int32_t ls_gpu_open(const char *library, int32_t ordinal, ls_gpu **out, char reason[LS_REASON_ROOM]) {
    *out = NULL;
    reason[0] = '\0';
    ls_gpu *g = NULL;
    int32_t status = open_kind(library, ordinal, &g);
    status = status ? status : test(g);
    if (status) {
        if (g) {
            memcpy(reason, g->reason, LS_REASON_ROOM);
        }
        ls_gpu_close(g);
        return status;
    }
    *out = g;
    return LS_OK;
}

void ls_gpu_close(ls_gpu *g) {
    if (g) {
        g->kind->close(g);
    }
}

const char *ls_gpu_reason(const ls_gpu *g) { return g->reason; }
