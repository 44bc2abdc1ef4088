/* Finds the ggml that loads us and tries out whether it is laid out as abi.h says. */
#define _GNU_SOURCE
#include "abi.h"
#include "localspec_wide.h"
#include "wide.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct ggml ggml;
static char refusal[256];

struct init { size_t size; void *memory; bool no_alloc; };

/* What the checks call besides. */
static struct {
    const char *(*version)(void), *(*op_name)(int), *(*type_name)(int);
    const struct type_traits *(*type_traits)(int);
    size_t (*tensor_overhead)(void), (*graph_overhead)(void);
    void *(*init)(struct init);
    void (*free)(void *context);
    struct tensor *(*new_tensor)(void *context, int type, int64_t ne0, int64_t ne1);
    struct tensor *(*set_name)(struct tensor *, const char *);
    struct tensor *(*mul_mat)(void *context, struct tensor *, struct tensor *);
    struct tensor *(*view)(void *context, struct tensor *, int64_t ne0, size_t offset);
    struct tensor *(*attention)(void *context, struct tensor *q, struct tensor *k, struct tensor *v, struct tensor *mask,
                                float scale, float max_bias, float soft_cap);
    struct graph *(*new_graph)(void *context);
    void (*expand)(struct graph *, struct tensor *);
    size_t (*buffer_size)(struct buffer *);
    int (*buffer_usage)(struct buffer *);
    void (*buffer_free)(struct buffer *);
    struct device *(*type_device)(struct buffer_type *);
    struct registry *(*device_registry)(struct device *);
    struct device *(*backend_device)(struct backend *);
    const char *(*registry_name)(struct registry *), *(*device_name)(struct device *);
    struct device *(*registry_device)(struct registry *, size_t);
    void (*device_props)(struct device *, struct device_props *);
} gg;

static const struct { const char *name; void *at; } functions[] = {
    {"ggml_backend_buffer_init", &ggml.buffer_init},
    {"ggml_backend_cpu_buffer_type", &ggml.cpu_buffer_type},
    {"ggml_graph_n_nodes", &ggml.graph_n_nodes},
    {"ggml_graph_nodes", &ggml.graph_nodes},
    {"ggml_version", &gg.version},
    {"ggml_op_name", &gg.op_name},
    {"ggml_type_name", &gg.type_name},
    {"ggml_get_type_traits", &gg.type_traits},
    {"ggml_tensor_overhead", &gg.tensor_overhead},
    {"ggml_graph_overhead", &gg.graph_overhead},
    {"ggml_type_size", &ggml.type_size},
    {"ggml_blck_size", &ggml.block_size},
    {"ggml_init", &gg.init},
    {"ggml_free", &gg.free},
    {"ggml_new_tensor_2d", &gg.new_tensor},
    {"ggml_set_name", &gg.set_name},
    {"ggml_mul_mat", &gg.mul_mat},
    {"ggml_view_1d", &gg.view},
    {"ggml_flash_attn_ext", &gg.attention},
    {"ggml_new_graph", &gg.new_graph},
    {"ggml_build_forward_expand", &gg.expand},
    {"ggml_backend_buffer_get_size", &gg.buffer_size},
    {"ggml_backend_buffer_get_usage", &gg.buffer_usage},
    {"ggml_backend_buffer_free", &gg.buffer_free},
    {"ggml_backend_buft_get_device", &gg.type_device},
    {"ggml_backend_dev_backend_reg", &gg.device_registry},
    {"ggml_backend_get_device", &gg.backend_device},
    {"ggml_backend_reg_name", &gg.registry_name},
    {"ggml_backend_dev_name", &gg.device_name},
    {"ggml_backend_reg_dev_get", &gg.registry_device},
    {"ggml_backend_dev_get_props", &gg.device_props},
};

/* Handles stay open: these libraries live as long as the process. */
static void *library_at(void *address) {
    Dl_info found;
    return dladdr(address, &found) && found.dli_fname ? dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}
static void *library_named(const char *name) { return dlopen(name, RTLD_LAZY | RTLD_NOLOAD); }
static void *function_in(void *library, const char *name) { return dlsym(library, name); }
#if defined(__APPLE__)
static const char *const names[] = {NULL, "@rpath/libggml.0.dylib", "libggml.0.dylib", "libggml.dylib"};
#else
static const char *const names[] = {NULL, "libggml.so.0", "libggml.so"}; /* NULL: the program itself */
#endif

/* The copy that loads us is the one that counts: a process may hold several. Looking a function up in a library searches
 * what that is linked with too. */
static void *find_ggml(void *caller) {
    void *library = library_at(caller);
    for (size_t i = 0; !(library && function_in(library, functions[0].name)); i++) {
        if (i == sizeof names / sizeof names[0]) {
            return NULL;
        }
        library = library_named(names[i]);
    }
    return library;
}

