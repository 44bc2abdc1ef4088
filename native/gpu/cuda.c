/* The kernel on a GPU of NVIDIA: its driver's library is looked for when a GPU is opened, and is all that is needed.
 *
 * Everything happens in the device's primary context, which is llama.cpp's, on a stream of our own: the caller has waited
 * for the pass whose logits are read. A call uploads one block, launches, downloads one block and waits once. All arrays
 * are of 4-byte words; in the device's block and in the host's they follow one another in the same order. */
#include "driver.h"
#include "ptx.h"
#include "self_test.h"

#include <stdio.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#define THREADS 256 /* Of a block. */
#define WORD 4u     /* Bytes. */
#define MOST_ROWS 65535u /* Of a grid. */

struct ls_gpu {
    cuda_driver cuda;
    int32_t ordinal, device;
    bool lost;     /* A call failed; what the device holds is unknown. */
    void *context; /* NULL until it is retained. */
    void *module, *stream, *tops, *limit, *list, *lookup;
    cuda_address block; /* Of the device, 0 = none. */
    uint32_t *staging;  /* Of the host, pinned, NULL = none. */
    size_t block_words, staging_words;
    char reason[LS_REASON_ROOM];
};

/* The library's function, NULL if it has none. */
static void *function_of(void *library, const char *name) {
#if defined(_WIN32)
    return (void *)GetProcAddress((HMODULE)library, name);
#else
    return dlsym(library, name);
#endif
}

/* The driver's functions. The library is not closed again: it runs threads of its own. */
static int32_t load_driver(ls_gpu *g, const char *path) {
    path = path ? path : CUDA_LIBRARY;
#if defined(_WIN32)
    void *library = (void *)LoadLibraryA(path);
#else
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
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
        snprintf(g->reason, sizeof g->reason, "NVIDIA's driver is too old, it has no %s: install one of CUDA %d.%d or newer.",
                 missing, CUDA_OLDEST_DRIVER / 1000, CUDA_OLDEST_DRIVER % 1000 / 10);
        return LS_DEVICE_FAILED;
    }
    return LS_OK;
}

/* Notes what failed, in a sentence. */
static int32_t fail(ls_gpu *g, const char *what, int32_t error) {
    const char *text = NULL;
    if (g->cuda.error_text(error, &text) || !text) {
        text = "unknown";
    }
    g->lost = g->lost || error != CUDA_OUT_OF_MEMORY;
    snprintf(g->reason, sizeof g->reason, "CUDA device %d: %s failed with error %d (%s).", g->ordinal, what, error, text);
    return error == CUDA_OUT_OF_MEMORY ? LS_NO_MEMORY : LS_DEVICE_FAILED;
}

static int32_t refuse(ls_gpu *g, const char *why) {
    snprintf(g->reason, sizeof g->reason, "CUDA device %d: %s.", g->ordinal, why);
    return LS_BAD_ARGUMENT;
}

#define TRY(what, call)                                                                                                     \
    do {                                                                                                                    \
        const int32_t error_ = (call);                                                                                      \
        if (error_) {                                                                                                       \
            return fail(g, what, error_);                                                                                   \
        }                                                                                                                   \
    } while (0)

static int32_t enter(ls_gpu *g) {
    if (g->lost) {
        return LS_DEVICE_FAILED;
    }
    TRY("using its context", g->cuda.context_push(g->context));
    return LS_OK;
}

/* Leaves the context. After a failure nothing may be under way that reads or writes our blocks. */
static int32_t leave(ls_gpu *g, int32_t status) {
    void *context;
    if (status && g->stream) {
        g->cuda.stream_wait(g->stream);
    }
    const int32_t error = g->cuda.context_pop(&context);
    return status ? status : error ? fail(g, "leaving its context", error) : LS_OK;
}

/* Room for so many words in both blocks; what they held is lost. */
static int32_t reserve(ls_gpu *g, size_t block_words, size_t staging_words) {
    if (block_words > g->block_words) {
        const cuda_address old = g->block;
        g->block = 0;
        g->block_words = 0;
        TRY("giving memory back", old ? g->cuda.release(old) : 0);
        TRY("taking memory", g->cuda.allocate(&g->block, 2 * block_words * WORD));
        g->block_words = 2 * block_words;
    }
    if (staging_words > g->staging_words) {
        void *old = g->staging, *grown = NULL;
        g->staging = NULL;
        g->staging_words = 0;
        TRY("giving pinned memory back", old ? g->cuda.host_release(old) : 0);
        TRY("taking pinned memory", g->cuda.host_allocate(&grown, 2 * staging_words * WORD));
        g->staging = grown;
        g->staging_words = 2 * staging_words;
    }
    return LS_OK;
}

