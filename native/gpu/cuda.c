/* The kernel on a GPU of NVIDIA: its driver's library is looked for when a GPU is opened, and is all that is needed.
 *
 * Everything happens in the device's primary context, which is llama.cpp's, on a stream of our own: the caller has waited
 * for the pass whose logits are read. A call uploads one block, launches, downloads one block and waits once. All arrays
 * are of 4-byte words; in the device's block and in the host's they follow one another in the same order. */
#include "device.h"
#include "driver.h"
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

typedef struct cuda_gpu {
    ls_gpu base;
    cuda_driver cuda;
    int32_t device;
    void *context; /* NULL until it is retained. */
    void *module, *stream, *tops, *limit, *list;
    cuda_address block; /* Of the device, 0 = none. */
    uint32_t *staging;  /* Of the host, pinned, NULL = none. */
    size_t block_words, staging_words;
} cuda_gpu;

/* The library's function, NULL if it has none. */
static void *function_of(void *library, const char *name) {
#if defined(_WIN32)
    const FARPROC found = GetProcAddress((HMODULE)library, name);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
#else
    return dlsym(library, name);
#endif
}

/* The driver's functions. The library is not closed again: it runs threads of its own. */
static int32_t load_driver(cuda_gpu *g, const char *path) {
#if defined(_WIN32) /* not from the current directory */
    void *library = path ? (void *)LoadLibraryA(path) : (void *)LoadLibraryExA(CUDA_LIBRARY, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
#else
    void *library = dlopen(path ? path : CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
#endif
    if (!library) {
        return LS_NO_DEVICE;
    }
    const char *missing = NULL;
    void *found;
#define CUDA_FIND(field, name, arguments)                                                                                   \
    found = function_of(library, #name);                                                                                    \
    missing = found ? missing : #name;                                                                                      \
    memcpy(&g->cuda.field, &found, sizeof found);
    CUDA_FUNCTIONS(CUDA_FIND)
#undef CUDA_FIND
    if (missing) {
        return ls_gpu_say(&g->base, LS_DEVICE_FAILED,
                          "NVIDIA's driver is too old, it has no %s: install one of CUDA %d.%d or newer.", missing,
                          CUDA_OLDEST_DRIVER / 1000, CUDA_OLDEST_DRIVER % 1000 / 10);
    }
    return LS_OK;
}

/* Notes what failed, in a sentence. */
static int32_t fail(cuda_gpu *g, const char *what, int32_t error) {
    const char *text = NULL;
    if (g->cuda.error_text(error, &text) || !text) {
        text = "unknown";
    }
    g->base.lost = g->base.lost || error != CUDA_OUT_OF_MEMORY;
    return ls_gpu_say(&g->base, error == CUDA_OUT_OF_MEMORY ? LS_NO_MEMORY : LS_DEVICE_FAILED,
                      "CUDA device %d: %s failed with error %d (%s).", g->base.ordinal, what, error, text);
}

static int32_t refuse(cuda_gpu *g, const char *why) {
    return ls_gpu_say(&g->base, LS_BAD_ARGUMENT, "CUDA device %d: %s.", g->base.ordinal, why);
}

#define TRY(what, call)                                                                                                     \
    do {                                                                                                                    \
        const int32_t error_ = (call);                                                                                      \
        if (error_) {                                                                                                       \
            return fail(g, what, error_);                                                                                   \
        }                                                                                                                   \
    } while (0)

static int32_t enter(cuda_gpu *g) {
    TRY("using its context", g->cuda.context_push(g->context));
    return LS_OK;
}

/* Leaves the context. After a failure nothing may be under way that reads or writes our blocks. */
static int32_t leave(cuda_gpu *g, int32_t status) {
    void *context;
    if (status && g->stream) {
        g->cuda.stream_wait(g->stream);
    }
    const int32_t error = g->cuda.context_pop(&context);
    return status ? status : error ? fail(g, "leaving its context", error) : LS_OK;
}

/* Room for so many words in both blocks; what they held is lost. */
static int32_t reserve(cuda_gpu *g, size_t block_words, size_t staging_words) {
    if (block_words > g->block_words) {
        const cuda_address old = g->block;
        g->block = 0;
        g->block_words = 0;
        TRY("giving memory back", old ? g->cuda.release(old) : 0);
        TRY("taking memory", g->cuda.allocate(&g->block, 2 * block_words * LS_WORD));
        g->block_words = 2 * block_words;
    }
    if (staging_words > g->staging_words) {
        void *old = g->staging, *grown = NULL;
        g->staging = NULL;
        g->staging_words = 0;
        TRY("giving pinned memory back", old ? g->cuda.host_release(old) : 0);
        TRY("taking pinned memory", g->cuda.host_allocate(&grown, 2 * staging_words * LS_WORD));
        g->staging = grown;
        g->staging_words = 2 * staging_words;
    }
    return LS_OK;
}

static int32_t launch(cuda_gpu *g, const char *what, void *function, uint32_t grid_x, uint32_t grid_y, void **arguments) {
    TRY(what, g->cuda.launch(function, grid_x, grid_y, 1, LS_THREADS, 1, 1, 0, g->stream, arguments, NULL));
    return LS_OK;
}

/* Is `bytes` from `address` on memory of this device? */
static int32_t check_address(cuda_gpu *g, cuda_address address, uint64_t bytes) {
    int32_t type = 0, ordinal = -1;
    cuda_address base = 0;
    size_t size = 0;
    int32_t error = g->cuda.pointer_attribute(&type, CUDA_MEMORY_TYPE, address);
    error = error ? error : g->cuda.pointer_attribute(&ordinal, CUDA_DEVICE_ORDINAL, address);
    if (error == CUDA_INVALID_VALUE || (!error && (type != CUDA_DEVICE_MEMORY || ordinal != g->base.ordinal))) {
        return refuse(g, "the logits are not in its memory");
    }
    TRY("looking at an address", error);
    TRY("looking at an address", g->cuda.address_range(&base, &size, address));
    if (address < base || address - base + bytes > size) {
        return refuse(g, "the logits are longer than the memory they are in");
    }
    return LS_OK;
}

/* Launches the three kernels on what stands in the block. */
static int32_t preselect(cuda_gpu *g, cuda_address logits, uint32_t rows, const uint32_t *request, const ls_list_places *p) {
    uint32_t room = LS_LIST_ROOM;
    const uint32_t stripes = (request[LS_REQUEST_VOCAB] + LS_STRIPE - 1) / LS_STRIPE;
    const uint32_t across = (stripes + LS_THREADS - 1) / LS_THREADS;
    cuda_address asked = g->block, positions = asked + p->positions * LS_WORD, patched = asked + p->patched * LS_WORD;
    cuda_address found = asked + p->found * LS_WORD, tokens = asked + p->tokens * LS_WORD;
    cuda_address values = asked + p->values * LS_WORD, limits = asked + p->limits * LS_WORD;
    cuda_address tops = asked + p->tops * LS_WORD;
    void *of_tops[] = {&logits, &asked, &positions, &tops}, *of_limit[] = {&asked, &tops, &limits, &found};
    void *of_list[] = {&room, &logits, &asked, &positions, &patched, &tops, &limits, &found, &tokens, &values};
    int32_t status = launch(g, "finding the best logits", g->tops, across, rows, of_tops);
    status = status ? status : launch(g, "finding the limit", g->limit, rows, 1, of_limit);
    return status ? status : launch(g, "listing logits", g->list, across, rows, of_list);
}

/* Lists in the context. */
static int32_t lists(cuda_gpu *g, cuda_address logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    const ls_list_places p = ls_places_of(rows, request[LS_REQUEST_VOCAB], request[LS_REQUEST_PATCHED]);
    int32_t status = reserve(g, p.end, p.limits);
    if (status) {
        return status;
    }
    memcpy(g->staging, request, LS_REQUEST_WORDS * LS_WORD);
    memcpy(g->staging + p.positions, positions, rows * LS_WORD);
    if (request[LS_REQUEST_PATCHED]) {
        memcpy(g->staging + p.patched, patched, request[LS_REQUEST_PATCHED] * LS_WORD);
    }
    TRY("copying a request", g->cuda.upload(g->block, g->staging, p.found * LS_WORD, g->stream));
    status = preselect(g, logits, rows, request, &p);
    if (status) {
        return status;
    }
    const size_t bytes = (p.limits - p.found) * LS_WORD;
    TRY("copying lists", g->cuda.download(g->staging + p.found, g->block + p.found * LS_WORD, bytes, g->stream));
    TRY("preselection", g->cuda.stream_wait(g->stream));
    ls_take_lists(g->staging + p.found, rows, found, tokens, values);
    return LS_OK;
}

static int32_t cuda_lists(ls_gpu *gpu, uint64_t logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                          const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    cuda_gpu *g = (cuda_gpu *)gpu;
    int32_t status = enter(g);
    if (status) {
        return status;
    }
    status = check_address(g, logits, (uint64_t)rows * request[LS_REQUEST_VOCAB] * LS_WORD);
    return leave(g, status ? status : lists(g, logits, rows, request, patched, positions, found, tokens, values));
}

static int32_t place(cuda_gpu *g, const float *logits, size_t bytes, cuda_address *address) {
    cuda_address copy = 0;
    TRY("taking memory", g->cuda.allocate(&copy, bytes));
    int32_t error = g->cuda.upload(copy, logits, bytes, g->stream);
    error = error ? error : g->cuda.stream_wait(g->stream);
    if (error) {
        g->cuda.release(copy);
        return fail(g, "copying logits", error);
    }
    *address = copy;
    return LS_OK;
}

static int32_t cuda_place(ls_gpu *gpu, const float *logits, size_t bytes, uint64_t *address) {
    cuda_gpu *g = (cuda_gpu *)gpu;
    const int32_t status = enter(g);
    return status ? status : leave(g, place(g, logits, bytes, address));
}

static int32_t cuda_give_back(ls_gpu *gpu, uint64_t address) {
    cuda_gpu *g = (cuda_gpu *)gpu;
    const int32_t status = enter(g);
    if (status) {
        return status;
    }
    const int32_t error = g->cuda.release(address);
    return leave(g, error ? fail(g, "giving memory back", error) : LS_OK);
}

/* The driver, and a device that the kernel is for. */
static int32_t find_device(cuda_gpu *g) {
    int32_t version = 0, count = 0, major = 0, minor = 0;
    TRY("starting the driver", g->cuda.init(0));
    TRY("asking for the driver's version", g->cuda.version(&version));
    if (version < CUDA_OLDEST_DRIVER) {
        return ls_gpu_say(&g->base, LS_DEVICE_FAILED,
                          "NVIDIA's driver is too old, it is of CUDA %d.%d: install one of CUDA %d.%d or newer.",
                          version / 1000, version % 1000 / 10, CUDA_OLDEST_DRIVER / 1000, CUDA_OLDEST_DRIVER % 1000 / 10);
    }
    TRY("counting devices", g->cuda.device_count(&count));
    if (g->base.ordinal < 0 || g->base.ordinal >= count) {
        return ls_gpu_say(&g->base, LS_NO_DEVICE, "There is no CUDA device %d; the driver has %d.", g->base.ordinal, count);
    }
    TRY("finding it", g->cuda.device_get(&g->device, g->base.ordinal));
    TRY("asking what it can do", g->cuda.device_attribute(&major, CUDA_CAPABILITY_MAJOR, g->device));
    TRY("asking what it can do", g->cuda.device_attribute(&minor, CUDA_CAPABILITY_MINOR, g->device));
    if (10 * major + minor < CUDA_OLDEST_GPU) {
        return ls_gpu_say(&g->base, LS_DEVICE_FAILED,
                          "CUDA device %d has compute capability %d.%d; localspec's kernel needs %d.%d.", g->base.ordinal, major,
                          minor, CUDA_OLDEST_GPU / 10, CUDA_OLDEST_GPU % 10);
    }
    return LS_OK;
}

/* The kernel in the context. */
static int32_t load_kernel(cuda_gpu *g) {
    TRY("compiling the kernel", g->cuda.module_load(&g->module, ls_ptx, 0, NULL, NULL));
    TRY("finding the kernel", g->cuda.module_function(&g->tops, g->module, "ls_tops"));
    TRY("finding the kernel", g->cuda.module_function(&g->limit, g->module, "ls_limit"));
    TRY("finding the kernel", g->cuda.module_function(&g->list, g->module, "ls_list"));
    TRY("making a stream", g->cuda.stream_create(&g->stream, CUDA_STREAM_NON_BLOCKING));
    return LS_OK;
}

static void cuda_close(ls_gpu *gpu) {
    cuda_gpu *g = (cuda_gpu *)gpu;
    void *context;
    if (g->context && !g->cuda.context_push(g->context)) {
        if (g->stream) {
            g->cuda.stream_wait(g->stream);
            g->cuda.stream_destroy(g->stream);
        }
        if (g->block) {
            g->cuda.release(g->block);
        }
        if (g->staging) {
            g->cuda.host_release(g->staging);
        }
        if (g->module) {
            g->cuda.module_unload(g->module);
        }
        g->cuda.context_pop(&context);
    }
    if (g->context) {
        g->cuda.context_release(g->device);
    }
    free(g);
}

int32_t ls_cuda_open(const char *library, int32_t ordinal, ls_gpu **out) {
    static const ls_gpu_kind kind = {"CUDA", cuda_close, cuda_lists, cuda_place, cuda_give_back};
    cuda_gpu *g = (cuda_gpu *)calloc(1, sizeof *g);
    if (!g) {
        return LS_NO_MEMORY;
    }
    g->base.kind = &kind;
    g->base.ordinal = ordinal;
    *out = &g->base;
    int32_t status = load_driver(g, library);
    status = status ? status : find_device(g);
    if (status) {
        return status;
    }
    TRY("using its context", g->cuda.context_retain(&g->context, g->device));
    status = enter(g);
    return status ? status : leave(g, load_kernel(g));
}
