"""Long prompts on disk: a prompt that comes again after a restart is not read anew, and nothing wrong is ever read."""

from __future__ import annotations

import logging
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import paths
from localspec.llama.library import lib
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.kept import caches
from localspec.runtime.kept.caches import PromptFolder
from localspec.types import SamplingParams, Tokens

STORY = "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo, and Peter sold maps. "
SETTINGS: dict[str, Any] = {"context": 2048, "slots": 2, "drafter": "lookup", "prompt_cache_gb": 1.0}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PromptFolder:
    """Where engines made by this test keep prompts; what they measured is shared with other tests."""
    found = PromptFolder(10**9, tmp_path / "prompts")
    monkeypatch.setattr("localspec.runtime.worker.PromptFolder", lambda budget: PromptFolder(budget, found.directory))
    return found


def load(engines: list[Engine], **settings: Any) -> Engine:
    engines.append(Engine.load(**SETTINGS | settings))
    return engines[-1]


def prompt_of(engine: Engine, tokens: int, start: str = "", end: str = "") -> Tokens:
    last = engine.tokenize(end, special=False)[: 60 if end else 0]
    return np.concatenate([np.tile(engine.tokenize(start + STORY), 100)[: tokens - len(last)], last])


def ask(engine: Engine, prompt: Tokens, count: int = 12) -> Generation:
    sampling = SamplingParams(temperature=0.7)
    generation = engine.generate(prompt, seed=1, sampling=sampling, max_tokens=count, ignore_end=True, top_log_probs=0)
    generation.values = [  # type: ignore[attr-defined]
        (found.token, found.logit) for event in generation for found in event.log_probs
    ]
    return generation


def values(generation: Generation) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = generation.values  # type: ignore[attr-defined]
    return found


def fresh(engines: list[Engine], prompt: Tokens, **settings: Any) -> list[tuple[int, float]]:
    """What an engine says that keeps nothing."""
    found = ask(load(engines, prompt_cache_gb=0.0, **settings), prompt)
    assert found.stats.reused_tokens == 0
    return values(found)


@pytest.mark.parametrize(
    "settings", [{}, {"exact": "strict"}, {"slots": 1}, {"kernels": "plain", "exact": "strict"}], ids=str
)
def test_a_prompt_that_comes_again_after_a_restart_is_cached(
    folder: PromptFolder, engines: list[Engine], settings: dict[str, Any]
) -> None:
    first = load(engines, **settings)
    prompt = prompt_of(first, 1600)
    answer = ask(first, prompt)
    assert answer.stats.reused_tokens == 0
    first.close()
    (path,) = folder.directory.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700
    again = ask(load(engines, **settings), prompt)
    assert again.stats.reused_tokens >= 0.95 * len(prompt)
    assert values(again) == values(answer) == fresh(engines, prompt, **settings)


def test_another_session_has_its_beginning_cached(folder: PromptFolder, engines: list[Engine]) -> None:
    """An agent's instructions and tools, and another task."""
    first = load(engines)
    ask(first, prompt_of(first, 1600, end="Write a poem about the sea."))
    first.close()
    second = load(engines)
    prompt = prompt_of(second, 1610, end="Which lantern was the last one that Maria bought in Oslo?")
    found = ask(second, prompt)
    if second.loaded.context.any_cut:
        assert found.stats.reused_tokens >= 0.95 * len(prompt)
    else:
        assert found.stats.reused_tokens >= 1024
    assert values(found) == fresh(engines, prompt)


def test_it_is_written_in_idle_time(folder: PromptFolder, engines: list[Engine]) -> None:
    engine = load(engines)
    engine.work_when_idle()
    prompt = prompt_of(engine, 1200)
    ask(engine, prompt)
    assert names(folder, 1), "nothing was written"
    other = ask(load(engines), prompt)
    assert other.stats.reused_tokens >= 0.95 * len(prompt), "another process, while the first one runs"


