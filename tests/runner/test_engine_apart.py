"""Models in a process of their own answer as models in this one do, byte for byte, and with the same figures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.turn import Message
from localspec.checks import inside
from localspec.engine.request import FinishReason
from localspec.errors import ModelFileError, UsageError
from localspec.grammar.grammar import Grammar
from localspec.grammar.lazy import Lazy, Trigger
from localspec.runner.engine import EngineApart
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.runner.conftest import until

PROMPTS = ("Sort: 4, 2, 9, 1\n", "Repeat: one two three one two three\n")


@pytest.fixture(scope="module")
def here() -> Iterator[Engine]:
    """The bundled pair in this process."""
    with Engine.load() as loaded:
        yield loaded


@pytest.mark.parametrize("drafter", ["none", "auto", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_an_engine_in_this_process(
    engine: EngineApart, here: Engine, temperature: float, drafter: str
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        options: dict[str, Any] = {
            "sampling": SamplingParams(temperature=temperature),
            "seed": seed,
            "max_tokens": 60,
            "ignore_end": True,
            "drafter": drafter,
            "forced": drafter != "none",
        }
        there, plain = engine.generate(prompt, **options), here.generate(prompt, **{**options, "drafter": "none"})
        assert there.text() == plain.text()
        assert there.tokens == plain.tokens
        assert there.finish is plain.finish is FinishReason.LENGTH
        assert (there.stats.drafted > 0) == (drafter != "none")


def test_a_chat_has_the_same_prompt_and_answer(engine: EngineApart, here: Engine) -> None:
    messages = [Message("user", "Sort: 4, 2, 9")]
    assert engine.chat_tokens(messages).tolist() == here.chat_tokens(messages).tolist()
    assert engine.chat(messages, seed=3, max_tokens=30).text() == here.chat(messages, seed=3, max_tokens=30).text()


def test_events_figures_and_log_probabilities_come_whole(engine: EngineApart, here: Engine) -> None:
    options: dict[str, Any] = {"seed": 5, "max_tokens": 24, "ignore_end": True, "top_log_probs": 2, "drafter": "none"}
    prompt = engine.tokenize("Sort: 8, 3, 5\n")
    there, plain = list(engine.generate(prompt, **options)), list(here.generate(prompt, **options))
    assert [event.tokens for event in there] == [event.tokens for event in plain]
    assert [event.log_probs for event in there] == [event.log_probs for event in plain]
    assert [event.origins for event in there] == [event.origins for event in plain]
    figures = there[-1].stats
    assert all(event.stats is figures for event in there)  # live, as in one process
    assert (figures.generated, figures.passes, len(figures.gaps)) == (24, 24, len(plain[-1].stats.gaps))
    assert figures.as_dict().keys() == plain[-1].stats.as_dict().keys()
    records = [event.record for event in there if event.record is not None]
    assert [record.next_token for record in records] == [event.tokens[-1] for event in there]


def test_what_guessed_is_told(engine: EngineApart) -> None:
    events = list(engine.generate(PROMPTS[1], seed=1, max_tokens=40, drafter="draft", ignore_end=True))
    stats = events[-1].stats
    assert stats.drafted_by_drafter["draft"] == stats.drafted
    accepted = [origin for event in events for origin in event.origins if origin.drafter == "draft"]
    assert len(accepted) == stats.accepted_by_drafter["draft"]


def test_a_long_prompt_tells_how_far_it_was_read(engine: EngineApart) -> None:
    steps = list[tuple[int, int]]()
    prompt = engine.tokenize("one two three four " * 200)
    engine.generate(prompt, max_tokens=1, on_prefill=lambda done, total: steps.append((done, total))).text()
    assert steps
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] == len(prompt) - 1


def test_an_answer_that_is_cancelled_ends_soon(engine: EngineApart) -> None:
    running = engine.generate(PROMPTS[0], max_tokens=100_000, ignore_end=True)
    waiting = engine.generate(PROMPTS[0], max_tokens=100_000, ignore_end=True)
    next(iter(running))
    until(lambda: list(engine.running.values()) == [running])
    for generation in (waiting, running):
        generation.cancel()
        generation.text()
        assert generation.finish is FinishReason.CANCELLED
    until(lambda: engine.running == {})


def test_a_grammar_holds_there_from_the_start_or_from_a_mark(engine: EngineApart, here: Engine) -> None:
    grammar = Grammar.json_object()
    opening = int(here.tokenize("{")[-1])
    trigger = Trigger(opening, said=(opening,))
    texts = list[list[str]]()
    for one in (engine, here):
        lazy = Lazy(one.compiled(grammar), trigger, one.loaded.model.n_vocab)
        texts.append([one.generate(PROMPTS[0], grammar=it, seed=2, max_tokens=40).text() for it in (grammar, lazy)])
    assert texts[0] == texts[1]
    assert texts[0][0].startswith("{")
    assert texts[0][1] != texts[0][0]
    with pytest.raises(UsageError, match="GBNF"):
        engine.compiled(Grammar.gbnf("root ::= missing"))


def test_whole_texts_are_read_there(engine: EngineApart, here: Engine) -> None:
    tokens = here.tokenize("one two three")
    assert np.array_equal(engine.embed(tokens), here.embed(tokens))
    assert engine.score(tokens, 2, lambda: False) == here.score(tokens, 2)
    there, plain = engine.hidden_states(tokens, (0,)), here.hidden_states(tokens, (0,))
    assert np.array_equal(there.final, plain.final)


def test_errors_keep_their_kind_and_sentence(engine: EngineApart) -> None:
    with pytest.raises(UsageError, match="context is fixed when the models are loaded"):
        engine.configure(context=99)
    with pytest.raises(UsageError, match="no drafter called 'oracle'"):
        engine.generate("x", drafter="oracle")
    with pytest.raises(UsageError, match="Token 99999 is not in the vocabulary"):
        engine.generate(np.array([99999], dtype=np.int32))


def test_settings_are_changed_there(engine: EngineApart) -> None:
    engine.configure(max_draft_tokens=2)
    try:
        until(lambda: engine.settings.max_draft_tokens == 2)
        stats = list(engine.generate(PROMPTS[1], max_tokens=30, ignore_end=True))[-1].stats
        assert 0 < stats.drafted <= 2 * stats.draft_passes
    finally:
        engine.configure(max_draft_tokens=None)


def test_several_readers_are_served_at_once() -> None:
    texts = dict[int, str]()
    with EngineApart.load(slots=3) as engine:

        def read(seed: int) -> None:
            texts[seed] = engine.generate(PROMPTS[0], seed=seed, max_tokens=40, ignore_end=True).text()

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == {
            seed: engine.generate(PROMPTS[0], seed=seed, max_tokens=40, ignore_end=True, drafter="none").text()
            for seed in range(6)
        }


def test_a_file_that_cannot_be_loaded_is_the_same_error(tmp_path: Path, nothing_is_left: None) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + os.urandom(64))
    with pytest.raises(ModelFileError) as there:
        EngineApart.load(damaged)
    with pytest.raises(ModelFileError) as plain:
        Engine.load(damaged)
    assert str(there.value) == str(plain.value)


def test_a_program_that_gives_up_while_it_loads_is_obeyed(nothing_is_left: None) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EngineApart.load(progress=stop)


def test_a_closed_engine_leaves_nothing_and_refuses_more(nothing_is_left: None) -> None:
    ended = list[str]()
    engine = EngineApart.load()
    engine.at_close(lambda: ended.append("yes"))
    running = engine.generate(PROMPTS[0], max_tokens=100_000, ignore_end=True)
    next(iter(running))
    engine.close()
    engine.close()
    running.text()
    assert running.finish is FinishReason.CANCELLED
    assert ended == ["yes"]
    with pytest.raises(Exception, match="The engine is closed"):
        engine.forget()


def test_what_only_its_own_process_sees_is_told(engine: EngineApart, here: Engine) -> None:
    found, expected = engine.inspect(inside.parts), here.inspect(inside.parts)
    assert [one.name for one in found] == [one.name for one in expected]
    assert engine.inspect(inside.layers) == here.inspect(inside.layers)
    look = partial(inside.use, 100)
    assert [one.name for one in engine.inspect(look)] == [one.name for one in here.inspect(look)]
