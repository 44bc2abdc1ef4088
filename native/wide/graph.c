/* Running a graph: the products and attentions of a split, one after another, on one team of threads. */
#include "device.h"
#include "localspec_wide.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

struct step {
    bool attends;
    bool shares;                          /* its input is that of the step before: already prepared */
    struct weight *weight;                /* of a product */
    struct wide_product product;
    struct wide_attention attention;
};

/* -- what a node asks for -------------------------------------------------------------------------------------------- */

static bool rows_evenly_spaced(const struct tensor *t) {
    const bool in_2 = t->ne[2] == 1 || t->nb[2] == t->nb[1] * (size_t)t->ne[1]; /* the stride of one thing says nothing */
    const bool in_3 = t->ne[3] == 1 || t->nb[3] == t->nb[1] * (size_t)(t->ne[1] * t->ne[2]);
    return t->nb[0] == sizeof(float) && t->nb[1] % sizeof(float) == 0 && in_2 && in_3;
}

bool describe_product(const struct tensor *node, struct wide_product *out) {
    const struct tensor *weight = node->src[0], *input = node->src[1];
    const bool plain = node->op_params[1] == 0; /* no hint that the weight is a transform */
    if (!plain || weight->ne[2] != 1 || weight->ne[3] != 1 || input->type != TYPE_F32 || node->type != TYPE_F32
        || !rows_evenly_spaced(input) || !rows_evenly_spaced(node)) {
        return false;
    }
    *out = (struct wide_product){
        .type = weight->type, .columns = weight->ne[0], .rows = weight->ne[1],
        .width = input->ne[1] * input->ne[2] * input->ne[3],
        .input = input->data, .input_stride = input->nb[1] / sizeof(float),
        .output = node->data, .output_stride = node->nb[1] / sizeof(float)};
    return true;
}

/* What ggml does not check when it makes the node. */
static bool cells_match(const struct tensor *q, const struct tensor *k, const struct tensor *v, const struct tensor *mask) {
    return v->ne[1] == k->ne[1] && v->ne[2] == k->ne[2] && v->ne[3] == k->ne[3]
           && (!mask || (mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]));
}

bool describe_attention(const struct tensor *node, struct wide_attention *out) {
    const struct tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3], *sinks = node->src[4];
    if (!cells_match(q, k, v, mask)) {
        return false;
    }
    if (q->type != TYPE_F32 || node->type != TYPE_F32 || !abi_is_dense(q) || !abi_is_contiguous(node) || !abi_is_dense(k)
        || !abi_is_dense(v) || (mask && (mask->type != TYPE_F16 || !abi_is_dense(mask))) || (sinks && sinks->type != TYPE_F32)) {
        return false;
    }
    *out = (struct wide_attention){
        .head_size = q->ne[0], .value_size = v->ne[0], .heads = q->ne[2], .kv_heads = k->ne[2], .rows = q->ne[1],
        .cells = k->ne[1], .streams = q->ne[3], .kv_streams = k->ne[3],
        .q = q->data, .q_row = q->nb[1], .q_head = q->nb[2], .q_stream = q->nb[3],
        .k_type = k->type, .k = k->data, .k_cell = k->nb[1], .k_head = k->nb[2], .k_stream = k->nb[3],
        .v_type = v->type, .v = v->data, .v_cell = v->nb[1], .v_head = v->nb[2], .v_stream = v->nb[3],
        .sinks = sinks ? sinks->data : NULL, .out = node->data};
    if (mask) {
        out->mask = mask->data;
        out->mask_row = mask->nb[1], out->mask_head = mask->nb[2], out->mask_stream = mask->nb[3];
        out->mask_heads = mask->ne[2], out->mask_streams = mask->ne[3];
    }
    memcpy(&out->scale, &node->op_params[0], sizeof out->scale);
    memcpy(&out->max_bias, &node->op_params[1], sizeof out->max_bias);
    memcpy(&out->soft_cap, &node->op_params[2], sizeof out->soft_cap);
    return true;
}

