"""The kernels of the C library as functions, on the best instruction set of this CPU: `kernels.verify(...)`.

Importing this module opens the library. Without the library the import fails with a KernelError that says what to do.
"""

from __future__ import annotations

from localspec.native.binding import NativeKernels

KERNELS = NativeKernels()

gumbel = KERNELS.gumbel
sample = KERNELS.sample
distribution = KERNELS.distribution
log_probs = KERNELS.log_probs
top_log_probs = KERNELS.top_log_probs
verify = KERNELS.verify
matvec = KERNELS.matvec
