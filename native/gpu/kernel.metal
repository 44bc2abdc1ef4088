// The kernel for Metal. Compiled at run time, with kernel.h and request.h put in place of their #include lines, and with
// fast-math off. One line of threads per row: the grid's y is the row.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

typedef atomic_uint ls_counter;

#define LS_FN static inline
#define LS_GLOBAL device
#define LS_GROUP threadgroup
#define LS_ADD(p, n) atomic_fetch_add_explicit((p), (n), memory_order_relaxed)
#define LS_MAX(p, n) atomic_fetch_max_explicit((p), (n), memory_order_relaxed)
#define LS_READ(p) atomic_load_explicit((p), memory_order_relaxed)
#define LS_WRITE(p, n) atomic_store_explicit((p), (n), memory_order_relaxed)
#define LS_BITS(x) as_type<uint32_t>(x)
#define LS_REAL(b) as_type<float>(b)
#define LS_HIGH(a, b) mulhi((uint32_t)(a), (uint32_t)(b))
#include "kernel.h"

kernel void ls_tops(device const float *logits [[buffer(0)]], device const uint32_t *request [[buffer(1)]],
                    device const uint32_t *positions [[buffer(2)]], device uint32_t *tops [[buffer(3)]],
                    uint2 place [[thread_position_in_grid]]) {
    tops_phase(place.y, place.x, logits, request, positions, tops);
}

// One threadgroup for each row.
kernel void ls_limit(device const uint32_t *request [[buffer(0)]], device const uint32_t *tops [[buffer(1)]],
                     device uint32_t *limits [[buffer(2)]], device ls_counter *found [[buffer(3)]],
                     uint row [[threadgroup_position_in_grid]], uint tid [[thread_position_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]]) {
    threadgroup ls_counter counters[LS_HIGHEST + 1];
    limit_start_phase(tid, threads, counters);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint32_t round = 0; round < LS_ROUNDS; round++) {
        limit_round_phase(row, tid, threads, round, request, tops, counters);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (tid == 0) {
        limit_end_phase(row, request, counters, limits, found);
    }
}

kernel void ls_list(device const uint32_t *room [[buffer(0)]], device const float *logits [[buffer(1)]],
                    device const uint32_t *request [[buffer(2)]], device const uint32_t *positions [[buffer(3)]],
                    device const int32_t *patched [[buffer(4)]], device const uint32_t *tops [[buffer(5)]],
                    device const uint32_t *limits [[buffer(6)]], device ls_counter *found [[buffer(7)]],
                    device int32_t *tokens [[buffer(8)]], device float *values [[buffer(9)]],
                    uint2 place [[thread_position_in_grid]], uint2 grid [[threads_per_grid]]) {
    list_phase(place.y, place.x, grid.x, *room, logits, request, positions, patched, tops, limits, found, tokens, values);
}
