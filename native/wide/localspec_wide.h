/* The whole public interface of localspec_wide beside ggml's own: what programs, tests and benchmarks may call. Loaded by
 * ggml (`ggml_backend_load`) the library needs none of it. All functions are thread-safe; none prints. */
#ifndef LOCALSPEC_WIDE_H
#define LOCALSPEC_WIDE_H

#include <stdint.h>

#define LSW_API __attribute__((visibility("default")))

#define LSW_ABI_VERSION 4

LSW_API int32_t lsw_abi_version(void);
/* "avx512", "avx2", "i8mm", "neon" or "scalar": what passes run on here. */
LSW_API const char *lsw_isa_name(void);
/* Why ggml was refused ("" if it was not): one sentence, for people. */
LSW_API const char *lsw_refusal(void);

/* The switch. 0 = off: `supports_op` of the device says no, so models that load now, and passes that are built now, on the
 * calling thread are llama.cpp's alone. A weight packed while it was on stays ours. Else on, and the most rows of a pass for
 * which products of large matrices that are not packed are ours, too (small ones are at every width). 64 when the library
 * is loaded; each thread has its own. Returns what it was. */
LSW_API int32_t lsw_switch(int32_t rows);

/* Products and attentions that passes have run here for this thread, since it began. */
LSW_API int64_t lsw_steps(void);

/* Number of the last context of llama.cpp that was made on this thread, or is being made; 0 = none. */
LSW_API int64_t lsw_newest_context(void);
/* The cache of a context has nothing in a slot from a cell on: whole pages of its keys and values there become zeros, which
 * take no memory. `turned`: values lie by number, not by cell (no fused attention), and stay. Not during a pass of the context.
 * Returns the bytes. */
LSW_API int64_t lsw_give_back(int64_t context, int32_t slot, int64_t cell, int32_t turned);

/* For tests and benchmarks: one product or attention outside ggml, on `threads` threads, with an instruction set by its
 * number in wide.h (0 = best). Return 0, 1 = shape or type not taken, 2 = no such instruction set here, 3 = no memory.
 * Weights come in ggml's own layout and are packed in place by lsw_pack first. */
LSW_API int32_t lsw_pack(int32_t type, int64_t columns, int64_t rows, void *matrix);
LSW_API int32_t lsw_unpack(int32_t type, int64_t columns, int64_t rows, void *matrix);
LSW_API int32_t lsw_product(int32_t type, int64_t columns, int64_t rows, int64_t width, const void *weights,
                            const float *input, float *output, int32_t isa, int32_t threads);
struct wide_attention;
LSW_API int32_t lsw_attention(const struct wide_attention *a, int32_t isa, int32_t threads); /* scratch is ours */

/* For tests without ggml, which else does it when it loads the library: takes the grid of a type (IQ2, IQ3) from what
 * `to_float` makes of blocks with every index. Without effect if a value is none of those that the type has, or if the grid is
 * there. The only function here that is not to be called on several threads at once. */
LSW_API void lsw_find_grid(int32_t type, void (*to_float)(const void *blocks, float *values, int64_t count));

/* Whether products of weights of a type, or attention over a cache of a type, give a row the same bits at widths up to 33:
 * tried on random numbers, in a few milliseconds. 0 = yes, 1 = type or head size not taken, 3 = no memory, 4 = no. */
LSW_API int32_t lsw_check_product(int32_t type, int32_t threads);
LSW_API int32_t lsw_check_attention(int32_t type, int64_t head_size, int32_t threads);

/* Limits of this machine for `localspec bench passes`, measured now on `threads` threads for about `seconds`: bytes read
 * from memory a second (over a buffer far larger than the caches), and int8 multiply-adds a second in registers. */
LSW_API double lsw_memory_rate(int32_t threads, double seconds);
LSW_API double lsw_int8_rate(int32_t isa, int32_t threads, double seconds);

#endif
