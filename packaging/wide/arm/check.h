/* What the files of this check share. */
#ifndef LOCALSPEC_WIDE_ARM_CHECK_H
#define LOCALSPEC_WIDE_ARM_CHECK_H

#include "localspec_wide.h"
#include "wide.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

extern const char *const isa_names[WIDE_I8MM + 1];
extern long compared; /* products and attentions */

bool has_isa(int isa);
uint32_t random_bits(void);
float random_float(void); /* about a standard normal one */
bool same_bits(float a, float b); /* or both no number */
/* Says what is wrong and ends the program. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

void check_products(void);
void check_attention(void);

#endif
