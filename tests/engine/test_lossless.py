"""The promise everything else serves: under *coupled* no drafter can change the text. Never skip these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.search import PromptLookup
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, Request, Verdict
from localspec.engine.loop import Loop
from localspec.native import kernels
from localspec.planning.plan import FixedPlan
from localspec.types import Float32Array, LogitRows, Noise, Rule, SamplingParams, Tokens
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

VOCABULARY = FakeVocabulary(24, end_tokens={23})
MODEL = HashModel(24)
DRAFT_MODEL = MODEL.like(0.8)
NOT_SURE = HashModel(24, sharpness=0.4)

Known = Sequence[int]
Maker = Callable[[Known], list[Drafter]]


def draft_model(known: Known, branches: int = 1) -> list[Drafter]:
    return [DraftModel(FakeDraftContext(DRAFT_MODEL), VOCABULARY.end_tokens, branches)]


def lookup(known: Known) -> list[Drafter]:
    return [PromptLookup(1, 3)]


def both(known: Known) -> list[Drafter]:
    return [*lookup(known), *draft_model(known)]


def scripted(known: Known, right: float, fork: float = 0.0) -> list[Drafter]:
    return [FakeDrafter(parrot(known, right, np.random.default_rng(5), 24, fork))]


CHAINS: dict[str, Maker] = {
    "none": lambda known: [],
    "lookup": lookup,
    "draft model": draft_model,
    "both": both,
    "always right": lambda known: scripted(known, 1.0),
    "often right": lambda known: scripted(known, 0.8),
    "always wrong": lambda known: scripted(known, 0.0),
}
TREES: dict[str, Maker] = {
    "draft model with branches": lambda known: draft_model(known, 3),
    "trees": lambda known: scripted(known, 0.7, 0.4),
    "wide trees": lambda known: scripted(known, 0.5, 0.9),
}
SAMPLINGS = {
    "defaults": SamplingParams(),
    "nothing cut": SamplingParams(top_k=0, top_p=1.0, min_p=0.0),
    "top-k": SamplingParams(top_k=3, top_p=1.0, min_p=0.0),
    "top-p": SamplingParams(top_k=0, top_p=0.6, min_p=0.0),
    "min-p": SamplingParams(top_k=0, top_p=1.0, min_p=0.3),
    "typical": SamplingParams(top_k=0, typical_p=0.5),
    "top-n-sigma": SamplingParams(top_k=0, top_p=1.0, min_p=0.0, top_n_sigma=1.0),
    "dynamic temperature": SamplingParams(top_k=0, top_p=1.0, min_p=0.0, dynatemp_range=0.6, dynatemp_exponent=0.7),
    "XTC": SamplingParams(top_k=0, top_p=1.0, min_p=0.0, xtc_probability=0.5, xtc_threshold=0.05),
    "DRY": SamplingParams(top_k=0, top_p=1.0, min_p=0.0, dry_multiplier=0.9, dry_allowed_length=1),
    "DRY of the last tokens": SamplingParams(dry_multiplier=3.0, dry_allowed_length=0, dry_penalty_last_n=6),
    "repeat penalty": SamplingParams(repeat_penalty=1.4, penalty_last_n=8),
    "presence and frequency": SamplingParams(presence_penalty=0.7, frequency_penalty=0.4, penalty_last_n=-1),
    "bias": SamplingParams(logit_bias=((1, 2.5), (2, -float("inf")), (3, -4.0))),
    "all": SamplingParams(
        top_k=12,
        top_p=0.9,
        min_p=0.02,
        typical_p=0.95,
        repeat_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        penalty_last_n=5,
        logit_bias=((4, 1.0), (5, -float("inf"))),
    ),
}
TEMPERATURES = (0.0, 0.7, 1.0)


def request_for(sampling: SamplingParams, temperature: float = 0.7, seed: int = 1, max_tokens: int = 40) -> Request:
    return Request(
        prompt(3, 1, 4, 1, 5), sampling=replace(sampling, temperature=temperature), seed=seed, max_tokens=max_tokens
    )


def loop_with(drafters: Sequence[Drafter], target: FakeTarget | None = None, max_draft_tokens: int = 5) -> Loop:
    target = target or FakeTarget(MODEL, 24)
    thresholds = {"lookup": 2.0} if len(drafters) > 1 else None
    return Loop(target, FixedPlan(drafters, max_draft_tokens, target.exact_widths, thresholds), VOCABULARY)


def by_hand(request: Request, model: HashModel = MODEL) -> list[int]:
    """The answer without any of the engine: one row, one draw, one token at a time."""
    history = list(request.prompt.tolist())
    while len(history) - len(request.prompt) < (request.max_tokens or 40):
        tokens = np.array(history, dtype=np.int32)
        rows = LogitRows.from_matrix(model(tokens)[None, :].copy())
        drawn, _ = kernels.sample(rows, 0, request.sampling, tokens, Noise(request.seed), len(history), 1)
        history.append(int(drawn[0]))
        if history[-1] in VOCABULARY.end_tokens:
            break
    return history[len(request.prompt) :]


def known_text(request: Request) -> list[int]:
    return [*request.prompt.tolist(), *by_hand(request)]


def assert_same(one: Answer, other: Answer) -> None:
    assert one.tokens == other.tokens
    assert one.text == other.text
    assert one.finish == other.finish


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", [*CHAINS, *TREES])
def test_no_drafter_changes_the_text(drafter: str, sampling: str, temperature: float) -> None:
    for seed in (1, 2**63 + 7):
        request = request_for(SAMPLINGS[sampling], temperature, seed)
        plain = answer(loop_with([]), request)
        assert plain.tokens == by_hand(request)
        guesser = (CHAINS | TREES)[drafter](known_text(request))
        assert_same(answer(loop_with(guesser), request), plain)


def test_the_drafters_of_these_tests_are_accepted_and_rejected() -> None:
    """Else the tests above would prove nothing."""
    for name, make in (CHAINS | TREES).items():
        request = request_for(SAMPLINGS["nothing cut"], 0.7, 3, max_tokens=120)
        stats = answer(loop_with(make(known_text(request))), request).stats
        if name == "none":
            assert stats.drafted == 0
        elif name == "always wrong":
            assert stats.acceptance_rate < 0.2
        else:
            assert stats.accepted > 3, name
            assert stats.drafted > stats.accepted, name


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 5, 40]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    typical_p=st.sampled_from([0.4, 1.0]),
    top_n_sigma=st.sampled_from([-1.0, 0.8]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.02, 0.2]),
    dynatemp_range=st.sampled_from([0.0, 0.5]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    dry_allowed_length=st.sampled_from([0, 1, 2]),
    dry_penalty_last_n=st.sampled_from([-1, 0, 7]),
    repeat_penalty=st.sampled_from([0.8, 1.0, 1.5]),
    presence_penalty=st.sampled_from([-0.5, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    penalty_last_n=st.sampled_from([-1, 0, 1, 6, 64]),
    logit_bias=st.lists(st.tuples(st.integers(0, 23), st.sampled_from([-np.inf, -1.0, 3.0])), max_size=2).map(tuple),
)


@settings(max_examples=300)
@given(
    sampling=samplings,
    seed=st.integers(0, 2**64 - 1),
    start=st.lists(st.integers(0, 22), min_size=1, max_size=20),
    drafter=st.sampled_from([*CHAINS, *TREES]),
    limit=st.integers(0, 8),
    model=st.sampled_from([MODEL, NOT_SURE]),
    max_tokens=st.integers(1, 30),
)
def test_any_settings_give_the_plain_text(
    sampling: SamplingParams,
    seed: int,
    start: list[int],
    drafter: str,
    limit: int,
    model: HashModel,
    max_tokens: int,
) -> None:
    request = Request(prompt(*start), sampling=sampling, seed=seed, max_tokens=max_tokens)
    tokens = by_hand(request, model)
    guessers = (CHAINS | TREES)[drafter]([*start, *tokens])
    found = answer(loop_with(guessers, FakeTarget(model, 24), limit), request)
    assert found.tokens == tokens
    assert found.stats.generated == len(tokens)


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
@pytest.mark.parametrize("drafter", [*CHAINS, *TREES])
def test_at_temperature_0_every_rule_gives_the_plain_text(drafter: str, rule: Rule) -> None:
    request = replace(request_for(SAMPLINGS["defaults"], 0.0), rule=rule)
    if rule is Rule.BLOCK and drafter in TREES:
        return  # chains only
    found = answer(loop_with((CHAINS | TREES)[drafter](known_text(request))), request)
    assert found.tokens == by_hand(request)


@pytest.mark.parametrize("drafter", CHAINS)
def test_slots_do_not_disturb_each_other(drafter: str) -> None:
    requests = {
        slot: replace(request_for(SAMPLINGS["all"], temperature, 10 + slot, max_tokens=15 + 9 * slot), stream=slot)
        for slot, temperature in enumerate((0.0, 0.7, 1.0))
    }
    alone = {slot: answer(loop_with([]), request) for slot, request in requests.items()}
    makers = {slot: CHAINS[drafter]([*requests[slot].prompt.tolist(), *alone[slot].tokens]) for slot in requests}
    guessers = makers[0] if drafter in ("none", "lookup", "draft model", "both") else [BySlot(makers)]
    together = answer_all(loop_with(guessers, FakeTarget(MODEL, 24, streams=True)), requests)
    for slot in requests:
        assert_same(together[slot], alone[slot])


class BySlot(FakeDrafter):
    """A scripted drafter for every slot."""

    def __init__(self, drafters: dict[int, list[Drafter]]) -> None:
        super().__init__(lambda request: drafters[request.slot][0].draft([request])[0])


def test_a_slot_taken_over_gives_the_same_text_as_a_fresh_one() -> None:
    target = FakeTarget(MODEL, 24, streams=True)
    loop = loop_with(draft_model(()), target)
    requests = [request_for(SAMPLINGS["defaults"], 1.0, seed, max_tokens=12) for seed in range(6)]
    expected = [by_hand(request) for request in requests]
    waiting, found, whose = list(range(6)), {i: Answer() for i in range(6)}, {}
    while waiting or loop.active:
        for slot in range(2):
            if waiting and slot not in loop.active:
                whose[slot] = waiting.pop(0)
                loop.admit(slot, requests[whose[slot]])
        for event in loop.step():
            found[whose[event.slot]].add(event)
    assert [found[i].tokens for i in range(6)] == expected


def test_ties_go_to_the_lowest_id_whatever_drafts() -> None:
    coarse = HashModel(24)
    coarse.table = np.round(coarse.table / 3).astype(np.float32)
    request = request_for(SAMPLINGS["nothing cut"], 0.0)
    plain = by_hand(request, coarse)
    for make in (CHAINS | TREES).values():
        drafter = make([*request.prompt.tolist(), *plain])
        assert answer(loop_with(drafter, FakeTarget(coarse, 24)), request).tokens == plain


@pytest.mark.parametrize("drafter", ["draft model", "often right", "draft model with branches", "trees"])
@pytest.mark.parametrize("widths", [{1}, {1, 2}, {1, 4}, {1, 2, 3, 5}, set(range(1, 9))], ids=str)
def test_the_text_holds_where_other_widths_have_other_bits(widths: set[int], drafter: str) -> None:
    """The fake target refuses every pass of another width, and its bits really differ there."""
    request = request_for(SAMPLINGS["defaults"], 1.0, 9, max_tokens=60)
    target = FakeTarget(MODEL, 24, exact_widths=widths, same_bits=widths)
    found = answer(loop_with((CHAINS | TREES)[drafter](known_text(request)), target), request)
    assert found.tokens == by_hand(request)
    assert found.stats.exact


def test_the_text_forks_where_widths_with_other_bits_are_used() -> None:
    """The control of the test above."""
    request = request_for(SAMPLINGS["defaults"], 1.0, 9, max_tokens=60)
    found = answer(loop_with(draft_model(()), FakeTarget(MODEL, 24, same_bits={1, 2})), request)
    assert found.tokens != by_hand(request)
    assert not found.stats.exact


@pytest.mark.parametrize("slots", [2, 3, 5])
@pytest.mark.parametrize("widths", [{1}, {1, 2}, {1, 3, 4}, {1, 2, 3, 4, 5, 6}], ids=str)
def test_many_slots_keep_to_exact_widths(widths: set[int], slots: int) -> None:
    requests = {i: request_for(SAMPLINGS["defaults"], 1.0, i, max_tokens=10 + 3 * i) for i in range(slots)}
    target = FakeTarget(MODEL, 24, exact_widths=widths, same_bits=widths, streams=True)
    found = answer_all(loop_with(both(()), target), requests)
    for slot, request in requests.items():
        assert found[slot].tokens == by_hand(request)
        assert found[slot].stats.exact


def wrong_argmax(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Accepts a chain as long as it is the most likely one, whatever the temperature."""
    accepted = []
    for node, token in enumerate(draft.tokens.tolist()):
        if draft.parents[node] != node - 1 or int(rows[node].argmax()) != token:
            break
        accepted.append(node)
    _, next_token = kernels.verify(
        *_alone(rows, len(accepted)), sampling, history, noise, len(history) + len(accepted), rule
    )
    return Verdict(np.array(accepted, dtype=np.int32), next_token)