/* -- the list of steps ----------------------------------------------------------------------------------------------- */

static bool grow(char **memory, size_t *size, size_t needed) {
    if (needed > *size) {
        char *larger = wide_allocate(needed);
        if (!larger) {
            return false;
        }
        wide_free(*memory);
        *memory = larger;
        *size = needed;
    }
    return true;
}

static bool is_work(const struct tensor *node) {
    return (node->flags & FLAG_COMPUTE) && (node->op == OP_MUL_MAT || node->op == OP_FLASH_ATTN_EXT) && node->ne[0]
           && node->ne[1] && node->ne[2] && node->ne[3];
}

static bool same_input(const struct wide_product *a, const struct wide_product *b) {
    return a->type == b->type && a->columns == b->columns && a->width == b->width && a->input == b->input
           && a->input_stride == b->input_stride;
}

static bool describe_step(const struct tensor *node, struct step *s, const struct step *before) {
    *s = (struct step){.attends = node->op == OP_FLASH_ATTN_EXT};
    if (s->attends) {
        return describe_attention(node, &s->attention);
    }
    s->weight = weight_of(node->src[0]);
    if (!s->weight || !describe_product(node, &s->product)) {
        return false;
    }
    s->product.weights = s->weight->data;
    s->shares = before && !before->attends && same_input(&before->product, &s->product);
    return true;
}

/* Returns how many steps there are, or a status below 0. */
static int64_t list_steps(struct team *t, struct graph *graph) {
    struct tensor **nodes = ggml.graph_nodes(graph);
    const int64_t count = ggml.graph_n_nodes(graph);
    if (count > t->steps_room) {
        struct step *larger = realloc(t->steps, (size_t)count * sizeof *larger);
        if (!larger) {
            return STATUS_NO_MEMORY;
        }
        t->steps = larger;
        t->steps_room = count;
    }
    int64_t steps = 0;
    for (int64_t i = 0; i < count; i++) {
        if (is_work(nodes[i])) {
            if (!describe_step(nodes[i], &t->steps[steps], steps ? &t->steps[steps - 1] : NULL)) {
                return STATUS_FAILED;
            }
            steps++;
        }
    }
    return steps;
}

static bool reserve(struct team *t, int64_t steps) {
    for (int64_t i = 0; i < steps; i++) {
        struct step *s = &t->steps[i];
        const size_t needed = s->attends ? wide_attention_scratch(&s->attention, t->threads)
                                         : wide_product_scratch(s->product.type, s->product.columns, s->product.width);
        if (!grow(&t->scratch, &t->scratch_size, needed)) {
            return false;
        }
    }
    for (int64_t i = 0; i < steps; i++) {
        t->steps[i].product.scratch = t->steps[i].attention.scratch = t->scratch;
    }
    return true;
}

/* -- packing --------------------------------------------------------------------------------------------------------- */

/* This thread's tiles of a weight, in `to`, which may be the weight's own memory. */
static void pack_share(const struct team *t, const struct weight *w, char *to, int thread, int threads) {
    const int64_t tiles = weight_tiles(w), first = tiles * thread / threads, last = tiles * (thread + 1) / threads;
    const size_t bytes = weight_tile_bytes(w);
    char *scratch = t->pack + t->pack_size / (size_t)t->threads / 64 * 64 * (size_t)thread;
    for (int64_t tile = first; tile < last; tile++) {
        if (to != w->data) {
            memcpy(to + (size_t)tile * bytes, w->data + (size_t)tile * bytes, bytes);
        }
        wide_pack(w->type, w->columns, to, tile, tile + 1, scratch);
    }
}

static bool reserve_pack(struct team *t, const struct weight *w) {
    const size_t each = (wide_pack_scratch(w->type, w->columns) + 63) / 64 * 64;
    return grow(&t->pack, &t->pack_size, each * (size_t)t->threads);
}

