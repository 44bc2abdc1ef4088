/* Memory of what llama.cpp makes with a context: pages that nothing was written to are not there, and read as zeros. So
 * clearing a cache of any length costs neither time nor memory: ggml would write every page. Pages of cells that no
 * sequence has any more can be given back. */
#define _GNU_SOURCE
#include "device.h"
#include "localspec_wide.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

enum { SMALL = 1 << 20 }; /* bytes; ggml's own memory serves for less */

struct pages {
    struct pages *next;
    char *base;
    size_t size;
    int64_t context; /* that was being made */
    const struct tensor **caches;
    int64_t n_caches;
};

static struct buffer *(*alloc_small)(struct buffer_type *, size_t size);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pages *all;

/* New pages, at `where` in place of those that are there; NULL = anywhere. */
static void *new_pages(void *where, size_t size) {
    void *const pages = mmap(where, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0), -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static void free_buffer(struct buffer *buffer) {
    struct pages *p = buffer->context, **at = &all;
    pthread_mutex_lock(&lock);
    while (*at != p) {
        at = &(*at)->next;
    }
    *at = p->next;
    pthread_mutex_unlock(&lock);
    munmap(p->base, p->size);
    free(p->caches);
    free(p);
}

static void *get_base(struct buffer *buffer) { return ((struct pages *)buffer->context)->base; }

/* Keys and values: [stream][cell][number]. What a context without fused attention keeps turned has the same name. */
static int init_tensor(struct buffer *buffer, struct tensor *t) {
    struct pages *p = buffer->context;
    if (t->view_src || (strncmp(t->name, "cache_k_l", 9) != 0 && strncmp(t->name, "cache_v_l", 9) != 0)) {
        return STATUS_OK;
    }
    const struct tensor **larger = realloc(p->caches, (size_t)(p->n_caches + 1) * sizeof *larger);
    if (larger) {
        p->caches = larger;
        p->caches[p->n_caches++] = t;
    }
    return STATUS_OK;
}

static void memset_tensor(struct buffer *buffer, struct tensor *t, uint8_t value, size_t offset, size_t size) {
    (void)buffer;
    memset((char *)t->data + offset, value, size);
}

static void set_tensor(struct buffer *buffer, struct tensor *t, const void *data, size_t offset, size_t size) {
    (void)buffer;
    memcpy((char *)t->data + offset, data, size);
}

static void get_tensor(struct buffer *buffer, const struct tensor *t, void *data, size_t offset, size_t size) {
    (void)buffer;
    memcpy(data, (const char *)t->data + offset, size);
}

static void clear(struct buffer *buffer, uint8_t value) {
    const struct pages *p = buffer->context;
    if (value || !new_pages(p->base, p->size)) {
        memset(p->base, value, p->size);
    }
}

static struct buffer *alloc_buffer(struct buffer_type *type, size_t size) {
    static const struct buffer_calls calls = {
        .free_buffer = free_buffer, .get_base = get_base, .init_tensor = init_tensor, .memset_tensor = memset_tensor,
        .set_tensor = set_tensor, .get_tensor = get_tensor, .clear = clear};
    const int64_t context = size < SMALL ? 0 : context_in_making();
    struct pages *p = context ? calloc(1, sizeof *p) : NULL;
    if (!p || !(p->base = new_pages(NULL, size))) {
        free(p);
        return alloc_small(type, size);
    }
    p->size = size;
    p->context = context;
    pthread_mutex_lock(&lock);
    p->next = all;
    all = p;
    pthread_mutex_unlock(&lock);
    return ggml.buffer_init(type, calls, p, size);
}

void give_zero_pages(struct buffer_type *type) {
    if (type->calls.alloc_buffer != alloc_buffer) {
        alloc_small = type->calls.alloc_buffer;
        type->calls.alloc_buffer = alloc_buffer;
    }
}

/* The whole pages of a stream from a cell on become zeros. */
static int64_t give_back(const struct tensor *cache, int64_t stream, int64_t cell) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)cache->data + (uintptr_t)(stream * (int64_t)cache->nb[2]);
    const uintptr_t first = (start + (uintptr_t)cell * cache->nb[1] + page - 1) / page * page;
    const uintptr_t end = (start + (uintptr_t)cache->ne[1] * cache->nb[1]) / page * page;
    return first < end && new_pages((void *)first, end - first) ? (int64_t)(end - first) : 0;
}

int64_t lsw_give_back(int64_t context, int32_t slot, int64_t cell, int32_t turned) {
    int64_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (const struct pages *p = all; p; p = p->next) {
        for (int64_t i = 0; p->context == context && i < p->n_caches; i++) {
            const struct tensor *cache = p->caches[i];
            const int64_t stream = cache->ne[2] > 1 ? slot : 0;
            if (cell >= 0 && stream >= 0 && stream < cache->ne[2] && !(turned && cache->name[6] == 'v')) {
                bytes += give_back(cache, stream, cell);
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}
