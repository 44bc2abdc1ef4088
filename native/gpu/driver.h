/* The functions of NVIDIA's driver that cuda.c calls, declared here so that no toolkit is needed. */
#ifndef LS_DRIVER_H
#define LS_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CUDA_CALL __stdcall
#define CUDA_LIBRARY "nvcuda.dll"
#else
#define CUDA_CALL
#define CUDA_LIBRARY "libcuda.so.1"
#endif

#define CUDA_OLDEST_DRIVER 11000 /* 1000 * major + 10 * minor of what cuDriverGetVersion gives: the first with all below. */
#define CUDA_OLDEST_GPU 75       /* 10 * major + minor of the compute capability that ptx.h is for. */

#define CUDA_INVALID_VALUE 1 /* Errors. */
#define CUDA_OUT_OF_MEMORY 2
#define CUDA_CAPABILITY_MAJOR 75 /* Attributes of a device. */
#define CUDA_CAPABILITY_MINOR 76
#define CUDA_MEMORY_TYPE 2 /* Attributes of a pointer. */
#define CUDA_DEVICE_ORDINAL 9
#define CUDA_DEVICE_MEMORY 2       /* A memory type. */
#define CUDA_STREAM_NON_BLOCKING 1 /* Does not wait for the default stream. */

typedef uint64_t cuda_address; /* Of the device's memory. */

/* Field, the driver's name, arguments; all return 0 or an error. Contexts, modules, functions and streams are void *. */
#define CUDA_FUNCTIONS(X)                                                                                                   \
    X(init, cuInit, (uint32_t flags))                                                                                       \
    X(version, cuDriverGetVersion, (int32_t *version))                                                                      \
    X(error_text, cuGetErrorString, (int32_t error, const char **text))                                                     \
    X(device_count, cuDeviceGetCount, (int32_t *count))                                                                     \
    X(device_get, cuDeviceGet, (int32_t *device, int32_t ordinal))                                                          \
    X(device_attribute, cuDeviceGetAttribute, (int32_t *value, int32_t attribute, int32_t device))                          \
    X(context_retain, cuDevicePrimaryCtxRetain, (void **context, int32_t device))                                           \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int32_t device))                                                      \
    X(context_push, cuCtxPushCurrent_v2, (void *context))                                                                   \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                                                    \
    X(module_load, cuModuleLoadDataEx,                                                                                      \
      (void **module, const void *image, uint32_t n_options, int32_t *options, void **option_values))                       \
    X(module_unload, cuModuleUnload, (void *module))                                                                        \
    X(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))                              \
    X(stream_create, cuStreamCreate, (void **stream, uint32_t flags))                                                       \
    X(stream_wait, cuStreamSynchronize, (void *stream))                                                                     \
    X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                                                   \
    X(allocate, cuMemAlloc_v2, (cuda_address *address, size_t bytes))                                                       \
    X(release, cuMemFree_v2, (cuda_address address))                                                                        \
    X(host_allocate, cuMemAllocHost_v2, (void **memory, size_t bytes))                                                      \
    X(host_release, cuMemFreeHost, (void *memory))                                                                          \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, int32_t attribute, cuda_address address))                     \
    X(address_range, cuMemGetAddressRange_v2, (cuda_address *base, size_t *bytes, cuda_address address))                    \
    X(upload, cuMemcpyHtoDAsync_v2, (cuda_address to, const void *from, size_t bytes, void *stream))                        \
    X(download, cuMemcpyDtoHAsync_v2, (void *to, cuda_address from, size_t bytes, void *stream))                            \
    X(launch, cuLaunchKernel,                                                                                               \
      (void *function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z, uint32_t block_x, uint32_t block_y,               \
       uint32_t block_z, uint32_t shared_bytes, void *stream, void **arguments, void **extra))

typedef struct cuda_driver {
#define CUDA_FIELD(field, name, arguments) int32_t(CUDA_CALL *field) arguments;
    CUDA_FUNCTIONS(CUDA_FIELD)
#undef CUDA_FIELD
} cuda_driver;

#endif
