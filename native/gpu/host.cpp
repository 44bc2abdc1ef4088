// The kernel on the host: two loops in place of a GPU's rows and threads, a loop over threads for each phase. For tests.
#include "../localspec.h"

#include <cstdint>
#include <cstring>
#include <vector>

static inline uint32_t bits_of(float x) {
    uint32_t b;
    std::memcpy(&b, &x, 4);
    return b;
}

static inline float real_of(uint32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
}

typedef uint32_t ls_counter;

static inline uint32_t add(ls_counter *p, uint32_t n) {
    *p += n;
    return *p - n;
}

#define LS_FN static inline
#define LS_GLOBAL
#define LS_GROUP
#define LS_ADD(p, n) add(p, n)
#define LS_MAX(p, n) (*(p) = *(p) > (n) ? *(p) : (n))
#define LS_READ(p) (*(p))
#define LS_WRITE(p, n) (*(p) = (n))
#define LS_BITS(x) bits_of(x)
#define LS_REAL(b) real_of(b)
#define LS_HIGH(a, b) ((uint32_t)((uint64_t)(a) * (b) >> 32))
#include "kernel.h"
#include "self_test.h"

// A list of each of `rows` rows that stand one after the other: found uint32[rows], tokens int32[rows][LS_LIST_ROOM], values
// float32[rows][LS_LIST_ROOM].
extern "C" LS_API void ls_host_lists(const float *logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                                     const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values) {
    const uint32_t stripes = stripes_of(request[LS_REQUEST_VOCAB]), threads = 7, room = LS_LIST_ROOM;
    std::vector<uint32_t> tops(rows * stripes), limits(rows);
    for (uint32_t row = 0; row < rows; row++) {
        ls_counter counters[LS_HIGHEST + 1];
        for (uint32_t thread = 0; thread < stripes; thread++) {
            tops_phase(row, thread, logits, request, positions, tops.data());
        }
        for (uint32_t thread = 0; thread < threads; thread++) {
            limit_start_phase(thread, threads, counters);
        }
        for (uint32_t round = 0; round < LS_ROUNDS; round++) {
            for (uint32_t thread = 0; thread < threads; thread++) {
                limit_round_phase(row, thread, threads, round, request, tops.data(), counters);
            }
        }
        limit_end_phase(row, request, counters, limits.data(), found);
        for (uint32_t thread = 0; thread < stripes; thread++) {
            list_phase(row, thread, stripes, room, logits, request, positions, patched, tops.data(), limits.data(), found,
                       tokens, values);
        }
    }
}

// The self-test on this build of the kernel: 0, or the number of the first case that is wrong.
extern "C" LS_API int32_t ls_host_self_test(void) {
    const ls_runner runner = {
        nullptr,
        [](void *, auto... arguments) {
            ls_host_lists(arguments...);
            return (int32_t)LS_OK;
        },
    };
    return self_test(&runner);
}

// The largest error of gumbel32 over the 2^20 words from `first` on.
extern "C" LS_API double ls_host_gumbel_error(uint32_t first) {
    double worst = 0.0;
    for (uint32_t i = 0; i < 1u << 20; i++) {
        const double error = std::fabs((double)gumbel32(first + i) - ls_to_gumbel(first + i));
        worst = error > worst ? error : worst;
    }
    return worst;
}
