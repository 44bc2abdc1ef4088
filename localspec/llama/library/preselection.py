"""GPUs that list the logits that can matter (native/gpu), by the names that llama.cpp gives them."""

from __future__ import annotations

import logging
import os
import re

from localspec.errors import KernelError
from localspec.native.gpu import METAL, Gpu

_LOG = logging.getLogger("localspec")
_CUDA_SWITCH, _METAL_SWITCH = "LOCALSPEC_CUDA_KERNEL", "LOCALSPEC_METAL_KERNEL"
"""Environment variables: 1 = the kernel is used on such devices. It never ran on any, so it is not used unasked."""


def ordinal_of(name: str) -> int | None:
    """What `Gpu` opens for llama.cpp's device of this name; None where no kernel is to be used."""
    cuda = re.fullmatch(r"CUDA(\d+)", name)
    if cuda is not None and os.environ.get(_CUDA_SWITCH) == "1":
        return int(cuda[1])
    return METAL if re.match(r"MTL|Metal", name) and os.environ.get(_METAL_SWITCH) == "1" else None


def open_gpu(name: str) -> Gpu | None:
    """The GPU that llama.cpp calls so, after its self-test; None where it does not serve. The log says why not."""
    ordinal = ordinal_of(name)
    if ordinal is None:
        return None
    try:
        return Gpu(ordinal)
    except KernelError as error:
        if error.message:
            _LOG.warning("%s Logits are copied from %s and verified on the CPU.", error.message, name)
        return None
