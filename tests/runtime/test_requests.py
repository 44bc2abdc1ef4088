"""What a request becomes: its prompt, its slot, its options; many requests on few slots."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from localspec.chat.turn import Message
from localspec.engine.interfaces import Request
from localspec.engine.slot import FinishReason
from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from tests.fakes import prompt
from tests.runtime.fake_engine import (
    BOS,
    PATIENCE,
    VOCABULARY_SIZE,
    Hold,
    alone,
    make,
    read,
    request,
)

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


def test_a_short_prompt_takes_no_slot_from_a_long_one_that_begins_alike(engines: list[Engine]) -> None:
    engine, target = make(2, n_ctx=4096)
    engines.append(engine)
    long = Request(prompt(BOS, *[1, 2, 3, 4] * 600), max_tokens=2, ignore_end=True)
    for one in (long, request(5, 2, (1, 2, 3, 5)), request(6, 2, (1, 2, 7)), long):
        found = read(engine.submit(one))
    assert found.stats.reused_tokens >= 2400, "it is where it was"
    assert {slot for slot, _ in target.prefilled} == {0, 1}


def test_a_request_may_be_decoded_plain(engines: list[Engine]) -> None:
    engine, _ = make(drafter="draft")
    engines.append(engine)
    found = read(engine.generate(request(1).prompt, seed=1, max_tokens=9, max_draft_tokens=0, ignore_end=True))
    assert found.stats.drafted == 0
    with pytest.raises(UsageError, match="max_draft_tokens is -1"):
        engine.generate(request(1).prompt, max_draft_tokens=-1)


@pytest.mark.parametrize("drafter", ["lookup", "suffix", "draft", "none", "auto"])
def test_a_request_may_say_who_drafts(drafter: str, engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    assert engine.drafters == ("grammar", "lookup", "suffix", "habits", "draft")
    found = read(engine.generate(request(1).prompt, seed=1, max_tokens=40, drafter=drafter, ignore_end=True))
    allowed = set(engine.drafters) if drafter == "auto" else {drafter}
    assert set(found.stats.drafted_by_drafter) <= allowed
    assert drafter != "none" or found.stats.drafted == 0


def test_an_engine_that_forgets_keeps_nothing_of_earlier_answers(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    read(engine.submit(request(1)))
    assert read(engine.submit(request(1))).stats.reused_tokens > 0
    engine.forget()
    assert read(engine.submit(request(1))).stats.reused_tokens == 0


@pytest.mark.parametrize(("loaded", "asked"), [("auto", "oracle"), ("lookup", "draft"), ("none", "lookup")])
def test_a_drafter_that_is_not_loaded_is_refused(loaded: str, asked: str, engines: list[Engine]) -> None:
    engine, _ = make(drafter=loaded)
    engines.append(engine)
    with pytest.raises(UsageError, match=f"no drafter called '{asked}' here; there are: .*none"):
        engine.generate(request(1).prompt, drafter=asked)


def test_choices_of_one_seed_differ_by_their_stream(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    found = [read(engine.generate("abc", seed=5, stream=index, max_tokens=20)).tokens for index in (0, 1, 0)]
    assert found[0] == found[2] != found[1]


def test_predicted_text_becomes_tokens_without_a_first_one(engines: list[Engine]) -> None:
    engine, _ = make()
    engines.append(engine)
    assert engine.generate("ab", prediction="cab", max_tokens=1).request.prediction.tolist() == [2, 0, 1]
    assert engine.generate("ab", prediction=prompt(3, 4), max_tokens=1).request.prediction.tolist() == [3, 4]
    assert engine.generate("ab", max_tokens=1).request.prediction.tolist() == []
    with pytest.raises(UsageError, match="Token 99 is not in the vocabulary"):
        engine.generate("ab", prediction=prompt(99))
