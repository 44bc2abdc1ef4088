"""What an engine does while it has nothing to answer, a short step at a time; a request waits for one at most.

`IdleCalibration` times the widths that have not run yet. Its passes run after what the slot's cache holds and are then
dropped from it, like a draft that was rejected whole: what stays has the bits of plain decoding. Nothing runs within
seconds of a pass of this process. Passes and measurements wait for mains power and for CPUs that are free; what others
delayed does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from localspec.errors import LocalspecError
from localspec.llama.exact import facts
from localspec.llama.exact.facts import SelfCheck
from localspec.llama.library.contention import cpus, waited
from localspec.machine import available_bytes, on_battery
from localspec.planning.costs import PassCosts
from localspec.types import Feed, LogitRows, Tokens

_QUIET_SECONDS = 2.0  # seconds without a pass in this process before one of these runs
_RETRY_SECONDS = 60.0  # seconds until it is tried again where it was not possible or disturbed
_MOST_DELAYED_SHARE = 0.1  # of a pass, the time its threads waited for a CPU from which on it does not count
_PASSES_A_WIDTH = 3  # passes of a width; the first one builds its graph and does not count
_FREE_BYTES = 4 * 256 * 2**20
"""Free bytes from which on the machine is measured: four times what that takes (native/wide/limits.c)."""


class IdleJob(Protocol):
    """Steps for idle time."""

    @property
    def wait(self) -> float | None:
        """Seconds until `step` may do something; None = there is nothing left."""
        ...

    def step(self) -> bool:
        """Does a short part of it if it may; whether that was the last one."""
        ...


def next_wait(jobs: Sequence[IdleJob]) -> float | None:
    """Seconds until one of the jobs may do something; None = there is nothing left."""
    return min((wait for job in jobs if (wait := job.wait) is not None), default=None)


def quiet_in() -> float:
    """Seconds until no pass has run in this process for a while."""
    return _QUIET_SECONDS if cpus.running else max(0.0, cpus.last_pass + _QUIET_SECONDS - perf_counter())


class IdleSelfCheck:
    """Tries our kernels (`llama.exact.facts.SelfCheck`), a case at a step."""

    def __init__(self, check: SelfCheck, failed: Callable[[str], None]) -> None:
        """`failed` is called with the case that failed, if one does."""
        self._check, self._failed = check, failed

    @property
    def wait(self) -> float | None:
        return None if self._check.over else quiet_in()

    def step(self) -> bool:
        self._check.step()
        if self._check.fault:
            self._failed(self._check.fault)
        return self._check.over


class IdleLimits:
    """Measures what this machine can do at most, once a day; the highest ever measured counts."""

    def __init__(self, threads: int, room: Callable[[], int | None] = available_bytes) -> None:
        """`room` says how many bytes of memory are free."""
        self._threads, self._room = threads, room
        self._known = facts.read_limits(threads)
        self._over, self._not_before = self._known is not None and self._known.of_today, 0.0

    @property
    def wait(self) -> float | None:
        return None if self._over else max(quiet_in(), self._not_before - perf_counter())

    def step(self) -> bool:
        self._not_before = perf_counter() + _RETRY_SECONDS
        if not on_battery() and (self._room() or 0) >= _FREE_BYTES:
            found = facts.measure_limits(self._threads, self._known)
            if found is not None:
                facts.write_limits(self._threads, found)
                self._over = True
        return self._over


class Cache(Protocol):
    """What is timed: a `llama.cache.context.Context`, with what it says of these methods."""

    n_ctx: int
    n_vocab: int

    def held(self, slot: int) -> tuple[Tokens, int]: ...
    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int: ...
    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]: ...
    def forget(self, slot: int, keep: int = 0) -> None: ...


class IdleCalibration:
    """Of one engine with one slot and chains. Used on its thread, while it has nothing else to do."""

    def __init__(
        self, context: Cache, widths: Sequence[int], costs: PassCosts, clock: Callable[[], float] | None = None
    ) -> None:
        """Times passes of these widths; what they cost goes to `costs`. `clock` is for tests."""
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
            quiet = _QUIET_SECONDS if cpus.running else cpus.last_pass + _QUIET_SECONDS - now
        return max(0.0, quiet, self._not_before - now)

    def step(self) -> bool:
        others = cpus.begun
        if self.wait != 0.0:
            return False
        if cpus.shared or on_battery() or not self._pass(others):
            self._not_before = self._clock() + _RETRY_SECONDS
        return not self._widths

    def _pass(self, others: int) -> bool:
        """Times the next pass; False = it cannot be done now, or what it took says nothing. `others`: passes that had
        begun when none was running."""
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
        if before is not None and after is not None and after - before > _MOST_DELAYED_SHARE * seconds:
            return False
        if cpus.begun > self._own:
            return False  # one that began meanwhile ran beside it
        self._times.append(seconds)
        if len(self._times) == _PASSES_A_WIDTH:
            self._costs.observe(width, length, min(self._times[1:]))
            self._times.clear()
            del self._widths[0]
        return True


def unknown_widths(costs: PassCosts, widest: int, exact: frozenset[int] | None) -> list[int]:
    """Widths from 2 to `widest` that may run and of which no pass has been timed."""
    timed = costs.timed
    return [width for width in range(2, widest + 1) if width not in timed and (exact is None or width in exact)]