static void pack_in_place(struct team *t, struct weight *w) {
#pragma omp parallel num_threads(t->threads) if (t->threads > 1)
    pack_share(t, w, w->data, omp_get_thread_num(), omp_get_num_threads());
    atomic_store(&w->state, WEIGHT_PACKED);
}

/* Weights that were read into place, or set in pieces, are packed now. */
static int pack_weights(struct team *t, int64_t steps) {
    bool plain = false;
    for (int64_t i = 0; i < steps; i++) {
        plain = plain || (t->steps[i].weight && atomic_load(&t->steps[i].weight->state) == WEIGHT_PLAIN);
    }
    if (!plain) {
        return STATUS_OK;
    }
    int status = STATUS_OK;
    weights_hold();
    for (int64_t i = 0; i < steps && status == STATUS_OK; i++) {
        struct weight *w = t->steps[i].weight;
        if (w && atomic_load(&w->state) == WEIGHT_PLAIN) {
            if (reserve_pack(t, w)) {
                pack_in_place(t, w);
            } else {
                status = STATUS_NO_MEMORY;
            }
        }
    }
    weights_release();
    return status;
}

/* A graph made before its weight was left to llama.cpp still holds our product: it works on a copy. */
static bool copy_what_is_left(struct team *t, int64_t steps) {
    for (int64_t i = 0; i < steps; i++) {
        struct step *s = &t->steps[i];
        if (s->weight && atomic_load(&s->weight->state) != WEIGHT_PACKED) {
            const size_t size = weight_tile_bytes(s->weight) * (size_t)weight_tiles(s->weight);
            if (!reserve_pack(t, s->weight) || !grow(&t->copy, &t->copy_size, size)) {
                return false;
            }
            s->shares = false;
            s->product.weights = NULL;
        }
    }
    for (int64_t i = 0; i < steps; i++) {
        if (t->steps[i].weight && !t->steps[i].product.weights) {
            t->steps[i].product.weights = t->copy;
        }
    }
    return true;
}

/* -- running --------------------------------------------------------------------------------------------------------- */

static void run_steps(const struct team *t, int64_t steps, int thread, int threads) {
    const enum wide_isa isa = wide_best_isa();
    for (int64_t i = 0; i < steps; i++) {
        const struct step *s = &t->steps[i];
        if (i > 0 && !s->shares) {
            meet(threads); /* the scratch, and perhaps the input, come from the step before */
        }
        if (s->attends) {
            wide_attention_run(&s->attention, isa, thread, threads);
            meet(threads);
            wide_attention_combine(&s->attention, isa, thread, threads);
            continue;
        }
        if (!s->shares) {
            if (s->product.weights == t->copy) {
                pack_share(t, s->weight, t->copy, thread, threads);
            }
            wide_product_prepare(&s->product, isa, thread, threads);
            meet(threads);
        }
        wide_product_run(&s->product, isa, thread, threads);
    }
}

/* Passes run on the thread that calls for them, so each thread counts its own. */
static _Thread_local int64_t steps_run;

int64_t lsw_steps(void) { return steps_run; }

int team_compute(struct team *t, struct graph *graph) {
    const int64_t steps = list_steps(t, graph);
    if (steps <= 0) {
        return (int)steps;
    }
    const int packed = reserve(t, steps) ? pack_weights(t, steps) : STATUS_NO_MEMORY;
    if (packed != STATUS_OK) {
        return packed;
    }
    weights_share();
    const bool ready = copy_what_is_left(t, steps);
    if (ready) {
#pragma omp parallel num_threads(t->threads) if (t->threads > 1)
        run_steps(t, steps, omp_get_thread_num(), omp_get_num_threads());
        steps_run += steps;
    }
    weights_release();
    return ready ? STATUS_OK : STATUS_NO_MEMORY;
}

void team_free(struct team *t) {
    free(t->steps);
    wide_free(t->scratch);
    wide_free(t->copy);
    wide_free(t->pack);
    free(t);
}
