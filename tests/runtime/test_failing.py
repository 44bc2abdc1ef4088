"""What goes wrong reaches whom it concerns, and the engine goes on; memory that runs out."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from localspec.engine.interfaces import Request
from localspec.engine.slot import FinishReason
from localspec.errors import ContextOverflowError, DecodeError, KernelError, LocalspecError
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.fakes import prompt
from tests.runtime.fake_engine import (
    PATIENCE,
    VOCABULARY_SIZE,
    Model,
    alone,
    make,
    read,
    request,
)

# -- failing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DecodeError("The pass failed."), RuntimeError("a bug")], ids=["ours", "a bug"])
def test_an_error_in_a_pass_reaches_all_who_wait_for_it_and_the_engine_goes_on(
    error: Exception, engines: list[Engine]
) -> None:
    engine, target = make(2, drafter="none")
    engines.append(engine)
    passes: list[int] = []

    def fail_once() -> None:
        passes.append(1)
        if len(passes) == 3:
            raise error

    ready = threading.Event()
    threading.Thread(target=lambda: engine.on_engine_thread(lambda: ready.wait(PATIENCE)), daemon=True).start()
    target.before_decode = fail_once
    generations = [engine.submit(request(seed)) for seed in range(4)]
    ready.set()
    for generation in generations[:2]:
        with pytest.raises(type(error), match=str(error)):
            read(generation)
        assert generation.finish is FinishReason.ERROR
        assert list(generation) == [], "an error is raised once"
    for seed in (2, 3):
        assert read(generations[seed]).tokens == alone(request(seed))
    assert read(engine.submit(request(1))).tokens == alone(request(1))


def test_nothing_said_is_lost_when_a_pass_fails(engines: list[Engine]) -> None:
    """What a stop string held back is told before the error, and so is what another group of slots said."""
    engine, target = make(2, drafter="none")
    target.exact_widths = frozenset({1})  # each slot has a pass of its own
    engines.append(engine)
    passes: list[int] = []

    def fail_in_the_second_slot() -> None:
        passes.append(1)
        if len(passes) == 6:
            raise DecodeError("The pass failed.")

    target.before_decode = fail_in_the_second_slot
    stop = tuple(f"{letter}#" for letter in Model.TEXT)
    requests = [replace(request(seed, 50), stop=stop) for seed in range(2)]
    ready = threading.Event()
    threading.Thread(target=lambda: engine.on_engine_thread(lambda: ready.wait(PATIENCE)), daemon=True).start()
    generations = [engine.submit(one) for one in requests]
    ready.set()
    for generation, one, said in zip(generations, requests, (3, 2), strict=True):
        texts: list[str] = []
        with pytest.raises(DecodeError):
            texts.extend(event.text for event in generation)
        assert generation.tokens == alone(one)[:said]
        assert "".join(texts) == Model().text(generation.tokens)


def test_nobody_waits_for_a_thread_that_has_ended(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)

    def fail() -> None:
        raise RuntimeError("a bug")

    def fail_again(slot: int, keep: int = 0) -> None:
        raise RuntimeError("a bug in what is done about bugs")

    monkeypatch.setattr(target, "forget", fail_again)
    target.before_decode = fail
    generations = [engine.submit(request(seed)) for seed in range(3)]
    for generation in generations:
        with pytest.raises((RuntimeError, LocalspecError)):
            read(generation)
    with pytest.raises(LocalspecError):
        engine.submit(request(1))
    with pytest.raises(LocalspecError):
        engine.on_engine_thread(lambda: None)
    monkeypatch.undo()


def test_after_an_error_nothing_cached_is_trusted(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    assert read(engine.submit(request(1))).stats.reused_tokens == 0
    assert read(engine.submit(request(1))).stats.reused_tokens > 0

    def fail() -> None:
        raise DecodeError("The pass failed.")

    target.before_decode = fail
    with pytest.raises(DecodeError):
        read(engine.submit(request(1)))
    target.before_decode = lambda: None
    assert read(engine.submit(request(1))).stats.reused_tokens == 0


@pytest.mark.parametrize("error", [DecodeError("No."), RuntimeError("a bug")], ids=["ours", "a bug"])
def test_an_error_while_the_prompt_is_read_reaches_the_caller(error: Exception, engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)

    def fail(done: int, total: int) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        read(engine.submit(replace(request(1, 4, tuple([1] * 30)), on_prefill=fail)))
    assert read(engine.submit(request(2))).tokens == alone(request(2))


def test_a_prompt_that_does_not_fit_fails_alone(engines: list[Engine]) -> None:
    engine, _ = make(2, n_ctx=32)
    engines.append(engine)
    good, bad = engine.submit(request(1)), engine.submit(Request(prompt(*[1] * 32)))
    with pytest.raises(ContextOverflowError, match="has 32 tokens and the context holds 32"):
        read(bad)
    assert read(good).tokens == alone(request(1))


def test_a_request_that_leaves_nothing_to_sample_ends_alone(engines: list[Engine]) -> None:
    """A bias that bans every token is that request's error; its neighbour in the same pass goes on."""
    engine, _ = make(slots=2, drafter="draft")
    engines.append(engine)
    ban = SamplingParams(logit_bias=tuple((token, float("-inf")) for token in range(VOCABULARY_SIZE)))
    good = engine.submit(request(1, 30))
    bad = engine.submit(Request(request(2).prompt, sampling=ban, seed=2, max_tokens=30))
    with pytest.raises(KernelError):
        read(bad)
    assert read(good).tokens == alone(request(1, 30))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_target_without_memory_gets_the_draft_models(engines: list[Engine]) -> None:
    """The draft model is dropped, the pass is run again, and the text is the same."""
    engine, target = make(drafter="auto")
    engines.append(engine)
    passes: list[int] = []

    def fail_once() -> None:
        passes.append(1)
        if len(passes) == 5:
            raise DecodeError("llama.cpp could not evaluate a pass: it could not allocate memory for the pass.")

    target.before_decode = fail_once
    assert read(engine.submit(request(1, 30))).tokens == alone(request(1, 30))
    assert engine.loaded.draft_context is None
    assert engine.loaded.draft_model is None
    assert read(engine.submit(request(2, 30))).tokens == alone(request(2, 30))


def test_where_memory_is_short_the_draft_model_goes_first(
    engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make(drafter="auto")
    engines.append(engine)
    assert read(engine.submit(request(1))).tokens == alone(request(1))
    assert engine.loaded.draft_context is not None
    monkeypatch.setattr("localspec.runtime.memory.is_short", lambda: True)
    assert read(engine.submit(request(2))).tokens == alone(request(2))
    assert engine.loaded.draft_context is None
