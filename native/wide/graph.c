/* Running a graph: the products and attentions of a split, one after another, on one team of threads. */
#include "device.h"
#include "localspec_wide.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

struct step {
    enum { PRODUCT, ATTENTION, DOTS } kind;
    bool shares;                          /* its input is that of the step before: already prepared */
    const struct tensor *node;
    struct weight *weight;                /* of a product */
    struct wide_product product;
    struct wide_attention attention;
    struct wide_dots dots;
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

/* Of dimensions 1 to 3. */
static void strides(const struct tensor *t, size_t out[3]) { memcpy(out, &t->nb[1], 3 * sizeof *out); }

bool describe_dots(const struct tensor *node, struct wide_dots *out) {
    const struct tensor *weight = node->src[0], *input = node->src[1];
    const struct cpu_traits *traits = ggml.cpu_traits(weight->type);
    if (!traits || !traits->vec_dot || node->op_params[1] != 0 || input->type != TYPE_F32 || node->type != TYPE_F32
        || !abi_is_dense(weight) || !abi_is_dense(input) || !abi_is_dense(node) || weight->ne[0] > INT32_MAX) {
        return false;
    }
    const int other = traits->vec_dot_type;
    *out = (struct wide_dots){
        .columns = weight->ne[0], .rows = weight->ne[1], .width = input->ne[1], .inputs = {input->ne[2], input->ne[3]},
        .per_matrix = {input->ne[2] / weight->ne[2], input->ne[3] / weight->ne[3]},
        .weights = weight->data, .input = input->data, .output = node->data, .dot = traits->vec_dot};
    strides(weight, out->weight_at);
    strides(input, out->input_at);
    strides(node, out->output_at);
    if (other != TYPE_F32) {
        const struct cpu_traits *others = ggml.cpu_traits(other);
        out->convert = others ? others->from_float : NULL;
        out->converted = ggml.type_size(other) * (size_t)(weight->ne[0] / ggml.block_size(other));
        return out->convert && weight->ne[0] % ggml.block_size(other) == 0;
    }
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
    *s = (struct step){.kind = node->op == OP_FLASH_ATTN_EXT ? ATTENTION : PRODUCT, .node = node};
    if (s->kind == ATTENTION) {
        return describe_attention(node, &s->attention);
    }
    s->weight = weight_of(node->src[0]);
    if (!s->weight) {
        s->kind = DOTS;
        return describe_dots(node, &s->dots);
    }
    if (!describe_product(node, &s->product)) {
        return false;
    }
    s->product.weights = s->weight->data;
    s->shares = before && before->kind == PRODUCT && same_input(&before->product, &s->product);
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
        const size_t needed = s->kind == ATTENTION ? wide_attention_scratch(&s->attention, t->threads)
                              : s->kind == DOTS    ? wide_dots_scratch(&s->dots)
                                                   : wide_product_scratch(s->product.type, s->product.columns, s->product.width);
        if (!grow(&t->scratch, &t->scratch_size, needed)) {
            return false;
        }
    }
    for (int64_t i = 0; i < steps; i++) {
        t->steps[i].product.scratch = t->steps[i].attention.scratch = t->steps[i].dots.scratch = t->scratch;
    }
    return true;
}

/* -- packing --------------------------------------------------------------------------------------------------------- */

/* This thread's tiles of a weight. */
static void pack_share(const struct team *t, const struct weight *w, int thread, int threads) {
    const int64_t tiles = weight_tiles(w), first = tiles * thread / threads, last = tiles * (thread + 1) / threads;
    char *scratch = t->pack + t->pack_size / (size_t)t->threads / 64 * 64 * (size_t)thread;
    wide_pack(w->type, w->columns, w->data, first, last, scratch);
}

static bool reserve_pack(struct team *t, const struct weight *w) {
    const size_t each = (wide_pack_scratch(w->type, w->columns) + 63) / 64 * 64;
    return grow(&t->pack, &t->pack_size, each * (size_t)t->threads);
}

static void pack_in_place(struct team *t, struct weight *w) {
#pragma omp parallel num_threads(t->threads) if (t->threads > 1)
    pack_share(t, w, omp_get_thread_num(), omp_get_num_threads());
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

/* Weights that were left to llama.cpp lie in ggml's layout. The caller holds the lock, so that they stay as they are. */
static bool multiply_what_is_left(struct team *t, int64_t steps) {
    bool changed = false;
    for (int64_t i = 0; i < steps; i++) {
        struct step *s = &t->steps[i];
        if (s->kind == PRODUCT && atomic_load(&s->weight->state) != WEIGHT_PACKED) {
            changed = true;
            s->kind = DOTS;
            s->shares = false;
            if (i + 1 < steps) {
                t->steps[i + 1].shares = false;
            }
            if (!describe_dots(s->node, &s->dots)) {
                return false;
            }
        }
    }
    return !changed || reserve(t, steps);
}

/* -- running --------------------------------------------------------------------------------------------------------- */

static void run_steps(const struct team *t, int64_t steps, int thread, int threads) {
    const enum wide_isa isa = wide_best_isa();
    for (int64_t i = 0; i < steps; i++) {
        const struct step *s = &t->steps[i];
        if (i > 0 && !s->shares) {
            meet(threads); /* the scratch, and perhaps the input, come from the step before */
        }
        if (s->kind == ATTENTION) {
            wide_attention_run(&s->attention, isa, thread, threads);
            meet(threads);
            wide_attention_combine(&s->attention, isa, thread, threads);
            continue;
        }
        if (s->kind == DOTS) {
            wide_dots_prepare(&s->dots, thread, threads);
            if (s->dots.convert) {
                meet(threads);
            }
            wide_dots_run(&s->dots, thread, threads);
            continue;
        }
        if (!s->shares) {
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
    const bool ready = multiply_what_is_left(t, steps);
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
    wide_free(t->pack);
    free(t);
}
