/* The kernel on the GPU of a Mac, through the Objective-C runtime, which is looked for when the GPU is opened: methods are
 * called by their addresses, so that this is plain C and nothing is linked. Memory is unified: logits are read where the
 * pass left them, in pages that are lent to Metal for the call. */
#include "device.h"
#include "metal_source.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define METAL_LIBRARY "/System/Library/Frameworks/Metal.framework/Metal"
#define COMPLETED 4    /* MTLCommandBufferStatusCompleted. */
#define PAGE 16384u    /* Of Apple's processors; a multiple of an Intel Mac's. */
#define MOST_BUFFERS 10 /* Arguments of a kernel. */

typedef void *object;
typedef struct metal_size {
    unsigned long width, height, depth;
} metal_size;

typedef struct metal_gpu {
    ls_gpu base;
    object (*class_named)(const char *name);
    object (*class_of)(object one);
    void *(*selector)(const char *name);
    void *(*method)(object class_, void *selector);
    void *(*pool_push)(void);
    void (*pool_pop)(void *pool);
    object (*default_device)(void);
    object device, queue, library, tops, limit, list;
    object block; /* MTLBuffer, NULL = none. */
    size_t block_words;
} metal_gpu;

/* Sends a message with arguments: its result has this type, and the method, with the object and the selector, these. */
#define SEND(g, type, types, one, name, ...)                                                                                \
    ((type(*) types)(g)->method((g)->class_of(one), (g)->selector(name)))((one), (g)->selector(name), __VA_ARGS__)
/* The same without arguments. */
#define ASK(g, type, one, name)                                                                                             \
    ((type(*)(object, void *))(g)->method((g)->class_of(one), (g)->selector(name)))((one), (g)->selector(name))

static object get(metal_gpu *g, object one, const char *name) { return ASK(g, object, one, name); }

static void send(metal_gpu *g, object one, const char *name) { ASK(g, void, one, name); }

static unsigned long number(metal_gpu *g, object one, const char *name) { return ASK(g, unsigned long, one, name); }

static void release(metal_gpu *g, object *one) {
    if (*one) {
        send(g, *one, "release");
        *one = NULL;
    }
}

static object text(metal_gpu *g, const char *utf8) {
    return SEND(g, object, (object, void *, const char *), g->class_named("NSString"), "stringWithUTF8String:", utf8);
}

/* Notes what failed, with what Metal says of it. */
static int32_t fail(metal_gpu *g, const char *what, object error) {
    object said = error ? get(g, error, "localizedDescription") : NULL;
    const char *words = said ? ASK(g, const char *, said, "UTF8String") : NULL;
    g->base.lost = true;
    return ls_gpu_say(&g->base, LS_DEVICE_FAILED, "Metal: %s failed (%s).", what, words ? words : "unknown");
}

static object make_buffer(metal_gpu *g, size_t bytes) {
    return SEND(g, object, (object, void *, unsigned long, unsigned long), g->device, "newBufferWithLength:options:", bytes, 0);
}

static void *contents(metal_gpu *g, object buffer) { return ASK(g, void *, buffer, "contents"); }

static int32_t reserve(metal_gpu *g, size_t words) {
    if (words > g->block_words) {
        release(g, &g->block);
        g->block_words = 0;
        g->block = make_buffer(g, 2 * words * LS_WORD);
        if (!g->block) {
            return ls_gpu_say(&g->base, LS_NO_MEMORY, "Metal: there is no memory for %zu numbers.", 2 * words);
        }
        g->block_words = 2 * words;
    }
    return LS_OK;
}

/* An argument of a kernel: from where in a buffer on. */
typedef struct argument {
    object buffer;
    size_t offset; /* Bytes. */
} argument;

static void launch(metal_gpu *g, object encoder, object kernel, const argument *arguments, int32_t n, uint32_t x, uint32_t y) {
    const metal_size groups = {x, y, 1}, threads = {LS_THREADS, 1, 1};
    SEND(g, void, (object, void *, object), encoder, "setComputePipelineState:", kernel);
    for (int32_t i = 0; i < n; i++) {
        SEND(g, void, (object, void *, object, unsigned long, unsigned long), encoder, "setBuffer:offset:atIndex:",
             arguments[i].buffer, arguments[i].offset, (unsigned long)i);
    }
    SEND(g, void, (object, void *, metal_size, metal_size), encoder, "dispatchThreadgroups:threadsPerThreadgroup:",
         groups, threads);
}

