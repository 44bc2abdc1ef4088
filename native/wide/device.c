/* Registration with ggml, and what we take. */
#include "device.h"
#include "localspec_wide.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* 0 = off; else the most rows for which products of large matrices that are not packed are ours, too. */
static _Thread_local int32_t most_rows = 64;
/* A context of llama.cpp that is being made on this thread. With flash attention on "auto" llama.cpp looks, in a graph
 * that it only splits, whether attention falls to the device of the layer, and gives fused attention up altogether if
 * another one takes it. So we take none until the backend is first told to synchronise, which comes before every graph
 * that is to be computed. */
static _Thread_local const struct backend *newborn;

/* Numbers from 1 on, in the order in which contexts are made. */
static _Atomic int64_t contexts;
static _Thread_local int64_t newest;

int64_t context_in_making(void) { return newborn ? newest : 0; }

int64_t lsw_newest_context(void) { return newest; }

int32_t lsw_switch(int32_t rows) {
    const int32_t before = most_rows;
    most_rows = rows < 0 ? 0 : rows;
    return before;
}

/* -- what we take ---------------------------------------------------------------------------------------------------- */

static bool takes_product(const struct tensor *node) {
    const struct tensor *weight = node->src[0];
    struct wide_product shape;
    if (!weight->buffer || weight->buffer->type != &wide_buffer_type || weight->view_src || !describe_product(node, &shape)) {
        return false;
    }
    if (weight->buffer->size == 0) { /* a model that loads asks before there is memory */
        return most_rows && weight->ne[1] > 1 && wide_can_pack(weight->type, weight->ne[0], weight->ne[1])
               && abi_is_contiguous(weight);
    }
    const struct weight *w = weight_of(weight);
    return w && atomic_load(&w->state) != WEIGHT_LEFT && weight->buffer->usage == USAGE_WEIGHTS;
}

static bool in_host_memory(const struct tensor *t) {
    const struct buffer *buffer = t ? abi_base(t)->buffer : NULL;
    return !buffer || (buffer->type->calls.is_host && buffer->type->calls.is_host(buffer->type));
}

static bool takes_attention(const struct tensor *node) {
    struct wide_attention shape;
    return most_rows && !newborn && in_host_memory(node->src[1]) && in_host_memory(node->src[2])
           && in_host_memory(node->src[4]) && describe_attention(node, &shape) && wide_can_attend(&shape);
}

/* Routers, gates and the matrices of attention with latents have no packed form, whatever their format. They are small beside
 * the others, so they are ours in prompts, too. */
static bool is_small(const struct tensor *weight) {
    return weight->type == WIDE_F32 || weight->type == WIDE_F16 || weight->type == WIDE_BF16 || weight->ne[2] > 1
           || weight->ne[1] % WIDE_TILE;
}

static bool takes_dots(const struct tensor *node) {
    const struct tensor *weight = node->src[0];
    const struct buffer *buffer = abi_base(weight)->buffer;
    const struct weight *w = weight_of(weight);
    const bool loads = buffer && !buffer->size && buffer->type == &wide_buffer_type; /* asks whether it is to lie with us */
    struct wide_dots shape;
    if (!most_rows || loads || (w && atomic_load(&w->state) != WEIGHT_LEFT) || !in_host_memory(weight)
        || !describe_dots(node, &shape)) {
        return false;
    }
    const bool is_weight = buffer && buffer->usage == USAGE_WEIGHTS, is_result = !buffer && weight->type == WIDE_F32;
    const int64_t heads = is_weight ? 1 : shape.inputs[0], rows = shape.width * shape.inputs[0] * shape.inputs[1] / heads;
    return is_result || (is_weight && is_small(weight)) || rows <= most_rows;
}

/* Another operation reads the weights among its inputs: they must lie in ggml's layout from now on. */
static void leave_inputs(const struct tensor *node) {
    for (int i = 0; i < 10; i++) {
        const struct weight *w = node->src[i] ? weight_of(node->src[i]) : NULL;
        if (w && atomic_load(&w->state) != WEIGHT_LEFT) {
            weight_leave(node->src[i]);
        }
    }
}

static bool supports_op(struct device *device, const struct tensor *node) {
    (void)device;
    const bool takes = node->op == OP_MUL_MAT ? takes_product(node) || takes_dots(node)
                       : node->op == OP_FLASH_ATTN_EXT ? takes_attention(node)
                       : node->op == OP_NONE || node->op == OP_VIEW || node->op == OP_RESHAPE || node->op == OP_PERMUTE
                             || node->op == OP_TRANSPOSE;
    if (!takes || (node->view_src && node->op != OP_NONE)) {
        leave_inputs(node);
    } else if (node->op == OP_MUL_MAT && weight_of(node->src[1])) {
        leave_inputs(&(struct tensor){.src = {node->src[1]}});
    }
    return takes;
}

