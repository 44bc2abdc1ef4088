"""How a transfer is shown: bars for each file and in all on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.chat.plain_text import plain_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = Callable[[str, int, int, str], None]
"""(file, bytes done, bytes in all, "loading", "checking" or "waiting"); may come from several threads."""

_SECONDS_PER_LINE = 10.0


@contextmanager
def transfer_progress(total: int) -> Iterator[Report]:
    """Shows progress on standard error.

    Args:
        total: bytes still to come, of all files.
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    name = TextColumn("{task.description}", markup=False)  # a file may be called [/b]
    columns = (name, BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bars(bars, total)


class _Bars:
    def __init__(self, bars: Progress, total: int) -> None:
        self._bars, self._lock = bars, threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._loaded: dict[str, int] = {}
        self._started: dict[str, int] = {}
        self._all = bars.add_task("in all", total=total) if total else None

    def __call__(self, file: str, done: int, size: int, what: str) -> None:
        with self._lock:
            if file not in self._tasks:
                self._tasks[file] = self._bars.add_task("", total=size)
            short = plain_text(file.rsplit("/", 1)[-1])[-44:]
            shown = short if what == "loading" else f"{what} {short}"
            if what == "waiting":
                self._bars.update(self._tasks[file], description=shown)
                return
            self._bars.update(self._tasks[file], completed=done, description=shown)
            if what == "loading" and self._all is not None:
                self._started.setdefault(file, done)
                self._loaded[file] = max(done, self._loaded.get(file, 0))  # a total that never goes back
                come = sum(self._loaded[name] - self._started[name] for name in self._loaded)
                self._bars.update(self._all, completed=come)


class _Lines:
    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        self._finished: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def __call__(self, file: str, done: int, size: int, what: str) -> None:
        with self._lock:
            key, now = (file, what), time.monotonic()
            if key in self._finished or (what == "waiting" and key in self._last):
                return
            if done == size:
                self._finished.add(key)
            elif now - self._last.setdefault(key, now) < _SECONDS_PER_LINE and what != "waiting":
                return
            self._last[key] = now
            share = f"{done / 1e6:.1f} of {size / 1e6:.1f} MB"
            words = {"loading": f"loaded {share}", "checking": f"checked {share}"}
            text = words.get(what, "waiting for another program that loads it")
            print(f"{plain_text(file)}: {text}", file=sys.stderr, flush=True)
