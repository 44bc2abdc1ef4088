// Metal and the Objective-C runtime on the host's memory: the methods that native/gpu/metal.c calls, by class and name. A
// method that is not here ends the program, as on a Mac. What is launched runs when it is committed.
#include "fake_kernels.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#define FAKE_API extern "C" LS_API

namespace {
struct thing {
    const char *kind;
    uint64_t memory = 0; // Of a buffer.
    size_t bytes = 0;
    bool lent = false; // Its memory is not its own.
    std::string words = {}; // Of a string or an error.
    int32_t which = 0; // Of a function or a pipeline.
    int32_t status = 0; // Of a command.
};
typedef void *id;

std::vector<thing *> alive;   // Released by the caller.
std::vector<thing *> for_now; // Until the pool is emptied.
std::string selected;
struct {
    thing *pipeline = nullptr, *command = nullptr;
    std::map<unsigned long, uint64_t> arguments;
} encoder;
const char *const kernels[] = {"ls_tops", "ls_limit", "ls_list"};
thing classes[] = {{"NSString class"}, {"MTLCompileOptions class"}};

bool fails(const char *name) { return fake.failing == name; }

thing *make(const char *kind) {
    thing *one = new thing{kind};
    alive.push_back(one);
    return one;
}

thing *lend(const char *kind, std::string words = "") {
    thing *one = new thing{kind};
    one->words = std::move(words);
    for_now.push_back(one);
    return one;
}

void release(id self, void *) {
    thing *one = (thing *)self;
    if (one->kind == std::string("buffer")) {
        fake.blocks.erase(one->memory);
        if (!one->lent) {
            std::free((void *)one->memory);
        }
    }
    const auto found = std::find(alive.begin(), alive.end(), one);
    if (found == alive.end()) {
        return note("something is released that is not the caller's");
    }
    alive.erase(found);
    delete one;
}

id string(id, void *, const char *utf8) { return lend("string", utf8); }
const char *utf8_of(id self, void *) { return ((thing *)self)->words.c_str(); }
id description(id self, void *) { return lend("string", ((thing *)self)->words); }
id options(id, void *) { return make("options"); }
void fast_math(id, void *, signed char on) { on ? note("fast-math is on") : void(); }
signed char unified(id, void *) { return !fails("unified"); }

id library(id, void *, id source, id given, id *error) {
    const std::string &text = ((thing *)source)->words;
    if (text.find("#include \"") != std::string::npos || text.find("kernel void ls_list") == std::string::npos || !given) {
        note("the source is not whole");
    }
    if (fails("library")) {
        *error = lend("error", "program_source:7: an error made by the test");
        return nullptr;
    }
    return make("library");
}

id function(id, void *, id name) {
    for (int32_t i = 0; i < 3; i++) {
        if (((thing *)name)->words == kernels[i] && !fails("function")) {
            thing *one = make("function");
            one->which = i;
            return one;
        }
    }
    return nullptr;
}

id pipeline(id, void *, id function, id *error) {
    if (fails("pipeline")) {
        *error = lend("error", "a pipeline that is too large");
        return nullptr;
    }
    thing *one = make("pipeline");
    one->which = ((thing *)function)->which;
    return one;
}

unsigned long most_threads(id, void *) { return fails("threads") ? 64 : 1024; }
id queue(id, void *) { return fails("queue") ? nullptr : make("queue"); }

id buffer(id, void *, unsigned long bytes, unsigned long storage) {
    if (fails("buffer") || bytes == 0 || storage != 0) {
        return nullptr;
    }
    thing *one = make("buffer");
    take(&one->memory, bytes, 'd');
    return one;
}

id lent_buffer(id, void *, void *memory, unsigned long bytes, unsigned long storage, id deallocator) {
    if ((uint64_t)memory % 16384 || bytes % 16384 || storage != 0 || deallocator) {
        note("memory is lent that is not whole pages");
    }
    if (fails("lent buffer")) {
        return nullptr;
    }
    thing *one = make("buffer");
    one->memory = (uint64_t)memory;
    one->lent = true;
    fake.blocks[one->memory] = {bytes, 'd'};
    return one;
}

void *contents(id self, void *) { return (void *)((thing *)self)->memory; }
id command(id, void *) { return fails("command") ? nullptr : lend("command"); }

id encode(id self, void *) {
    encoder.command = (thing *)self;
    return lend("encoder");
}

void set_pipeline(id, void *, id one) { encoder.pipeline = (thing *)one; }

void set_buffer(id, void *, id buffer, unsigned long offset, unsigned long index) {
    if (offset % 4) {
        note("an offset that is no multiple of 4");
    }
    encoder.arguments[index] = ((thing *)buffer)->memory + offset;
}

struct size {
    unsigned long width, height, depth;
};

void dispatch(id, void *, size groups, size threads) {
    if (groups.depth != 1 || threads.height != 1 || threads.depth != 1 || threads.width > 1024) {
        note("a launch with sizes that no device takes");
    }
    const grid g = {(uint32_t)groups.width, (uint32_t)groups.height, (uint32_t)threads.width};
    std::vector<uint64_t> a;
    for (const auto &[index, address] : encoder.arguments) {
        a.push_back(address);
    }
    const int32_t which = encoder.pipeline->which;
    fake.queue.emplace_back([=] {
        if (which == 0) {
            run_tops(g, a[0], a[1], a[2], a[3]);
        } else if (which == 1) {
            run_limit(g, a[0], a[1], a[2], a[3]);
        } else {
            run_list(g, *at<uint32_t>(a[0], 1, "ls_list room"), a.data() + 1);
        }
    });
}

void end(id, void *) { encoder.arguments.clear(); }

void commit(id self, void *) {
    thing *one = (thing *)self;
    one->status = fake.failing == "run" && fake.calls_left-- == 0 ? 5 : 4;
    auto queue = std::move(fake.queue);
    fake.queue.clear();
    try {
        for (const auto &launched : queue) {
            if (one->status == 4) {
                launched();
            }
        }
    } catch (const std::out_of_range &) { // noted
    }
}

void wait(id, void *) {}
unsigned long status(id self, void *) { return (unsigned long)((thing *)self)->status; }
id error_of(id, void *) { return lend("error", "the GPU was taken away by the test"); }

const std::map<std::string, void *> methods = {
    {"NSString class stringWithUTF8String:", (void *)string},
    {"string UTF8String", (void *)utf8_of},
    {"error localizedDescription", (void *)description},
    {"MTLCompileOptions class new", (void *)options},
    {"options setFastMathEnabled:", (void *)fast_math},
    {"device hasUnifiedMemory", (void *)unified},
    {"device newLibraryWithSource:options:error:", (void *)library},
    {"library newFunctionWithName:", (void *)function},
    {"device newComputePipelineStateWithFunction:error:", (void *)pipeline},
    {"pipeline maxTotalThreadsPerThreadgroup", (void *)most_threads},
    {"device newCommandQueue", (void *)queue},
    {"device newBufferWithLength:options:", (void *)buffer},
    {"device newBufferWithBytesNoCopy:length:options:deallocator:", (void *)lent_buffer},
    {"buffer contents", (void *)contents},
    {"queue commandBuffer", (void *)command},
    {"command computeCommandEncoder", (void *)encode},
    {"encoder setComputePipelineState:", (void *)set_pipeline},
    {"encoder setBuffer:offset:atIndex:", (void *)set_buffer},
    {"encoder dispatchThreadgroups:threadsPerThreadgroup:", (void *)dispatch},
    {"encoder endEncoding", (void *)end},
    {"command commit", (void *)commit},
    {"command waitUntilCompleted", (void *)wait},
    {"command status", (void *)status},
    {"command error", (void *)error_of},
};
} // namespace

