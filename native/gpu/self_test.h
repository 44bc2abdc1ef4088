// The self-test of a build of the kernel, on whatever runs it: lists and lookups against plain definitions in double.
#ifndef LS_SELF_TEST_H
#define LS_SELF_TEST_H

#include "../real.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

typedef void (*lists_runner)(const float *logits, uint32_t rows, const uint32_t *request, const int32_t *patched,
                             const uint32_t *positions, uint32_t *found, int32_t *tokens, float *values);
typedef void (*lookup_runner)(const int32_t *history, const uint32_t *starts, uint32_t slots, uint32_t min_ngram,
                              uint32_t max_ngram, uint32_t max_tokens, int32_t *out, int32_t *match);

struct self_test_random {
    uint64_t state;
    uint32_t below(uint32_t n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)((state >> 33) % n);
    }
};

// What one row was asked for, as numbers.
struct list_case {
    uint32_t n_vocab, mode, count, position, key[2], purpose, stream;
    double temperature, margin;
    std::vector<int32_t> patched;
    std::vector<float> row;

    // What entry `i` is ranked by; infinite for NaN and +inf, -infinite for an excluded one.
    double score(uint32_t i) const {
        const float x = row[i];
        if (!(x <= std::numeric_limits<float>::max())) {
            return INFINITY;
        }
        if (mode != LS_BY_NOISE || x == -INFINITY) {
            return x;
        }
        uint32_t counter[4] = {i, position, purpose, stream};
        ls_philox(counter, key[0], key[1]);
        return std::max(-1e30, std::min(1e30, x / temperature)) + ls_to_gumbel(counter[0]);
    }

    std::vector<uint32_t> request() const {
        const float scale = (float)(1.0 / temperature), low = (float)margin;
        return {mode, count, (uint32_t)patched.size(), n_vocab, LS_BITS(scale), LS_BITS(low), key[0], key[1], purpose, stream};
    }
};

// Rows as models make them, and as they do not: ties, masks, huge numbers, one that is no number.
static list_case random_case(self_test_random &random, uint32_t number) {
    static const uint32_t vocabularies[] = {1, 5, 64, 65, 200, 1000, 2999}, counts[] = {1, 2, 5, 40};
    static const double scales[] = {1.0, 0.01, 1e4, 1e31};
    list_case c;
    c.n_vocab = vocabularies[random.below(7)];
    c.mode = number % 3;
    c.count = counts[random.below(4)];
    c.position = random.below(1u << 30);
    c.key[0] = random.below(1u << 30);
    c.key[1] = random.below(1u << 30);
    c.purpose = random.below(1u << 30);
    c.stream = random.below(4);
    c.temperature = random.below(2) ? 1.0 : 0.25;
    c.margin = -(double)random.below(6);
    const uint32_t kind = random.below(6);
    const double scale = kind == 5 ? scales[random.below(4)] : 1.0;
    for (uint32_t i = 0; i < c.n_vocab; i++) {
        const double x = ((double)random.below(1u << 20) + random.below(1u << 20) + random.below(1u << 20)) * 0x1p-17 - 12.0;
        c.row.push_back((float)(scale * (kind == 0 ? std::floor(x) : x)));
        if (kind == 1 && random.below(10) < 9) {
            c.row[i] = -INFINITY;
        }
    }
    if (kind == 2) {
        c.row[random.below(c.n_vocab)] = random.below(2) ? NAN : INFINITY;
    }
    for (uint32_t i = random.below(4); i > 0; i--) {
        c.patched.push_back((int32_t)random.below(c.n_vocab));
    }
    return c;
}

