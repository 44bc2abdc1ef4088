"""A prompt that several slots are asked for is read once, and no answer changes by that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from localspec import Engine
from localspec.llama.exact import wide
from localspec.runtime.generation import Generation
from localspec.types import SamplingParams

pytestmark = pytest.mark.skipif(not wide.available(), reason=wide.status().reason)
LONG = "The river runs past the old mill and the boats lie in the sun. " * 12


def asked(engine: Engine, prompt: str, **options: Any) -> Generation:
    return engine.generate(prompt, max_tokens=16, ignore_end=True, **options)


def answers(generations: list[Generation]) -> list[list[int]]:
    return [(each.text(), each.tokens)[1] for each in generations]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Four slots."""
    with Engine.load(context=1024, slots=4, tuned=False) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with Engine.load(context=1024, tuned=False, drafter="none") as loaded:
        yield loaded


def forget(engine: Engine) -> None:
    context = engine.loaded.context
    for slot in range(context.settings.n_slots):
        engine.on_engine_thread(partial(context.forget, slot))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_answers_to_one_prompt(engine: Engine, alone: Engine, temperature: float) -> None:
    forget(engine)
    sampling = SamplingParams(temperature=temperature)
    several = [asked(engine, LONG, sampling=sampling, seed=7, stream=stream) for stream in range(4)]
    found = answers(several)
    total = len(engine.tokenize(LONG))
    assert sorted(each.stats.reused_tokens for each in several) == [0, *[total - 1] * 3]
    assert all(each.stats.exact for each in several)
    assert found == [answers([asked(alone, LONG, sampling=sampling, seed=7, stream=each)])[0] for each in range(4)]


def test_a_prompt_that_begins_like_another_slots(engine: Engine, alone: Engine) -> None:
    prompts = [LONG + end for end in ("A red house", "Two birds", "In the morning")]
    forget(engine)
    running = [asked(engine, prompt, seed=1) for prompt in prompts]
    found = answers(running)
    again = asked(engine, LONG + "Nothing", seed=1)
    found += answers([again])
    assert found == [answers([asked(alone, one, seed=1)])[0] for one in [*prompts, LONG + "Nothing"]]
    shared = len(engine.tokenize(LONG)) - 1
    reused = sorted(each.stats.reused_tokens for each in running)
    assert reused[0] == 0
    assert min(reused[1:]) >= shared - 1
    assert again.stats.reused_tokens >= shared - 1


def test_a_short_gain_is_computed(engine: Engine) -> None:
    forget(engine)
    first, second = asked(engine, "The river runs", seed=1), asked(engine, "The river sings", seed=1)
    answers([first, second])
    assert (first.stats.reused_tokens, second.stats.reused_tokens) == (0, 0)
