"""When the models last did something: so one that hangs can be told from one that is slow."""

from __future__ import annotations

from time import monotonic


class Signs:
    """What `alive` has seen. Written by one thread; any may look."""

    def __init__(self) -> None:
        self._last = monotonic()
        self._faults = 0  # pages that were read from disk
        self.longest = 0.0
        """Seconds of the longest silence that ended."""

    def begin(self) -> None:
        """There was nothing to do until now."""
        self._last = monotonic()

    def alive(self) -> None:
        """The models have done something."""
        now = monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now

    @property
    def silent(self) -> float:
        """Seconds since they last did something; pages that were read meanwhile are something, too."""
        faults = _faults()
        if faults != self._faults:  # a large model's first pass may read its file for minutes
            self._faults = faults
            self.begin()
        return monotonic() - self._last


def _faults() -> int:
    """Pages that this process had to wait for; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