/* ggml's CPU backend is a library of its own, one of several modules in some builds: its registry points into it. */
static void *find_cpu_traits(void *library) {
    struct registry *(*by_name)(const char *) = NULL, *cpu;
    void *found = function_in(library, "ggml_backend_reg_by_name"), *inside;
    memcpy(&by_name, &found, sizeof found);
    cpu = by_name ? by_name("CPU") : NULL;
    if (!cpu) {
        return NULL;
    }
    memcpy(&inside, &cpu->calls.get_name, sizeof inside);
    library = library_at(inside);
    return library ? function_in(library, "ggml_get_type_traits_cpu") : NULL;
}

/* Whether the CPU backend's table is laid out as we declare it. */
static bool traits_match(void) {
    const struct cpu_traits *f32 = ggml.cpu_traits(WIDE_F32), *q8_0 = ggml.cpu_traits(WIDE_Q8_0);
    const float numbers[4] = {1, 2, 3, 4};
    float sum = 0;
    if (!f32 || !q8_0 || f32->vec_dot_type != WIDE_F32 || q8_0->vec_dot_type != WIDE_Q8_0 || f32->nrows != 1
        || ggml.cpu_traits(WIDE_Q4_0)->vec_dot_type != WIDE_Q8_0 || !q8_0->from_float) {
        return false;
    }
    f32->vec_dot(4, &sum, 0, numbers, 0, numbers, 0, 1);
    return sum == 30.0f;
}

static size_t row_bytes(int type, int64_t columns) {
    return ggml.type_size(type) * (size_t)(columns / ggml.block_size(type));
}

bool abi_is_contiguous(const struct tensor *t) {
    return abi_is_dense(t) && t->nb[1] == row_bytes(t->type, t->ne[0]) && t->nb[2] == t->nb[1] * (size_t)t->ne[1]
           && t->nb[3] == t->nb[2] * (size_t)t->ne[2];
}

/* -- trying out ------------------------------------------------------------------------------------------------------ */

static bool numbers_match(void) {
    static const struct { int number; const char *name; } ops[] = {
        {OP_NONE, "NONE"}, {OP_MUL_MAT, "MUL_MAT"}, {OP_RESHAPE, "RESHAPE"}, {OP_VIEW, "VIEW"}, {OP_PERMUTE, "PERMUTE"},
        {OP_TRANSPOSE, "TRANSPOSE"}, {OP_GET_ROWS, "GET_ROWS"}, {OP_FLASH_ATTN_EXT, "FLASH_ATTN_EXT"}};
    static const struct { int number; const char *name; } types[] = {
        {WIDE_F32, "f32"}, {WIDE_F16, "f16"}, {WIDE_Q4_0, "q4_0"}, {WIDE_Q8_0, "q8_0"}, {WIDE_Q4_K, "q4_K"},
        {WIDE_Q5_K, "q5_K"}, {WIDE_Q6_K, "q6_K"}, {WIDE_IQ4_NL, "iq4_nl"}, {WIDE_BF16, "bf16"}, {TYPE_I32, "i32"},
        {WIDE_Q4_1, "q4_1"}, {WIDE_Q5_0, "q5_0"}, {WIDE_Q5_1, "q5_1"}, {WIDE_Q2_K, "q2_K"}, {WIDE_Q3_K, "q3_K"},
        {WIDE_IQ4_XS, "iq4_xs"}, {WIDE_TQ2_0, "tq2_0"}, {WIDE_MXFP4, "mxfp4"}, {WIDE_IQ2_XXS, "iq2_xxs"},
        {WIDE_IQ2_XS, "iq2_xs"}, {WIDE_IQ2_S, "iq2_s"}, {WIDE_IQ3_XXS, "iq3_xxs"}, {WIDE_IQ3_S, "iq3_s"}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (strcmp(gg.op_name(ops[i].number), ops[i].name) != 0) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const int type = types[i].number;
        if (strcmp(gg.type_name(type), types[i].name) != 0) {
            return false;
        }
        const size_t ours = wide_row_bytes(type, 256);
        if (ours && ours != row_bytes(type, 256)) {
            return false;
        }
    }
    return true;
}

static bool product_matches(void *context) {
    struct tensor *weight = gg.new_tensor(context, WIDE_Q8_0, 64, 48), *input = gg.new_tensor(context, TYPE_F32, 64, 3);
    gg.set_name(weight, "wide");
    struct tensor *product = gg.mul_mat(context, weight, input), *view = gg.view(context, input, 4, 16);
    const bool shapes = weight->type == WIDE_Q8_0 && weight->ne[0] == 64 && weight->ne[1] == 48 && weight->ne[3] == 1
                        && weight->nb[0] == 34 && weight->nb[1] == 68 && weight->nb[2] == 68 * 48 && weight->op == OP_NONE;
    const bool links = product->op == OP_MUL_MAT && product->type == TYPE_F32 && product->src[0] == weight
                       && product->src[1] == input && !product->src[2] && !product->view_src && product->ne[0] == 48
                       && product->ne[1] == 3 && view->op == OP_VIEW && view->view_src == input && view->view_offs == 16;
    const bool rest = strcmp(weight->name, "wide") == 0 && !weight->buffer && !weight->data && !weight->extra;
    struct graph *graph = gg.new_graph(context);
    gg.expand(graph, product);
    return shapes && links && rest && ggml.graph_n_nodes(graph) == 1 && ggml.graph_nodes(graph)[0] == product
           && (product->flags & FLAG_COMPUTE);
}

