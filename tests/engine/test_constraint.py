"""A grammar in the loop: plain or drafting, chains or trees, the text is the same, and follows the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.search import GrammarForced, PromptLookup
from localspec.engine.constraint import legal, masked
from localspec.engine.interfaces import Constraint, Draft, Drafter, DraftRequest, History, Request
from localspec.engine.loop import Loop
from localspec.engine.slot import FinishReason
from localspec.errors import GrammarError
from localspec.planning.costs import Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan, FixedPlan
from localspec.types import LogitRows, Noise, Rule, SamplingParams, Tokens
from tests.fakes import (
    FakeDraftContext,
    FakeDrafter,
    FakeTarget,
    FakeVocabulary,
    HashModel,
    answer,
    draft_request,
    parrot,
    prompt,
)

SIZE, END = 24, 23
MODEL = HashModel(SIZE)
VOCABULARY = FakeVocabulary(SIZE, end_tokens={END})
FREE_WIDTHS = {100: {width: 0.01 * (1 + 0.01 * width) for width in range(1, 9)}}


class Counting:
    """Pairs of an even and an odd token, each pair followed by 22; over after `pairs` of them, or at an end token
    behind a whole one."""

    def __init__(self, pairs: int = 12, said: Sequence[int] = ()) -> None:
        self.pairs, self.said = pairs, list(said)

    def fresh(self) -> Counting:
        return Counting(self.pairs)

    @property
    def complete(self) -> bool:
        return self._over(self.said)

    def _over(self, tokens: Sequence[int]) -> bool:
        return len(tokens) >= 3 * self.pairs or (len(tokens) > 0 and tokens[-1] == END)

    def _allowed(self, tokens: Sequence[int]) -> list[int]:
        if self._over(tokens):
            return []
        place = len(tokens) % 3
        if place == 2:
            return [22]
        start = [END] if place == 0 and tokens else []
        return [*range(place, 22, 2), *start]

    def fits(self, path: Sequence[int]) -> int:
        for count, token in enumerate(path):
            if token not in self._allowed([*self.said, *path[:count]]):
                return count
        return len(path)

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        assert self.fits(path) == len(path), "a path that it forbids"
        if self._over([*self.said, *path]):
            return None
        mask = np.zeros(SIZE, dtype=np.bool_)
        mask[self._allowed([*self.said, *path])] = True
        return mask

    def forced(self) -> Tokens:
        found: list[int] = []
        while len(allowed := self._allowed([*self.said, *found])) == 1:
            found += allowed
        return np.array(found, dtype=np.int32)

    def advance(self, token: int) -> None:
        assert token in self._allowed(self.said), f"{token} is not allowed behind {self.said}"
        self.said.append(token)


def follows(tokens: Sequence[int]) -> bool:
    """Whether a grammar lets an answer begin so."""
    return Counting().fits(tokens) == len(tokens)


def request_for(seed: int, temperature: float, **more: Any) -> Request:
    sampling = SamplingParams(temperature=temperature, repeat_penalty=1.1, top_k=4)
    return Request(prompt(3, 1, 4, 1, 5), sampling=sampling, seed=seed, grammar=Counting(), max_tokens=60, **more)


def plain(request: Request) -> Any:
    return answer(Loop(FakeTarget(MODEL, SIZE), FixedPlan((), 0, None), VOCABULARY), request)


def drafters_of(name: str, known: Sequence[int]) -> list[Drafter]:
    def model(branches: int) -> Drafter:
        return DraftModel(FakeDraftContext(MODEL.like(0.5)), VOCABULARY.end_tokens, branches)

    def guessing(fork: float) -> Drafter:
        return FakeDrafter(parrot([3, 1, 4, 1, 5, *known], 0.7, np.random.default_rng(3), SIZE, fork))

    makers: dict[str, Any] = {
        "grammar": GrammarForced,
        "lookup": lambda: PromptLookup(1, 3),
        "draft": lambda: model(1),
        "branches": lambda: model(3),
        "chains": lambda: guessing(0.0),
        "trees": lambda: guessing(0.6),
        "all": lambda: [GrammarForced(), PromptLookup(), model(1)],
    }
    found = makers[name]()
    return found if isinstance(found, list) else [found]


NAMES = ["grammar", "lookup", "draft", "branches", "chains", "trees", "all"]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_plain_decoding_and_follows_the_grammar(name: str, temperature: float) -> None:
    drafted = 0
    for seed in range(8):
        request = request_for(seed, temperature, top_log_probs=1)
        expected = plain(request)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, expected.tokens), 5, None), VOCABULARY)
        found = answer(loop, request)
        assert (found.tokens, found.text, found.finish) == (expected.tokens, expected.text, FinishReason.STOP)
        assert [one.log_prob for one in found.log_probs] == [one.log_prob for one in expected.log_probs]
        assert follows(found.tokens)
        drafted += found.stats.accepted
    assert drafted > 0 or name == "lookup"


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.7, 1.0]), st.none() | st.sets(st.integers(2, 8)))
def test_the_text_does_not_depend_on_the_plan(seed: int, temperature: float, widths: set[int] | None) -> None:
    exact = None if widths is None else {1, *widths}
    target = FakeTarget(MODEL, SIZE, exact_widths=exact, same_bits=exact)
    found: list[Drafter] = [GrammarForced(), PromptLookup(), *drafters_of("draft", ())]
    plan = AdaptivePlan(found, target.exact_widths, Knowledge(PassCosts(FREE_WIDTHS)))
    loop = Loop(target, plan, VOCABULARY)
    request = request_for(seed, temperature)
    for _ in range(2):
        assert answer(loop, request).tokens == plain(request).tokens


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
@pytest.mark.parametrize("name", ["grammar", "lookup", "draft", "all"])
def test_other_rules_follow_the_grammar_too(rule: Rule, name: str) -> None:
    for seed in range(8):
        request = replace(request_for(seed, 1.0), rule=rule)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, ()), 5, None), VOCABULARY)
        found = answer(loop, request)
        assert follows(found.tokens)
        assert found.finish is FinishReason.STOP


def test_the_answer_ends_where_the_grammar_is_complete_and_can_be_asked_for_again() -> None:
    request = Request(prompt(1), sampling=SamplingParams(), seed=3, grammar=Counting(2), ignore_end=True)
    first, second = (
        answer(Loop(FakeTarget(MODEL, SIZE), FixedPlan([GrammarForced()], 3, None), VOCABULARY), request)
        for _ in range(2)
    )
    assert first.tokens == second.tokens
    assert first.finish is FinishReason.STOP
    assert len(first.tokens) == 6 or first.tokens[-1] == END


def test_what_is_forced_is_drafted_and_says_where_it_comes_from() -> None:
    request = replace(request_for(5, 0.9), grammar=Counting(12))
    found = answer(Loop(FakeTarget(MODEL, SIZE), FixedPlan([GrammarForced()], 3, None), VOCABULARY), request)
    assert found.stats.acceptance_rate == 1.0
    assert found.stats.accepted_by_drafter["grammar"] == found.tokens.count(22) > 0
    assert {origin.drafter for token, origin in zip(found.tokens, found.origins, strict=True) if token == 22} == {
        "grammar"
    }


def ask(constraint: Constraint | None) -> DraftRequest:
    return draft_request(0, History([1]), 9, 9, SamplingParams(), Noise(1), constraint=constraint)


def test_forbidden_nodes_are_cut_with_all_that_hangs_on_them() -> None:
    tree = Draft(
        prompt(2, 3, 4, 3, 22, 5, 22, 7),
        prompt(-1, -1, 0, 0, 3, 1, 0, 3),
        confidence=np.arange(8, dtype=np.float32),
    )
    (cut,) = legal([ask(Counting())], [tree])
    assert cut.tokens.tolist() == [2, 3, 22]
    assert cut.parents.tolist() == [-1, 0, 1]
    assert cut.confidence is not None
    assert cut.confidence.tolist() == [0, 3, 4]
    assert legal([ask(None)], [tree])[0] is tree
    assert len(legal([ask(Counting())], [Draft.chain([3, 3])])[0]) == 0


def test_rows_are_masked_in_copies_on_their_own_path() -> None:
    raw = np.random.default_rng(0).standard_normal((3, SIZE)).astype(np.float32)
    rows = LogitRows.from_matrix(raw.copy())
    seen, _ = masked(rows, Draft(prompt(2, 4), prompt(-1, -1)), Counting())
    evens, odds = list(range(0, 22, 2)), list(range(1, 22, 2))
    for index, allowed in enumerate([evens, odds, odds]):
        finite = np.flatnonzero(np.isfinite(seen[index])).tolist()
        assert finite == allowed
        assert (seen[index][allowed] == raw[index][allowed]).all()
        assert (rows[index] == raw[index]).all()


class Broken(Counting):
    """Becomes too complex after some tokens."""

    def fresh(self) -> Broken:
        return Broken(self.pairs)

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        if len(self.said) + len(path) > 7:
            raise GrammarError("The grammar has become too complex here.")
        return super().mask(path)


class Knotted(Counting):
    """Too complex after one token, wherever it comes."""

    KNOT = 6

    def fresh(self) -> Knotted:
        return Knotted(self.pairs)

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        if self.KNOT in (*self.said, *path):
            raise GrammarError("The grammar has become too complex here.")
        return super().mask(path)


@pytest.mark.parametrize("name", [*NAMES, "all"])
def test_what_only_a_draft_would_say_harms_no_answer(name: str) -> None:
    ends = set()
    for seed in range(24):
        request = replace(request_for(seed, 1.0), grammar=Knotted())
        expected = plain(request)
        known = [*expected.tokens[:2], Knotted.KNOT, *expected.tokens[3:]]
        found = answer(Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, known), 5, None), VOCABULARY), request)
        assert found.finish is expected.finish
        if found.finish is FinishReason.ERROR:
            assert expected.tokens[: len(found.tokens)] == found.tokens
        else:
            assert found.tokens == expected.tokens
        ends.add(found.finish)
    assert ends == {FinishReason.STOP, FinishReason.ERROR}


@pytest.mark.parametrize("name", ["draft", "lookup"])
def test_a_grammar_that_becomes_too_complex_ends_its_own_request_only(name: str) -> None:
    loop = Loop(FakeTarget(MODEL, SIZE, streams=True), FixedPlan(drafters_of(name, ()), 3, None), VOCABULARY)
    good, bad = request_for(5, 0.9), replace(request_for(6, 0.9), grammar=Broken())
    slots = {slot: loop.admit(slot, request) for slot, request in enumerate([good, bad])}
    tokens: list[int] = []
    while loop.active:
        for event in loop.step():
            tokens += event.tokens if event.slot == 0 else ()
    assert isinstance(slots[1].failure, GrammarError)
    assert tokens == plain(good).tokens
