"""A process that serves one model: whatever ends it is one clear error, a new process, and nothing is left over."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.chat.turn import Message
from localspec.errors import LocalspecError, ModelError, RunnerError
from localspec.options import SamplingParams
from localspec.remote.answerer import Question
from localspec.runner import own_socket
from localspec.runner.child import Child, HostUse, Load, cause
from tests.llama import architectures
from tests.runner.conftest import lives, until
from tests.server.own import Heard, body_of

TARGET = "tiny-target-q8_0.gguf"
PROMPT = "Sort: 4, 2, 9, 1\n"
WORDS = {"SIGKILL": "was killed (SIGKILL)", "SIGSEGV": "crashed (SIGSEGV)", "SIGABRT": "gave up (SIGABRT)"}
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
SLEEPS = """
import time
from localspec.engine.interfaces import Needs

class Sleeps:
    name, free, needs = "sleeps", True, Needs()

    def __init__(self, setup): pass
    def missing(self, slot, history): return 0
    def draft(self, requests): time.sleep(1000)
    def observe(self, outcomes): pass
    def close(self): pass
"""
"""A drafter that never answers."""
LONG = {"prompt": PROMPT, "max_tokens": 100_000, "ignore_eos": True, "stream": True}
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc"),
    pytest.mark.usefixtures("nothing_is_left_at_all"),
]


@contextmanager
def served(
    target: str | None = None,
    *,
    patience: float = 60.0,
    progress: Callable[[str, float], None] | None = None,
    **settings: Any,
) -> Iterator[Child]:
    """The bundled target and draft, or one file."""
    draft = str(paths.bundled("tiny-draft-q8_0.gguf")) if target is None else None
    load = Load(target or str(paths.bundled(TARGET)), draft, (), {"slots": 1} | settings)
    child = Child(load, patience)
    child.wait(progress)
    try:
        yield child
    finally:
        child.close()


@contextmanager
def asked(use: HostUse, path: str = "/v1/completions", /, **body: Any) -> Iterator[HTTPResponse]:
    """An answer to the program itself."""
    assert use.at is not None
    with own_socket.connect(use.at) as made:
        client = HTTPConnection("localspec")
        client.sock = made
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **use.headers})
        yield client.getresponse()


def text(child: Child) -> str:
    with child.use() as use, asked(use, prompt=PROMPT, seed=1, max_tokens=20, ignore_eos=True) as answer:
        assert answer.status == 200
        use.doing = "answered"
        return str(json.loads(answer.read())["choices"][0]["text"])


def kill(child: Child, number: int) -> int:
    """Ends the process; returns its id."""
    pid = child.pid
    os.kill(pid, number)
    return pid


def renewed(child: Child, old: int) -> str:
    """Waits for the new process, which answers."""
    until(lambda: child.pid not in (0, old))
    assert not lives(old)
    return text(child)


def dies(child: Child, number: int, after: int = 1) -> LocalspecError:
    """What is heard of a process that is killed after so many lines of its answer."""
    with suppress(RunnerError), child.use() as use:
        with suppress(OSError, HTTPException), asked(use, **LONG) as answer:
            for _ in range(after):
                assert answer.readline()
            use.doing = "answered"
            kill(child, number)
            while answer.readline():
                pass
        error = use.fate()
        raise error
    return error


def test_the_programs_own_question_is_answered_with_its_steps() -> None:
    question = Question([Message("user", "Sort: 4, 2, 9")], SamplingParams(temperature=0.0), seed=1, max_tokens=20)
    found = Heard()
    with served() as child, child.use() as use, asked(use, "/v1/chat/completions", **body_of(question)) as answer:
        for line in answer:
            found.take(line.decode().strip())
        use.doing = "answered"
    assert found.failure is None
    assert found.finish is not None
    assert found.text
    assert len(found.tokens) == found.hearer.stats.generated <= 20


@pytest.mark.parametrize("number", SIGNALS)
def test_death_while_it_answers_is_one_error_and_a_new_process_answers(number: signal.Signals) -> None:
    with served() as child:
        before, old = text(child), child.pid
        error = dies(child, number)
        assert isinstance(error, RunnerError)
        assert error.message == f"The process that computes {TARGET} {WORDS[number.name]} while it answered."
        assert renewed(child, old) == before
        assert any("llama" in line for line in child.last_log)


def test_after_death_while_it_is_idle_the_new_process_has_the_same_settings() -> None:
    with served(context=512) as child:
        before, facts, old = text(child), child.facts, kill(child, signal.SIGKILL)
        assert renewed(child, old) == before
        assert child.facts == facts
        assert facts is not None
        assert facts.context == 512
        assert child.fault is None


def test_a_process_that_dies_again_before_an_answer_is_not_replaced() -> None:
    with served() as child:
        text(child)
        old = kill(child, signal.SIGKILL)
        until(lambda: child.pid not in (0, old) and bool(child.facts))
        assert "was killed" in dies(child, signal.SIGKILL).message
        until(lambda: child.fault is not None)
        with pytest.raises(RunnerError, match="was killed"):
            text(child)


@pytest.mark.parametrize("number", SIGNALS)
def test_death_while_it_loads_is_one_error(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = SLEEPS.replace("(self, setup): pass", f"(self, setup): os.kill(os.getpid(), {int(number)})")
    (tmp_path / "dies.py").write_text(f"import os{dies}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RunnerError) as told, served(drafter="dies:Sleeps"):
        pass
    assert told.value.message == f"The process that computes {TARGET} {WORDS[number.name]} while it was loaded."


def test_a_process_that_stands_still_is_ended() -> None:
    with served(patience=5.0) as child:
        before = text(child)
        with child.use() as use:
            old = kill(child, signal.SIGSTOP)
            assert "gave no sign of life for 5 seconds while it read a prompt" in use.fate().message
        assert renewed(child, old) == before


def test_models_that_do_nothing_while_something_is_asked_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with served(drafter="sleeps:Sleeps", patience=5.0) as child, child.use() as use:
        with suppress(OSError, HTTPException), asked(use, **LONG) as answer:
            while answer.readline():
                pass
        assert "gave no sign of life for" in use.fate().message


def test_a_process_ends_with_its_parent_and_with_a_signal() -> None:
    script = (
        "from localspec.runner.child import Child, Load\n"
        f"child = Child(Load({str(paths.bundled(TARGET))!r}, None, (), {{'slots': 1}}), 60.0)\n"
        "child.wait()\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert lives(pid)
        parent.kill()
    until(lambda: not lives(pid))
    with served() as child:  # removes what the other left
        old = kill(child, signal.SIGTERM)
        renewed(child, old)


def test_a_file_that_llama_cpp_ends_the_process_over_is_one_sentence(tmp_path: Path) -> None:
    file = architectures.write("qwen3", tmp_path, attention__value_length=64)  # the keys have 128
    with pytest.raises(RunnerError) as told, served(str(file)):
        pass
    assert told.value.message == "The process that computes qwen3.gguf gave up (SIGABRT) while it was loaded."
    assert told.value.hint.startswith("llama.cpp wrote: GGML_ASSERT(n_embd_head == ")


def test_connections_that_come_and_go_leave_nothing() -> None:
    with served() as child:
        for _ in range(20):
            text(child)
        before, files = resident(child.pid), len(os.listdir(f"/proc/{child.pid}/fd"))
        for _ in range(200):
            with child.use() as use:
                assert use.at is not None
                own_socket.connect(use.at).close()
        for _ in range(20):
            text(child)
        assert resident(child.pid) < before + 2000
        until(lambda: len(os.listdir(f"/proc/{child.pid}/fd")) <= files)


def resident(pid: int) -> int:
    """KiB of a process's memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024


