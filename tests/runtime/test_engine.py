"""The engine's thread on fakes: a queue over few slots, cancelling, failing, closing. No model, no sleeping."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from localspec.chat.template import Message
from localspec.config import EngineSettings
from localspec.drafters.none import NoDrafter
from localspec.engine.loop import Loop
from localspec.engine.plan import FixedPlan
from localspec.engine.request import Event, FinishReason, Request
from localspec.errors import ContextOverflowError, DecodeError, KernelError, LocalspecError, UsageError
from localspec.llama.settings import ContextSettings
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.loading import Loaded
from localspec.types import SamplingParams, Tokens
from tests.fakes import Answer, FakeDraftContext, FakeTarget, FakeVocabulary, HashModel, answer, prompt

VOCABULARY_SIZE, PATIENCE = 16, 10.0
"""Seconds after which a test says that somebody waits for ever."""
BOS, EOS = 14, 15
LOGITS = HashModel(VOCABULARY_SIZE)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"


class Target(FakeTarget):
    """A fake context that can be closed, and held up before each pass."""

    def __init__(self, slots: int, n_ctx: int = 128) -> None:
        super().__init__(LOGITS, VOCABULARY_SIZE, n_ctx, range(1, 33), streams=slots > 1)
        self.closed = 0
        self.settings = ContextSettings(n_ctx=n_ctx, n_slots=slots)

    def close(self) -> None:
        self.closed += 1


class DraftContext(FakeDraftContext):
    """A fake draft context that can be closed."""

    def close(self) -> None:
        pass


class Model(FakeVocabulary):
    """A fake model: a token is a letter of `TEXT`."""

    TEXT = "abcdefghijklsu"

    def __init__(self) -> None:
        super().__init__(VOCABULARY_SIZE, {EOS}, [letter.encode() for letter in self.TEXT] + [b"", b""])
        self.n_vocab, self.bos, self.eos, self.add_bos, self.can_trim = VOCABULARY_SIZE, BOS, EOS, True, True
        self.chat_template = TEMPLATE
        self.closed = 0

    def text_of(self, token: int) -> str:
        return {BOS: "<", EOS: ">"}.get(token) or self.TEXT[token]

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        known = {letter: token for token, letter in enumerate(self.TEXT)} | ({"<": BOS, ">": EOS} if special else {})
        return prompt(*([BOS] if add_bos else []), *(known[letter] for letter in text))

    def close(self) -> None:
        self.closed += 1


class Hold:
    """Holds the engine's thread before each pass until the test lets it go on."""

    def __init__(self, target: FakeTarget) -> None:
        self._arrived, self._go = threading.Semaphore(0), threading.Semaphore(0)
        target.before_decode = self._wait

    def _wait(self) -> None:
        self._arrived.release()
        assert self._go.acquire(timeout=PATIENCE)

    def arrived(self) -> None:
        """Waits until the engine is about to run a pass."""
        assert self._arrived.acquire(timeout=PATIENCE), "no pass began"

    def go(self, passes: int = 1) -> None:
        self._go.release(passes)


