/* The structs and functions of ggml that we meet, declared by us for one version of its backend interface. Nothing of
 * ggml is linked: its functions are looked up in the ggml that loads us, and `abi_bind` tries the layout out before
 * anything depends on it. Names are ggml's without the prefix. */
#ifndef LOCALSPEC_WIDE_ABI_H
#define LOCALSPEC_WIDE_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ABI_VERSION = 2 }; /* GGML_BACKEND_API_VERSION */

/* enum ggml_op, as far as we look at it. */
enum { OP_NONE = 0, OP_MUL_MAT = 29, OP_RESHAPE = 36, OP_VIEW = 37, OP_PERMUTE = 38, OP_TRANSPOSE = 39, OP_GET_ROWS = 40,
       OP_FLASH_ATTN_EXT = 74 };
enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_I32 = 26 };
enum { STATUS_OK = 0, STATUS_FAILED = -1, STATUS_NO_MEMORY = -2 };
enum { USAGE_ANY = 0, USAGE_WEIGHTS = 1, USAGE_COMPUTE = 2 };
enum { DEVICE_CPU = 0, DEVICE_ACCEL = 3 };
enum { FLAG_COMPUTE = 16 }; /* without it a node of a graph is not to be computed */

struct buffer;
struct tensor {
    int type;
    struct buffer *buffer;
    int64_t ne[4];                        /* elements, innermost dimension first */
    size_t nb[4];                         /* strides in bytes */
    int op;
    int32_t op_params[16];
    int32_t flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    void *data;
    char name[64];
    void *extra;
    char padding[8];
};

struct device;
struct buffer_type;
struct buffer_type_calls {
    const char *(*get_name)(struct buffer_type *);
    struct buffer *(*alloc_buffer)(struct buffer_type *, size_t size);
    size_t (*get_alignment)(struct buffer_type *);
    size_t (*get_max_size)(struct buffer_type *);
    size_t (*get_alloc_size)(struct buffer_type *, const struct tensor *);
    bool (*is_host)(struct buffer_type *);
};
struct buffer_type {
    struct buffer_type_calls calls;
    struct device *device;
    void *context;
};

struct buffer_calls {
    void (*free_buffer)(struct buffer *);
    void *(*get_base)(struct buffer *);
    int (*init_tensor)(struct buffer *, struct tensor *);
    void (*memset_tensor)(struct buffer *, struct tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(struct buffer *, struct tensor *, const void *data, size_t offset, size_t size);
    void (*get_tensor)(struct buffer *, const struct tensor *, void *data, size_t offset, size_t size);
    void (*set_tensor_2d)(void);          /* we leave these two out */
    void (*get_tensor_2d)(void);
    bool (*cpy_tensor)(struct buffer *, const struct tensor *from, struct tensor *to);
    void (*clear)(struct buffer *, uint8_t value);
    void (*reset)(struct buffer *);
};
struct buffer {
    struct buffer_calls calls;
    struct buffer_type *type;
    void *context;
    size_t size;
    int usage;
};

struct backend;
struct graph;
struct backend_calls {
    const char *(*get_name)(struct backend *);
    void (*free)(struct backend *);
    void (*left_out[5])(void);            /* asynchronous set, get (also 2-D) and copy */
    void (*synchronize)(struct backend *);
    void (*plans[4])(void);
    int (*graph_compute)(struct backend *, struct graph *);
    void (*events[2])(void);
    void (*graph_optimize)(void);
};
struct backend {
    uint8_t (*guid)[16];
    struct backend_calls calls;
    struct device *device;
    void *context;
};

struct device_caps { bool async, host_buffer, buffer_from_host_ptr, events, mmap_support; };
struct device_props {
    const char *name, *description;
    size_t memory_free, memory_total;
    int type;
    const char *device_id;
    struct device_caps caps;
};
struct device_calls {
    const char *(*get_name)(struct device *);
    const char *(*get_description)(struct device *);
    void (*get_memory)(struct device *, size_t *free, size_t *total);
    int (*get_type)(struct device *);
    void (*get_props)(struct device *, struct device_props *);
    struct backend *(*init_backend)(struct device *, const char *params);
    struct buffer_type *(*get_buffer_type)(struct device *);
    struct buffer_type *(*get_host_buffer_type)(struct device *);
    struct buffer *(*buffer_from_host_ptr)(struct device *, void *, size_t size, size_t max_tensor_size);
    bool (*supports_op)(struct device *, const struct tensor *op);
    bool (*supports_buft)(struct device *, struct buffer_type *);
    bool (*offload_op)(struct device *, const struct tensor *op);
    void (*events[3])(void);
};
struct registry;
struct device {
    struct device_calls calls;
    struct registry *registry;
    void *context;
};

struct registry_calls {
    const char *(*get_name)(struct registry *);
    size_t (*get_device_count)(struct registry *);
    struct device *(*get_device)(struct registry *, size_t index);
    void *(*get_proc_address)(struct registry *, const char *name);
};
struct registry {
    int api_version;
    struct registry_calls calls;
    void *context;
};

/* How ggml's CPU backend multiplies rows of a type. */
struct cpu_traits {
    void (*from_float)(const float *, void *, int64_t count);
    void (*vec_dot)(int count, float *out, size_t, const void *row, size_t, const void *other, size_t, int rows);
    int vec_dot_type;                     /* of the other row */
    int64_t nrows;
};

/* How ggml stores a type. */
struct type_traits {
    const char *name;
    int64_t values, interleaved;          /* of a block */
    size_t bytes;
    bool is_quantised;
    void (*to_float)(const void *blocks, float *values, int64_t count);
};

/* What we call while running. */
struct ggml {
    const struct cpu_traits *(*cpu_traits)(int type);
    struct buffer *(*buffer_init)(struct buffer_type *, struct buffer_calls, void *context, size_t size);
    struct buffer_type *(*cpu_buffer_type)(void);
    int (*graph_n_nodes)(struct graph *);
    struct tensor **(*graph_nodes)(struct graph *);
    size_t (*type_size)(int type);        /* bytes of a block */
    int64_t (*block_size)(int type);      /* values in it */
};
extern struct ggml ggml;

/* Looks ggml's functions up (`caller` is an address inside of the library that loads us) and tries the layout out.
 * Returns NULL, or why this ggml is not one we can work with: a sentence that stays valid. */
const char *abi_bind(void *caller, struct registry *ours);

/* Whether `t` lies in memory without gaps, innermost dimension first. */
bool abi_is_contiguous(const struct tensor *t);
/* Whether the values of a row lie side by side. */
static inline bool abi_is_dense(const struct tensor *t) { return t->nb[0] == ggml.type_size(t->type); }
static inline const struct tensor *abi_base(const struct tensor *t) { return t->view_src ? t->view_src : t; }

#endif