def test_what_cannot_be_loaded_is_the_same_error_here() -> None:
    with pytest.raises(ModelError, match="no-such-model"), served("no-such-model"):
        pass


def test_llama_cpps_reason_is_found_among_its_last_lines() -> None:
    lines = ["load_tensors: done", "/x/ggml/src/ggml.c:4321: GGML_ASSERT(a->ne[0] == b->ne[0]) failed", "Fatal Python"]
    assert cause(lines) == "GGML_ASSERT(a->ne[0] == b->ne[0]) failed"
    assert cause(["load_tensors: done"]) == ""


@pytest.mark.parametrize("given", ["", "hello\n", "0"])
def test_somebody_who_types_its_command_is_told(given: str) -> None:
    command = [sys.executable, "-m", "localspec.server.own"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Only localspec itself starts this." in done.stderr


def _strikes(count: int, seed: int) -> None:
    rng = random.Random(seed)
    with served() as child:
        before = text(child)
        for _ in range(count):
            old, number = child.pid, rng.choice(SIGNALS)
            if rng.random() < 1 / 3:
                kill(child, number)
            else:
                dies(child, number, after=rng.randrange(1, 30))
            assert renewed(child, old) == before


def test_a_few_deaths_at_random_moments() -> None:
    _strikes(2, seed=77)


@pytest.mark.trial
def test_many_deaths_at_random_moments() -> None:
    _strikes(100, seed=78)