FAKE_API id MTLCreateSystemDefaultDevice(void) { return fails("device") ? nullptr : make("device"); }

FAKE_API id objc_getClass(const char *name) {
    for (thing &one : classes) {
        if (one.kind == std::string(name) + " class") {
            return &one;
        }
    }
    return nullptr;
}

FAKE_API id object_getClass(id one) { return one; }
FAKE_API void *sel_registerName(const char *name) { return (void *)name; }

FAKE_API void *class_getMethodImplementation(id class_, void *selector) {
    const std::string name = (const char *)selector;
    return name == "release" ? (void *)release : methods.at(std::string(((thing *)class_)->kind) + " " + name);
}

FAKE_API void *objc_autoreleasePoolPush(void) {
    fake.depth++;
    return &fake;
}

FAKE_API void objc_autoreleasePoolPop(void *pool) {
    fake.depth--;
    if (pool != &fake) {
        note("a pool that is not there");
    }
    for (thing *one : for_now) {
        delete one;
    }
    for_now.clear();
}

// For tests; as in fake_driver.cpp.
FAKE_API void fake_reset(void) {
    fake.fault.clear();
    fake.failing.clear();
    fake.wrong_kernel = false;
    fake.queue.clear();
}

FAKE_API void fake_fail(const char *name, int32_t calls, int32_t) {
    fake.failing = name;
    fake.calls_left = calls;
}

FAKE_API void fake_set(const char *, int32_t value) { fake.wrong_kernel = value != 0; }
FAKE_API const char *fake_fault(void) { return fake.fault.c_str(); }
FAKE_API int32_t fake_held(void) { return (int32_t)alive.size() + (int32_t)fake.blocks.size() + fake.depth; }
