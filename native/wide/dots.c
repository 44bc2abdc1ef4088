/* Products of matrices that are not packed: small ones, those of several layers deep, formats without a packed form. Each
 * number is ggml's own product of two rows, which is what llama.cpp takes for a pass of one row. For wider passes it
 * chooses other kernels, whose bits are others. */
#include "wide.h"

enum { TOGETHER = 16 }; /* rows of weights, and of inputs, that pass over each other while they are in the cache */

size_t wide_dots_scratch(const struct wide_dots *d) {
    return d->convert ? d->converted * (size_t)(d->width * d->inputs[0] * d->inputs[1]) : 0;
}

static const char *input_row(const struct wide_dots *d, int64_t row, int64_t i2, int64_t i3) {
    return d->input + (size_t)row * d->input_at[0] + (size_t)i2 * d->input_at[1] + (size_t)i3 * d->input_at[2];
}

static char *converted_row(const struct wide_dots *d, int64_t row, int64_t i2, int64_t i3) {
    return (char *)d->scratch + d->converted * (size_t)(row + d->width * (i2 + d->inputs[0] * i3));
}

void wide_dots_prepare(const struct wide_dots *d, int thread, int threads) {
    if (!d->convert) {
        return;
    }
    const int64_t count = d->width * d->inputs[0] * d->inputs[1], last = count * (thread + 1) / threads;
    for (int64_t i = count * thread / threads; i < last; i++) {
        const int64_t row = i % d->width, i2 = i / d->width % d->inputs[0], i3 = i / d->width / d->inputs[0];
        const void *from = input_row(d, row, i2, i3); /* float32, aligned by ggml */
        d->convert(from, converted_row(d, row, i2, i3), d->columns);
    }
}

/* Weight rows [first, last) of one matrix with all rows of one input. */
static void multiply(const struct wide_dots *d, int64_t first, int64_t last, int64_t i2, int64_t i3) {
    const char *weights = d->weights + (size_t)(i2 / d->per_matrix[0]) * d->weight_at[1]
                          + (size_t)(i3 / d->per_matrix[1]) * d->weight_at[2];
    char *output = d->output + (size_t)i2 * d->output_at[1] + (size_t)i3 * d->output_at[2];
    for (int64_t start = 0; start < d->width; start += TOGETHER) {
        const int64_t end = start + TOGETHER < d->width ? start + TOGETHER : d->width;
        for (int64_t row = start; row < end; row++) {
            const void *in = d->convert ? converted_row(d, row, i2, i3) : input_row(d, row, i2, i3);
            float *out = (float *)(void *)(output + (size_t)row * d->output_at[0]);
            for (int64_t r = first; r < last; r++) {
                d->dot((int)d->columns, out + r, 0, weights + (size_t)r * d->weight_at[0], 0, in, 0, 1);
            }
        }
    }
}

/* A thread takes a run of the weight rows of every matrix. */
void wide_dots_run(const struct wide_dots *d, int thread, int threads) {
    const int64_t last = d->rows * (thread + 1) / threads;
    for (int64_t first = d->rows * thread / threads; first < last; first += TOGETHER) {
        const int64_t end = first + TOGETHER < last ? first + TOGETHER : last;
        for (int64_t i3 = 0; i3 < d->inputs[1]; i3++) {
            for (int64_t i2 = 0; i2 < d->inputs[0]; i2++) {
                multiply(d, first, end, i2, i3);
            }
        }
    }
}