/* Ends what was encoded, and waits for it. */
static int32_t run(metal_gpu *g, const char *what, object command, object encoder) {
    send(g, encoder, "endEncoding");
    send(g, command, "commit");
    send(g, command, "waitUntilCompleted");
    return number(g, command, "status") == COMPLETED ? LS_OK : fail(g, what, get(g, command, "error"));
}

/* The kernels on what stands in the block; each sees what the last one wrote. */
static int32_t preselect(metal_gpu *g, argument logits, uint32_t rows, uint32_t n_vocab, const ls_list_places *p) {
    const uint32_t across = ((n_vocab + LS_STRIPE - 1) / LS_STRIPE + LS_THREADS - 1) / LS_THREADS;
    const argument asked = {g->block, 0}, positions = {g->block, p->positions * LS_WORD};
    const argument patched = {g->block, p->patched * LS_WORD}, found = {g->block, p->found * LS_WORD};
    const argument tokens = {g->block, p->tokens * LS_WORD}, values = {g->block, p->values * LS_WORD};
    const argument limits = {g->block, p->limits * LS_WORD}, tops = {g->block, p->tops * LS_WORD};
    const argument room = {g->block, p->end * LS_WORD};
    const argument of_tops[] = {logits, asked, positions, tops}, of_limit[] = {asked, tops, limits, found};
    const argument of_list[MOST_BUFFERS] = {room, logits, asked, positions, patched, tops, limits, found, tokens, values};
    object command = get(g, g->queue, "commandBuffer"), encoder = command ? get(g, command, "computeCommandEncoder") : NULL;
    if (!encoder) {
        return fail(g, "making a command", NULL);
    }
    launch(g, encoder, g->tops, of_tops, 4, across, rows);
    launch(g, encoder, g->limit, of_limit, 4, rows, 1);
    launch(g, encoder, g->list, of_list, MOST_BUFFERS, across, rows);
    return run(g, "preselection", command, encoder);
}

static int32_t lists(metal_gpu *g, uint64_t logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    const uint32_t n_vocab = request[LS_REQUEST_VOCAB];
    const ls_list_places p = ls_places_of(rows, n_vocab, request[LS_REQUEST_PATCHED]);
    const uint64_t first = logits / PAGE * PAGE, end = (logits + (uint64_t)rows * n_vocab * LS_WORD + PAGE - 1) / PAGE * PAGE;
    int32_t status = reserve(g, p.end + 1);
    if (status) {
        return status;
    }
    object lent = SEND(g, object, (object, void *, void *, unsigned long, unsigned long, object), g->device,
                       "newBufferWithBytesNoCopy:length:options:deallocator:", (void *)(uintptr_t)first, end - first, 0, NULL);
    if (!lent) {
        return ls_gpu_say(&g->base, LS_BAD_ARGUMENT, "Metal: the logits are in no memory that it can read.");
    }
    uint32_t *block = contents(g, g->block);
    memcpy(block, request, LS_REQUEST_WORDS * LS_WORD);
    memcpy(block + p.positions, positions, rows * LS_WORD);
    if (request[LS_REQUEST_PATCHED]) {
        memcpy(block + p.patched, patched, request[LS_REQUEST_PATCHED] * LS_WORD);
    }
    block[p.end] = LS_LIST_ROOM;
    status = preselect(g, (argument){lent, logits - first}, rows, n_vocab, &p);
    release(g, &lent);
    if (!status) {
        ls_take_lists(block + p.found, rows, found, tokens, values);
    }
    return status;
}

static int32_t metal_lists(ls_gpu *gpu, uint64_t logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                           const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    metal_gpu *g = (metal_gpu *)gpu;
    void *pool = g->pool_push();
    const int32_t status = lists(g, logits, rows, request, patched, positions, found, tokens, values);
    g->pool_pop(pool);
    return status;
}

/* Memory is unified: for the self-test, too, logits stand in the host's, alone in their pages. */
static int32_t metal_place(ls_gpu *gpu, const float *logits, size_t bytes, uint64_t *address) {
    void *pages = NULL;
    if (posix_memalign(&pages, PAGE, (bytes + PAGE - 1) / PAGE * PAGE)) {
        return ls_gpu_say(gpu, LS_NO_MEMORY, "Metal: there is no memory for %zu bytes.", bytes);
    }
    memcpy(pages, logits, bytes);
    *address = (uint64_t)(uintptr_t)pages;
    return LS_OK;
}

