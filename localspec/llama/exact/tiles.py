"""llama.cpp's tiled kernels for K-quants: from eight rows of one matrix or expert on they use another arithmetic.

An environment variable turns them off, and llama.cpp reads it once in a process, at the first product that could be
tiled. So a process whose first model runs on our kernels leaves them off, and experts have the same bits at every
width. What the user has set stays.
"""

from __future__ import annotations

import os
import re

from localspec.llama.library.contention import cpus

TILES_VARIABLE = "GGML_CPU_TILED_MM"
TILED_TYPES = re.compile(r"q[2-6]_K|iq[1-4]_(?!nl).*")
"""ggml's names of the formats that have tiled kernels."""
_TILES_OFF = "0 (localspec)"
"""Our value of the variable. llama.cpp reads the number; the rest tells our child processes that no user set it."""

if os.environ.get(TILES_VARIABLE) == _TILES_OFF:
    del os.environ[TILES_VARIABLE]


def turn_off() -> None:
    """Turns them off for this process, unless a pass has run in it or the user has decided."""
    if not cpus.begun:
        os.environ.setdefault(TILES_VARIABLE, _TILES_OFF)


def in_use() -> bool:
    """Whether llama.cpp uses them in this process."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get(TILES_VARIABLE, "1"))  # as C's atoi reads it
    return number is not None and int(number[0]) != 0
