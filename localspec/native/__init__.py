"""The C library of native/ (its interface: native/localspec.h), called through ctypes.

`kernels` has its functions; `ngrams`, `suffix` and `counts` have what drafters search; `gpu` is
for logits in a GPU's memory. tests/reference/ is the same in numpy: the specification.
"""
