/* The words of a request: what lists.c asks of the kernel for the rows of one pass. Numbers only, so that C, C++, CUDA and
 * Metal read the same. */
#ifndef LS_REQUEST_H
#define LS_REQUEST_H

#define LS_REQUEST_MODE 0    /* One of the modes below. */
#define LS_REQUEST_COUNT 1   /* So many of the best entries must be listed. */
#define LS_REQUEST_PATCHED 2 /* Tokens whose logits are wanted whatever they are; they stand first in a list. */
#define LS_REQUEST_VOCAB 3   /* Logits of a row. */
#define LS_REQUEST_SCALE 4   /* Bits of a float32: 1 / temperature. */
#define LS_REQUEST_MARGIN 5  /* Bits of a float32: log of min-p, rounded down. */
#define LS_REQUEST_KEY 6     /* Two words: the key of Philox. */
#define LS_REQUEST_PURPOSE 8 /* Its third counter word. */
#define LS_REQUEST_STREAM 9  /* Its fourth. */

#define LS_BY_LOGIT 0 /* List the entries with the largest logits. */
#define LS_BY_NOISE 1 /* List those with the largest logit / temperature + gumbel. */
#define LS_BY_SHARE 2 /* List those with at least min-p of the likeliest token's probability. */

#define LS_STRIPE 64 /* Logits of which the best is noted. */

#endif
