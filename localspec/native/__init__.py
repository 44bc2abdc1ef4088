"""The C library of native/ (its interface: native/localspec.h), called through ctypes. tests/reference/ is the same in
numpy: the specification."""
