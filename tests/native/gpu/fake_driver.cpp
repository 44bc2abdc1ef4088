// NVIDIA's driver on the host's memory: the functions that native/gpu/cuda.c calls. Launches and asynchronous copies happen
// when their stream is waited for, as late as they may. What a real driver would answer with a crash or with wrong numbers
// is noted as a fault, and fake_fault() says the first.
#include "fake_kernels.h"

namespace {
int32_t names[4]; // what functions of a module are: their addresses

// Counts a call; an error if it is to fail. A lost context can still be pushed and popped.
int32_t begin(const char *name, bool in_context = true) {
    fake.calls[name]++;
    if (!fake.started && std::strcmp(name, "cuInit") != 0) {
        note(std::string(name) + " before cuInit");
    }
    if (in_context && fake.depth != 1) {
        note(std::string(name) + " outside a context");
    }
    if (fake.sticky && std::strncmp(name, "cuCtx", 5) != 0) {
        return fake.code;
    }
    if (fake.failing == name && fake.calls_left-- == 0) {
        fake.sticky = fake.code != CUDA_OUT_OF_MEMORY;
        return fake.code;
    }
    return 0;
}

int32_t give(uint64_t address, char kind) {
    const auto found = fake.blocks.find(address);
    if (!fake.queue.empty()) {
        note("memory given back while something is under way");
        fake.queue.clear();
    }
    if (found == fake.blocks.end() || found->second.kind != kind) {
        note("memory given back that was not taken");
        return 1;
    }
    fake.blocks.erase(found);
    std::free((void *)address);
    return 0;
}

template <typename T> T argument(void **arguments, int i) {
    T value;
    std::memcpy(&value, arguments[i], sizeof value);
    return value;
}
} // namespace

#define FAKE_API extern "C" LS_API

FAKE_API int32_t cuInit(uint32_t flags) {
    const int32_t error = begin("cuInit", false);
    fake.started = true;
    return error ? error : flags ? 1 : 0;
}

FAKE_API int32_t cuDriverGetVersion(int32_t *version) {
    *version = fake.version;
    return begin("cuDriverGetVersion", false);
}

FAKE_API int32_t cuGetErrorString(int32_t error, const char **text) {
    *text = error == 999 ? nullptr : error == CUDA_OUT_OF_MEMORY ? "out of memory" : "a failure made by the test";
    return error == 999;
}

FAKE_API int32_t cuDeviceGetCount(int32_t *count) {
    *count = fake.count;
    return begin("cuDeviceGetCount", false);
}

FAKE_API int32_t cuDeviceGet(int32_t *device, int32_t ordinal) {
    *device = 40 + ordinal; // not the ordinal itself
    return begin("cuDeviceGet", false);
}

FAKE_API int32_t cuDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t device) {
    if (device < 40 || (attribute != CUDA_CAPABILITY_MAJOR && attribute != CUDA_CAPABILITY_MINOR)) {
        note("an attribute that was not expected");
    }
    *value = attribute == CUDA_CAPABILITY_MAJOR ? fake.capability / 10 : fake.capability % 10;
    return begin("cuDeviceGetAttribute", false);
}

FAKE_API int32_t cuDevicePrimaryCtxRetain(void **context, int32_t) {
    const int32_t error = begin("cuDevicePrimaryCtxRetain", false);
    if (!error) {
        *context = &fake;
        fake.contexts++;
    }
    return error;
}

FAKE_API int32_t cuDevicePrimaryCtxRelease_v2(int32_t device) {
    const int32_t error = begin("cuDevicePrimaryCtxRelease_v2", false);
    if (device < 40 || fake.depth != 0) {
        note("a context given back while it is in use");
    }
    fake.contexts--;
    return error;
}

FAKE_API int32_t cuCtxPushCurrent_v2(void *context) {
    const int32_t error = begin("cuCtxPushCurrent_v2", false);
    if (context != &fake || fake.contexts < 1) {
        note("a context that is not retained");
    }
    fake.depth += error == 0;
    return error;
}

FAKE_API int32_t cuCtxPopCurrent_v2(void **context) {
    const int32_t error = begin("cuCtxPopCurrent_v2");
    *context = &fake;
    fake.depth--;
    return error;
}