def make(slots: int = 1, **settings: Any) -> tuple[Engine, Target]:
    target = Target(slots, settings.pop("n_ctx", 128))
    parts: Any = (Model(), target, "fake", {}, Model(), DraftContext(LOGITS.like(0.8)))
    loaded = Loaded(EngineSettings(Path("fake.gguf"), Path("draft.gguf"), slots=slots, **settings), *parts)
    return Engine(loaded), target


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Engines to close when the test is over."""
    opened: list[Engine] = []
    yield opened
    for engine in opened:
        engine.loaded.context.before_decode = lambda: None  # type: ignore[attr-defined]
        engine.close()


def read(generation: Generation) -> Answer:
    """All that comes; fails if the end does not come."""
    found, errors = Answer(), list[BaseException]()

    def consume() -> None:
        try:
            for event in generation:
                found.add(event)
        except LocalspecError as error:
            errors.append(error)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the caller waits for ever"
    if errors:
        raise errors[0]
    return found


def request(seed: int, max_tokens: int = 12, start: tuple[int, ...] = (1, 2, 3)) -> Request:
    sampling = SamplingParams(temperature=0.9)
    return Request(prompt(BOS, *start, seed % 13), sampling, seed, max_tokens=max_tokens, ignore_end=True)


def alone(one: Request) -> list[int]:
    """The tokens of a request without engine, drafter or company."""
    return answer(Loop(FakeTarget(LOGITS, VOCABULARY_SIZE), NoDrafter(), FixedPlan(0, None), Model()), one).tokens


# -- many requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("drafter", ["none", "lookup", "draft", "auto"])
def test_many_requests_share_few_slots(slots: int, drafter: str, engines: list[Engine]) -> None:
    engine, _ = make(slots, drafter=drafter)
    engines.append(engine)
    requests = [request(seed, 4 + 3 * (seed % 5)) for seed in range(10)]
    generations = [engine.submit(one) for one in requests]
    for one, generation in zip(requests, generations, strict=True):
        found = read(generation)
        assert found.tokens == alone(one) == generation.tokens
        assert found.finish is generation.finish is FinishReason.LENGTH
        assert generation.stats.exact


def test_threads_may_submit_at_once(engines: list[Engine]) -> None:
    engine, _ = make(2)
    engines.append(engine)
    found: dict[int, list[int]] = {}

    def ask(first: int) -> None:
        for seed in range(first, first + 5):
            found[seed] = read(engine.submit(request(seed))).tokens

    threads = [threading.Thread(target=ask, args=(first,), daemon=True) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {seed: alone(request(seed)) for first in (0, 10, 20) for seed in range(first, first + 5)}


def test_events_say_which_slot_and_come_as_they_are_made(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    hold = Hold(target)
    generation = engine.submit(request(1, 3))
    events = iter(generation)
    for token in alone(request(1, 3)):
        hold.arrived()
        hold.go()
        event = next(events)
        assert event.tokens == (token,)
    assert list(events) == []
    assert generation.text() == ""


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_while_running_takes_one_pass_at_most(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    hold = Hold(target)
    generation = engine.submit(request(1, 100))
    for _ in range(3):
        hold.arrived()
        hold.go()
    hold.arrived()
    generation.cancel()
    hold.go()
    found = read(generation)
    assert found.finish is FinishReason.CANCELLED
    assert found.tokens == alone(request(1, 4))
    target.before_decode = lambda: None
    assert read(engine.submit(request(2))).tokens == alone(request(2))


def test_cancelling_while_waiting_is_heard_before_a_slot_is_free(engines: list[Engine]) -> None:
    engine, target = make(drafter="none")
    engines.append(engine)
    hold = Hold(target)
    running, waiting = engine.submit(request(1, 20)), engine.submit(request(2))
    hold.arrived()
    waiting.cancel()
    hold.go(2)
    hold.arrived()
    hold.arrived()
    found = read(waiting)
    assert (found.finish, found.tokens, found.text) == (FinishReason.CANCELLED, [], "")
    assert running.finish is None
    hold.go(100)
    assert read(running).tokens == alone(request(1, 20))
    assert len(target.prefilled) == 1, "the cancelled prompt was never read"


def test_cancelling_while_the_prompt_is_read(engines: list[Engine]) -> None:
    engine, target = make()
    engines.append(engine)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        generation.cancelled = done >= 16

    ready = threading.Event()
    engine_free = threading.Thread(target=lambda: engine.on_engine_thread(lambda: ready.wait(PATIENCE)), daemon=True)
    engine_free.start()
    generation = engine.submit(Request(prompt(*[1] * 60), max_tokens=3), progress)
    ready.set()
    found = read(generation)
    assert (found.finish, found.tokens) == (FinishReason.CANCELLED, [])
    assert seen == [(8, 59), (16, 59)]
    assert target.passes == []


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
        read(engine.submit(request(1, 4, tuple([1] * 30)), fail))
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
    bad = engine.submit(Request(request(2).prompt, ban, seed=2, max_tokens=30))
    with pytest.raises(KernelError):
        read(bad)
    assert read(good).tokens == alone(request(1, 30))


def test_cancelling_while_a_draft_is_drawn_ends_within_the_pass(engines: list[Engine]) -> None:
    """The cancel comes from inside the draft model's decode: the pass under way is the last."""
    engine, _ = make(drafter="draft", n_ctx=4096)
    engines.append(engine)
    context: Any = engine.loaded.draft_context
    honest, calls, running = context.decode, [0], list[Generation]()

    def decode(feeds: Any) -> Any:
        calls[0] += 1
        if calls[0] == 10:
            running[0].cancel()
        return honest(feeds)

    context.decode = decode
    gate = threading.Event()
    engine.loaded.context.before_decode = gate.wait  # type: ignore[attr-defined]
    running.append(engine.submit(request(1, 4000)))
    gate.set()
    found = read(running[0])
    assert running[0].finish is FinishReason.CANCELLED
    assert found.tokens == alone(request(1, len(found.tokens)))
    assert calls[0] < 10 + 5  # at most the rest of that draft


