// What the driver of fake_driver.cpp holds, and the kernel in loops.
#ifndef LS_FAKE_KERNELS_H
#define LS_FAKE_KERNELS_H

#include "../../../native/gpu/host.cpp"

#include "../../../native/gpu/driver.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace {
struct block {
    size_t bytes;
    char kind; // 'd': device, 'h': pinned host memory
};

struct {
    std::string fault, failing;
    int32_t count = 1, version = 13000, capability = 86, code = 0, contexts = 0, modules = 0, streams = 0;
    int32_t calls_left = 0, depth = 0, memory_type = CUDA_DEVICE_MEMORY, ordinal = 0;
    bool wrong_kernel = false, started = false, sticky = false, any_memory = false; // Any: of the host, too.
    std::map<std::string, int32_t> calls;
    std::map<uint64_t, block> blocks;
    std::vector<std::function<void()>> queue;
} fake;

void note(const std::string &text) {
    if (fake.fault.empty()) {
        fake.fault = text;
    }
}

// The block that holds bytes from this address on.
bool inside(uint64_t address, size_t bytes, char kind, const char *what) {
    auto after = fake.blocks.upper_bound(address);
    if (after != fake.blocks.begin()) {
        const auto &[start, found] = *std::prev(after);
        if (address + bytes <= start + found.bytes && (kind == 0 || found.kind == kind)) {
            return true;
        }
    }
    if (fake.any_memory) {
        return true;
    }
    note(std::string(what) + ": " + std::to_string(bytes) + " bytes outside every block");
    return false;
}

// What a launch reads or writes; the launch ends where that is outside every block.
template <typename T> T *at(uint64_t address, size_t count, const char *what) {
    if (!inside(address, count * sizeof(T), 'd', what)) {
        throw std::out_of_range(what);
    }
    return (T *)address;
}

int32_t take(uint64_t *address, size_t bytes, char kind) {
    *address = (uint64_t)std::calloc(1, bytes + 1);
    std::memset((void *)*address, 0xA5, bytes);
    fake.blocks[*address] = {bytes, kind};
    return 0;
}

struct grid {
    uint32_t x, y, threads;
};

void run_tops(grid g, uint64_t logits, uint64_t request, uint64_t positions, uint64_t tops) {
    const uint32_t *words = at<uint32_t>(request, LS_REQUEST_WORDS, "ls_tops request");
    const uint32_t n_vocab = words[LS_REQUEST_VOCAB], stripes = stripes_of(n_vocab);
    const float *rows = at<float>(logits, (size_t)g.y * n_vocab, "ls_tops logits");
    const uint32_t *places = at<uint32_t>(positions, g.y, "ls_tops positions");
    uint32_t *best = at<uint32_t>(tops, (size_t)g.y * stripes, "ls_tops tops");
    if (g.x * g.threads < stripes) {
        return note("ls_tops: its grid is too small");
    }
    for (uint32_t row = 0; row < g.y; row++) {
        for (uint32_t thread = 0; thread < g.x * g.threads; thread++) {
            tops_phase(row, thread, rows, words, places, best);
        }
    }
}

void run_limit(grid g, uint64_t request, uint64_t tops, uint64_t limits, uint64_t found) {
    const uint32_t *words = at<uint32_t>(request, LS_REQUEST_WORDS, "ls_limit request");
    const uint32_t *best = at<uint32_t>(tops, (size_t)g.x * stripes_of(words[LS_REQUEST_VOCAB]), "ls_limit tops");
    uint32_t *low = at<uint32_t>(limits, g.x, "ls_limit limits"), *count = at<uint32_t>(found, g.x, "ls_limit found");
    if (g.y != 1) {
        return note("ls_limit: its grid is wrong");
    }
    for (uint32_t row = 0; row < g.x; row++) {
        ls_counter counters[LS_HIGHEST + 1];
        for (uint32_t thread = 0; thread < g.threads; thread++) {
            limit_start_phase(thread, g.threads, counters);
        }
        for (uint32_t round = 0; round < LS_ROUNDS; round++) {
            for (uint32_t thread = 0; thread < g.threads; thread++) {
                limit_round_phase(row, thread, g.threads, round, words, best, counters);
            }
        }
        limit_end_phase(row, words, counters, low, count);
    }
}

void run_list(grid g, uint32_t room, const uint64_t *addresses) {
    const uint32_t *words = at<uint32_t>(addresses[1], LS_REQUEST_WORDS, "ls_list request");
    const uint32_t n_vocab = words[LS_REQUEST_VOCAB], stripes = stripes_of(n_vocab);
    const size_t rows = g.y;
    const float *logits = at<float>(addresses[0], rows * n_vocab, "ls_list logits");
    const uint32_t *positions = at<uint32_t>(addresses[2], rows, "ls_list positions");
    const int32_t *patched = at<int32_t>(addresses[3], words[LS_REQUEST_PATCHED], "ls_list patched");
    const uint32_t *tops = at<uint32_t>(addresses[4], rows * stripes, "ls_list tops");
    const uint32_t *limits = at<uint32_t>(addresses[5], rows, "ls_list limits");
    uint32_t *found = at<uint32_t>(addresses[6], rows, "ls_list found");
    int32_t *tokens = at<int32_t>(addresses[7], rows * room, "ls_list tokens");
    float *values = at<float>(addresses[8], rows * room, "ls_list values");
    const uint32_t threads = g.x * g.threads;
    if (threads < stripes) {
        return note("ls_list: its grid is too small");
    }
    for (uint32_t row = 0; row < g.y; row++) {
        for (uint32_t thread = threads; thread-- > 0;) { // not in the order of the host
            list_phase(row, thread, threads, room, logits, words, positions, patched, tops, limits, found, tokens, values);
        }
        found[row] -= fake.wrong_kernel && found[row] > 0;
    }
}

} // namespace

#endif
