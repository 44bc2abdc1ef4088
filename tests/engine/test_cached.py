"""What an answer leaves in the cache, for the next request to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.engine.interfaces import Draft, Drafter, Request
from localspec.engine.loop import Loop
from localspec.planning.plan import FixedPlan
from localspec.types import SamplingParams
from tests.engine.recital import BANG, END, GREEDY, HEL, LD, LO, VOCABULARY, WOR, Recital
from tests.fakes import FakeDraftContext, FakeDrafter, FakeTarget, HashModel, answer, parrot, prompt


def drafters(known: Sequence[int]) -> dict[str, list[Drafter]]:
    def model(branches: int) -> DraftModel:
        context = FakeDraftContext(HashModel(10).like(0.8))
        return DraftModel(context, VOCABULARY.end_tokens, branches)

    return {
        "none": [],
        "draft model": [model(1)],
        "branches": [model(3)],
        "chains": [FakeDrafter(parrot(known, 0.7, np.random.default_rng(3), 10))],
        "trees": [FakeDrafter(parrot(known, 0.7, np.random.default_rng(4), 10, 0.7))],
    }


def long_enough(said: list[int]) -> bool:
    return len(said) > 5


@pytest.mark.parametrize("name", list(drafters(())))
@pytest.mark.parametrize("exact", [None, range(1, 9), (1, 3, 4)], ids=["any width", "1 to 8", "1, 3, 4"])
@pytest.mark.parametrize("end", ["max tokens", "end token", "cancelled"])
def test_what_stays_cached_follows_from_the_history_alone(name: str, exact: Sequence[int] | None, end: str) -> None:
    """Else the next request's text would depend on what was guessed in this one."""
    for seed in range(6):
        request = Request(prompt(1, 2, 3), sampling=SamplingParams(temperature=1.0), seed=seed, max_tokens=14)
        request = replace(request, ignore_end=end != "end token")
        plain = answer(Loop(FakeTarget(HashModel(10), 10), FixedPlan((), 0, None), VOCABULARY), request)
        target = FakeTarget(HashModel(10), 10, exact_widths=exact, same_bits=exact)
        loop = Loop(target, FixedPlan(drafters([1, 2, 3, *plain.tokens])[name], 5, target.exact_widths), VOCABULARY)
        said: list[int] = []
        slot = loop.admit(0, request, cancel=partial(long_enough, said if end == "cancelled" else []))
        while loop.active:
            for event in loop.step():
                said += event.tokens
        history = slot.history.tokens.tolist()
        assert history == [1, 2, 3, *plain.tokens][: len(history)]
        assert target.cached[0] == history[: len(target.cached[0])]
        assert len(target.cached[0]) < len(history)
        if exact is not None:
            assert target.cached[0] == history[:-1], "as after plain decoding"


def test_rows_missing_behind_a_tree_are_decoded_one_by_one_where_wider_passes_are_not_exact() -> None:
    target = FakeTarget(Recital(HEL, LO, WOR, LD, BANG), 10, exact_widths={1, 3}, same_bits={1, 3})
    drafts = iter([Draft(prompt(BANG, HEL), prompt(-1, -1)), Draft(), Draft()])
    loop = Loop(target, FixedPlan([FakeDrafter(lambda request: next(drafts))], 2, target.exact_widths), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), sampling=GREEDY, max_tokens=4))
    assert found.tokens == [HEL, LO, WOR, LD]
    assert target.widths == [3, 1, 1, 1], "the sibling's cell is missing: it is decoded alone, then its successor"
    assert found.stats.exact


def test_rows_of_a_pass_are_used_before_the_next_one_begins() -> None:
    """With a tree accepted off its main chain at the very end, and observers and log-probabilities reading rows."""
    target = FakeTarget(Recital(HEL, LO, END), 10, exact_widths=range(1, 9))
    drafter = FakeDrafter(lambda request: Draft(prompt(BANG, HEL, LO, END), prompt(-1, -1, 1, 2), origin="tree"))
    loop = Loop(target, FixedPlan([drafter], 4, target.exact_widths), VOCABULARY)
    found = answer(loop, Request(prompt(HEL), sampling=GREEDY, top_log_probs=1))
    assert found.tokens == [HEL, LO, END]
    assert all(np.isfinite(entry.log_prob) for entry in found.log_probs)
    assert target.cached[0] == [HEL, HEL, LO]
