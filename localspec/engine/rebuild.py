"""What it takes to go back to plain decoding's width behind a draft.

llama.cpp keeps the graph of the last pass, and a pass of as many rows needs no other. Between drafts, passes have one
row. So a draft costs what its own pass takes, which is known (`costs`), and what the plain pass behind it takes longer:
4 % with 1 B parameters, 10 % with 100 M, and from a quarter to two thirds of a tiny model's pass, by machine
(`packaging/bench/rebuild.py`). It is counted once, when a text leaves plain decoding: another draft behind the first
one only puts it off.

Of passes of one slot; with several, widths hardly ever stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass

_RATE, _PRIOR = 0.05, 8
"""By how much one pass changes what is known, and passes as which it counts that nothing takes longer."""
_LEAST, _MOST = 0.3, 1.0
"""Of a plain pass, what is counted at all (where it is less, more copies were missed for it than time was saved), and
the most that one may take longer: what takes more is a stall."""


@dataclass(slots=True)
class Rebuild:
    """Of one pair's target."""

    seconds: float = 0.0
    """That a plain pass takes longer behind one with a draft; 0 = unknown, or too little to count."""
    _longer: float = 0.0
    """The same, however little."""
    _seen: int = 0
    _last: int = 0
    """Rows of the pass before; 0 = there was none, or not of one slot."""

    @property
    def due(self) -> float:
        """Seconds that a draft in the coming pass costs a later one."""
        return self.seconds if self._last == 1 else 0.0

    def forget(self) -> None:
        """The coming pass stands behind something else than a pass of one slot."""
        self._last = 0

    def observe(self, rows: int, seconds: float, plain_seconds: float) -> None:
        """A pass of one slot took so long, where plain decoding's usually take `plain_seconds`."""
        last, self._last = self._last, rows
        if rows > 1 or last <= 1:
            return
        longer = max(-1.0, min(_MOST, seconds / plain_seconds - 1.0)) * plain_seconds if plain_seconds > 0.0 else 0.0
        self._seen += 1
        self._longer += max(_RATE, 1.0 / (_PRIOR + self._seen)) * (longer - self._longer)
        self.seconds = self._longer if self._longer > _LEAST * plain_seconds else 0.0