FAKE_API int32_t cuModuleLoadDataEx(void **module, const void *image, uint32_t n_options, int32_t *, void **) {
    const int32_t error = begin("cuModuleLoadDataEx");
    if (n_options != 0 || std::strncmp((const char *)image, ".version 6.3", 12) != 0) {
        note("a module that is not ours");
    }
    if (!error) {
        *module = names;
        fake.modules++;
    }
    return error;
}

FAKE_API int32_t cuModuleUnload(void *module) {
    if (module != names) {
        note("a module that is not loaded");
    }
    fake.modules--;
    return begin("cuModuleUnload");
}

FAKE_API int32_t cuModuleGetFunction(void **function, void *, const char *name) {
    const char *const known[] = {"ls_tops", "ls_limit", "ls_list"};
    for (int i = 0; i < 3; i++) {
        if (std::strcmp(name, known[i]) == 0) {
            *function = &names[i];
            return begin("cuModuleGetFunction");
        }
    }
    note("a function that the module does not have");
    return 500;
}

FAKE_API int32_t cuStreamCreate(void **stream, uint32_t flags) {
    const int32_t error = begin("cuStreamCreate");
    if (flags != CUDA_STREAM_NON_BLOCKING) {
        note("a stream that waits for others");
    }
    if (!error) {
        *stream = &fake.queue;
        fake.streams++;
    }
    return error;
}

FAKE_API int32_t cuStreamSynchronize(void *stream) {
    const int32_t error = begin("cuStreamSynchronize");
    if (stream != nullptr && stream != &fake.queue) {
        note("a stream that is not ours");
    }
    auto queue = std::move(fake.queue);
    fake.queue.clear();
    try {
        for (const auto &one : queue) {
            if (!error) {
                one();
            }
        }
    } catch (const std::out_of_range &) { // noted
    }
    return error;
}

FAKE_API int32_t cuStreamDestroy_v2(void *) {
    if (!fake.queue.empty()) {
        note("a stream is ended with something under way");
    }
    fake.streams--;
    return begin("cuStreamDestroy_v2");
}

FAKE_API int32_t cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    const int32_t error = begin("cuMemAlloc_v2");
    return error ? error : bytes ? take(address, bytes, 'd') : 1;
}

FAKE_API int32_t cuMemFree_v2(uint64_t address) {
    const int32_t error = begin("cuMemFree_v2"), given = give(address, 'd');
    return error ? error : given;
}

FAKE_API int32_t cuMemAllocHost_v2(void **memory, size_t bytes) {
    const int32_t error = begin("cuMemAllocHost_v2");
    uint64_t address = 0;
    if (!error && bytes) {
        take(&address, bytes, 'h');
        *memory = (void *)address;
    }
    return error ? error : bytes == 0;
}

FAKE_API int32_t cuMemFreeHost(void *memory) {
    const int32_t error = begin("cuMemFreeHost"), given = give((uint64_t)memory, 'h');
    return error ? error : given;
}

FAKE_API int32_t cuPointerGetAttribute(void *value, int32_t attribute, uint64_t address) {
    const int32_t error = begin("cuPointerGetAttribute");
    if (!error && fake.any_memory) {
        const int32_t answer = attribute == CUDA_MEMORY_TYPE ? fake.memory_type : fake.ordinal;
        std::memcpy(value, &answer, sizeof answer);
        return 0;
    }
    auto after = fake.blocks.upper_bound(address);
    if (error || after == fake.blocks.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= address) {
        return error ? error : 1;
    }
    const int32_t type = std::prev(after)->second.kind == 'd' ? fake.memory_type : 1;
    const int32_t answer = attribute == CUDA_MEMORY_TYPE ? type : attribute == CUDA_DEVICE_ORDINAL ? fake.ordinal : -1;
    std::memcpy(value, &answer, sizeof answer);
    return 0;
}

FAKE_API int32_t cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) {
    const int32_t error = begin("cuMemGetAddressRange_v2");
    if (!error && fake.any_memory) {
        *base = 0;
        *bytes = SIZE_MAX;
        return 0;
    }
    auto after = fake.blocks.upper_bound(address);
    if (error || after == fake.blocks.begin()) {
        return error ? error : 1;
    }
    *base = std::prev(after)->first;
    *bytes = std::prev(after)->second.bytes;
    return 0;
}

