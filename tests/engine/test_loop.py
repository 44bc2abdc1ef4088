"""The loop on fakes: where an answer ends, what its events carry, and what it leaves in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel, DraftModelSettings
from localspec.drafters.none import NoDrafter
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, Verdict
from localspec.engine.loop import Loop
from localspec.engine.plan import FixedPlan
from localspec.engine.request import FinishReason, Request
from localspec.engine.verify import verify
from localspec.errors import Cancelled, ContextOverflowError, KernelError
from localspec.types import Float32Array, Rule, SamplingParams, Tokens
from tests.fakes import (
    Answer,
    FakeDraftContext,
    FakeDrafter,
    FakeTarget,
    FakeVocabulary,
    HashModel,
    answer,
    answer_all,
    parrot,
    prompt,
)

PIECES = (b"", b"Hel", b"lo ", b"wor", b"ld", b"\xf0\x9f", b"\x98\x80", b"\xe2\x82", b"\xac", b"!")
END, HEL, LO, WOR, LD, SMILE1, SMILE2, EURO1, EURO2, BANG = range(10)
VOCABULARY = FakeVocabulary(10, end_tokens={END}, pieces=PIECES)
GREEDY = SamplingParams(temperature=0.0)


class Recital:
    """A model that says these tokens behind a prompt of one token, then the last one for ever."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, tokens: Tokens) -> Float32Array:
        row = np.zeros(10, dtype=np.float32)
        row[self.tokens[min(len(tokens), len(self.tokens)) - 1]] = 9.0
        return row


def all_of_it(*tokens: int) -> FakeDrafter:
    """Drafts the recital as far as it may."""
    known = [HEL, *tokens]

    def script(request: DraftRequest) -> Draft:
        start = len(request.history)
        return Draft.chain(known[start : start + request.max_nodes], origin="scripted")

    return FakeDrafter(script)


def recite(
    *tokens: int,
    drafting: bool = False,
    stop: tuple[str, ...] = (),
    max_tokens: int | None = 20,
    n_ctx: int = 64,
    ignore_end: bool = False,
) -> tuple[Answer, FakeTarget]:
    target = FakeTarget(Recital(*tokens), 10, n_ctx)
    drafter: Drafter = all_of_it(*tokens) if drafting else NoDrafter()
    request = Request(prompt(HEL), GREEDY, 1, max_tokens=max_tokens, stop=stop, ignore_end=ignore_end)
    return answer(Loop(target, drafter, FixedPlan(8, None), VOCABULARY), request), target


both = pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])


@both
def test_an_end_token_ends_the_answer_and_is_its_last_token(drafting: bool) -> None:
    found, target = recite(HEL, LO, END, BANG, BANG, drafting=drafting)
    assert found.tokens == [HEL, LO, END]
    assert found.text == "Hello "
    assert found.finish is FinishReason.STOP
    assert target.cached[0] == [HEL, HEL, LO], "nothing behind the end, and not the end itself: no pass took it"
    assert len(found.events) == (1 if drafting else 3)


@both
def test_end_tokens_can_be_ignored(drafting: bool) -> None:
    found, _ = recite(HEL, END, LO, BANG, drafting=drafting, ignore_end=True, max_tokens=4)
    assert found.tokens == [HEL, END, LO, BANG]
    assert found.text == "Hello !"
    assert found.finish is FinishReason.LENGTH


@both
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("lo w", "Hel", [HEL, LO, WOR]),
        ("Hel", "", [HEL]),
        ("world!", "Hello ", [HEL, LO, WOR, LD, BANG]),
        ("o worl", "Hell", [HEL, LO, WOR, LD]),
    ],
)
def test_a_stop_string_across_tokens(stop: str, text: str, tokens: list[int], drafting: bool) -> None:
    found, target = recite(HEL, LO, WOR, LD, BANG, BANG, BANG, drafting=drafting, stop=("zz", stop))
    assert found.text == text
    assert found.tokens == tokens
    assert found.finish is FinishReason.STOP
    assert target.cached[0] == [HEL, *tokens[:-1]]


@both
def test_held_back_text_comes_when_no_stop_string_does(drafting: bool) -> None:
    found, _ = recite(HEL, LO, WOR, LD, END, drafting=drafting, stop=("world!",))
    assert found.text == "Hello world"
    assert found.finish is FinishReason.STOP
    found, _ = recite(HEL, LO, WOR, LD, BANG, drafting=drafting, stop=("world!",), max_tokens=4)
    assert found.text == "Hello world"
    assert found.finish is FinishReason.LENGTH