def wrong_position(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Right, except that a bonus token gets the noise of the position before."""
    accepted, next_token = kernels.verify(
        rows, draft.tokens, draft.parents, draft.probs, sampling, history, noise, len(history), rule
    )
    if len(accepted):
        _, next_token = kernels.verify(
            *_alone(rows, int(accepted[-1]) + 1), sampling, history, noise, len(history) + len(accepted) - 1, rule
        )
    return Verdict(accepted, next_token)


def wrong_window(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Right, except that penalties look at a history without its last token."""
    accepted, next_token = kernels.verify(
        rows, draft.tokens, draft.parents, draft.probs, sampling, history[:-1], noise, len(history), rule
    )
    return Verdict(accepted, next_token)


def _alone(rows: LogitRows, index: int) -> tuple[LogitRows, Tokens, Tokens, None]:
    matrix: Float32Array = rows[index][None, :].copy()
    none = np.empty(0, dtype=np.int32)
    return LogitRows.from_matrix(matrix), none, none, None


def most_likely() -> FakeDrafter:
    """Drafts what the target finds most likely, as most engines do."""

    def script(request: DraftRequest) -> Draft:
        path = request.history.tokens
        for _ in range(request.max_nodes):
            path = np.append(path, np.int32(MODEL(path).argmax()))
        return Draft.chain(path[len(request.history) :])

    return FakeDrafter(script)


@pytest.mark.parametrize("wrong", [wrong_argmax, wrong_position, wrong_window])
def test_a_wrong_verification_is_noticed(wrong: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three mistakes other engines made; each must break the tests above."""
    requests = [request_for(SAMPLINGS["presence and frequency"], 1.0, seed) for seed in range(10)]
    expected = [by_hand(request) for request in requests]
    assert [answer(loop_with([most_likely()]), request).tokens for request in requests] == expected
    monkeypatch.setattr("localspec.engine.loop.verify", wrong)
    assert [answer(loop_with([most_likely()]), request).tokens for request in requests] != expected