FAKE_API int32_t cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *) {
    const int32_t error = begin("cuMemcpyHtoDAsync_v2");
    if (!error && inside(to, bytes, 'd', "upload")) {
        fake.queue.emplace_back([=] { std::memcpy((void *)to, from, bytes); });
    }
    return error;
}

FAKE_API int32_t cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *) {
    const int32_t error = begin("cuMemcpyDtoHAsync_v2");
    if (!error && inside(from, bytes, 'd', "download") && inside((uint64_t)to, bytes, 'h', "download")) {
        fake.queue.emplace_back([=] { std::memcpy(to, (const void *)from, bytes); });
    }
    return error;
}

FAKE_API int32_t cuLaunchKernel(void *function, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t block_y,
                                uint32_t block_z, uint32_t shared, void *stream, void **arguments, void **extra) {
    const int32_t error = begin("cuLaunchKernel");
    if (!x || !y || y > 65535 || z != 1 || !threads || threads > 1024 || block_y != 1 || block_z != 1 || shared || extra
        || stream != &fake.queue) {
        note("a launch with sizes that no device takes, or on another stream");
    }
    if (error) {
        return error;
    }
    const grid g = {x, y, threads};
    const auto which = (int32_t *)function - names;
    std::vector<uint64_t> a;
    if (which == 2) {
        for (int i = 1; i < 10; i++) {
            a.push_back(argument<uint64_t>(arguments, i));
        }
        const uint32_t room = argument<uint32_t>(arguments, 0);
        fake.queue.emplace_back([=] { run_list(g, room, a.data()); });
    } else {
        for (int i = 0; i < 4; i++) {
            a.push_back(argument<uint64_t>(arguments, i));
        }
        const auto run = which == 0 ? run_tops : run_limit;
        fake.queue.emplace_back([=] { run(g, a[0], a[1], a[2], a[3]); });
    }
    return 0;
}

// For tests. All as at the start; what is held stays held.
FAKE_API void fake_reset(void) {
    auto blocks = fake.blocks;
    const int32_t contexts = fake.contexts, modules = fake.modules, streams = fake.streams;
    fake = {};
    fake.blocks = blocks;
    fake.contexts = contexts;
    fake.modules = modules;
    fake.streams = streams;
}

// The function's call after `calls` more fails with an error; all later calls of all functions do, too, unless memory is out.
FAKE_API void fake_fail(const char *name, int32_t calls, int32_t error) {
    fake.failing = name;
    fake.calls_left = calls;
    fake.code = error;
}

FAKE_API void fake_set(const char *what, int32_t value) {
    const std::map<std::string, int32_t *> numbers = {{"count", &fake.count},
                                                      {"version", &fake.version},
                                                      {"capability", &fake.capability},
                                                      {"memory_type", &fake.memory_type},
                                                      {"ordinal", &fake.ordinal}};
    if (std::strcmp(what, "wrong_kernel") == 0) {
        fake.wrong_kernel = value != 0;
    } else if (std::strcmp(what, "any_memory") == 0) {
        fake.any_memory = value != 0;
    } else {
        *numbers.at(what) = value;
    }
}

FAKE_API const char *fake_fault(void) { return fake.fault.c_str(); }

FAKE_API int32_t fake_calls(const char *name) { return fake.calls[name]; }

// Blocks, contexts, modules and streams that are held, and contexts that are pushed.
FAKE_API int32_t fake_held(void) {
    return (int32_t)fake.blocks.size() + fake.contexts + fake.modules + fake.streams + fake.depth;
}

// Memory of the device, as llama.cpp would take it, and its end.
FAKE_API uint64_t fake_take(const void *from, size_t bytes) {
    uint64_t address = 0;
    take(&address, bytes, 'd');
    std::memcpy((void *)address, from, bytes);
    return address;
}

FAKE_API void fake_give(uint64_t address) { give(address, 'd'); }

// Memory that is a device's from now on, until it is given back: llama.cpp's, where a test computes on the CPU.
FAKE_API void fake_lend(uint64_t address, size_t bytes) { fake.blocks[address] = {bytes, 'd'}; }
FAKE_API void fake_take_back(uint64_t address) { fake.blocks.erase(address); }