# -- configuring and jobs --------------------------------------------------------------------------------------------


def test_the_drafter_can_be_changed_between_requests_only(engines: list[Engine]) -> None:
    engine, _ = make(drafter="none", n_ctx=4096)
    engines.append(engine)
    running = engine.submit(request(1, 4000))
    with pytest.raises(UsageError, match="while a request is running"):
        engine.configure(drafter="draft")
    running.cancel()
    assert read(running).stats.drafted == 0
    assert engine.settings.drafter == "none"
    engine.configure(drafter="draft", max_draft_tokens=3)
    assert engine.settings.drafter == "draft"
    found = read(engine.submit(request(1, 30)))
    assert found.stats.drafted > 0
    assert found.tokens == alone(request(1, 30))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"context": 99}, "context is fixed"),
        ({"drafter": "oracle"}, "no drafter called 'oracle'"),
        ({"max_draft_tokens": 99}, "max_draft_tokens is 99"),
        ({"max_draft_tokens": 64}, "loaded for 64 rows"),
        ({"branches": 2}, "loaded for chains"),
        ({"drafter": "lookup", "min_ngram": 0}, "min_ngram is 0"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(
    changes: dict[str, Any], named: str, engines: list[Engine]
) -> None:
    engine, _ = make()
    engines.append(engine)
    before = engine.settings
    with pytest.raises(UsageError, match=named):
        engine.configure(**changes)
    assert engine.settings == before
    assert read(engine.submit(request(1))).tokens == alone(request(1))


def test_jobs_run_on_the_engines_thread_and_hand_back_what_they_make(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    assert engine.on_engine_thread(lambda: threading.current_thread().name) == "localspec-engine"
    with pytest.raises(ZeroDivisionError):
        engine.on_engine_thread(lambda: 1 // 0)
    assert engine.on_engine_thread(lambda: 5) == 5


# -- closing ---------------------------------------------------------------------------------------------------------


def test_closing_cancels_what_runs_and_what_waits() -> None:
    engine, target = make(n_ctx=4096)
    generations = [engine.submit(request(seed, 4000)) for seed in range(3)]
    assert next(iter(generations[0])).tokens
    engine.close()
    assert [read(generation).finish for generation in generations] == [FinishReason.CANCELLED] * 3
    assert len(target.prefilled) == 1, "what waits is not begun"
    assert target.closed == 1
    engine.close()
    assert target.closed == 1
    for use in (lambda: engine.submit(request(1)), lambda: engine.on_engine_thread(lambda: None)):
        with pytest.raises(LocalspecError, match="The engine is closed"):
            use()


def test_closing_while_a_prompt_is_read_cancels_it_too() -> None:
    engine, target = make(drafter="none")
    reading, closed = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        reading.set()
        assert closed.wait(PATIENCE)

    generation = engine.submit(Request(prompt(*[1] * 60), max_tokens=50, ignore_end=True), progress)
    assert reading.wait(PATIENCE)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    deadline = monotonic() + PATIENCE
    while not engine._closing and monotonic() < deadline:
        closed.wait(0.001)
    closed.set()
    found = read(generation)
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert found.finish is FinishReason.CANCELLED
    assert len(target.passes) <= 1


def test_an_idle_engine_closes_as_a_context_manager_does() -> None:
    engine, target = make()
    with engine as same:
        assert same is engine
        assert read(engine.submit(request(1))).tokens == alone(request(1))
    assert target.closed == 1


# -- prompts ---------------------------------------------------------------------------------------------------------


def test_text_becomes_tokens_with_the_models_first_token(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    assert engine.tokenize("abc").tolist() == [BOS, 0, 1, 2]
    found = engine.generate("abc", max_tokens=2, seed=7, stop=["zz"], top_log_probs=1, ignore_end=True)
    assert found.request.prompt.tolist() == [BOS, 0, 1, 2]
    assert (found.request.max_tokens, found.request.seed, found.request.stop) == (2, 7, ("zz",))
    assert len(read(found).log_probs) == 2


def test_a_conversation_becomes_the_models_own_prompt_with_one_first_token(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    tokens = engine.chat_tokens([Message("user", "ab"), Message("assistant", "c")])
    assert tokens.tolist() == [BOS, 13, 0, 1, 0, 2], "u a b, a c"
    assert engine.chat([Message("user", "ab")], max_tokens=1).request.prompt.tolist() == [BOS, 13, 0, 1]


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE])
def test_tokens_outside_the_vocabulary_are_refused(token: int, engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    with pytest.raises(UsageError, match=f"Token {token} is not in the vocabulary of {VOCABULARY_SIZE}"):
        engine.generate(prompt(1, token))
    with pytest.raises(UsageError, match="The prompt is empty"):
        engine.generate(np.empty(0, dtype=np.int32))


def test_a_request_goes_where_its_prompt_is_cached(engines: list[Engine]) -> None:
    engine, _ = make(3, drafter="none")
    engines.append(engine)
    starts = {seed: tuple([seed] * 20) for seed in (3, 4, 5)}
    first = {seed: engine.submit(request(seed, 4, start)) for seed, start in starts.items()}
    answers = {seed: read(generation) for seed, generation in first.items()}
    slots = {seed: found.events[0].slot for seed, found in answers.items()}
    assert sorted(slots.values()) == [0, 1, 2]
    for seed in (5, 3, 4):
        said = answers[seed].tokens
        more = Request(prompt(BOS, *starts[seed], seed, *said, 7, 7), max_tokens=2, ignore_end=True)
        found = read(engine.submit(more))
        assert found.events[0].slot == slots[seed]
        assert found.stats.reused_tokens == 22 + len(said) - 1


# -- a generation by itself ------------------------------------------------------------------------------------------


def event(text: str, *tokens: int, finish: FinishReason | None = None) -> Event:
    return Event(0, text, tokens, (), (), finish, Answer().stats)


def test_a_generation_gives_the_text_not_yet_read() -> None:
    generation = Generation(request(1))
    for one in (event("a", 1), event("b", 2), event("c", 3, finish=FinishReason.STOP)):
        generation.deliver(one)
    assert next(iter(generation)).text == "a"
    assert generation.finish is None
    assert generation.text() == "bc"
    assert generation.tokens == [1, 2, 3]
    assert generation.finish is FinishReason.STOP
    assert generation.text() == ""


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


def test_a_request_may_be_decoded_plain(engines: list[Engine]) -> None:
    engine, _ = make(drafter="draft")
    engines.append(engine)
    found = read(engine.generate(request(1).prompt, seed=1, max_tokens=9, max_draft_tokens=0, ignore_end=True))
    assert found.stats.drafted == 0
    with pytest.raises(UsageError, match="max_draft_tokens is -1"):
        engine.generate(request(1).prompt, max_draft_tokens=-1)
