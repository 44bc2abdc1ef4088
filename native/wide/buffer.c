/* Memory of weights and of results. Weights are packed in place, so ggml must never read one that is: a read of a
 * packed weight by ggml's functions gives ggml's layout, and an operation that is not ours makes us give the weight up. */
#define _GNU_SOURCE
#include "device.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { ALIGNMENT = 64, HUGE_PAGE = 1 << 21 };

struct memory {
    char *base;
    struct weight *weights;
    pthread_mutex_t spare_lock;
    char *spare;                          /* a tile and what packing one needs, of the largest weight */
    size_t spare_size;
};

#if defined(PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP)
static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP; /* endless passes must not keep a writer out */
#else
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
#endif

void weights_share(void) { pthread_rwlock_rdlock(&lock); }
void weights_hold(void) { pthread_rwlock_wrlock(&lock); }
void weights_release(void) { pthread_rwlock_unlock(&lock); }

void *wide_allocate(size_t size) {
    void *memory = NULL;
    const bool large = size >= 8 * (size_t)HUGE_PAGE;
    if (posix_memalign(&memory, large ? HUGE_PAGE : ALIGNMENT, size ? size : 1) != 0) {
        return NULL;
    }
#if defined(MADV_HUGEPAGE)
    if (large) {
        madvise(memory, size, MADV_HUGEPAGE); /* fewer misses while weights stream by; a refusal costs nothing */
    }
#endif
    return memory;
}

void wide_free(void *memory) { free(memory); }

/* -- weights --------------------------------------------------------------------------------------------------------- */

size_t weight_tile_bytes(const struct weight *w) { return WIDE_TILE * wide_row_bytes(w->type, w->columns); }

int64_t weight_tiles(const struct weight *w) { return w->rows / WIDE_TILE; }

struct weight *weight_of(const struct tensor *t) {
    t = abi_base(t);
    return t->buffer && t->buffer->type == &wide_buffer_type && t->buffer->size ? t->extra : NULL;
}

static struct memory *memory_of(const struct tensor *t) { return abi_base(t)->buffer->context; }

/* The caller holds the lock alone. */
static void unpack(struct memory *m, struct weight *w) {
    if (w->state == WEIGHT_PACKED) {
        pthread_mutex_lock(&m->spare_lock);
        wide_unpack(w->type, w->columns, w->data, 0, weight_tiles(w), m->spare);
        pthread_mutex_unlock(&m->spare_lock);
        w->state = WEIGHT_PLAIN;
    }
}

void weight_leave(const struct tensor *t) {
    struct weight *w = weight_of(t);
    weights_hold();
    unpack(memory_of(t), w);
    w->state = WEIGHT_LEFT;
    weights_release();
}