static int32_t launch(ls_gpu *g, const char *what, void *function, uint32_t grid_x, uint32_t grid_y, void **arguments) {
    TRY(what, g->cuda.launch(function, grid_x, grid_y, 1, THREADS, 1, 1, 0, g->stream, arguments, NULL));
    return LS_OK;
}

/* Is `bytes` from `address` on memory of this device? */
static int32_t check_address(ls_gpu *g, cuda_address address, uint64_t bytes) {
    int32_t type = 0, ordinal = -1;
    cuda_address base = 0;
    size_t size = 0;
    if (g->cuda.pointer_attribute(&type, CUDA_MEMORY_TYPE, address) || type != CUDA_DEVICE_MEMORY
        || g->cuda.pointer_attribute(&ordinal, CUDA_DEVICE_ORDINAL, address) || ordinal != g->ordinal) {
        return refuse(g, "the logits are not in its memory");
    }
    if (g->cuda.address_range(&base, &size, address) || address < base || address - base + bytes > size) {
        return refuse(g, "the logits are longer than the memory they are in");
    }
    return LS_OK;
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

/* Launches the three kernels on what stands in the block. */
static int32_t preselect(ls_gpu *g, cuda_address logits, uint32_t rows, uint32_t stripes, uint32_t n_patched) {
    uint32_t room = LS_LIST_ROOM;
    const uint32_t across = (stripes + THREADS - 1) / THREADS;
    cuda_address request = g->block, positions = request + LS_REQUEST_WORDS * WORD, patched = positions + rows * WORD;
    cuda_address found = patched + n_patched * WORD, tokens = found + rows * WORD;
    cuda_address values = tokens + (cuda_address)rows * room * WORD, limits = values + (cuda_address)rows * room * WORD;
    cuda_address tops = limits + rows * WORD;
    void *of_tops[] = {&logits, &request, &positions, &tops}, *of_limit[] = {&request, &tops, &limits, &found};
    void *of_list[] = {&room, &logits, &request, &positions, &patched, &tops, &limits, &found, &tokens, &values};
    int32_t status = launch(g, "finding the best logits", g->tops, across, rows, of_tops);
    status = status ? status : launch(g, "finding the limit", g->limit, rows, 1, of_limit);
    return status ? status : launch(g, "listing logits", g->list, across, rows, of_list);
}

/* ls_gpu_lists in the context. */
static int32_t lists(ls_gpu *g, cuda_address logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    const uint32_t n_patched = request[LS_REQUEST_PATCHED], stripes = (request[LS_REQUEST_VOCAB] + LS_STRIPE - 1) / LS_STRIPE;
    const size_t in = LS_REQUEST_WORDS + rows + n_patched, out = rows * (1 + 2 * (size_t)LS_LIST_ROOM);
    const int32_t status = reserve(g, in + out + rows * (1 + (size_t)stripes), in + out);
    if (status) {
        return status;
    }
    memcpy(g->staging, request, LS_REQUEST_WORDS * WORD);
    memcpy(g->staging + LS_REQUEST_WORDS, positions, rows * WORD);
    if (n_patched) {
        memcpy(g->staging + LS_REQUEST_WORDS + rows, patched, n_patched * WORD);
    }
    TRY("copying a request", g->cuda.upload(g->block, g->staging, in * WORD, g->stream));
    const int32_t launched = preselect(g, logits, rows, stripes, n_patched);
    if (launched) {
        return launched;
    }
    uint32_t *answer = g->staging + in;
    TRY("copying lists", g->cuda.download(answer, g->block + in * WORD, out * WORD, g->stream));
    TRY("preselection", g->cuda.stream_wait(g->stream));
    memcpy(found, answer, rows * WORD);
    for (uint32_t row = 0; row < rows; row++) {
        const size_t n = found[row] < LS_LIST_ROOM ? found[row] : LS_LIST_ROOM, at = (size_t)row * LS_LIST_ROOM;
        memcpy(tokens + at, answer + rows + at, n * WORD);
        memcpy(values + at, answer + rows + (size_t)rows * LS_LIST_ROOM + at, n * WORD);
    }
    return LS_OK;
}

/* ls_gpu_lookup in the context. */
static int32_t lookup(ls_gpu *g, const int32_t *history, const uint32_t *starts, uint32_t slots, uint32_t min_ngram,
                      uint32_t max_ngram, uint32_t max_tokens, int32_t *out, int32_t *match) {
    const size_t total = starts[slots], in = slots + 1 + total, guessed = (size_t)slots * max_tokens, answer = slots + guessed;
    const int32_t status = reserve(g, in + answer, in + answer);
    if (status) {
        return status;
    }
    memcpy(g->staging, starts, (slots + 1) * WORD);
    if (total) {
        memcpy(g->staging + slots + 1, history, total * WORD);
    }
    TRY("copying histories", g->cuda.upload(g->block, g->staging, in * WORD, g->stream));
    cuda_address begin = g->block, pool = begin + (slots + 1) * WORD, matched = pool + total * WORD;
    cuda_address followed = matched + slots * WORD;
    void *arguments[] = {&pool, &begin, &min_ngram, &max_ngram, &max_tokens, &followed, &matched};
    const int32_t launched = launch(g, "prompt lookup", g->lookup, slots, 1, arguments);
    if (launched) {
        return launched;
    }
    TRY("copying guesses", g->cuda.download(g->staging + in, matched, answer * WORD, g->stream));
    TRY("prompt lookup", g->cuda.stream_wait(g->stream));
    memcpy(match, g->staging + in, slots * WORD);
    for (uint32_t slot = 0; slot < slots; slot++) {
        if (match[slot] > 0 && max_tokens) {
            const size_t at = (size_t)slot * max_tokens;
            memcpy(out + at, g->staging + in + slots + at, max_tokens * WORD);
        }
    }
    return LS_OK;
}

/* Both for the self-test. */
static int32_t lists_of_host(void *device, const float *logits, uint32_t rows, const uint32_t *request,
                             const int32_t *patched, const uint32_t *positions, uint32_t *found, int32_t *tokens,
                             float *values) {
    ls_gpu *g = (ls_gpu *)device;
    const size_t bytes = (size_t)rows * request[LS_REQUEST_VOCAB] * WORD;
    cuda_address copy = 0;
    TRY("taking memory", g->cuda.allocate(&copy, bytes));
    int32_t error = g->cuda.upload(copy, logits, bytes, g->stream);
    int32_t status = error ? fail(g, "copying logits", error) : check_address(g, copy, bytes);
    status = status ? status : lists(g, copy, rows, request, patched, positions, found, tokens, values);
    if (status) { /* what was begun may still read the copy */
        g->cuda.stream_wait(g->stream);
    }
    error = g->cuda.release(copy);
    return status ? status : error ? fail(g, "giving memory back", error) : LS_OK;
}

static int32_t lookup_of_host(void *device, const int32_t *history, const uint32_t *starts, uint32_t slots,
                              uint32_t min_ngram, uint32_t max_ngram, uint32_t max_tokens, int32_t *out, int32_t *match) {
    return lookup((ls_gpu *)device, history, starts, slots, min_ngram, max_ngram, max_tokens, out, match);
}

/* The driver, and a device that the kernel is for. */
static int32_t find_device(ls_gpu *g) {
    int32_t version = 0, count = 0, major = 0, minor = 0;
    TRY("starting the driver", g->cuda.init(0));
    TRY("asking for the driver's version", g->cuda.version(&version));
    if (version < CUDA_OLDEST_DRIVER) {
        snprintf(g->reason, sizeof g->reason, "NVIDIA's driver is too old, it is of CUDA %d.%d: install one of CUDA %d.%d or newer.",
                 version / 1000, version % 1000 / 10, CUDA_OLDEST_DRIVER / 1000, CUDA_OLDEST_DRIVER % 1000 / 10);
        return LS_DEVICE_FAILED;
    }
    TRY("counting devices", g->cuda.device_count(&count));
    if (g->ordinal < 0 || g->ordinal >= count) {
        snprintf(g->reason, sizeof g->reason, "There is no CUDA device %d; the driver has %d.", g->ordinal, count);
        return LS_NO_DEVICE;
    }
    TRY("finding it", g->cuda.device_get(&g->device, g->ordinal));
    TRY("asking what it can do", g->cuda.device_attribute(&major, CUDA_CAPABILITY_MAJOR, g->device));
    TRY("asking what it can do", g->cuda.device_attribute(&minor, CUDA_CAPABILITY_MINOR, g->device));
    if (10 * major + minor < CUDA_OLDEST_GPU) {
        snprintf(g->reason, sizeof g->reason, "CUDA device %d has compute capability %d.%d; localspec's kernel needs %d.%d.",
                 g->ordinal, major, minor, CUDA_OLDEST_GPU / 10, CUDA_OLDEST_GPU % 10);
        return LS_DEVICE_FAILED;
    }
    return LS_OK;
}

/* The kernel in the context. */
static int32_t load_kernel(ls_gpu *g) {
    TRY("compiling the kernel", g->cuda.module_load(&g->module, ls_ptx, 0, NULL, NULL));
    TRY("finding the kernel", g->cuda.module_function(&g->tops, g->module, "ls_tops"));
    TRY("finding the kernel", g->cuda.module_function(&g->limit, g->module, "ls_limit"));
    TRY("finding the kernel", g->cuda.module_function(&g->list, g->module, "ls_list"));
    TRY("finding the kernel", g->cuda.module_function(&g->lookup, g->module, "ls_lookup"));
    TRY("making a stream", g->cuda.stream_create(&g->stream, CUDA_STREAM_NON_BLOCKING));
    return LS_OK;
}

/* Loads the kernel and tests it. */
static int32_t prepare(ls_gpu *g) {
    const ls_runner runner = {g, lists_of_host, lookup_of_host};
    const int32_t status = load_kernel(g), wrong = status ? 0 : self_test(&runner);
    if (wrong > 0) {
        snprintf(g->reason, sizeof g->reason, "CUDA device %d: the kernel's self-test found case %d wrong.", g->ordinal, wrong);
    }
    return status ? status : wrong > 0 ? LS_DEVICE_FAILED : -wrong;
}

void ls_gpu_close(ls_gpu *g) {
    void *context;
    if (!g) {
        return;
    }
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

int32_t ls_gpu_open(const char *library, int32_t ordinal, ls_gpu **out, char reason[LS_REASON_ROOM]) {
    *out = NULL;
    reason[0] = '\0';
    ls_gpu *g = (ls_gpu *)calloc(1, sizeof *g);
    if (!g) {
        return LS_NO_MEMORY;
    }
    g->ordinal = ordinal;
    int32_t status = load_driver(g, library);
    status = status ? status : find_device(g);
    if (!status) {
        const int32_t error = g->cuda.context_retain(&g->context, g->device);
        status = error ? fail(g, "using its context", error) : enter(g);
        status = status ? status : leave(g, prepare(g));
    }
    if (status) {
        memcpy(reason, g->reason, LS_REASON_ROOM);
        ls_gpu_close(g);
        return status;
    }
    *out = g;
    return LS_OK;
}

const char *ls_gpu_reason(const ls_gpu *g) { return g->reason; }

int32_t ls_gpu_lists(ls_gpu *g, uint64_t logits, int32_t rows, const uint32_t request[LS_REQUEST_WORDS],
                     const int32_t *patched, const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    int32_t status = enter(g);
    if (status) {
        return status;
    }
    status = check_request(g, rows, request, patched);
    status = status ? status : check_address(g, logits, (uint64_t)(uint32_t)rows * request[LS_REQUEST_VOCAB] * WORD);
    return leave(g, status ? status : lists(g, logits, (uint32_t)rows, request, patched, positions, found, tokens, values));
}

int32_t ls_gpu_lookup(ls_gpu *g, const int32_t *history, const uint32_t *starts, int32_t slots, int32_t min_ngram,
                      int32_t max_ngram, int32_t max_tokens, int32_t *out, int32_t *match) {
    bool good = slots > 0 && (uint32_t)slots <= MOST_ROWS && min_ngram > 0 && min_ngram <= max_ngram && max_tokens >= 0;
    for (int32_t slot = 0; good && slot < slots; slot++) {
        good = starts[slot] <= starts[slot + 1];
    }
    if (!good || starts[slots] > INT32_MAX) {
        return refuse(g, "a count of a prompt lookup is out of range");
    }
    int32_t status = enter(g);
    if (status) {
        return status;
    }
    return leave(g, lookup(g, history, starts, (uint32_t)slots, (uint32_t)min_ngram, (uint32_t)max_ngram,
                           (uint32_t)max_tokens, out, match));
}
