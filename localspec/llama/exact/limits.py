"""What this machine could do at most, measured by our library: reading memory, and int8 arithmetic."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.llama.exact import probe, wide

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


def read(folder: Path, threads: int) -> Limits | None:
    """What was measured on this CPU with so many threads; None = nothing yet."""
    try:
        found = json.loads((folder / f"{_key(threads)}.json").read_text("utf-8"))
        limits = Limits(float(found["memory_rate"]), float(found["int8_rate"]))
    except probe.DAMAGE:
        return None
    return limits if limits.memory_rate > 0 and limits.int8_rate > 0 else None


def is_of_today(folder: Path, threads: int) -> bool:
    """Whether it was measured within a day: one measured beside other work is too low, and another may be better."""
    try:
        written = (folder / f"{_key(threads)}.json").stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - written) < _DAY_SECONDS


def write(folder: Path, threads: int, limits: Limits) -> None:
    """Keeps it; a full or read-only disk is no error."""
    probe.write(folder, _key(threads), asdict(limits))


def _key(threads: int) -> str:
    facts = [wide.status().isa, probe.cpu_name(), threads]
    return "limits-" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


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
