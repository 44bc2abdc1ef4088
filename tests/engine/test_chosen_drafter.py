"""A request may say who guesses for it: the plan then chooses among that drafter and nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.search import PromptLookup
from localspec.engine.interfaces import Drafter, Plan, Request
from localspec.engine.loop import Loop
from localspec.errors import UsageError
from localspec.planning.costs import Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan, FixedPlan, Forced
from localspec.types import Rule, SamplingParams
from tests.fakes import Answer, FakeDraftContext, FakeTarget, FakeVocabulary, HashModel, answer, answer_all, prompt

VOCABULARY = FakeVocabulary(24)
MODEL = HashModel(24)
FREE_WIDTHS = {100: {width: 0.01 * (1 + 0.01 * width) for width in range(1, 65)}}
PLANS = ["adaptive", "forced", "forced nodes", "fixed"]


def loop_with(plan: str, streams: bool = False) -> Loop:
    draft = DraftModel(FakeDraftContext(MODEL.like(0.8)), VOCABULARY.end_tokens)
    found: list[Drafter] = [PromptLookup(1, 3), draft]
    forced = {"forced": Forced(drafting=True), "forced nodes": Forced(nodes=3)}.get(plan, Forced())
    adaptive: Plan = AdaptivePlan(found, None, Knowledge(PassCosts(FREE_WIDTHS)), forced=forced)
    chosen = FixedPlan(found, 4, None) if plan == "fixed" else adaptive
    target = FakeTarget(MODEL, 24, streams=streams)
    return Loop(target, chosen, VOCABULARY)


def request_for(drafter: str | None, seed: int = 4, **more: Any) -> Request:
    sampling = SamplingParams(temperature=0.8)
    return Request(
        prompt(3, 1, 4, 1, 5), sampling=sampling, seed=seed, drafter=drafter, max_tokens=80, ignore_end=True, **more
    )


def who_drafted(found: Answer) -> set[str]:
    return set(found.stats.drafted_by_drafter)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
def test_only_the_drafter_that_was_asked_for_guesses(plan: str, rule: Rule) -> None:
    loop = loop_with(plan)
    texts = set()
    for _ in range(2):  # the second time the plan knows something
        for drafter in ("lookup", "draft", "none", None):
            found = answer(loop, request_for(drafter, rule=rule))
            texts.add(tuple(found.tokens))
            allowed = {"lookup", "draft"} if drafter is None else {drafter} - {"none"}
            assert who_drafted(found) <= allowed
            if drafter in ("lookup", "draft") and plan != "adaptive":  # which goes by real time
                assert who_drafted(found) == allowed
    assert len(texts) == 1 or rule is Rule.REJECTION


@pytest.mark.parametrize("plan", PLANS)
def test_slots_of_one_pass_may_ask_for_different_drafters(plan: str) -> None:
    requests = {
        slot: request_for(drafter, slot) for slot, drafter in enumerate(["draft", None, "none", "lookup", "draft"])
    }
    alone = {slot: answer(loop_with("fixed"), replace(one, drafter="none")) for slot, one in requests.items()}
    loop = loop_with(plan, streams=True)
    drafted: Counter[str] = Counter()
    for _ in range(3):
        found = answer_all(loop, requests)
        for slot, request in requests.items():
            assert found[slot].tokens == alone[slot].tokens
            if request.drafter is not None:
                assert who_drafted(found[slot]) <= {request.drafter} - {"none"}
            drafted += found[slot].stats.drafted_by_drafter
    if plan != "adaptive":  # which goes by real time
        assert drafted["lookup"] > 0
        assert drafted["draft"] > 0


def test_a_drafter_nobody_lets_guess_is_not_run() -> None:
    loop = loop_with("forced")
    model: Any = loop.plan.drafters[1]
    answer(loop, request_for("lookup"))
    assert model._context.passes == []
    answer(loop, request_for("draft"))
    assert model._context.passes != []


def test_a_drafters_name_is_a_name() -> None:
    with pytest.raises(UsageError, match="drafter is 7"):
        Request(prompt(1), drafter=7)  # type: ignore[arg-type]
