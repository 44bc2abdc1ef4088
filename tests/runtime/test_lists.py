"""Answers under strict on a GPU that lists logits: the texts are those of whole rows, whatever is asked for.

The GPU is a fake: passes are computed on the CPU, and the kernel runs against tests/native/gpu's driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.config import EngineSettings
from localspec.grammar.grammar import Grammar
from localspec.llama.cache.context import ConstantWidth
from localspec.llama.library.handle import LogitsTap
from localspec.runtime.engine import Engine
from localspec.runtime.loading import load_models
from localspec.types import SamplingParams
from tests.fake_gpus import CARD, Gpu, list_gpus
from tests.native.gpu.fake_driver import FakeDriver, load_driver

STORY = "Once upon a time there was a dog"
GREEDY = SamplingParams(temperature=0.0)
REQUESTS: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
    "greedy": (GREEDY, {}),
    "by noise": (SamplingParams(temperature=1.0, top_k=0, top_p=1.0), {}),
    "by default": (SamplingParams(), {}),
    "by whole rows": (SamplingParams(temperature=1.0, top_k=0, top_p=0.9), {}),
    "a grammar": (GREEDY, {"grammar": Grammar.gbnf('root ::= [a-z ]+ "."')}),
    "log-probabilities": (GREEDY, {"top_log_probs": 2}),
}


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return load_driver(tmp_path_factory)


@pytest.fixture
def load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_target: Path, tiny_draft: Path
) -> Iterator[Callable[..., Engine]]:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    list_gpus(monkeypatch, CARD)
    Gpu(monkeypatch)
    made: list[Engine] = []

    def load_pair(**settings: Any) -> Engine:
        wanted = EngineSettings(tiny_target, tiny_draft, context=512, exact="strict", **settings)
        made.append(Engine(load_models(wanted)))
        return made[-1]

    yield load_pair
    for engine in made:
        engine.close()


@pytest.fixture
def driver(driver_library: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Every context opens the GPU."""
    driver_library.reset()
    driver_library.put("any_memory", 1)

    def find(tap: LogitsTap, buffer: int) -> None:
        if tap._gpu_wanted:
            tap._gpu_wanted = False
            tap.gpu = driver_library.open()

    monkeypatch.setattr(LogitsTap, "_find_gpu", find)
    yield driver_library
    assert driver_library.fault() == ""


def answer(engine: Engine, name: str) -> tuple[list[int], list[Any]]:
    """Its tokens and their log-probabilities; how many passes they took does not count."""
    sampling, more = REQUESTS[name]
    generation = engine.generate(
        engine.tokenize(STORY), sampling=sampling, max_tokens=32, seed=5, ignore_end=True, **more
    )
    events = list(generation)
    assert generation.stats.exact
    return generation.tokens, [one for event in events for one in event.log_probs]


def test_texts_are_those_of_whole_rows(
    load: Callable[..., Engine], driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setattr(LogitsTap, "_find_gpu", lambda tap, buffer: None)
        plain = load(drafter="none")
        wanted = {name: answer(plain, name) for name in REQUESTS}
    assert driver.calls("cuLaunchKernel") == 0
    copied: list[int] = []
    fetch = LogitsTap.fetch

    def counted(tap: LogitsTap, address: int, out: Any) -> None:
        copied.append(address)
        fetch(tap, address, out)

    monkeypatch.setattr(LogitsTap, "fetch", counted)
    engine = load(drafter="draft")
    assert isinstance(engine.loaded.context, ConstantWidth)
    for name in REQUESTS:
        launched, read = driver.calls("cuLaunchKernel"), len(copied)
        assert answer(engine, name) == wanted[name], name
        by_rows = name in ("by whole rows", "a grammar", "log-probabilities")
        assert (len(copied) > read) == by_rows, name
        assert (driver.calls("cuLaunchKernel") > launched) == (name not in ("by whole rows", "a grammar")), name


def test_a_gpu_that_fails_in_the_middle_changes_no_text(load: Callable[..., Engine], driver: FakeDriver) -> None:
    engine = load(drafter="draft")
    wanted = answer(engine, "by noise")
    driver.fail("cuLaunchKernel", 9, 719)
    assert answer(engine, "by noise") == wanted
    assert isinstance(engine.loaded.context, ConstantWidth)
    tap = engine.loaded.context.handle.logits_tap
    assert tap is not None
    assert tap.gpu is not None
    assert "error 719" in tap.gpu.failure
