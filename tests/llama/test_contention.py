"""A busy machine is noticed: passes have fewer threads there, or they sleep, until it is quiet again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.library.contention import _CALM_INTERVALS, Contention, CpuTime, cpus, kept_out, waited
from localspec.llama.model import Model
from localspec.types import Tokens

pytestmark = pytest.mark.skipif(waited() is None, reason="this system does not tell how long threads wait for a CPU")


def _nobody(_: Sequence[str]) -> int:
    """Nobody else runs."""
    return 0


_SPIN = "import time\nend = time.perf_counter() + 60\nwhile time.perf_counter() < end: pass"

_SHARE = """
import os, time
from localspec.llama.library.contention import waited
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before, end = waited(), time.process_time() + 0.2
while time.process_time() < end: pass
print(waited() - before)
"""

_BUSY_THEN_QUIET = """
import contextlib, os, subprocess, sys, time
import localspec
from localspec.llama.exact import wide
from localspec.llama.library.contention import _CALM_INTERVALS, _INTERVAL_SECONDS, cpus
from localspec import Engine

def tasks():
    return len(os.listdir("/proc/self/task"))

def run_on(cpus):
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(task), cpus)

with Engine.load(drafter="none") as engine:
    one = {min(os.sched_getaffinity(0))}
    everywhere = os.sched_getaffinity(0)
    def answer():
        before = tasks()
        engine.generate("The sea", max_tokens=200, ignore_end=True).text()
        return tasks() - before
    run_on(one)
    hog = subprocess.Popen([sys.executable, "-c", sys.argv[1]], preexec_fn=lambda: os.sched_setaffinity(0, one))
    try:
        for _ in range(50):
            answer()
            if cpus.asleep or cpus.taken:
                break
    finally:
        hog.kill()
        hog.wait()
    print("gives way beside a busy program:", cpus.asleep or cpus.taken > 0)
    run_on(everywhere)
    with_parked = tasks()
    end = time.monotonic() + 15
    while (cpus.asleep or cpus.taken) and time.monotonic() < end:  # others may keep the machine busy
        answer()
    time.sleep(0.2)
    print("awake when alone:", not cpus.asleep or "still busy")
    print("parked threads gone:", cpus.asleep or tasks() < with_parked)
