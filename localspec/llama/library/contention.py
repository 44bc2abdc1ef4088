"""Whether other programs want the CPUs too: then a pass has fewer threads, or its threads wait for each other asleep.

The threads of a pass meet some 30 times per layer. On a machine of their own they should wait awake (asleep, a pass of
1 B takes a third longer); beside a program that keeps every CPU busy a waiting thread keeps out the one it waits for,
and a pass can take a second instead of a millisecond. So the operating system is asked, four times a second, for how
long our threads wanted a CPU and had none. What our other threads took from them does not count: a chat that draws its
answer takes a tenth of a CPU. Before weights are packed and before the first pass, which could take seconds, the system
is asked for how many threads of others run.

Where the bits of a pass do not depend on its threads, it leaves the others their CPUs: on two of them, beside a program
that takes one, a model of 135 M writes 93 tokens a second with one thread, 32 with two, 37 with two that sleep. It
keeps half of its threads in any case. If that does not help, and in other passes, GNU OpenMP's threads go to sleep.

libgomp has no call for it, but its threads sleep almost at once while it has more threads than there are CPUs
(`gomp_throttled_spin_count_var`, libgomp/config/linux/wait.h). A parked thread with enough idle threads of its own
makes it so; ending that thread undoes it. The bits of a pass do not depend on it. Linux and GNU OpenMP only: elsewhere
nothing is measured and nothing done. Where the user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY, nothing is done either.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

from localspec.machine import allowed, mapped_files, others

_INTERVAL_SECONDS = 0.25  # seconds of passes between two measurements
_SHARED_CPU = 0.3  # CPUs that others kept the threads of passes from, on average, where the machine is shared
_OWN_CPU = 0.1  # the same, from which on it is ours again, if it stays so for `_CALM_INTERVALS` measurements
_CALM_INTERVALS = 4
_PROBATION_INTERVALS = 8  # measurements after which the return was right; if not, the next waits twice as long
_MOST_INTERVALS = 64  # most measurements that a return waits for
_LOOKS, _LOOK_SECONDS = 3, 0.003
"""Looks at other programs before the first pass, of which the least counts, and seconds between them: most programs
that run at some moment do not a moment later."""
_TASKS = Path("/proc/self/task")


class Contention:
    """Watches one process and decides for it; see the module. Called where passes are computed, on any thread."""

    def __init__(self, others: Callable[[Sequence[str]], int] = others) -> None:
        """`others`: threads of other programs than these that run now."""
        self._others = others
        self.begun = 0  # passes that have begun, on any thread
        self.running = 0  # those of them that have not ended
        self.last_pass = 0.0  # when a pass ended last, by `time.perf_counter`; 0 = there was none
        self._family: Path | None = None  # threads of the program that this process works for; None = there is none
        self._known = False  # whether a pass has begun that could give way
        self._lock = threading.Lock()
        self._passes = 0.0  # seconds since the last measurement
        self._used = _usage(_TASKS)  # by thread that counts as ours, at the last measurement
        self._waited = _total(self._used)
        self._claimed = self._waited or 0.0  # of what our threads waited, what was claimed or is too long ago
        self.taken = 0  # CPUs that are left to other programs
        self._spare = 0  # threads that the last pass could have done without
        self._calm = 0
        self._patience = _CALM_INTERVALS  # calm measurements before all threads are used again
        self._alone = _PROBATION_INTERVALS  # measurements since then
        self._parked: threading.Event | None = None  # set to let go a thread that has others go to sleep
        self.enabled = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ) and self._waited is not None

    @property
    def asleep(self) -> bool:
        return self._parked is not None

    def threads(self, wanted: int) -> int:
        """Of so many threads, those that a pass should have, if its bits do not depend on them."""
        return wanted - min(wanted // 2, self.taken)  # half of them stay

    def free(self, wanted: int, looks: int = _LOOKS) -> int:
        """Of so many threads, those to which the programs that run now leave a CPU; half of them in any case."""
        names = ["self"] if self._family is None else ["self", self._family.parent.name]
        busy, count = self._others(names) if self.enabled else 0, os.cpu_count() or 1
        for _ in range(looks - 1):
            if busy + wanted <= count:
                return wanted
            sleep(_LOOK_SECONDS)
            busy = min(busy, self._others(names))
        return wanted - min(wanted // 2, max(0, busy + wanted - count))

    @property
    def shared(self) -> bool:
        return self.asleep or self.taken > 0

    def join(self, process: int) -> None:
        """The threads of a program that this process works for count as ours from now on."""
        with self._lock:
            self._family = Path(f"/proc/{process}/task")
            if self._used is not None:
                self._used |= _usage(self._family) or {}

    @contextlib.contextmanager
    def passing(self, wanted: int = 0) -> Iterator[None]:
        """Around every pass; after some the system is asked how long our threads waited for a CPU. `wanted`: threads of
        which the pass has as many as `threads` says; 0 = it has its own number in any case."""
        begun = perf_counter()
        with self._lock:
            self._spare = wanted // 2
            self.begun += 1
            self.running += 1
            if self.enabled and wanted and not self._known:
                self._known = True  # nothing has been measured yet
                self.taken = wanted - self.free(wanted)
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1
                self.last_pass = perf_counter()
                self._passes += self.last_pass - begun
                if self.enabled and self._passes >= _INTERVAL_SECONDS:
                    self._measure()

    def claim_delay(self) -> float:
        """Seconds that our threads waited for a CPU since this was asked last, in half a second of passes at most. They
        are evidence that a pass was delayed. 0 where it is not measured."""
        with self._lock:
            now = waited() if self.enabled else None
            if now is None or self._waited is None:
                return 0.0
            found, self._claimed = now - self._claimed, now
        return max(0.0, found)

    def _measure(self) -> None:
        used = _usage(_TASKS)
        now = _total(used)
        if used is not None and self._family is not None:
            used |= _usage(self._family) or {}
        if used is not None and self._used is not None and self._waited is not None:
            self._decide(kept_out(self._used, used, len(allowed())) / self._passes)
            self._claimed = max(self._claimed, self._waited)
        self._used, self._waited, self._passes = used, now, 0.0

    def _decide(self, share: float) -> None:
        """`share`: CPUs that others kept our threads from, since the last measurement."""
        self._calm = self._calm + 1 if share < _OWN_CPU else 0
        if share > _SHARED_CPU:
            if self._alone < _PROBATION_INTERVALS:
                self._patience = min(2 * self._patience, _MOST_INTERVALS)
            self._alone = _PROBATION_INTERVALS
            if self.taken < self._spare:
                self.taken = min(self._spare, self.taken + max(1, round(share)))
            elif self._parked is None and (library := _openmp()) is not None:
                parked = threading.Event()
                threading.Thread(target=_park, args=(library, parked), name="localspec-parked", daemon=True).start()
                self._parked = parked
        elif self.taken or self._parked is not None:
            if self._calm >= self._patience:
                self._take_back()
        elif self._alone < _PROBATION_INTERVALS:
            self._alone += 1
        else:
            self._patience = _CALM_INTERVALS

    def _take_back(self) -> None:
        self.taken = self._calm = self._alone = 0
        if self._parked is not None:
            self._parked.set()
            self._parked = None


def _park(library: ctypes.CDLL, ended: threading.Event) -> None:
    """On a thread of its own: it has more OpenMP threads than there are CPUs, all idle, until `ended`."""
    start = library.GOMP_parallel  # void (*)(void (*)(void *), void *, unsigned, unsigned)
    start.restype = None
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    nothing = ctypes.cast(library.free, ctypes.c_void_p)  # free(NULL): every thread's part of the work
    start(nothing, None, len(allowed()) + 1, 0)
    ended.wait()


class CpuTime(NamedTuple):
    """Of one thread since it began."""

    ran: float  # seconds on a CPU
    waited: float  # seconds it was ready to run and had no CPU


def kept_out(before: Mapping[str, CpuTime], after: Mapping[str, CpuTime], cpus: int) -> float:
    """Seconds between two measurements for which other programs kept the threads of passes from a CPU. The `cpus`
    threads that ran most are taken for those of passes. What the others of this process ran may have kept them out
    as well, so it is taken off."""
    old = {task: before.get(task, CpuTime(0.0, 0.0)) for task in after}
    since = [CpuTime(now.ran - old[task].ran, now.waited - old[task].waited) for task, now in after.items()]
    since.sort(reverse=True)
    return max(0.0, sum(one.waited for one in since[:cpus]) - sum(one.ran for one in since[cpus:]))


def waited() -> float | None:
    """Seconds that all threads of this process were ready to run and had no CPU; None where that is not known."""
    return _total(_usage(_TASKS))


def _usage(tasks: Path) -> dict[str, CpuTime] | None:
    """Of every thread of a process, by its number; None where that is not known."""
    found = {}
    try:
        for task in os.scandir(tasks):
            try:
                with open(f"{task.path}/schedstat", "rb") as file:
                    ran, waited, _ = file.read().split()
            except (ProcessLookupError, FileNotFoundError):
                continue  # a thread that has just ended
            found[task.name] = CpuTime(int(ran) / 1e9, int(waited) / 1e9)
    except (OSError, ValueError):
        return None
    return found


def _total(used: Mapping[str, CpuTime] | None) -> float | None:
    return None if used is None else sum(one.waited for one in used.values())


def _openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP that is loaded in this process (a wheel may bring its own), if there is one."""
    for file in mapped_files():
        if "libgomp" in file:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(file, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


cpus = Contention()  # of this process: OpenMP's threads are its, whatever computes