static bool attention_matches(void *context) {
    struct tensor *q = gg.new_tensor(context, TYPE_F32, 64, 2), *k = gg.new_tensor(context, TYPE_F16, 64, 32);
    struct tensor *v = gg.new_tensor(context, TYPE_F16, 96, 32), *mask = gg.new_tensor(context, TYPE_F16, 32, 2);
    const struct tensor *out = gg.attention(context, q, k, v, mask, 0.5f, 0.25f, 30.0f);
    float given[3];
    memcpy(given, out->op_params, sizeof given);
    return out->op == OP_FLASH_ATTN_EXT && out->src[0] == q && out->src[1] == k && out->src[2] == v && out->src[3] == mask
           && !out->src[4] && given[0] == 0.5f && given[1] == 0.25f && given[2] == 30.0f && out->op_params[3] == 0
           && out->ne[0] == 96 && out->ne[1] == 1 && out->ne[2] == 2;
}

static bool tensors_match(void) {
    if (gg.tensor_overhead() != sizeof(struct tensor) + 32) { /* and the header of an object */
        return false;
    }
    void *context = gg.init((struct init){16 * gg.tensor_overhead() + gg.graph_overhead(), NULL, true});
    if (!context) {
        return false;
    }
    const bool match = product_matches(context) && attention_matches(context);
    gg.free(context);
    return match;
}

static bool interfaces_match(struct registry *ours) {
    struct device *device = ours->calls.get_device(ours, 0);
    struct buffer_type *type = device->calls.get_buffer_type(device);
    struct backend backend = {.device = device};
    struct buffer *buffer = ggml.buffer_init(type, (struct buffer_calls){0}, &backend, 77);
    const bool fields = buffer->type == type && buffer->context == &backend && buffer->size == 77
                        && buffer->usage == USAGE_ANY && gg.buffer_size(buffer) == 77;
    buffer->usage = USAGE_WEIGHTS;
    bool match = fields && gg.buffer_usage(buffer) == USAGE_WEIGHTS && gg.type_device(type) == device
                 && gg.device_registry(device) == ours && gg.backend_device(&backend) == device;
    gg.buffer_free(buffer);
    if (match) { /* tables of functions have the right length; now their order may be tried */
        struct device_props props;
        memset(&props, 0xff, sizeof props);
        gg.device_props(device, &props);
        match = strcmp(gg.registry_name(ours), gg.device_name(device)) == 0 && gg.registry_device(ours, 0) == device
                && props.type == DEVICE_ACCEL && !props.caps.buffer_from_host_ptr;
    }
    return match;
}

/* Without a grid its type is not packed. */
static void find_grids(void) {
    static const int types[] = {WIDE_IQ2_XXS, WIDE_IQ2_XS, WIDE_IQ2_S, WIDE_IQ3_XXS, WIDE_IQ3_S};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const struct type_traits *traits = gg.type_traits(types[i]);
        if (traits && traits->name == gg.type_name(types[i]) && traits->values == 256
            && traits->bytes == wide_row_bytes(types[i], 256) && traits->to_float) {
            lsw_find_grid(types[i], traits->to_float);
        }
    }
}

const char *abi_bind(void *caller, struct registry *ours) {
    void *library = find_ggml(caller);
    if (!library) {
        return "There is no ggml in this process whose functions could be found.";
    }
    void *found[sizeof functions / sizeof functions[0]], *bound;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        found[i] = function_in(library, functions[i].name);
        if (!found[i]) {
            snprintf(refusal, sizeof refusal, "The ggml of this process has no %s.", functions[i].name);
            return refusal;
        }
    }
    memcpy(&bound, functions[0].at, sizeof bound);
    if (bound && bound != found[0]) { /* its functions must stay the ones we call */
        return "Another copy of ggml in this process uses it already.";
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        memcpy(functions[i].at, &found[i], sizeof found[i]);
    }
    const char *what = !numbers_match() ? "numbers of its operations or types" : !tensors_match() ? "layout of its tensors"
                       : !interfaces_match(ours) ? "layout of its backend interface" : NULL;
    if (!what) {
        void *traits = find_cpu_traits(library);
        if (!traits) {
            return "The ggml of this process has no CPU backend.";
        }
        memcpy(&ggml.cpu_traits, &traits, sizeof traits);
        what = traits_match() ? NULL : "functions of its CPU backend";
    }
    if (!what) {
        find_grids();
        return NULL;
    }
    snprintf(refusal, sizeof refusal, "The %s in ggml %s are not those that localspec_wide was written for.", what,
             gg.version());
    return refusal;
}