static bool supports_buft(struct device *device, struct buffer_type *type) {
    (void)device;
    return type == &wide_buffer_type || (type->calls.is_host && type->calls.is_host(type));
}

/* -- a backend ------------------------------------------------------------------------------------------------------- */

static const char *name = "wide";

static const char *backend_name(struct backend *backend) {
    (void)backend;
    return name;
}

static void no_longer_newborn(const struct backend *backend) { newborn = newborn == backend ? NULL : newborn; }

static void backend_free(struct backend *backend) {
    no_longer_newborn(backend);
    team_free(backend->context);
    free(backend);
}

static void synchronize(struct backend *backend) { no_longer_newborn(backend); }

static int graph_compute(struct backend *backend, struct graph *graph) {
    no_longer_newborn(backend);
    return team_compute(backend->context, graph);
}

static void set_n_threads(struct backend *backend, int threads) {
    ((struct team *)backend->context)->threads = threads < 1 ? 1 : threads > 512 ? 512 : threads;
}

static struct backend *init_backend(struct device *device, const char *params) {
    static uint8_t guid[16] = {0x6c, 0x73, 0x77, 0x1d, 0x52, 0x0b, 0x4e, 0x9a, 0x83, 0xf7, 0x21, 0xc6, 0x5e, 0xd0, 0x48, 0xb3};
    (void)params;
    struct backend *backend = calloc(1, sizeof *backend);
    struct team *team = calloc(1, sizeof *team);
    if (!backend || !team) {
        free(backend);
        free(team);
        return NULL;
    }
    team->threads = 1;
    *backend = (struct backend){
        .guid = &guid, .device = device, .context = team,
        .calls = {.get_name = backend_name, .free = backend_free, .synchronize = synchronize, .graph_compute = graph_compute}};
    newborn = backend;
    newest = ++contexts;
    return backend;
}

/* -- the device ------------------------------------------------------------------------------------------------------ */

static const char *device_name(struct device *device) {
    (void)device;
    return name;
}

static const char *device_description(struct device *device) {
    (void)device;
    return lsw_isa_name();
}

static void device_memory(struct device *device, size_t *unused, size_t *total) {
    (void)device;
    *unused = *total = 0; /* the CPU device reports it */
}

static int device_type(struct device *device) {
    (void)device;
    return DEVICE_ACCEL;
}

static void device_props(struct device *device, struct device_props *props) {
    *props = (struct device_props){.name = name, .description = device_description(device), .type = DEVICE_ACCEL};
}

/* While a context is made, we name the CPU's memory for results. The scheduler then gives us each of the CPU's nodes that we
 * take. Else it gives attention to the backend of the node after it. */
static struct buffer_type *device_buffer_type(struct device *device) {
    (void)device;
    return newborn ? ggml.cpu_buffer_type() : &wide_buffer_type;
}

static struct registry registry;
static struct device device = {
    .calls = {.get_name = device_name, .get_description = device_description, .get_memory = device_memory,
              .get_type = device_type, .get_props = device_props, .init_backend = init_backend,
              .get_buffer_type = device_buffer_type, .supports_op = supports_op, .supports_buft = supports_buft},
    .registry = &registry};

/* -- the registry ---------------------------------------------------------------------------------------------------- */

static const char *registry_name(struct registry *r) {
    (void)r;
    return name;
}

static size_t device_count(struct registry *r) {
    (void)r;
    return 1;
}

static struct device *get_device(struct registry *r, size_t index) {
    (void)r;
    return index == 0 ? &device : NULL;
}

static void *get_proc_address(struct registry *r, const char *function) {
    (void)r;
    void (*const found)(struct backend *, int) = strcmp(function, "ggml_backend_set_n_threads") == 0 ? set_n_threads : NULL;
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

static struct registry registry = {
    .api_version = ABI_VERSION,
    .calls = {.get_name = registry_name, .get_device_count = device_count, .get_device = get_device,
              .get_proc_address = get_proc_address}};

static const char *refusal = "";

const char *lsw_refusal(void) { return refusal; }

LSW_API int ggml_backend_score(void);
LSW_API struct registry *ggml_backend_init(void);

int ggml_backend_score(void) { return 1 + (int)wide_best_isa(); }

/* ggml prints one line and goes on without us if this is NULL. */
struct registry *ggml_backend_init(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    wide_buffer_type.device = &device;
    const char *why = abi_bind(__builtin_return_address(0), &registry);
    refusal = why ? why : "";
    if (!why) {
        give_zero_pages(ggml.cpu_buffer_type());
    }
    pthread_mutex_unlock(&once);
    return why ? NULL : &registry;
}