@both
@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_max_tokens_is_kept_to_inside_a_draft(max_tokens: int, drafting: bool) -> None:
    found, _ = recite(HEL, LO, WOR, LD, BANG, HEL, LO, WOR, drafting=drafting, max_tokens=max_tokens)
    assert found.tokens == [HEL, LO, WOR, LD, BANG, HEL, LO][:max_tokens]
    assert found.finish is FinishReason.LENGTH
    assert found.stats.generated == max_tokens


def test_no_draft_is_asked_for_beyond_max_tokens_or_the_context() -> None:
    drafter = all_of_it(*[LO] * 30)
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=12), drafter, FixedPlan(6, None), VOCABULARY)
    answer(loop, Request(prompt(HEL), GREEDY, 1, max_tokens=10))
    assert [request.max_nodes for request in drafter.requests] == [6, 2]
    drafter.requests.clear()
    answer(loop, Request(prompt(HEL), GREEDY, 1))
    assert [request.max_nodes for request in drafter.requests] == [6, 4]
    assert all(request.max_depth == request.max_nodes for request in drafter.requests)


def test_a_drafter_that_overdoes_it_still_gets_no_more_than_max_tokens() -> None:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * 5))
    loop = Loop(FakeTarget(Recital(LO), 10), drafter, FixedPlan(8, None), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), GREEDY, 1, max_tokens=3))
    assert found.tokens == [LO] * 3
    assert found.stats.generated == 3


@both
@pytest.mark.parametrize("max_tokens", [None, 100])
def test_a_full_context_ends_the_answer(max_tokens: int | None, drafting: bool) -> None:
    found, target = recite(*[LO] * 40, drafting=drafting, max_tokens=max_tokens, n_ctx=20)
    assert found.finish is FinishReason.CONTEXT
    assert len(found.tokens) == 19
    assert len(target.cached[0]) == 19


def test_max_tokens_wins_where_the_context_ends_too() -> None:
    assert recite(LO, max_tokens=9, n_ctx=10)[0].finish is FinishReason.LENGTH


@pytest.mark.parametrize("length", [10, 11, 500])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=10), NoDrafter(), FixedPlan(8, None), VOCABULARY)
    with pytest.raises(ContextOverflowError, match=f"has {length} tokens and the context holds 10"):
        loop.admit(0, Request(prompt(*[LO] * length)))
    assert not loop.active


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    loop = Loop(FakeTarget(Recital(LO), 10, n_ctx=10), all_of_it(*[LO] * 30), FixedPlan(8, None), VOCABULARY)
    found = answer(loop, Request(prompt(*[LO] * 9), GREEDY))
    assert found.tokens == [LO]
    assert found.finish is FinishReason.CONTEXT


@both
def test_characters_are_never_split_over_events(drafting: bool) -> None:
    found, _ = recite(HEL, SMILE1, SMILE2, EURO1, EURO2, BANG, END, drafting=drafting)
    assert found.text == "Hel😀€!"
    assert "�" not in "".join(event.text for event in found.events)
    if not drafting:
        assert [event.text for event in found.events] == ["Hel", "", "😀", "", "€", "!", ""]


@both
def test_a_character_cut_off_by_max_tokens_is_marked(drafting: bool) -> None:
    assert recite(HEL, SMILE1, SMILE2, drafting=drafting, max_tokens=2)[0].text == "Hel�"


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_between_passes_gives_the_text_held_back() -> None:
    loop = Loop(FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10), NoDrafter(), FixedPlan(8, None), VOCABULARY)
    slot = loop.admit(0, Request(prompt(HEL), GREEDY, stop=("lo world!!",)))
    assert "".join(loop.step()[0].text for _ in range(3)) == "Hel"
    slot.cancelled = True
    (event,) = loop.step()
    assert (event.text, event.tokens, event.finish) == ("lo wor", (), FinishReason.CANCELLED)
    assert event.stats.generated == 3
    assert not loop.active
    assert loop.step() == []


