"""Several requests at once on the bundled pair: long prompts are read between the passes of running answers, and under
`strict` nobody's text depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import Engine, SamplingParams
from localspec.engine.loop import PieceSize
from localspec.engine.slot import FinishReason
from localspec.llama.cache.context import Context
from localspec.runtime.generation import Generation
from localspec.types import Tokens

SETTINGS: dict[str, Any] = {"exact": "strict", "slots": 3, "context": 2048}
WORDS = "Maria bought twelve lanterns in Lisbon and Peter sold three maps of Oslo to a baker who sang at night. "


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(**SETTINGS) as loaded:
        yield loaded


def prompt_of(engine: Engine, tokens: int, start: int = 0) -> Tokens:
    text = engine.tokenize(f"{start} " + WORDS * (tokens // 10))
    assert len(text) >= tokens
    return text[:tokens]


def ask(engine: Engine, tokens: int, seed: int, max_tokens: int = 40) -> Generation:
    prompt, sampling = prompt_of(engine, tokens, seed), SamplingParams(temperature=0.8)
    return engine.generate(prompt, sampling=sampling, seed=seed, max_tokens=max_tokens, ignore_end=True)


def clear(engine: Engine) -> None:
    """Forgets what earlier tests left in the cache."""

    def forget() -> None:
        for slot in range(3):
            engine.loaded.context.forget(slot)

    engine.on_engine_thread(forget)


def test_texts_are_those_of_requests_alone(engine: Engine) -> None:
    sizes = [900, 60, 1100, 513, 30, 600, 512, 40]
    alone = []
    for seed, size in enumerate(sizes):
        clear(engine)
        found = ask(engine, size, seed)
        alone.append((found.text(), found.tokens))
    clear(engine)
    generations = [ask(engine, size, seed) for seed, size in enumerate(sizes)]
    together = [(found.text(), found.tokens) for found in generations]
    assert together == alone
    assert all(found.stats.exact for found in generations)


def test_texts_are_those_of_a_fresh_engine_whoever_was_served_before(engine: Engine) -> None:
    """Long ones and short ones in the same slots, beginnings of the same prompt, the same conversation a turn ago."""
    begun = prompt_of(engine, 700, 9)
    said = engine.generate(begun, seed=9, max_tokens=90, ignore_end=True)
    said.text()
    question = engine.tokenize("And then? " * 20)
    later = np.concatenate([begun, np.array(said.tokens, dtype=np.int32), question])

    def answer(asked: Engine, prompt: Tokens, max_tokens: int = 40) -> Generation:
        sampling = SamplingParams(temperature=0.8)
        return asked.generate(prompt, sampling=sampling, seed=4, max_tokens=max_tokens, ignore_end=True)

    with Engine.load(**SETTINGS) as fresh:
        wanted = answer(fresh, later)
        text = wanted.text()
    others = [begun[:600], prompt_of(engine, 1100, 3), later[:-1], prompt_of(engine, 40, 5), begun, later]
    reused = []
    for together in (1, 3):
        for first in range(0, len(others), together):
            crowd = [answer(engine, other, 30) for other in others[first : first + together]]
            assert all(one.text() for one in crowd)
            again = answer(engine, later)
            assert (again.text(), again.tokens) == (text, wanted.tokens)
            assert again.stats.exact
            reused.append(again.stats.reused_tokens)
    assert wanted.stats.reused_tokens == 0
    if engine.loaded.context.settings.reuse == "all":
        assert reused[0] >= 600, "what the request before it left of the conversation"
    else:
        assert reused[0] == 512
        assert set(reused) <= {0, 512, len(later) - 1}, "whole chunks, or the very same prompt"


@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.trial)])
def test_random_conversations_over_slots_are_those_of_fresh_runs(count: int) -> None:
    """Prefixes are shared, answers become prompts, several run at once; temperatures 0 and 1."""
    random = np.random.default_rng(count)
    with Engine.load(**SETTINGS | {"slots": 4}) as several, Engine.load(**SETTINGS | {"slots": 1}) as single:
        begun, asked = [prompt_of(several, 700, start) for start in range(3)], list[Generation]()
        known = [prompt[: random.integers(20, 700)] for prompt in begun for _ in range(4)]
        while len(asked) < count:
            crowd = []
            for _ in range(int(random.integers(1, 7))):
                prompt = known[random.integers(len(known))]
                sampling = SamplingParams(temperature=float(random.integers(2)))
                seed = int(random.integers(1000))
                crowd.append(several.generate(prompt, sampling=sampling, seed=seed, max_tokens=24, ignore_end=True))
            for one in crowd:
                one.text()
                question = several.tokenize("And then? ")
                longer = np.concatenate([one.request.prompt, np.array(one.tokens, dtype=np.int32), question])
                known += [longer] if len(longer) < 1500 else []
            asked += crowd
        for one in asked:
            single.on_engine_thread(lambda: single.loaded.context.forget(0))
            request = one.request
            alone = single.generate(
                request.prompt, sampling=request.sampling, seed=request.seed, max_tokens=24, ignore_end=True
            )
            alone.text()
            assert alone.stats.reused_tokens == 0
            assert one.tokens == alone.tokens
        assert all(one.stats.exact for one in asked)
        if several.loaded.context.settings.reuse == "all":
            assert sum(one.stats.reused_tokens for one in asked) > 0.3 * sum(len(one.request.prompt) for one in asked)


def test_a_running_answer_goes_on_while_a_long_prompt_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clear(engine)
    log: list[str] = []
    chunk, decode = Context.prefill_chunk, Context.decode

    def chunk_seen(self: Context, slot: int, *rest: object) -> int:
        if self is engine.loaded.context:
            log.append(f"chunk {slot}")
        return chunk(self, slot, *rest)  # type: ignore[arg-type]

    def decode_seen(self: Context, feeds: object) -> object:
        if self is engine.loaded.context:
            log.append("pass")
        return decode(self, feeds)  # type: ignore[arg-type]

    monkeypatch.setattr(Context, "prefill_chunk", chunk_seen)
    monkeypatch.setattr(Context, "decode", decode_seen)
    running = ask(engine, 20, 1, max_tokens=400)
    assert next(iter(running)).tokens
    reading = ask(engine, 1900, 2, max_tokens=4)
    reading.text()
    running.cancel()
    running.text()
    chunks = [place for place, what in enumerate(log) if what == "chunk 1"]
    if engine.loaded.context.any_cut:
        assert len(chunks) > 4, "in pieces that nobody waits long for"
    else:
        assert len(chunks) == 4, "on the grid of 512"
    assert all(right - left == 2 and log[left + 1] == "pass" for left, right in itertools.pairwise(chunks))


def test_a_text_is_the_same_however_its_prompt_is_cut(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of any length, an answer beside them or none: the bytes of all answers are those of prompts alone."""
    if not engine.loaded.context.any_cut:
        pytest.skip("prompts are read on the grid here")
    clear(engine)
    expected = [ask(engine, size, seed).text() for seed, size in enumerate((1500, 40))]
    random, sizes = np.random.default_rng(5), list[int]()

    def any_size(self: PieceSize, beside: bool) -> int:
        sizes.append(int(random.integers(1, 200)))
        return sizes[-1]

    monkeypatch.setattr(PieceSize, "piece", any_size)
    clear(engine)
    beside, long = ask(engine, 40, 1), ask(engine, 1500, 0)
    assert [long.text(), beside.text()] == expected
    assert long.stats.exact
    assert len(sizes) > 8


def test_a_prompt_that_is_read_is_cancelled_between_chunks_and_nobody_else(engine: Engine) -> None:
    clear(engine)
    running = ask(engine, 20, 1, max_tokens=60)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done:
            reading.cancel()

    hold = engine.generate(prompt_of(engine, 20), max_tokens=30, ignore_end=True)
    reading = engine.generate(prompt_of(engine, 2000, 5), max_tokens=4, on_prefill=progress)
    assert reading.text() == ""
    assert reading.finish is FinishReason.CANCELLED
    assert seen[0] == 0 < seen[1] <= 512
    assert len(seen) == 2
    assert hold.text()
    text = running.text()
    clear(engine)
    assert ask(engine, 20, 1, max_tokens=60).text() == text


def test_embedding_disturbs_nobody(engine: Engine, tiny_target: Path) -> None:
    clear(engine)
    expected = ask(engine, 30, 7).text()
    running = ask(engine, 30, 7)
    first = engine.embed(engine.tokenize("lanterns in Lisbon"))
    assert running.text() == expected
    again = engine.embed(engine.tokenize("lanterns in Lisbon"))
    assert (first == again).all()
    assert first.shape == (engine.loaded.model.header.number("embedding_length"),)
