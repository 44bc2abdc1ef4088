"""What the events of an answer carry, and what a drafter is asked and told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.engine.interfaces import Draft, Request, Verdict
from localspec.engine.loop import Loop, verify
from localspec.engine.slot import FinishReason
from localspec.errors import KernelError
from localspec.planning.plan import FixedPlan
from localspec.types import Float32Array, LogitRows, Rule, SamplingParams, Tokens
from tests.engine.recital import BANG, END, GREEDY, HEL, LD, LO, VOCABULARY, WOR, Recital, all_of_it, recite
from tests.fakes import FakeDrafter, FakeTarget, HashModel, answer, answer_all, parrot, prompt
from tests.reference.rows import distribution

both = pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])

# -- log-probabilities -----------------------------------------------------------------------------------------------


def log_softmax(row: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    wide = row.astype(np.float64)
    return np.asarray(wide - wide.max() - np.log(np.exp(wide - wide.max()).sum()))


@pytest.mark.parametrize("fork", [None, 0.0, 0.6], ids=["plain", "chains", "trees"])
def test_log_probs_are_those_of_the_raw_row(fork: float | None) -> None:
    model = HashModel(10)
    request = Request(
        prompt(1, 2), sampling=SamplingParams(top_k=3, repeat_penalty=1.3), seed=8, max_tokens=30, top_log_probs=4
    )
    tokens = answer(Loop(FakeTarget(model, 10), FixedPlan((), 0, None), VOCABULARY), request).tokens
    drafters = []
    if fork is not None:
        drafters = [FakeDrafter(parrot([1, 2, *tokens], 0.8, np.random.default_rng(0), 10, fork))]
    found = answer(Loop(FakeTarget(model, 10), FixedPlan(drafters, 5, None), VOCABULARY), request)
    assert [entry.token for entry in found.log_probs] == found.tokens == tokens
    for place, entry in enumerate(found.log_probs):
        row = log_softmax(model(prompt(1, 2, *tokens[:place])))
        assert entry.log_prob == pytest.approx(row[entry.token], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:4].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[::-1][:4], abs=1e-5)
    assert all(len(event.log_probs) == len(event.tokens) for event in found.events)


@pytest.mark.parametrize("fork", [None, 0.0, 0.6], ids=["plain", "chains", "trees"])
def test_log_probs_may_be_those_that_tokens_were_drawn_by(fork: float | None) -> None:
    model = HashModel(10)
    sampling = SamplingParams(temperature=0.7, top_k=3, repeat_penalty=1.3)
    request = Request(prompt(1, 2), sampling=sampling, seed=8, max_tokens=30, top_log_probs=4, drawn_log_probs=True)
    tokens = answer(Loop(FakeTarget(model, 10), FixedPlan((), 0, None), VOCABULARY), request).tokens
    drafters = []
    if fork is not None:
        drafters = [FakeDrafter(parrot([1, 2, *tokens], 0.8, np.random.default_rng(0), 10, fork))]
    found = answer(Loop(FakeTarget(model, 10), FixedPlan(drafters, 5, None), VOCABULARY), request)
    assert [entry.token for entry in found.log_probs] == tokens
    for place, entry in enumerate(found.log_probs):
        before = prompt(1, 2, *tokens[:place])
        expected = distribution(LogitRows.from_matrix(model(before)[None, :]), 0, sampling, before)
        known = dict(entry.top)
        assert len(entry.top) == 4
        assert {token for token, value in known.items() if value > -math.inf} == set(expected.tokens.tolist())
        assert [math.exp(known[int(token)]) for token in expected.tokens] == pytest.approx(expected.probs)
        assert entry.log_prob == known[entry.token]


def test_no_log_probs_unless_asked_for() -> None:
    assert recite(HEL, LO, END)[0].log_probs == []


@both
def test_log_probs_end_where_the_answer_does(drafting: bool) -> None:
    target = FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10)
    drafters = [all_of_it(HEL, LO, WOR, LD, BANG)] if drafting else []
    request = Request(prompt(HEL), sampling=GREEDY, stop=("wo",), top_log_probs=0)
    found = answer(Loop(target, FixedPlan(drafters, 8, None), VOCABULARY), request)
    assert [entry.token for entry in found.log_probs] == [HEL, LO, WOR]
    assert all(entry.top == () for entry in found.log_probs)


# -- what a drafter is asked and told --------------------------------------------------------------------------------


def test_a_drafter_sees_all_slots_at_once_and_hears_of_every_pass() -> None:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * min(2, request.max_nodes)))
    loop = Loop(FakeTarget(HashModel(10), 10, streams=True), FixedPlan([drafter], 4, None), VOCABULARY)
    found = answer_all(loop, {slot: Request(prompt(HEL, slot), seed=slot, max_tokens=9) for slot in range(3)})
    assert [request.slot for request in drafter.requests[:3]] == [0, 1, 2]
    for slot in range(3):
        outcomes = [outcome for outcome in drafter.outcomes if outcome.slot == slot]
        assert len(outcomes) == found[slot].stats.passes
        said: list[int] = []
        for outcome in outcomes:
            said += [int(outcome.draft.tokens[node]) for node in outcome.verdict.accepted]
            said.append(outcome.verdict.next_token)
        assert said == found[slot].tokens
        assert outcomes[-1].history.tokens.tolist() == [HEL, slot, *said]


@pytest.mark.parametrize("rule", Rule)
def test_noise_is_shared_under_coupled_and_fresh_in_every_pass_otherwise(rule: Rule) -> None:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * min(2, request.max_nodes)))
    loop = Loop(FakeTarget(HashModel(10), 10), FixedPlan([drafter], 4, None), VOCABULARY)
    answer(loop, Request(prompt(HEL, LO), seed=77, stream=3, max_tokens=12, rule=rule))
    lengths = [2]
    for outcome in drafter.outcomes:
        lengths.append(lengths[-1] + len(outcome.verdict.accepted) + 1)
    assert {(request.noise.seed, request.noise.stream) for request in drafter.requests} == {(77, 3)}
    rounds = [request.noise.round for request in drafter.requests]
    assert rounds == ([0] * len(rounds) if rule is Rule.COUPLED else lengths[:-1])
    assert all(request.needs_probs == (rule is not Rule.COUPLED) for request in drafter.requests)


@pytest.mark.parametrize("rule", Rule)
def test_a_draft_is_verified_by_the_requests_own_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[object] = []

    def spy(*given: object) -> Verdict:
        used.append(given[-1])
        return verify(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("localspec.engine.loop.verify", spy)
    loop = Loop(FakeTarget(HashModel(10), 10), FixedPlan([all_of_it(*[LO] * 30)], 4, None), VOCABULARY)
    answer(loop, Request(prompt(HEL), max_tokens=6, rule=rule))
    assert set(used) == {rule}


def test_a_broken_row_is_an_error_not_an_answer() -> None:
    def broken(tokens: Tokens) -> Float32Array:
        return np.full(10, np.nan, dtype=np.float32)

    loop = Loop(FakeTarget(broken, 10), FixedPlan((), 4, None), VOCABULARY)
    slot = loop.admit(0, Request(prompt(HEL)))
    (event,) = loop.step()
    assert event.finish is FinishReason.ERROR
    assert event.tokens == ()
    assert isinstance(slot.failure, KernelError)
    assert not loop.active


def test_times_add_up() -> None:
    stats = recite(HEL, LO, WOR, LD, END, drafting=False)[0].stats
    assert stats.ttft_seconds > 0
    assert len(stats.gaps) == stats.passes - 1
    assert stats.draft_seconds >= 0
    assert stats.verify_seconds > 0
    assert stats.host_seconds > 0


# -- the record of a pass --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fork", [0.0, 0.6], ids=["chains", "trees"])
def test_a_record_says_what_was_guessed_and_what_became_of_it(fork: float) -> None:
    target = FakeTarget(HashModel(10), 10)
    request = Request(prompt(1, 2), sampling=SamplingParams(temperature=1.0), seed=8, max_tokens=30, ignore_end=True)
    tokens = answer(Loop(FakeTarget(HashModel(10), 10), FixedPlan((), 0, None), VOCABULARY), request).tokens
    drafter = FakeDrafter(parrot([1, 2, *tokens], 0.7, np.random.default_rng(5), 10, fork))
    found = answer(Loop(target, FixedPlan([drafter], 5, None), VOCABULARY), request)
    widths = iter(target.widths)
    for event, outcome in zip(found.events, drafter.outcomes, strict=True):
        record = event.record
        assert record is not None
        assert (list(record.guesses), list(record.parents)) == (
            outcome.draft.tokens.tolist(),
            outcome.draft.parents.tolist(),
        )
        said = [record.guesses[node] for node in record.accepted] + [record.next_token]
        assert event.tokens == tuple(said[: len(event.tokens)])
        assert all(record.parents[node] == parent for parent, node in zip((-1, *record.accepted), record.accepted))  # noqa: B905
        assert record.width == next(widths)
        assert record.drafter == ("scripted" if record.guesses else "")
        assert record.seconds > 0
    assert sum(event.record.seconds for event in found.events if event.record) <= found.stats.decode_seconds


def test_slots_that_share_a_pass_share_its_width_and_time() -> None:
    loop = Loop(FakeTarget(HashModel(10), 10, streams=True), FixedPlan([all_of_it(*[LO] * 30)], 2, None), VOCABULARY)
    for slot in range(3):
        loop.admit(slot, Request(prompt(HEL), sampling=GREEDY, max_tokens=9, ignore_end=True))
    records = [event.record for event in loop.step()]
    assert {record.width for record in records if record} == {9}
    assert len({record.seconds for record in records if record}) == 1
