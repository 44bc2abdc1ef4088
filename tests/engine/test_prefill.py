"""Prompts are read chunk by chunk between the passes of those who decode, and anybody can be cancelled in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.engine.interfaces import Draft, Request
from localspec.engine.loop import Loop
from localspec.engine.slot import Event, FinishReason
from localspec.errors import DecodeError, LocalspecError
from localspec.planning.costs import DraftCosts, Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan, FixedPlan, Forced
from localspec.types import SamplingParams, Tokens
from tests.engine.recital import BANG, GREEDY, HEL, LD, LO, VOCABULARY, WOR, Recital
from tests.fakes import Answer, FakeDraftContext, FakeDrafter, FakeTarget, HashModel, answer, prompt

MODEL = HashModel(10)


def long_prompt(tokens: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(1, 10, tokens).astype(np.int32)


def loop_of(target: FakeTarget, max_draft_tokens: int = 0) -> Loop:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * min(2, request.max_nodes)))
    return Loop(target, FixedPlan([drafter], max_draft_tokens, None), VOCABULARY)


def drain(loop: Loop, found: dict[int, Answer]) -> None:
    while loop.active:
        for event in loop.step():
            found[event.slot].add(event)


# -- between passes --------------------------------------------------------------------------------------------------


def test_one_chunk_is_read_between_two_passes_of_a_running_answer() -> None:
    target = FakeTarget(MODEL, 10, exact_widths={1, 2}, streams=True)
    loop = loop_of(target)
    found = {slot: Answer() for slot in range(2)}
    loop.admit(0, Request(prompt(1, 2), max_tokens=12, ignore_end=True))
    loop.step()
    loop.admit(1, Request(long_prompt(30), max_tokens=3, ignore_end=True))
    target.log.clear()
    while loop.active:
        for event in loop.step():
            if event.finish is not None or event.slot == 1:
                found[event.slot].add(event)
    assert target.log[:8] == ["chunk", "pass", "chunk", "pass", "chunk", "pass", "chunk", "pass"]
    assert "chunk" not in target.log[8:]
    assert [size for slot, size in target.prefilled if slot == 1] == [8, 8, 8, 5], "the grid from position 0"
    assert target.passes[4] == {0: 1, 1: 1}, "the pass behind the last chunk takes both"


def test_alone_a_prompt_is_read_chunk_after_chunk() -> None:
    target = FakeTarget(MODEL, 10)
    found = answer(loop_of(target), Request(long_prompt(30), max_tokens=2, ignore_end=True))
    assert target.log == ["chunk"] * 4 + ["pass"] * 2
    assert found.stats.ttft_seconds >= found.stats.prefill_seconds > 0


@pytest.mark.parametrize("drafting", [0, 4])
def test_a_text_does_not_depend_on_prompts_read_meanwhile(drafting: int) -> None:
    requests = {slot: Request(long_prompt(7 + 9 * slot, slot), seed=slot, max_tokens=12) for slot in range(4)}
    alone = {slot: answer(loop_of(FakeTarget(MODEL, 10)), request, slot) for slot, request in requests.items()}
    loop = loop_of(FakeTarget(MODEL, 10, streams=True), drafting)
    found = {slot: Answer() for slot in requests}
    for slot in (2, 0, 3, 1):
        loop.admit(slot, requests[slot])
        for event in loop.step():
            found[event.slot].add(event)
    drain(loop, found)
    for slot in requests:
        assert (found[slot].tokens, found[slot].text) == (alone[slot].tokens, alone[slot].text)


# -- fair ------------------------------------------------------------------------------------------------------------


def order_of_first_tokens(sizes: dict[int, int], late: dict[int, int] | None = None) -> list[int]:
    """Slots in the order of their first tokens; `late` ones come with the second step."""
    target = FakeTarget(MODEL, 10, n_ctx=4096, streams=True)
    loop, first = loop_of(target), list[int]()
    for slot, size in sizes.items():
        loop.admit(slot, Request(long_prompt(size, slot), max_tokens=1, ignore_end=True))
    for step in range(2000):
        if step == 1:
            for slot, size in (late or {}).items():
                loop.admit(slot, Request(long_prompt(size, slot), max_tokens=1, ignore_end=True))
        first += [event.slot for event in loop.step()]
        if not loop.active:
            return first
    raise AssertionError("somebody starves")


def test_the_shortest_rest_is_read_first() -> None:
    assert order_of_first_tokens({0: 200, 1: 20, 2: 60}) == [1, 2, 0]
    assert order_of_first_tokens({0: 200}, {1: 20}) == [1, 0]
    assert order_of_first_tokens({0: 30}, {1: 28}) == [0, 1], "a chunk less to read than the newcomer"


def test_a_long_prompt_does_not_starve_behind_short_ones() -> None:
    target = FakeTarget(MODEL, 10, n_ctx=4096, streams=True)
    loop = loop_of(target)
    loop.admit(0, Request(long_prompt(300), max_tokens=1, ignore_end=True))
    short = 0
    while 0 in loop.active:
        if 1 not in loop.active:
            loop.admit(1, Request(long_prompt(40, short), max_tokens=1, ignore_end=True))
            short += 1
        loop.step()
        assert short < 20, "short prompts are read for ever"
    assert short > 3, "but some of them overtake"


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_between_passes_gives_the_text_held_back() -> None:
    loop = Loop(FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10), FixedPlan((), 8, None), VOCABULARY)
    gone: list[int] = []
    loop.admit(0, Request(prompt(HEL), sampling=GREEDY, stop=("lo world!!",)), cancel=lambda: bool(gone))
    assert "".join(loop.step()[0].text for _ in range(3)) == "Hel"
    gone.append(0)
    (event,) = loop.step()
    assert (event.text, event.tokens, event.finish, event.record) == ("lo wor", (), FinishReason.CANCELLED, None)
    assert event.stats.generated == 3
    assert not loop.active
    assert loop.step() == []


def test_cancelling_some_slots_leaves_the_others_alone() -> None:
    requests = {slot: Request(prompt(HEL, slot), seed=slot, max_tokens=8) for slot in range(4)}
    expected = {
        slot: answer(Loop(FakeTarget(MODEL, 10), FixedPlan((), 0, None), VOCABULARY), request, slot)
        for slot, request in requests.items()
    }
    loop = Loop(FakeTarget(MODEL, 10, streams=True), FixedPlan((), 4, None), VOCABULARY)
    found, gone = {slot: Answer() for slot in requests}, set[int]()
    for slot, request in requests.items():
        loop.admit(slot, request, cancel=lambda slot=slot: slot in gone)  # type: ignore[misc]
    while loop.active:
        for event in loop.step():
            found[event.slot].add(event)
        gone |= {1, 2}
    for slot in (0, 3):
        assert found[slot].tokens == expected[slot].tokens
    for slot in (1, 2):
        assert found[slot].finish is FinishReason.CANCELLED or found[slot].tokens == expected[slot].tokens
        assert found[slot].tokens == expected[slot].tokens[: len(found[slot].tokens)]


def test_cancelling_while_the_prompt_is_read_leaves_the_slot_free() -> None:
    target = FakeTarget(HashModel(10), 10)
    loop = loop_of(target)
    done: list[tuple[int, int]] = []
    request = Request(prompt(*[LO] * 30), sampling=GREEDY, max_tokens=2)
    loop.admit(0, request, cancel=lambda: len(done) == 3, progress=lambda now, total: done.append((now, total)))
    assert [event for _ in range(2) for event in loop.step()] == []
    (event,) = loop.step()
    assert (event.finish, event.text, event.tokens) == (FinishReason.CANCELLED, "", ())
    assert done == [(0, 29), (8, 29), (16, 29)]
    assert not loop.active
    assert answer(loop, request).stats.reused_tokens == 16, "the chunks that were read stay"


def test_a_cancel_inside_a_chunk_ends_the_request() -> None:
    target = FakeTarget(MODEL, 10)
    loop, asked = loop_of(target), list[int]()

    def cancel() -> bool:
        asked.append(1)
        return len(asked) == 4  # the loop asks once a step, the target once a chunk

    loop.admit(0, Request(long_prompt(30), max_tokens=2), cancel=cancel)
    assert loop.step() == []
    (event,) = loop.step()
    assert event.finish is FinishReason.CANCELLED
    assert target.passes == []


def test_an_answer_is_cancelled_while_another_prompt_is_read() -> None:
    target = FakeTarget(MODEL, 10, streams=True)
    loop, gone = loop_of(target), list[int]()
    loop.admit(0, Request(prompt(1, 2), max_tokens=50, ignore_end=True), cancel=lambda: bool(gone))
    loop.step()
    loop.admit(1, Request(long_prompt(100), max_tokens=1, ignore_end=True))
    loop.step()
    gone.append(0)
    (event,) = loop.step()
    assert (event.slot, event.finish) == (0, FinishReason.CANCELLED)
    assert list(loop.active) == [1]


# -- failing ---------------------------------------------------------------------------------------------------------


class Failing(FakeTarget):
    """Fails in the chunk of that number, in one slot."""

    def __init__(self, slot: int, chunk: int, **settings: Any) -> None:
        super().__init__(MODEL, 10, **settings)
        self.failing, self.left = slot, chunk

    def prefill_chunk(self, slot: int, *rest: Any) -> int:
        if slot == self.failing:
            self.left -= 1
            if self.left < 0:
                raise DecodeError("The chunk failed.")
        return super().prefill_chunk(slot, *rest)


def test_a_chunk_that_fails_ends_its_own_request_only() -> None:
    loop = loop_of(Failing(1, 2, streams=True))
    loop.admit(0, Request(prompt(1, 2), seed=3, max_tokens=9, ignore_end=True))
    slot = loop.admit(1, Request(long_prompt(60), max_tokens=9))
    found = {0: Answer(), 1: Answer()}
    drain(loop, found)
    assert found[1].finish is FinishReason.ERROR
    assert isinstance(slot.failure, DecodeError)
    alone = answer(loop_of(FakeTarget(MODEL, 10)), Request(prompt(1, 2), seed=3, max_tokens=9, ignore_end=True))
    assert found[0].tokens == alone.tokens


def test_a_listener_that_fails_ends_its_own_request() -> None:
    def refuse(done: int, total: int) -> None:
        raise LocalspecError("No more.")

    loop = loop_of(FakeTarget(MODEL, 10))
    slot = loop.admit(0, Request(long_prompt(20)), progress=refuse)
    (event,) = loop.step()
    assert event.finish is FinishReason.ERROR
    assert slot.failure is not None
    assert not loop.active


def test_events_made_before_a_pass_failed_come_with_the_step_that_repeats_it() -> None:
    target = FakeTarget(MODEL, 10, exact_widths={1}, streams=True)
    loop, gone = Loop(target, FixedPlan((), 0, target.exact_widths), VOCABULARY), list[int]()
    for slot in range(3):
        cancel = (lambda: bool(gone)) if slot == 0 else (lambda: False)
        loop.admit(slot, Request(prompt(1, 2), seed=slot, max_tokens=9, ignore_end=True), cancel=cancel)
    for _ in range(3):
        loop.step()
    gone.append(0)
    calls: list[int] = []

    def fail_second() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise DecodeError("The pass failed.")

    target.before_decode = fail_second
    with pytest.raises(DecodeError):
        loop.step()
    events: list[Event] = loop.step()
    assert [event.slot for event in events] == [0, 1, 1, 2]
    assert events[0].finish is FinishReason.CANCELLED


def test_another_loop_goes_on_from_what_was_said() -> None:
    """Its target has nothing cached: prompts and what was said are read again, chunk by chunk between its passes."""
    requests = {0: Request(prompt(1, 2), seed=3, max_tokens=20, ignore_end=True)}
    requests[1] = Request(long_prompt(60), seed=4, max_tokens=20, ignore_end=True)
    first, target = loop_of(FakeTarget(MODEL, 10, streams=True)), FakeTarget(MODEL, 10, streams=True)
    found = {slot: Answer() for slot in requests}
    for slot, request in requests.items():
        first.admit(slot, request)
    for _ in range(12):
        for event in first.step():
            found[event.slot].add(event)
    said = {slot: len(one.tokens) for slot, one in found.items()}
    assert 0 < said[1] < said[0] < 20
    second = loop_of(target)
    second.take_over(first)
    assert [slot.stats.exact for slot in second.active.values()] == [False, False]
    drain(second, found)
    for slot, request in requests.items():
        assert found[slot].tokens == answer(loop_of(FakeTarget(MODEL, 10)), request).tokens
    assert sum(size for slot, size in target.prefilled if slot == 1) >= 59 + said[1] - 1
    assert max(size for _, size in target.prefilled) <= target.grid


def test_an_abandoned_loop_has_nothing_left_to_say() -> None:
    loop = loop_of(FakeTarget(MODEL, 10))
    loop.admit(0, Request(prompt(1, 2), max_tokens=9))
    assert loop.abandon() == []
    assert loop.step() == []


# -- what is known of it ---------------------------------------------------------------------------------------------


def test_a_prompt_of_one_token_has_nothing_to_read() -> None:
    target = FakeTarget(MODEL, 10)
    found = answer(loop_of(target), Request(prompt(3), max_tokens=2, ignore_end=True))
    assert target.log == ["pass", "pass"]
    assert found.stats.prefill_seconds == 0.0


def test_the_time_of_a_prompt_is_that_of_its_own_chunks() -> None:
    requests = {0: Request(long_prompt(9), sampling=SamplingParams(), seed=1, max_tokens=3, ignore_end=True)}
    requests[1] = Request(long_prompt(90), sampling=SamplingParams(), seed=1, max_tokens=3, ignore_end=True)
    loop = loop_of(FakeTarget(MODEL, 10, streams=True))
    found = {slot: Answer() for slot in requests}
    for slot, request in requests.items():
        loop.admit(slot, request)
    drain(loop, found)
    for one in found.values():
        assert 0.0 < one.stats.prefill_seconds < one.stats.ttft_seconds


@pytest.mark.parametrize("plan", ["fixed", "forced", "adaptive"])
def test_a_draft_model_reads_a_long_prompt_in_chunks_between_passes(plan: str) -> None:
    context = FakeDraftContext(MODEL.like(0.5))
    context.CHUNK = 32
    draft = DraftModel(context, VOCABULARY.end_tokens)
    costs = PassCosts({100: {width: 0.01 * (1 + 0.01 * width) for width in range(1, 9)}})
    knowledge = Knowledge(costs, {"draft": DraftCosts({1: 1e-9}, 1e-9)})
    adaptive = AdaptivePlan([draft], None, knowledge, forced=Forced(drafting=plan == "forced"), clock=lambda: 0.0)
    target = FakeTarget(MODEL, 10, n_ctx=512)
    loop = Loop(target, FixedPlan([draft], 3, None) if plan == "fixed" else adaptive, VOCABULARY)
    request = Request(long_prompt(150), seed=2, max_tokens=40, ignore_end=True)
    found = answer(loop, request)
    assert found.tokens == answer(loop_of(FakeTarget(MODEL, 10, n_ctx=512)), request).tokens
    assert max(rows for one in context.passes for rows in one.values()) <= 32
    if plan != "adaptive":  # which goes by real time
        assert [len(event.record.guesses) if event.record else -1 for event in found.events[:4]] == [0, 0, 0, 0]
        assert found.stats.draft_passes >= found.stats.passes - 5
