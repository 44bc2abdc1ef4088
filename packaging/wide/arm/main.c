/* The kernels of localspec_wide that this machine can run, beside the scalar ones. `main NAME` also demands that passes run
 * on the instruction set NAME here. Ends with 1 at the first difference. */
#include "check.h"

#include <stdarg.h>
#include <stdlib.h>

const char *const isa_names[WIDE_I8MM + 1] = {"", "scalar", "neon", "avx2", "avx512", "i8mm"};
long compared;

uint32_t random_bits(void) { /* SplitMix64 */
    static uint64_t state;
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ x >> 31) >> 32);
}

float random_float(void) { /* the sum of uniform ones */
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        sum += (float)(int32_t)random_bits() * 0x1p-31f;
    }
    return sum;
}

bool same_bits(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

bool has_isa(int isa) {
    static uint8_t weights[16 * 34] __attribute__((aligned(64)));
    static float input[32], output[16];
    return lsw_product(WIDE_Q8_0, 32, 16, 1, weights, input, output, isa, 1) == 0;
}

int main(int count, char **words) {
    if (count != 2) {
        fail("usage: %s scalar|neon|i8mm", words[0]);
    }
    if (strcmp(lsw_isa_name(), words[1])) {
        fail("passes run on %s here instead of %s", lsw_isa_name(), words[1]);
    }
    check_products();
    check_attention();
    printf("%s:", words[1]);
    for (int isa = WIDE_SCALAR; isa <= WIDE_I8MM; isa++) {
        if (has_isa(isa)) {
            printf(" %s", isa_names[isa]);
        }
    }
    printf(", %ld results equal the scalar ones\n", compared);
    return 0;
}
