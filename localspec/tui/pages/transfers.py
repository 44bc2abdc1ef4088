"""How far a pull is: what its threads report, and the lines that show it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic

from textual.content import Content

from localspec.chat.plain_text import one_line
from localspec.tui.text.plots import amount, bar, duration

_WINDOW = 5.0
"""Seconds over which the speed is a mean."""
_SPEED_CELLS = 46


@dataclass(slots=True)
class _File:
    done: int = 0
    size: int = 0
    what: str = ""


class Transfers:
    """Told by any thread; read by the screen. What is shown never goes back while bytes come."""

    def __init__(self, missing_bytes: int = 0) -> None:
        self.missing_bytes = missing_bytes
        """Bytes that must come, in all."""
        self._files: dict[str, _File] = {}
        self._start: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def __call__(self, file: str, done: int, size: int, what: str) -> None:
        """A report, as `localspec.models.hub.transfer.Report`."""
        with self._lock:
            known = self._files.setdefault(file, _File())
            known.what = what
            if what == "waiting":
                return
            known.done, known.size = done, size
            if what == "loading":
                self._start.setdefault(file, done)
                self._most[file] = max(done, self._most.get(file, 0))

    def _come(self) -> int:
        return sum(most - self._start[file] for file, most in self._most.items())

    def lines(self, width: int, now: float | None = None) -> Content:
        """A bar for each file and one for all, with speed and time left."""
        with self._lock:
            files, come = {name: (one.done, one.size, one.what) for name, one in self._files.items()}, self._come()
        rate = self._rate(monotonic() if now is None else now, come)
        cells = max(8, min(40, width - _SPEED_CELLS))
        lines = [_file_line(name, done, size, what, cells) for name, (done, size, what) in files.items()]
        if self.missing_bytes:
            left = max(0, self.missing_bytes - come)
            speed = f"  {amount(rate)}/s, {duration(left / rate)} left" if rate and left else ""
            lines.append(
                Content.assemble(
                    ("in all\n", "bold"),
                    (bar(come / self.missing_bytes, cells), "$primary"),
                    f" {amount(come)} of {amount(self.missing_bytes)}{speed}",
                )
            )
        return Content("\n").join(lines)

    def _rate(self, now: float, come: int) -> float:
        self._samples.append((now, come))
        while self._samples and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first) if last - first > 0.2 else 0.0


def _file_line(name: str, done: int, size: int, what: str, cells: int) -> Content:
    doing = {"loading": "", "checking": "  checking", "waiting": "  waiting for another program that loads it"}
    share = done / size if size else 0.0
    return Content.assemble(
        (one_line(name), "dim"),
        "\n",
        (bar(share, cells), "$primary"),
        f" {amount(done)} of {amount(size)}{doing.get(what, '  ' + what)}",
    )
