/* What device.c asks of each kind of GPU. */
#ifndef LS_DEVICE_H
#define LS_DEVICE_H

#include "../localspec.h"
#include "request.h"

#include <stdbool.h>
#include <stddef.h>

#define LS_WORD 4u     /* Bytes of a number, of whatever kind: requests, logits, tokens. */
#define LS_THREADS 256u /* Of a block, or threadgroup. */

typedef struct ls_gpu_kind {
    const char *name;
    void (*close)(ls_gpu *gpu);
    /* ls_gpu_lists with arguments that are in range. */
    int32_t (*lists)(ls_gpu *gpu, uint64_t logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values);
    /* Puts logits into memory of the device's, for the self-test, and gives that back. */
    int32_t (*place)(ls_gpu *gpu, const float *logits, size_t bytes, uint64_t *address);
    int32_t (*give_back)(ls_gpu *gpu, uint64_t address);
} ls_gpu_kind;

/* The first member of every kind's own struct. */
struct ls_gpu {
    const ls_gpu_kind *kind;
    int32_t ordinal;
    bool lost; /* A call failed; what the device holds is unknown. */
    char reason[LS_REASON_ROOM];
};

/* Of a block of words that the device and the host both have, where a part begins: lists.c's request first. */
typedef struct ls_list_places {
    size_t positions, patched; /* With the request, what is copied to the device. */
    size_t found, tokens, values; /* What is copied back. */
    size_t limits, tops, end;     /* What stays. */
} ls_list_places;
ls_list_places ls_places_of(uint32_t rows, uint32_t n_vocab, uint32_t n_patched);
/* The entries of `answer`, which begins with what stands at `found`. */
void ls_take_lists(const uint32_t *answer, uint32_t rows, uint32_t *found, int32_t *tokens, float *values);

/* Notes a sentence; returns the status. */
int32_t ls_gpu_say(ls_gpu *gpu, int32_t status, const char *format, ...);

/* Opens a device and loads the kernel. *out is to be closed even after a failure, unless it is NULL: memory ran out. */
int32_t ls_cuda_open(const char *library, int32_t ordinal, ls_gpu **out);
#if defined(LS_HAVE_METAL)
int32_t ls_metal_open(const char *library, ls_gpu **out);
#endif

#endif
