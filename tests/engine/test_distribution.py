"""Through the whole loop: answers over many seeds are distributed as the target's own sampling, under every rule.

The rules themselves are integrated exactly in tests/native; here it is drafter, noise, rounds and loop that could
spoil them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.engine.interfaces import Draft, Drafter, Request, Verdict
from localspec.engine.loop import Loop, verify
from localspec.native import kernels
from localspec.planning.plan import FixedPlan
from localspec.types import LogitRows, Noise, Rule, SamplingParams, Tokens
from tests.fakes import FakeDraftContext, FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, parrot, prompt

SIZE, TOKENS, DRAWS = 4, 3, 2500
MODEL = HashModel(SIZE, order=2, seed=3, sharpness=0.6)
SAMPLING = SamplingParams(temperature=0.9, top_k=3, top_p=1.0, min_p=0.0, repeat_penalty=1.2, presence_penalty=0.3)


def expected() -> dict[tuple[int, ...], float]:
    """Probability of every answer, from the target's rows alone."""
    found = {}
    for said in product(range(SIZE), repeat=TOKENS):
        share = 1.0
        for place, token in enumerate(said):
            history = prompt(1, 2, *said[:place])
            rows = LogitRows.from_matrix(MODEL(history)[None, :].copy())
            probs = kernels.distribution(rows, 0, SAMPLING, history)
            share *= dict(zip(probs.tokens.tolist(), probs.probs.tolist(), strict=True)).get(token, 0.0)
        found[said] = share
    return found


def misfit(drafter: Drafter | None, rule: Rule) -> float:
    """Chi-square of the answers, in standard deviations above what chance gives."""
    loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan([drafter] if drafter else (), 4, None), FakeVocabulary(SIZE))
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS):
        counts[
            tuple(
                answer(loop, Request(prompt(1, 2), sampling=SAMPLING, seed=seed, rule=rule, max_tokens=TOKENS)).tokens
            )
        ] += 1
    shares = {said: share for said, share in expected().items() if share > 0}
    assert sum(shares.values()) == pytest.approx(1.0)
    if not set(counts) <= set(shares):
        return float("inf")  # an answer the target never gives
    statistic = sum((counts[said] - DRAWS * share) ** 2 / (DRAWS * share) for said, share in shares.items())
    return float((statistic - len(shares) + 1) / np.sqrt(2 * (len(shares) - 1)))


def draft_model(branches: int = 1) -> DraftModel:
    context = FakeDraftContext(MODEL.like(0.7))
    return DraftModel(context, frozenset(), branches)


def guesses() -> FakeDrafter:
    return FakeDrafter(parrot([1, 2, 0, 1, 3], 0.9, np.random.default_rng(1), SIZE))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("drafter", ["none", "draft model", "branches", "guesses"])
def test_answers_are_distributed_as_the_targets_own(drafter: str, rule: Rule) -> None:
    if drafter == "branches" and rule is Rule.BLOCK:
        return  # chains only
    made: dict[str, Drafter | None] = {
        "none": None,
        "draft model": draft_model(),
        "branches": draft_model(3),
        "guesses": guesses(),
    }
    assert misfit(made[drafter], rule) < 4.5


def lenient(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Accepts one rejected token in ten."""
    verdict = verify(rows, draft, sampling, history, noise, rule)
    if len(draft) and not len(verdict.accepted) and noise.seed % 10 == 0:
        return Verdict(prompt(0), verdict.next_token)
    return verdict


def too_warm(
    rows: LogitRows, draft: Draft, sampling: SamplingParams, history: Tokens, noise: Noise, rule: Rule
) -> Verdict:
    """Believes that the draft was drawn at a higher temperature."""
    flat = tuple(replace(one, probs=one.probs**0.4 / (one.probs**0.4).sum()) for one in draft.probs or ())
    return verify(rows, replace(draft, probs=flat or None), sampling, history, noise, rule)


@pytest.mark.parametrize("wrong", [lenient, too_warm])
def test_a_wrong_rule_is_noticed(wrong: Callable[..., Verdict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "localspec.engine.loop.verify", lambda *given: wrong(*given) if len(given[1]) else verify(*given)
    )
    assert misfit(draft_model(), Rule.REJECTION) > 6
