"""What this machine could do at most, measured by our library: reading memory, and int8 arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.llama import wide

_MEMORY_TRIES, _MEMORY_SECONDS = 3, 0.05
_INT8_TRIES, _INT8_SECONDS = 20, 0.005
"""Short tries of which the best counts: on a busy machine a long one would measure the others too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of all threads together."""

    memory_rate: float
    """Bytes read from memory a second."""
    int8_rate: float
    """Multiplications and additions of int8 a second, in registers."""


def measure_limits(threads: int, before: Limits | None = None) -> Limits | None:
    """Measures both for a moment; with an earlier result, the higher of each counts. None = no memory for it.

    Raises:
        LocalspecError: our library is not available.
    """
    library = wide.library()
    memory = max(float(library.lsw_memory_rate(threads, _MEMORY_SECONDS)) for _ in range(_MEMORY_TRIES))
    int8 = 2 * max(float(library.lsw_int8_rate(0, threads, _INT8_SECONDS)) for _ in range(_INT8_TRIES))
    if not (memory and int8):
        return before
    if before is not None:
        memory, int8 = max(memory, before.memory_rate), max(int8, before.int8_rate)
    return Limits(memory, int8)
