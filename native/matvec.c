/* Matrix times vector for drafter heads: int8 weights with a scale a row, inputs rounded to 15 bits. The sums are exact
 * integers, so every instruction set and numpy give the same bits. */
#include "internal.h"

#include <float.h>

#define LS_INPUT_TOP 16383.0 /* 1,024 products of it with -128 stay below 2^31 */
#define LS_SUMS 512

/* Rounds one input; returns the size of a step, NaN if an entry is not finite. */
static double round_input(const float *x, int64_t n, int16_t *out) {
    float top = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        finite &= size <= FLT_MAX;
        top = size > top ? size : top;
    }
    if (!finite || top == 0.0f) {
        memset(out, 0, (size_t)n * sizeof *out);
        return finite ? 0.0 : (double)NAN;
    }
    const double inverse = LS_INPUT_TOP / (double)top;
    for (int64_t i = 0; i < n; i++) {
        out[i] = (int16_t)rint((double)x[i] * inverse);
    }
    return (double)top / LS_INPUT_TOP;
}

int32_t ls_matvec(ls_workspace *w, const int8_t *weights, const float *scales, int64_t n_rows, int64_t n,
                  const float *x, int64_t n_x, float *out) {
    if (n_rows < 0 || n < 1 || n_x < 1 || n_x > LS_MOST_INPUTS) {
        return LS_BAD_ARGUMENT;
    }
    const int32_t status = ls_grow((void **)&w->inputs, &w->n_inputs_room, n * n_x, sizeof *w->inputs);
    if (status) {
        return status;
    }
    double steps[LS_MOST_INPUTS];
    for (int64_t j = 0; j < n_x; j++) {
        steps[j] = round_input(x + j * n, n, w->inputs + j * n);
    }
    const int64_t block = LS_SUMS / n_x;
    int64_t sums[LS_SUMS];
    for (int64_t first = 0; first < n_rows; first += block) {
        const int64_t count = n_rows - first < block ? n_rows - first : block;
        w->lanes->dots(weights + first * n, count, w->inputs, n_x, n, sums);
        for (int64_t j = 0; j < n_x; j++) {
            for (int64_t i = 0; i < count; i++) {
                out[j * n_rows + first + i] = (float)((double)sums[i * n_x + j] * ((double)scales[first + i] * steps[j]));
            }
        }
    }
    return LS_OK;
}
