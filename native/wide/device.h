/* Between device.c, buffer.c and graph.c; the last lines also for api.c and limits.c. */
#ifndef LOCALSPEC_WIDE_DEVICE_H
#define LOCALSPEC_WIDE_DEVICE_H

#include "abi.h"
#include "wide.h"

#include <stdatomic.h>

/* A matrix in our memory. It changes hands under the lock only:
 *   plain   in ggml's layout; the first product packs it
 *   packed  in ours
 *   left    in ggml's layout for ever: something other than a product asked for it. */
enum weight_state { WEIGHT_PLAIN, WEIGHT_PACKED, WEIGHT_LEFT };
struct weight {
    struct weight *next;                  /* in its buffer */
    _Atomic(enum weight_state) state;
    int type;
    int64_t columns, rows;
    char *data;
};

extern struct buffer_type wide_buffer_type;

/* The matrix that `t` is, or is a view of; NULL for what can never be packed. */
struct weight *weight_of(const struct tensor *t);
/* Unpacks the weight that `t` is, or is a view of, if need be, and never packs it again. Waits for passes that run. */
void weight_leave(const struct tensor *t);
int64_t weight_tiles(const struct weight *w);
size_t weight_tile_bytes(const struct weight *w);

/* One computing context of llama.cpp (a ggml backend). Scratch only grows. */
struct team {
    int threads;
    struct step *steps;
    int64_t steps_room;
    char *scratch, *pack;                 /* of a step; of packing, per thread */
    size_t scratch_size, pack_size;
};
int team_compute(struct team *t, struct graph *graph);
void team_free(struct team *t);

/* Fills everything but the scratch; false if the shapes, strides or types are not what we can describe. */
bool describe_product(const struct tensor *node, struct wide_product *out);
bool describe_attention(const struct tensor *node, struct wide_attention *out);
bool describe_dots(const struct tensor *node, struct wide_dots *out);

/* Passes hold the lock shared; who changes a weight's state holds it alone. */
void weights_share(void);
void weights_hold(void);
void weights_release(void);

/* Waits until every thread of the team has called it. */
static inline void meet(int threads) {
    if (threads > 1) {
#pragma omp barrier
    }
}

/* Number of the context that llama.cpp is making on this thread; 0 = none. */
int64_t context_in_making(void);
/* From now on this type, the CPU's, has pages of zeros while a context is made. */
void give_zero_pages(struct buffer_type *type);

void *wide_allocate(size_t size);         /* aligned to 64; NULL if there is no memory */
void wide_free(void *memory);

#endif
