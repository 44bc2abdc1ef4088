"""How much memory is left on this machine, where it says so (Linux)."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_SHORT = 192 * 2**20


def available_bytes(source: Path = _MEMINFO) -> int | None:
    """Memory that programs could still get without swapping; None where nobody says."""
    try:
        for line in source.read_text("ascii", "replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def is_short() -> bool:
    """Whether so little is left that something should be given back."""
    available = available_bytes()
    return available is not None and available < _SHORT
