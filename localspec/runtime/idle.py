"""Times the widths that have not run yet, while there is nothing else to do: one pass, then it looks again.

A pass runs behind what the slot's cache holds and is then dropped from it, as a draft is of which nothing was right:
the bits of what stays, and of what is decoded behind it, are those of plain decoding (DESIGN section 5C). Nothing runs
on a battery, beside other programs that want the CPUs, or within seconds of any pass of this process; what others
delayed does not count. What was found is kept with the rest of what is known, so it is done once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from localspec.engine.costs import PassCosts
from localspec.errors import LocalspecError
from localspec.llama.contention import cpus, waited
from localspec.types import Feed, LogitRows, Tokens

_QUIET = 2.0
"""Seconds without a pass in this process before one of these runs."""
_LATER = 60.0
"""Seconds until it is tried again where it was not possible or disturbed."""
_DELAYED = 0.1
"""Of a pass, the time its threads waited for a CPU from which on it does not count."""
_TIMES = 3
"""Passes of a width; the first one builds its graph and does not count."""
_SUPPLIES = Path("/sys/class/power_supply")


class Cache(Protocol):
    """What is timed (`llama.context.Context`)."""

    n_ctx: int
    n_vocab: int

    def held(self, slot: int) -> tuple[Tokens, int]:
        """The slot's tokens, and the prompt length of their history."""
        ...

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """How many leading tokens a pass would find cached."""
        ...

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass."""
        ...

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drops what the slot's cache holds behind its first `keep` tokens."""
        ...


class IdleCalibration:
    """Of one engine with one slot and chains. Used on its thread, while it has nothing else to do."""

    def __init__(
        self,
        context: Cache,
        widths: Sequence[int],
        costs: Callable[[], PassCosts],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            context: the target's.
            widths: of the passes to be timed.
            costs: where what they cost goes.
            clock: seconds; for tests.
        """
        self._context, self._costs, self._clock = context, costs, clock or perf_counter
        self._widths = sorted(widths, reverse=True)  # one that is not known counts as the next wider one
        self._times: list[float] = []
        self._own = -1
        """Passes that had begun in this process, its own last one included; if there are more, others run some."""
        self._not_before = 0.0

    @property
    def wait(self) -> float | None:
        """Seconds until `step` may run a pass; None = there is nothing left."""
        if not self._widths:
            return None
        now, quiet = self._clock(), 0.0
        if cpus.begun != self._own:
            quiet = _QUIET if cpus.running else cpus.last_pass + _QUIET - now
        return max(0.0, quiet, self._not_before - now)

    def step(self) -> bool:
        """Runs a pass if it may; whether that was the last one."""
        others = cpus.begun
        if self.wait != 0.0:
            return False
        if cpus.asleep or on_battery() or not self._pass(others):
            self._not_before = self._clock() + _LATER
        return not self._widths

    def _pass(self, others: int) -> bool:
        """Times the next pass; False = it cannot be done now, or what it took says nothing.

        Args:
            others: passes that had begun when none was running.
        """
        context, width = self._context, self._widths[0]
        held, prompt_length = context.held(0)
        length = len(held)
        if length + 1 + width > context.n_ctx:
            return False
        made = (np.arange(width) * 7919 % context.n_vocab).astype(np.int32)
        history = np.concatenate((held, made[:1]))
        if context.reusable(0, history, prompt_length) != length:
            return False  # it would have to be read anew, in other passes than before
        feed = Feed(0, history, prompt_length, made[1:], np.arange(-1, width - 2, dtype=np.int32))
        before, begun = waited(), self._clock()
        try:
            context.decode([feed])
        except LocalspecError:  # the plan will hear of it when it wants such a pass
            self._widths.clear()
            return False
        finally:
            context.forget(0, length)
            self._own = others + 1
        seconds, after = self._clock() - begun, waited()
        if before is not None and after is not None and after - before > _DELAYED * seconds:
            return False
        if cpus.begun > self._own:
            return False  # one that began meanwhile ran beside it
        self._times.append(seconds)
        if len(self._times) == _TIMES:
            self._costs().observe(width, length, min(self._times[1:]))
            self._times.clear()
            del self._widths[0]
        return True


def unknown_widths(costs: PassCosts, widest: int, exact: frozenset[int] | None) -> list[int]:
    """Widths from 2 to `widest` that may run and of which no pass has been timed."""
    timed = {int(width) for row in costs.to_json().values() for width in row}
    return [width for width in range(2, widest + 1) if width not in timed and (exact is None or width in exact)]


def on_battery() -> bool:
    """Whether the machine runs on its battery, as far as Linux says so; elsewhere it counts as plugged in.

    A desktop has plugs that are not used (USB-C), and batteries of other devices (a mouse).
    """
    try:
        supplies = [_SUPPLIES / name for name in os.listdir(_SUPPLIES)]
    except OSError:
        return False
    own = any(_said(one, "type") == "Battery" and _said(one, "scope") != "Device" for one in supplies)
    plugs = [online for one in supplies if (online := _said(one, "online"))]
    return own and bool(plugs) and "1" not in plugs


def _said(supply: Path, what: str) -> str:
    """What the system says of a power supply; empty = nothing."""
    try:
        return (supply / what).read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""