/* Room in `spare` for a tile and the scratch after it. */
static bool reserve_spare(struct memory *m, const struct weight *w) {
    const size_t size = (weight_tile_bytes(w) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + wide_pack_scratch(w->type, w->columns);
    if (size > m->spare_size) {
        char *larger = wide_allocate(size);
        if (!larger) {
            return false;
        }
        wide_free(m->spare);
        m->spare = larger;
        m->spare_size = size;
    }
    return true;
}

static char *behind_tile(const struct memory *m, const struct weight *w) {
    return m->spare + (weight_tile_bytes(w) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* -- ggml's calls ---------------------------------------------------------------------------------------------------- */

static int init_tensor(struct buffer *buffer, struct tensor *t) {
    struct memory *m = buffer->context;
    const bool matrix = t->op == OP_NONE && !t->view_src && t->ne[1] > 1 && t->ne[2] == 1 && t->ne[3] == 1;
    if (buffer->usage == USAGE_COMPUTE || !matrix || !wide_can_pack(t->type, t->ne[0], t->ne[1]) || !abi_is_contiguous(t)) {
        return STATUS_OK;
    }
    struct weight *w = malloc(sizeof *w);
    if (!w) {
        return STATUS_NO_MEMORY;
    }
    *w = (struct weight){m->weights, WEIGHT_PLAIN, t->type, t->ne[0], t->ne[1], t->data};
    if (!reserve_spare(m, w)) {
        free(w);
        return STATUS_NO_MEMORY;
    }
    t->extra = m->weights = w;
    return STATUS_OK;
}

/* Copies a whole weight and packs it while it is in the cache. */
static void set_packed(struct memory *m, struct weight *w, const char *data) {
    const size_t bytes = weight_tile_bytes(w), each = (wide_pack_scratch(w->type, w->columns) + 63) / 64 * 64;
    const int most = omp_get_max_threads();
    char *scratch = wide_allocate(each * (size_t)most);
    pthread_mutex_lock(&m->spare_lock);
#pragma omp parallel num_threads(scratch ? most : 1)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads(), tiles = weight_tiles(w);
        for (int64_t tile = tiles * thread / threads; tile < tiles * (thread + 1) / threads; tile++) {
            memcpy(w->data + (size_t)tile * bytes, data + (size_t)tile * bytes, bytes);
            wide_pack(w->type, w->columns, w->data, tile, tile + 1, scratch ? scratch + each * (size_t)thread : m->spare);
        }
    }
    pthread_mutex_unlock(&m->spare_lock);
    wide_free(scratch);
    w->state = WEIGHT_PACKED;
}

static void set_tensor(struct buffer *buffer, struct tensor *t, const void *data, size_t offset, size_t size) {
    struct weight *w = weight_of(t);
    if (!w) {
        memcpy((char *)t->data + offset, data, size);
        return;
    }
    weights_hold();
    const bool whole = (char *)t->data == w->data && offset == 0 && size == (size_t)weight_tiles(w) * weight_tile_bytes(w);
    if (whole && w->state != WEIGHT_LEFT && buffer->usage == USAGE_WEIGHTS) {
        set_packed(buffer->context, w, data);
    } else {
        unpack(buffer->context, w);
        memcpy((char *)t->data + offset, data, size);
    }
    weights_release();
}

static void memset_tensor(struct buffer *buffer, struct tensor *t, uint8_t value, size_t offset, size_t size) {
    struct weight *w = weight_of(t);
    if (w) {
        weights_hold();
        unpack(buffer->context, w);
    }
    memset((char *)t->data + offset, value, size);
    if (w) {
        weights_release();
    }
}

/* Bytes [start, start + size) of a packed weight in ggml's layout. */
static void get_unpacked(struct memory *m, const struct weight *w, char *out, size_t start, size_t size) {
    const size_t bytes = weight_tile_bytes(w);
    pthread_mutex_lock(&m->spare_lock);
    for (size_t done = 0; done < size;) {
        const size_t tile = (start + done) / bytes, skip = (start + done) % bytes;
        const size_t count = bytes - skip < size - done ? bytes - skip : size - done;
        memcpy(m->spare, w->data + tile * bytes, bytes);
        wide_unpack(w->type, w->columns, m->spare, 0, 1, behind_tile(m, w));
        memcpy(out + done, m->spare + skip, count);
        done += count;
    }
    pthread_mutex_unlock(&m->spare_lock);
}

static void get_tensor(struct buffer *buffer, const struct tensor *t, void *data, size_t offset, size_t size) {
    const struct weight *w = weight_of(t);
    if (w) {
        weights_share();
    }
    if (w && w->state == WEIGHT_PACKED) {
        get_unpacked(buffer->context, w, data, (size_t)((char *)t->data - w->data) + offset, size);
    } else {
        memcpy(data, (const char *)t->data + offset, size);
    }
    if (w) {
        weights_release();
    }
}

static void clear(struct buffer *buffer, uint8_t value) {
    struct memory *m = buffer->context;
    weights_hold();
    for (struct weight *w = m->weights; w; w = w->next) {
        w->state = w->state == WEIGHT_PACKED ? WEIGHT_PLAIN : w->state;
    }
    memset(m->base, value, buffer->size);
    weights_release();
}

static void drop_weights(struct memory *m) {
    while (m->weights) {
        struct weight *next = m->weights->next;
        free(m->weights);
        m->weights = next;
    }
}

static void reset(struct buffer *buffer) { drop_weights(buffer->context); }

static void *get_base(struct buffer *buffer) { return ((struct memory *)buffer->context)->base; }

static void free_memory(struct memory *m) {
    drop_weights(m);
    pthread_mutex_destroy(&m->spare_lock);
    wide_free(m->spare);
    wide_free(m->base);
    free(m);
}

static void free_buffer(struct buffer *buffer) { free_memory(buffer->context); }

/* -- the type -------------------------------------------------------------------------------------------------------- */

static struct buffer *alloc_buffer(struct buffer_type *type, size_t size) {
    static const struct buffer_calls calls = {
        .free_buffer = free_buffer, .get_base = get_base, .init_tensor = init_tensor, .memset_tensor = memset_tensor,
        .set_tensor = set_tensor, .get_tensor = get_tensor, .clear = clear, .reset = reset};
    struct memory *m = calloc(1, sizeof *m);
    if (!m) {
        return NULL;
    }
    pthread_mutex_init(&m->spare_lock, NULL);
    m->base = wide_allocate(size);
    if (!m->base) {
        free_memory(m);
        return NULL;
    }
    return ggml.buffer_init(type, calls, m, size);
}

static const char *get_name(struct buffer_type *type) {
    (void)type;
    return "wide";
}

static size_t get_alignment(struct buffer_type *type) {
    (void)type;
    return ALIGNMENT;
}

static bool is_host(struct buffer_type *type) {
    (void)type;
    return true;
}

struct buffer_type wide_buffer_type = {
    .calls = {.get_name = get_name, .alloc_buffer = alloc_buffer, .get_alignment = get_alignment, .is_host = is_host}};