"""


def _python(program: str, *arguments: str, **variables: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=Path(__file__).parents[2],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wait_for_a_cpu_is_measured() -> None:
    one = {min(os.sched_getaffinity(0))}
    hog = subprocess.Popen([sys.executable, "-c", _SPIN], preexec_fn=lambda: os.sched_setaffinity(0, one))
    try:
        assert float(_python(_SHARE)) > 0.05  # it got about half of that CPU
    finally:
        hog.kill()
        hog.wait()


@pytest.mark.parametrize(
    ("screen", "workers", "seconds"),
    [
        (CpuTime(0.2, 0.3), (CpuTime(0.9, 0.1), CpuTime(0.9, 0.1)), 0.0),  # it took from them what they waited for
        (CpuTime(0.1, 0.1), (CpuTime(0.5, 0.5), CpuTime(0.5, 0.5)), 0.9),  # another program did
        (CpuTime(0.0, 0.9), (CpuTime(1.0, 0.0), CpuTime(1.0, 0.0)), 0.0),  # the threads of passes wait for no CPU
    ],
    ids=["a screen", "another program", "a thread that waits for passes"],
)
def test_what_our_own_threads_take_is_no_other_program(
    screen: CpuTime, workers: tuple[CpuTime, CpuTime], seconds: float
) -> None:
    before = {"1": CpuTime(3.0, 2.0), "2": CpuTime(9.0, 5.0)}
    since = {"1": screen, "2": workers[0], "new": workers[1]}
    after = {
        task: CpuTime(*(old + more for old, more in zip(before.get(task, CpuTime(0, 0)), used, strict=True)))
        for task, used in since.items()
    }
    assert kept_out(before, after, cpus=2) == pytest.approx(seconds)


def test_what_a_program_that_joins_did_before_does_not_count() -> None:
    spun = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", spun], **pipes) as program:
        assert program.stdout is not None
        program.stdout.readline()
        watch = Contention(_nobody)
        watch.join(program.pid)
        assert watch._used is not None
        assert watch._used[str(program.pid)].ran >= 0.2
        program.communicate("\n")


def test_a_busy_program_gets_cpus_and_all_threads_come_back_when_it_is_gone() -> None:
    watch = Contention(_nobody)
    with watch.passing(8):
        pass
    assert watch.threads(8) == 8
    watch._decide(1.2)
    assert (watch.threads(8), watch.asleep) == (7, False)
    watch._decide(2.0)
    watch._decide(3.0)
    assert (watch.threads(8), watch.asleep) == (4, False), "half of them stay"
    for _ in range(_CALM_INTERVALS):
        assert watch.threads(8) == 4
        watch._decide(0.0)
    assert watch.threads(8) == 8
    assert watch.threads(1) == 1


@pytest.mark.parametrize(
    ("seen", "threads", "asleep"),
    [([0], 8, False), ([3, 3, 3], 5, False), ([3, 0], 8, False), ([3, 9, 1], 7, False), ([20, 20, 20], 4, False)],
)
def test_the_first_pass_leaves_cpus_to_programs_that_run(
    seen: list[int], threads: int, asleep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least of three looks counts, and there is one where nobody else runs."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    looks = iter(seen)
    watch = Contention(lambda names: next(looks) if names == ["self"] else 0)
    watch.enabled = True
    try:
        for _ in range(2):
            with watch.passing(8):
                assert (watch.threads(8), watch.asleep) == (threads, asleep)
        assert list(looks) == []
    finally:
        watch._take_back()


def test_a_return_to_all_threads_that_was_too_early_is_later_the_next_time() -> None:
    watch = Contention(_nobody)
    with watch.passing(2):
        pass

    def calm() -> int:
        """Measurements until all threads are used again."""
        watch._decide(1.0)
        count = 0
        while watch.threads(2) < 2:
            watch._decide(0.0)
            count += 1
        return count

    assert [calm() for _ in range(7)] == [4, 8, 16, 32, 64, 64, 64]
    for _ in range(20):
        watch._decide(0.0)
    assert calm() == 4, "it was right to return"


@pytest.mark.trial
def test_threads_give_way_to_a_busy_program_and_return_when_it_is_gone() -> None:
    printed = _python(_BUSY_THEN_QUIET, _SPIN)
    assert "gives way beside a busy program: True" in printed
    assert "parked threads gone: True" in printed


def test_passes_under_way_are_counted_however_they_end() -> None:
    watch = Contention(_nobody)
    watch.enabled = False
    with watch.passing(), watch.passing():
        assert (watch.begun, watch.running, watch.last_pass) == (2, 2, 0.0)
    assert (watch.begun, watch.running) == (2, 0)
    last = watch.last_pass
    with pytest.raises(KeyboardInterrupt), watch.passing():
        raise KeyboardInterrupt
    assert (watch.begun, watch.running) == (3, 0)
    assert watch.last_pass > last > 0.0


def test_a_pass_is_seen_while_it_runs(make: Callable[..., Context], text: Tokens) -> None:
    before, seen = cpus.begun, list[int]()

    def look() -> bool:
        seen.append(cpus.running)
        return False

    make().prefill_chunk(0, text[:200], 200, look)
    assert set(seen) == {0, 1}, "asked before the pass, and inside it"
    assert (cpus.begun, cpus.running) == (before + 1, 0)


def test_whoever_set_openmps_own_variable_is_left_alone() -> None:
    program = "from localspec.llama.library.contention import cpus; print(cpus.enabled)"
    assert _python(program, GOMP_SPINCOUNT="5").strip() == "False"
    assert _python(program).strip() == "True"


def test_a_mapped_file_whose_name_is_no_text_is_no_matter(tmp_path: Path) -> None:
    code = (
        "import mmap, os, sys\nfrom localspec.llama.library import lib\nlib.api()\n"
        "from localspec.llama.library.contention import _openmp\n"
        "name = os.fsencode(sys.argv[1]) + b'/k\\xe4se'\nopen(name, 'wb').write(b'x')\n"
        "kept = mmap.mmap(os.open(name, os.O_RDONLY), 0, access=mmap.ACCESS_READ)\n"
        "assert b'k\\xe4se' in open('/proc/self/maps', 'rb').read()\n"
        "print('found' if _openmp() else 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("found\n", "")


@pytest.mark.parametrize(("busy", "threads"), [(0, 6), (1, 5), (100, 3)])
def test_weights_are_packed_by_as_many_threads_as_others_leave(
    busy: int, threads: int, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that begin while a model loads are seen, too."""
    if not wide.available():
        pytest.skip(f"no wide kernels: {wide.status().reason}")
    openmp, seen, before = wide.library(), list[int](), wide.library().omp_get_max_threads()
    run = [busy]
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    monkeypatch.setattr(cpus, "_others", lambda names: run[-1])
    monkeypatch.setattr(cpus, "enabled", True)

    def told(share: float) -> bool:
        seen.append(openmp.omp_get_max_threads())
        if share > 0.5:
            run.append(2)
        return True

    openmp.omp_set_num_threads(6)
    try:
        with Model.load(tiny_target, kernels="wide", progress=told):
            assert (seen[0], seen[-1]) == (threads, 4)
            assert openmp.omp_get_max_threads() == 6
    finally:
        openmp.omp_set_num_threads(before)
