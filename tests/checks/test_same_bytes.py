"""Same bytes: plain against speculative on the bundled pair, in three quantisations, with real llama.cpp passes.

The fast part runs always; the trial runs over 1,000 prompt x setting pairs (`-m trial`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from localspec import Engine, Message, SamplingParams
from localspec.checks.prompts import BenchPrompt, load_prompts
from localspec.checks.verify import DraftSetting, Report, default_settings, verify
from localspec.llama.exact import wide
from tests import plain_decode
from tests.checks.conftest import KERNELS, QUANTISATIONS, THREADS, Load


def _assert_equal(report: Report) -> None:
    assert not report.forks, "\n".join(map(str, report.forks))
    assert all(tally.inexact == 0 for tally in report.by_setting.values())


def _spread(prompts: list[BenchPrompt], count: int) -> list[BenchPrompt]:
    step = len(prompts) / count
    return [prompts[int(index * step)] for index in range(count)]


ALWAYS = {("llama.cpp's", "Q8_0"), ("wide", "Q8_0"), ("wide", "Q4_K_M")}
MODELS = [
    pytest.param(kernels, one, marks=() if (kernels, one) in ALWAYS else pytest.mark.trial)
    for kernels in KERNELS
    for one in QUANTISATIONS
]


@pytest.mark.parametrize(("kernels", "quantisation"), MODELS)
def test_speculation_does_not_change_a_byte(load: Load, quantisation: str, kernels: str) -> None:
    prompts = _spread(load_prompts(), 2)  # the trials take all, and temperature 0.7
    settings = [
        DraftSetting("lookup", 4),
        DraftSetting("suffix", 4),
        DraftSetting("draft", 3),
        DraftSetting("habits", 4),
        DraftSetting("auto", 4),
        DraftSetting("draft", 6, branches=2),
        DraftSetting("suffix", 6, branches=2),
        DraftSetting("habits", 6, branches=2),
    ]
    for branches in (1, 2):  # exact widths are those of the shape
        here = [setting for setting in settings if setting.branches == branches]
        report = verify(load(quantisation, kernels, branches=branches), prompts, (0.0, 1.0), here, max_tokens=16)
        _assert_equal(report)
        assert sum(tally.accepted for tally in report.by_setting.values()) > 0


@pytest.mark.trial
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_thousand_runs_without_a_fork(load: Load, quantisation: str, kernels: str) -> None:
    """17 prompts x 3 temperatures x 11 settings = 561 runs for each of three quantisations: 1,683 for each kernels."""
    runs = 0
    for branches in (1, 2):  # exact widths are those of the shape
        engine = load(quantisation, kernels, branches=branches)
        assert (engine.loaded.model.kernels == "wide") == (kernels == "wide")
        settings = [setting for setting in default_settings(True, True) if setting.branches == branches]
        report = verify(engine, _spread(load_prompts(), 17), settings=settings, max_tokens=48)
        _assert_equal(report)
        runs += report.runs
        for setting, tally in report.by_setting.items():
            assert tally.drafted > tally.accepted > 0, setting
    assert runs * len(QUANTISATIONS) >= 1000
    prompts = _spread(load_prompts(), 17)
    assert any(sum(message.role == "user" for message in prompt.messages) > 1 for prompt in prompts)
    long_prompts = sum(600 <= length <= 2000 for length in report.prompt_tokens)
    assert long_prompts * 3 >= len(report.prompt_tokens), report.prompt_tokens


def _together(engine: Engine, prompts: Sequence[BenchPrompt], temperature: float, at_once: bool) -> list[list[int]]:
    """Answers to the first messages of prompts, in several slots at once or one after the other."""
    asked = []
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=temperature)
        tokens = engine.chat_tokens(prompt.messages[:1])
        asked.append(engine.generate(tokens, sampling=sampling, seed=number, max_tokens=40))
        if not at_once:
            asked[-1].text()
    for generation in asked:
        generation.text()
        assert generation.stats.exact
    return [generation.tokens for generation in asked]


@pytest.mark.trial
@pytest.mark.parametrize("quantisation", QUANTISATIONS)
@pytest.mark.parametrize("kernels", KERNELS)
def test_slots_do_not_change_a_byte(load: Load, quantisation: str, kernels: str) -> None:
    """Prompts side by side in four slots, drafting, against each alone without a drafter."""
    engine = load(quantisation, kernels, slots=4, branches=1)
    prompts = [prompt for prompt in _spread(load_prompts(), 16) if prompt.messages[0].role == "user"]
    assert len(prompts) > 6
    for temperature in (0.0, 0.7, 1.0):
        engine.configure(drafter="none")
        expected = _together(engine, prompts, temperature, at_once=False)
        for drafter, length in (("none", 1), ("draft", 1), ("auto", 7)):
            engine.configure(drafter=drafter, max_draft_tokens=length)
            assert _together(engine, prompts, temperature, at_once=True) == expected, (drafter, temperature)


@pytest.mark.parametrize(("kernels", "quantisation"), MODELS)
@pytest.mark.parametrize("length", [3, 300, 700])
def test_plain_decoding_is_that_of_an_independent_loop(
    load: Load, quantised: dict[str, Path], quantisation: str, kernels: str, length: int
) -> None:
    """Our plain decoding against 40 lines that know nothing of localspec."""
    engine = load(quantisation, kernels, branches=1)
    engine.configure(drafter="none")
    prompt = np.random.default_rng(length).integers(300, engine.loaded.model.n_vocab, length).astype(np.int32)
    generation = engine.generate(prompt, sampling=SamplingParams(temperature=0.0), max_tokens=40, ignore_end=True)
    generation.text()
    settings = engine.loaded.context.settings
    name = engine.loaded.model.kernels
    with wide.switched(wide.MOST_ROWS if name == "wide" else 0):
        expected = plain_decode.decode(
            quantised[quantisation],
            prompt.tolist(),
            40,
            threads=THREADS,
            flash_attention=name == "wide" or settings.flash_attention,
            type_k=settings.type_k,
            type_v=settings.type_v,
            repack=name != "plain",
        )
    assert generation.tokens == expected


def test_a_text_does_not_depend_on_who_was_served_before(load: Load) -> None:
    """Under strict, a prompt answers alike on a fresh engine and after other prompts that share its beginning."""
    engine = load("Q8_0", branches=1)
    engine.configure(drafter="auto", max_draft_tokens=4)
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