def test_cancelling_some_slots_leaves_the_others_alone() -> None:
    requests = {slot: Request(prompt(HEL, slot), seed=slot, max_tokens=8) for slot in range(4)}
    model = HashModel(10)
    expected = {
        slot: answer(Loop(FakeTarget(model, 10), NoDrafter(), FixedPlan(0, None), VOCABULARY), request, slot)
        for slot, request in requests.items()
    }
    loop = Loop(FakeTarget(model, 10, streams=True), NoDrafter(), FixedPlan(4, None), VOCABULARY)
    found = {slot: Answer() for slot in requests}
    slots = {slot: loop.admit(slot, request) for slot, request in requests.items()}
    while loop.active:
        for event in loop.step():
            found[event.slot].add(event)
        slots[1].cancelled = slots[2].cancelled = True
    for slot in (0, 3):
        assert found[slot].tokens == expected[slot].tokens
    for slot in (1, 2):
        assert found[slot].finish is FinishReason.CANCELLED or found[slot].tokens == expected[slot].tokens
        assert found[slot].tokens == expected[slot].tokens[: len(found[slot].tokens)]


def test_cancelling_while_the_prompt_is_read_leaves_the_slot_free() -> None:
    target = FakeTarget(HashModel(10), 10)
    loop = Loop(target, NoDrafter(), FixedPlan(4, None), VOCABULARY)
    done: list[tuple[int, int]] = []
    request = Request(prompt(*[LO] * 30), GREEDY, max_tokens=2)
    with pytest.raises(Cancelled):
        loop.admit(0, request, cancel=lambda: len(done) == 2, progress=lambda now, total: done.append((now, total)))
    assert done == [(8, 29), (16, 29)]
    assert not loop.active
    assert answer(loop, request).stats.reused_tokens == 16, "the chunks that were read stay"


# -- log-probabilities -----------------------------------------------------------------------------------------------


def log_softmax(row: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    wide = row.astype(np.float64)
    return np.asarray(wide - wide.max() - np.log(np.exp(wide - wide.max()).sum()))


@pytest.mark.parametrize("fork", [None, 0.0, 0.6], ids=["plain", "chains", "trees"])
def test_log_probs_are_those_of_the_raw_row(fork: float | None) -> None:
    model = HashModel(10)
    request = Request(prompt(1, 2), SamplingParams(top_k=3, repeat_penalty=1.3), 8, max_tokens=30, top_log_probs=4)
    tokens = answer(Loop(FakeTarget(model, 10), NoDrafter(), FixedPlan(0, None), VOCABULARY), request).tokens
    drafter: Drafter = NoDrafter()
    if fork is not None:
        drafter = FakeDrafter(parrot([1, 2, *tokens], 0.8, np.random.default_rng(0), 10, fork))
    found = answer(Loop(FakeTarget(model, 10), drafter, FixedPlan(5, None), VOCABULARY), request)
    assert [entry.token for entry in found.log_probs] == found.tokens == tokens
    for place, entry in enumerate(found.log_probs):
        row = log_softmax(model(prompt(1, 2, *tokens[:place])))
        assert entry.log_prob == pytest.approx(row[entry.token], abs=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:4].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[::-1][:4], abs=1e-5)
    assert all(len(event.log_probs) == len(event.tokens) for event in found.events)


def test_no_log_probs_unless_asked_for() -> None:
    assert recite(HEL, LO, END)[0].log_probs == []


@both
def test_log_probs_end_where_the_answer_does(drafting: bool) -> None:
    target = FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10)
    drafter: Drafter = all_of_it(HEL, LO, WOR, LD, BANG) if drafting else NoDrafter()
    request = Request(prompt(HEL), GREEDY, stop=("wo",), top_log_probs=0)
    found = answer(Loop(target, drafter, FixedPlan(8, None), VOCABULARY), request)
    assert [entry.token for entry in found.log_probs] == [HEL, LO, WOR]
    assert all(entry.top == () for entry in found.log_probs)


# -- what a drafter is asked and told --------------------------------------------------------------------------------


def test_a_drafter_sees_all_slots_at_once_and_hears_of_every_pass() -> None:
    drafter = FakeDrafter(lambda request: Draft.chain([LO] * min(2, request.max_nodes)))
    loop = Loop(FakeTarget(HashModel(10), 10, streams=True), drafter, FixedPlan(4, None), VOCABULARY)
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
    loop = Loop(FakeTarget(HashModel(10), 10), drafter, FixedPlan(4, None), VOCABULARY)
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
    loop = Loop(FakeTarget(HashModel(10), 10), all_of_it(*[LO] * 30), FixedPlan(4, None), VOCABULARY)
    answer(loop, Request(prompt(HEL), max_tokens=6, rule=rule))
    assert set(used) == {rule}


