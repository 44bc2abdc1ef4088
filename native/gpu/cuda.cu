// The kernel for CUDA. packaging/ptx compiles it to ptx.h, which needs no toolkit to build or to run.
#include <stdint.h>

typedef uint32_t ls_counter;

#define LS_FN static __device__ __forceinline__
#define LS_GLOBAL
#define LS_GROUP
#define LS_ADD(p, n) atomicAdd((p), (n))
#define LS_MAX(p, n) atomicMax((p), (n))
#define LS_READ(p) (*(p))
#define LS_WRITE(p, n) (*(p) = (n))
#define LS_BITS(x) __float_as_uint(x)
#define LS_REAL(b) __uint_as_float(b)
#define LS_HIGH(a, b) __umulhi((a), (b))
#include "kernel.h"

#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)

// Grid: x * block >= stripes of a row, y = rows.
extern "C" __global__ void ls_tops(const float *logits, const uint32_t *request, const uint32_t *positions,
                                   uint32_t *tops) {
    tops_phase(blockIdx.y, THREAD, logits, request, positions, tops);
}

// Grid: x = rows; a block of any size.
extern "C" __global__ void ls_limit(const uint32_t *request, const uint32_t *tops, uint32_t *limits, uint32_t *found) {
    __shared__ ls_counter counters[LS_HIGHEST + 1];
    limit_start_phase(threadIdx.x, blockDim.x, counters);
    __syncthreads();
#pragma unroll 1
    for (uint32_t round = 0; round < LS_ROUNDS; round++) {
        limit_round_phase(blockIdx.x, threadIdx.x, blockDim.x, round, request, tops, counters);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        limit_end_phase(blockIdx.x, request, counters, limits, found);
    }
}

// Grid: as for ls_tops.
extern "C" __global__ void ls_list(uint32_t room, const float *logits, const uint32_t *request, const uint32_t *positions,
                                   const int32_t *patched, const uint32_t *tops, const uint32_t *limits, uint32_t *found,
                                   int32_t *tokens, float *values) {
    list_phase(blockIdx.y, THREAD, gridDim.x * blockDim.x, room, logits, request, positions, patched, tops, limits, found,
               tokens, values);
}
