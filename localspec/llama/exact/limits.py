"""What this machine could do at most, measured by our library: reading memory, and int8 arithmetic."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

from localspec import kept
from localspec.llama.exact import identity, wide

_MEMORY_TRIES, _MEMORY_SECONDS = 3, 0.05
_INT8_TRIES, _INT8_SECONDS = 20, 0.005
"""Short tries of which the best counts: on a busy machine a long one would measure the others too."""
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of all threads together."""

    memory_rate: float
    """Bytes a second that all threads together read from memory."""
    int8_rate: float
    """Multiplications and additions of int8 a second, in registers."""
    when: float = 0.0
    """Seconds since 1970."""

    @property
    def of_today(self) -> bool:
        """Whether it was measured within a day: beside other work one is too low, and another may be better."""
        return abs(time.time() - self.when) < _DAY_SECONDS


def read(threads: int) -> Limits | None:
    """What was measured on this CPU with so many threads; None = nothing yet."""
    return kept.facts().read("limits", _key(threads), _limits)


def write(threads: int, limits: Limits) -> None:
    """Keeps it; a full or read-only disk is no error."""
    kept.facts().write("limits", _key(threads), asdict(limits))


def _limits(data: Any) -> Limits:
    found = Limits(float(data["memory_rate"]), float(data["int8_rate"]), float(data["when"]))
    if not (0.0 < found.memory_rate < math.inf and 0.0 < found.int8_rate < math.inf):
        raise ValueError("a rate is above 0")
    return found


def _key(threads: int) -> list[Any]:
    return [wide.status().isa, identity.cpu_name(), threads]


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
    return Limits(memory, int8, time.time())