def test_a_broken_row_is_an_error_not_an_answer() -> None:
    def broken(tokens: Tokens) -> Float32Array:
        return np.full(10, np.nan, dtype=np.float32)

    loop = Loop(FakeTarget(broken, 10), NoDrafter(), FixedPlan(4, None), VOCABULARY)
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


# -- what is left in the cache ---------------------------------------------------------------------------------------


def drafters(known: Sequence[int]) -> dict[str, Drafter]:
    def model(branches: int) -> DraftModel:
        context = FakeDraftContext(HashModel(10).like(0.8))
        return DraftModel(context, VOCABULARY.end_tokens, DraftModelSettings(branches))

    return {
        "none": NoDrafter(),
        "draft model": model(1),
        "branches": model(3),
        "chains": FakeDrafter(parrot(known, 0.7, np.random.default_rng(3), 10)),
        "trees": FakeDrafter(parrot(known, 0.7, np.random.default_rng(4), 10, 0.7)),
    }


@pytest.mark.parametrize("name", list(drafters(())))
@pytest.mark.parametrize("exact", [None, range(1, 9), (1, 3, 4)], ids=["any width", "1 to 8", "1, 3, 4"])
@pytest.mark.parametrize("end", ["max tokens", "end token", "cancelled"])
def test_what_stays_cached_follows_from_the_history_alone(name: str, exact: Sequence[int] | None, end: str) -> None:
    """Else the next request's text would depend on what was guessed in this one (DESIGN section 5C)."""
    for seed in range(6):
        request = Request(prompt(1, 2, 3), SamplingParams(temperature=1.0), seed, max_tokens=14)
        request = replace(request, ignore_end=end != "end token")
        plain = answer(Loop(FakeTarget(HashModel(10), 10), NoDrafter(), FixedPlan(0, None), VOCABULARY), request)
        target = FakeTarget(HashModel(10), 10, exact_widths=exact, same_bits=exact)
        loop = Loop(target, drafters([1, 2, 3, *plain.tokens])[name], FixedPlan(5, target.exact_widths), VOCABULARY)
        slot = loop.admit(0, request)
        while loop.active:
            loop.step()
            slot.cancelled = end == "cancelled" and len(slot.history) > 8
        history = slot.history.tokens.tolist()
        assert history == [1, 2, 3, *plain.tokens][: len(history)]
        assert target.cached[0] == history[: len(target.cached[0])]
        assert len(target.cached[0]) < len(history)
        if exact is not None:
            assert target.cached[0] == history[:-1], "as after plain decoding"


def test_rows_missing_behind_a_tree_are_decoded_one_by_one_where_wider_passes_are_not_exact() -> None:
    target = FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10, exact_widths={1, 3}, same_bits={1, 3})
    drafts = iter([Draft(prompt(BANG, HEL), prompt(-1, -1)), Draft(), Draft()])
    loop = Loop(target, FakeDrafter(lambda request: next(drafts)), FixedPlan(2, target.exact_widths), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), GREEDY, max_tokens=4))
    assert found.tokens == [HEL, LO, WOR, LD]
    assert target.widths == [3, 1, 1, 1], "the sibling's cell is missing: it is decoded alone, then its successor"
    assert found.stats.exact


def test_rows_of_a_pass_are_used_before_the_next_one_begins() -> None:
    """With a tree accepted off its main chain at the very end, and observers and log-probabilities reading rows."""
    target = FakeTarget(Recital(HEL, LO, END), 10, exact_widths=range(1, 9))
    drafter = FakeDrafter(lambda request: Draft(prompt(BANG, HEL, LO, END), prompt(-1, -1, 1, 2), origin="tree"))
    loop = Loop(target, drafter, FixedPlan(4, target.exact_widths), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), GREEDY, top_log_probs=1))
    assert found.tokens == [HEL, LO, END]
    assert all(np.isfinite(entry.log_prob) for entry in found.log_probs)
    assert target.cached[0] == [HEL, HEL, LO]
