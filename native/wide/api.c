/* The public functions that run a product or attention outside ggml. */
#include "device.h"
#include "localspec_wide.h"

#include <omp.h>

enum { DONE = 0, NOT_TAKEN = 1, NO_ISA = 2, NO_MEMORY = 3 };

static int32_t each_tile(int32_t type, int64_t columns, int64_t rows, void *matrix,
                         void (*change)(int, int64_t, void *, int64_t, int64_t, void *)) {
    if (!wide_can_pack(type, columns, rows)) {
        return NOT_TAKEN;
    }
    void *scratch = wide_allocate(wide_pack_scratch(type, columns));
    if (!scratch) {
        return NO_MEMORY;
    }
    change(type, columns, matrix, 0, rows / WIDE_TILE, scratch);
    wide_free(scratch);
    return DONE;
}

int32_t lsw_pack(int32_t type, int64_t columns, int64_t rows, void *matrix) {
    return each_tile(type, columns, rows, matrix, wide_pack);
}

int32_t lsw_unpack(int32_t type, int64_t columns, int64_t rows, void *matrix) {
    return each_tile(type, columns, rows, matrix, wide_unpack);
}

/* An instruction set by number, 0 = best; 0 if it is not to be had. */
static enum wide_isa find_isa(int32_t isa) {
    const enum wide_isa wanted = isa == 0 ? wide_best_isa() : (enum wide_isa)isa;
    return wide_has_isa(wanted) ? wanted : (enum wide_isa)0;
}

static void product_thread(const struct wide_product *p, enum wide_isa isa, int thread, int threads) {
    wide_product_prepare(p, isa, thread, threads);
    meet(threads);
    wide_product_run(p, isa, thread, threads);
}

int32_t lsw_product(int32_t type, int64_t columns, int64_t rows, int64_t width, const void *weights, const float *input,
                    float *output, int32_t isa, int32_t threads) {
    const enum wide_isa found = find_isa(isa);
    if (!found) {
        return NO_ISA;
    }
    if (!wide_can_pack(type, columns, rows) || width < 1 || threads < 1) {
        return NOT_TAKEN;
    }
    const struct wide_product p = {
        .type = type, .columns = columns, .rows = rows, .width = width, .weights = weights, .input = input,
        .input_stride = (size_t)columns, .output = output, .output_stride = (size_t)rows,
        .scratch = wide_allocate(wide_product_scratch(type, columns, width))};
    if (!p.scratch) {
        return NO_MEMORY;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    product_thread(&p, found, omp_get_thread_num(), omp_get_num_threads());
    wide_free(p.scratch);
    return DONE;
}

static void attention_thread(const struct wide_attention *a, enum wide_isa isa, int thread, int threads) {
    wide_attention_run(a, isa, thread, threads);
    meet(threads);
    wide_attention_combine(a, isa, thread, threads);
}

int32_t lsw_attention(const struct wide_attention *given, int32_t isa, int32_t threads) {
    const enum wide_isa found = find_isa(isa);
    if (!found) {
        return NO_ISA;
    }
    if (threads < 1 || !wide_can_attend(given) || (given->mask_heads && !given->mask)) {
        return NOT_TAKEN;
    }
    struct wide_attention a = *given;
    a.scratch = wide_allocate(wide_attention_scratch(&a, threads));
    if (!a.scratch) {
        return NO_MEMORY;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    attention_thread(&a, found, omp_get_thread_num(), omp_get_num_threads());
    wide_free(a.scratch);
    return DONE;
}
