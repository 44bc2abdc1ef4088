"""Same bytes: plain against speculative on the bundled pair, in three quantisations, with real llama.cpp passes.

The fast part runs always; the trial runs over 1,000 prompt x setting pairs (`-m trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec import Engine, Message, SamplingParams
from localspec.checks.prompts import Prompt, load_prompts
from localspec.checks.verify import Report, Setting, verify
from localspec.llama.quantize import quantize
from tests import plain_decode

THREADS = 2
QUANTISATIONS = ("Q8_0", "Q4_0", "Q4_K_M")

Load = Callable[[str], Engine]


@pytest.fixture(scope="module")
def quantised(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled target in every quantisation."""
    folder = tmp_path_factory.mktemp("quantised")
    paths = {"Q8_0": tiny_target}
    for name in QUANTISATIONS[1:]:
        paths[name] = folder / f"target-{name}.gguf"
        quantize(tiny_target, paths[name], name)
    return paths


@pytest.fixture(scope="module")
def load(quantised: dict[str, Path], tiny_draft: Path) -> Iterator[Load]:
    """Loads the pair with a target of some quantisation; one at a time is kept."""
    held: list[tuple[str, Engine]] = []

    def get(name: str) -> Engine:
        if not held or held[0][0] != name:
            while held:
                held.pop()[1].close()
            engine = Engine.load(
                quantised[name],
                tiny_draft,
                exact="strict",
                threads=THREADS,
                max_draft_tokens=7,
                branches=2,
                drafter="none",
            )
            held.append((name, engine))
        return held[0][1]

    yield get
    while held:
        held.pop()[1].close()


def _assert_equal(report: Report) -> None:
    assert not report.forks, "\n".join(map(str, report.forks))
    assert all(tally.inexact == 0 for tally in report.by_setting.values())


def _spread(prompts: list[Prompt], count: int) -> list[Prompt]:
    step = len(prompts) / count
    return [prompts[int(index * step)] for index in range(count)]


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_speculation_does_not_change_a_byte(load: Load, quantisation: str) -> None:
    prompts = _spread(load_prompts(), 4)
    settings = [Setting("lookup", 4), Setting("draft", 3), Setting("auto", 4), Setting("draft", 6, branches=2)]
    report = verify(load(quantisation), prompts, (0.0, 0.7, 1.0), settings, max_tokens=24)
    _assert_equal(report)
    assert sum(tally.accepted for tally in report.by_setting.values()) > 0


@pytest.mark.trial
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_a_thousand_runs_without_a_fork(load: Load, quantisation: str) -> None:
    """17 prompts x 3 temperatures x 7 settings = 357 runs for each of three quantisations: 1,071 in all."""
    report = verify(load(quantisation), _spread(load_prompts(), 17), max_tokens=48)
    _assert_equal(report)
    assert report.runs * len(QUANTISATIONS) >= 1000
    for setting, tally in report.by_setting.items():
        assert tally.drafted > tally.accepted > 0, setting
    prompts = _spread(load_prompts(), 17)
    assert any(sum(message.role == "user" for message in prompt.messages) > 1 for prompt in prompts)
    long_prompts = sum(600 <= length <= 2000 for length in report.prompt_tokens)
    assert long_prompts * 3 >= len(report.prompt_tokens), report.prompt_tokens


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("length", [3, 300, 700])
def test_plain_decoding_is_that_of_an_independent_loop(
    load: Load, quantised: dict[str, Path], quantisation: str, length: int
) -> None:
    """Our plain decoding against 40 lines that know nothing of localspec."""
    engine = load(quantisation)
    engine.configure(drafter="none", branches=1)
    prompt = np.random.default_rng(length).integers(300, engine.loaded.model.n_vocab, length).astype(np.int32)
    generation = engine.generate(prompt, sampling=SamplingParams(temperature=0.0), max_tokens=40, ignore_end=True)
    generation.text()
    settings = engine.loaded.context.settings
    expected = plain_decode.decode(
        quantised[quantisation],
        prompt.tolist(),
        40,
        threads=THREADS,
        flash_attention=settings.flash_attention,
        type_k=settings.type_k,
        type_v=settings.type_v,
        repack=engine.loaded.model.repack,
    )
    assert generation.tokens == expected


def test_a_text_does_not_depend_on_who_was_served_before(load: Load) -> None:
    """Under strict, a prompt answers alike on a fresh engine and after other prompts that share its beginning."""
    engine = load("Q8_0")
    engine.configure(drafter="auto", max_draft_tokens=4, branches=1)
    long = next(prompt for prompt in load_prompts() if len(prompt.messages[-1].content) > 2500)
    text = long.messages[-1].content

    def answer(content: str) -> list[int]:
        generation = engine.chat([Message("user", content)], seed=5, max_tokens=32)
        generation.text()
        return generation.tokens

    engine.on_engine_thread(lambda: engine.loaded.context.forget(0))
    fresh = answer(text)
    for other in (text[:-40], text + " And then?", text[: len(text) // 2], "Hello"):
        answer(other)
        assert answer(text) == fresh