static int32_t metal_give_back(ls_gpu *gpu, uint64_t address) {
    (void)gpu;
    free((void *)(uintptr_t)address);
    return LS_OK;
}

static void metal_close(ls_gpu *gpu) {
    metal_gpu *g = (metal_gpu *)gpu;
    object *const all[] = {&g->block, &g->tops, &g->limit, &g->list, &g->library, &g->queue, &g->device};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        release(g, all[i]);
    }
    free(g);
}

static int32_t load_runtime(metal_gpu *g, const char *path) {
    void *library = dlopen(path ? path : METAL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *const names[] = {"objc_getClass", "object_getClass", "sel_registerName", "class_getMethodImplementation",
                                 "objc_autoreleasePoolPush", "objc_autoreleasePoolPop", "MTLCreateSystemDefaultDevice"};
    void *const fields[] = {&g->class_named, &g->class_of, &g->selector, &g->method, &g->pool_push, &g->pool_pop,
                            &g->default_device};
    for (size_t i = 0; library && i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(library, names[i]);
        found = found ? found : dlsym(RTLD_DEFAULT, names[i]);
        if (!found) {
            return ls_gpu_say(&g->base, LS_DEVICE_FAILED, "Metal: this system has no %s.", names[i]);
        }
        memcpy(fields[i], &found, sizeof found);
    }
    return library ? LS_OK : LS_NO_DEVICE;
}

static int32_t find_kernel(metal_gpu *g, const char *name, object *pipeline) {
    object error = NULL;
    object function = SEND(g, object, (object, void *, object), g->library, "newFunctionWithName:", text(g, name));
    if (!function) {
        return fail(g, "finding the kernel", NULL);
    }
    *pipeline = SEND(g, object, (object, void *, object, object *), g->device,
                     "newComputePipelineStateWithFunction:error:", function, &error);
    release(g, &function);
    if (!*pipeline) {
        return fail(g, "preparing the kernel", error);
    }
    return number(g, *pipeline, "maxTotalThreadsPerThreadgroup") >= LS_THREADS
               ? LS_OK
               : ls_gpu_say(&g->base, LS_DEVICE_FAILED, "Metal: this GPU runs fewer than %u threads together.", LS_THREADS);
}

/* Compiled without fast-math: the same bits as everywhere. */
static int32_t load_kernel(metal_gpu *g) {
    object error = NULL;
    g->device = g->default_device();
    if (!g->device) {
        return ls_gpu_say(&g->base, LS_NO_DEVICE, "Metal finds no GPU.");
    }
    if (!ASK(g, signed char, g->device, "hasUnifiedMemory")) {
        return ls_gpu_say(&g->base, LS_DEVICE_FAILED, "Metal: this GPU has a memory of its own; localspec's kernel needs the CPU's.");
    }
    object options = get(g, g->class_named("MTLCompileOptions"), "new");
    SEND(g, void, (object, void *, signed char), options, "setFastMathEnabled:", 0);
    g->library = SEND(g, object, (object, void *, object, object, object *), g->device,
                      "newLibraryWithSource:options:error:", text(g, ls_metal_source), options, &error);
    release(g, &options);
    if (!g->library) {
        return fail(g, "compiling the kernel", error);
    }
    g->queue = get(g, g->device, "newCommandQueue");
    if (!g->queue) {
        return fail(g, "making a queue", NULL);
    }
    int32_t status = find_kernel(g, "ls_tops", &g->tops);
    status = status ? status : find_kernel(g, "ls_limit", &g->limit);
    return status ? status : find_kernel(g, "ls_list", &g->list);
}

int32_t ls_metal_open(const char *library, ls_gpu **out) {
    static const ls_gpu_kind kind = {"Metal", metal_close, metal_lists, metal_place, metal_give_back};
    metal_gpu *g = (metal_gpu *)calloc(1, sizeof *g);
    if (!g) {
        return LS_NO_MEMORY;
    }
    g->base.kind = &kind;
    *out = &g->base;
    const int32_t status = load_runtime(g, library);
    if (status) {
        return status;
    }
    void *pool = g->pool_push();
    const int32_t loaded = load_kernel(g);
    g->pool_pop(pool);
    return loaded;
}