def names(folder: PromptFolder, count: int) -> list[str]:
    """Names of files, once there are so many; empty = there never are."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if len(found := folder.names()) == count:
            return found
        time.sleep(0.05)
    return []


def test_a_chat_that_grows_has_one_file(folder: PromptFolder, engines: list[Engine]) -> None:
    engine = load(engines, slots=1)
    kept = engine.prompts
    assert kept is not None
    for tokens in (700, 1100, 1700):
        ask(engine, prompt_of(engine, tokens))
        engine.on_engine_thread(kept.step)
        assert names(folder, 1)
    engine.close()
    (name,) = folder.names()
    engine = load(engines, slots=1)
    found = ask(engine, prompt_of(engine, 1700))
    assert found.stats.reused_tokens >= 0.95 * 1700
    assert folder.path(name).exists()


def test_what_leaves_a_slot_is_written_and_comes_back(folder: PromptFolder, engines: list[Engine]) -> None:
    engine = load(engines, slots=1)
    one, other = prompt_of(engine, 1500), prompt_of(engine, 1500, start="Sort the numbers 4, 2 and 9. ")[3:]
    answer = ask(engine, one)
    assert ask(engine, other).stats.reused_tokens < 600
    again = ask(engine, one)
    assert again.stats.reused_tokens >= 0.95 * len(one)
    assert values(again) == values(answer)


def test_short_prompts_and_engines_without_a_budget_keep_nothing(folder: PromptFolder, engines: list[Engine]) -> None:
    for settings, tokens in (({}, 300), ({"prompt_cache_gb": 0.0}, 1500), ({"prompt_cache_gb": 1e-5}, 1500)):
        engine = load(engines, **settings)
        ask(engine, prompt_of(engine, tokens))
        engine.close()
    assert folder.names() == []


# -- faults ----------------------------------------------------------------------------------------------------------


def keep(folder: PromptFolder, engines: list[Engine]) -> tuple[Tokens, list[tuple[int, float]], Path]:
    """A prompt that is kept, what was answered, and its file."""
    engine = load(engines)
    prompt = prompt_of(engine, 1300)
    answer = values(ask(engine, prompt))
    engine.close()
    (name,) = folder.names()
    return prompt, answer, folder.path(name)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("place", [2, 20, 60, 100, -1, "cut", "empty", "longer"])
def test_a_damaged_file_is_never_read_and_is_said_once(
    folder: PromptFolder, engines: list[Engine], caplog: pytest.LogCaptureFixture, place: int | str
) -> None:
    prompt, answer, path = keep(folder, engines)
    data = bytearray(path.read_bytes())
    if isinstance(place, int):
        data[place] ^= 1
    else:
        data = {"cut": data[:-5], "empty": bytearray(), "longer": data + b"\0"}[place]
    path.write_bytes(data)
    caplog.clear()
    engine = load(engines)
    found = ask(engine, prompt)
    assert (found.stats.reused_tokens, values(found)) == (0, answer)
    foreign = place == 2  # another format: a later version may read it, and it stays
    assert path.exists() is foreign
    (line,) = lines(caplog)
    assert ("another build" if foreign else "is damaged") in line
    engine.close()
    assert path.exists(), "written again"


def test_the_files_of_another_build_are_left_alone(
    folder: PromptFolder, engines: list[Engine], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, answer, path = keep(folder, engines)
    before = path.read_bytes()
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(lib, "build_id", lambda: "another build")
        engine = load(engines)
        assert ask(engine, prompt).stats.reused_tokens == 0
        engine.close()
    assert [line for line in lines(caplog) if "another build" in line] == lines(caplog)[:1]
    assert len(folder.names()) == 2
    assert path.read_bytes() == before
    found = ask(load(engines), prompt)
    assert found.stats.reused_tokens >= 0.95 * len(prompt)
    assert values(found) == answer


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_a_full_disk_is_said_once_and_leaves_nothing(
    folder: PromptFolder, engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    engine = load(engines)
    caplog.clear()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
        for start in ("", "Sort. ", "Peter. "):
            ask(engine, prompt_of(engine, 1300, start))
        engine._end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(folder.directory.iterdir()) == []
    (line,) = lines(caplog)
    assert "could not be kept on disk" in line


WRITER = """
import sys
from pathlib import Path
import numpy as np
from localspec.runtime import worker
from localspec.runtime.engine import Engine
from localspec.runtime.kept.caches import PromptFolder
worker.PromptFolder = lambda budget: PromptFolder(budget, Path(sys.argv[1]))
engine = Engine.load(context=2048, slots=2, drafter="lookup", prompt_cache_gb=1.0)
for number in range(1000):
    prompt = np.tile(engine.tokenize(f"{number} " + sys.argv[2]), 100)[:1300]
    engine.generate(prompt, seed=1, max_tokens=2, ignore_end=True).text()
    print(number, flush=True)
"""


def test_killed_while_writing(folder: PromptFolder, engines: list[Engine]) -> None:
    """Whenever it dies, what is left is whole, and answers are those of an engine that keeps nothing."""
    for trial in range(3):
        command = [sys.executable, "-c", WRITER, str(folder.directory), STORY]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(3):  # the third prompt displaces the first, which is written
                assert writer.stdout.readline()
            time.sleep(0.02 * trial)
            writer.kill()
    engine, plain = load(engines), load(engines, prompt_cache_gb=0.0)
    assert folder.names(), "nothing was written"
    for number in range(3):
        prompt = prompt_of(engine, 1300, f"{number} ")
        assert values(ask(engine, prompt)) == values(ask(plain, prompt))


def test_the_budget_is_at_most_an_eighth_of_the_free_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "not" / "there"))
    usage = type(paths.shutil.disk_usage("."))  # type: ignore[attr-defined]
    monkeypatch.setattr(paths.shutil, "disk_usage", lambda path: usage(10**12, 0, 8 * 10**9))  # type: ignore[attr-defined]
    assert caches.default_budget() == 10**9
    monkeypatch.setattr(paths.shutil, "disk_usage", lambda path: usage(10**12, 0, 10**12))  # type: ignore[attr-defined]
    assert caches.default_budget() == 4 * 10**9