// Is the list of n entries what the case asks for? `must` be in it: scores from the limit on; `may`: a little below it.
static bool list_is_right(const list_case &c, uint32_t n, const int32_t *tokens, const float *values) {
    const uint32_t stripes = (c.n_vocab + LS_STRIPE - 1) / LS_STRIPE, fixed = (uint32_t)c.patched.size();
    std::vector<double> scores, tops(stripes, -INFINITY);
    for (uint32_t i = 0; i < c.n_vocab; i++) {
        scores.push_back(c.score(i));
        tops[i % stripes] = std::max(tops[i % stripes], scores[i]);
    }
    std::sort(tops.rbegin(), tops.rend());
    double must = c.count <= stripes ? tops[c.count - 1] : -INFINITY, may = must;
    if (tops[0] == INFINITY) { // all that counts is that C sees it
        must = INFINITY;
        may = -INFINITY;
    } else if (must > -INFINITY && c.mode != LS_BY_LOGIT) {
        const double size = std::fabs(c.mode == LS_BY_SHARE ? must : std::max(std::fabs(must), std::fabs(tops[0])));
        must += c.mode == LS_BY_SHARE ? c.margin : 0.0;
        may = must - ((24.0 + size) * 0x1p-19 + 2e-4);
    }
    std::vector<bool> listed(c.n_vocab, false);
    for (uint32_t i = 0; i < n && i < LS_LIST_ROOM; i++) {
        const uint32_t token = (uint32_t)tokens[i];
        if (token >= c.n_vocab || LS_BITS(values[i]) != LS_BITS(c.row[token])) {
            return false;
        }
        if (i < fixed ? tokens[i] != c.patched[i] : listed[token] || scores[token] < may || scores[token] == -INFINITY) {
            return false;
        }
        listed[token] = i >= fixed;
    }
    uint32_t least = fixed, most = fixed;
    for (uint32_t i = 0; i < c.n_vocab; i++) {
        const bool kept = scores[i] >= must && scores[i] > -INFINITY;
        if (kept && !listed[i] && n <= LS_LIST_ROOM) {
            return false;
        }
        least += kept;
        most += scores[i] >= may && scores[i] > -INFINITY;
    }
    return n >= least && n <= most;
}

// Prompt lookup by looking at everything.
static bool lookup_is_right(const std::vector<int32_t> &history, uint32_t low, uint32_t high, uint32_t max_tokens,
                            const int32_t *out, int32_t match) {
    const size_t length = history.size();
    for (size_t n = high; n >= low; n--) {
        for (size_t end = length; end-- > n;) {
            if (std::equal(history.end() - (std::ptrdiff_t)n, history.end(), history.begin() + (std::ptrdiff_t)(end - n))) {
                bool same = match == (int32_t)n;
                for (size_t i = 0; i < max_tokens; i++) {
                    same = same && out[i] == history[end + i % (length - end)];
                }
                return same;
            }
        }
    }
    return match == 0;
}

static int32_t lists_test(lists_runner run) {
    self_test_random random = {1};
    for (int32_t number = 0; number < 400; number++) {
        // Three rows alike but for their position: a row that reads another's is found out.
        const list_case c = random_case(random, (uint32_t)number);
        std::vector<float> rows;
        std::vector<uint32_t> positions, found(3);
        std::vector<int32_t> tokens(3 * LS_LIST_ROOM);
        std::vector<float> values(3 * LS_LIST_ROOM);
        std::vector<list_case> cases(3, c);
        for (uint32_t i = 0; i < 3; i++) {
            std::rotate(cases[i].row.begin(), cases[i].row.begin() + i % c.n_vocab, cases[i].row.end());
            cases[i].position += i;
            rows.insert(rows.end(), cases[i].row.begin(), cases[i].row.end());
            positions.push_back(cases[i].position);
        }
        run(rows.data(), 3, c.request().data(), c.patched.data(), positions.data(), found.data(), tokens.data(), values.data());
        for (uint32_t i = 0; i < 3; i++) {
            if (!list_is_right(cases[i], found[i], tokens.data() + i * LS_LIST_ROOM, values.data() + i * LS_LIST_ROOM)) {
                return 1 + number;
            }
        }
    }
    return 0;
}

static int32_t lookups_test(lookup_runner run) {
    self_test_random random = {2};
    for (int32_t number = 0; number < 200; number++) {
        const uint32_t low = 1 + random.below(3), high = low + random.below(5), kinds = 1 + random.below(5);
        std::vector<int32_t> pool, out(4 * 9), match(4);
        std::vector<uint32_t> starts = {0};
        std::vector<std::vector<int32_t>> histories(4);
        for (std::vector<int32_t> &history : histories) {
            for (uint32_t i = random.below(60); i > 0; i--) {
                history.push_back((int32_t)random.below(kinds));
            }
            pool.insert(pool.end(), history.begin(), history.end());
            starts.push_back((uint32_t)pool.size());
        }
        run(pool.data(), starts.data(), 4, low, high, 9, out.data(), match.data());
        for (uint32_t i = 0; i < 4; i++) {
            if (!lookup_is_right(histories[i], low, high, 9, out.data() + 9 * i, match[i])) {
                return 1001 + number;
            }
        }
    }
    return 0;
}

// 0, or the number of the first case that is wrong: from 1 on a list, from 1001 on a lookup.
static int32_t self_test(lists_runner lists, lookup_runner lookup) {
    const int32_t wrong = lists_test(lists);
    return wrong ? wrong : lookups_test(lookup);
}

#endif
