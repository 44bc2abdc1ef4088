"""A plan that drafts the same length every time: *rejection* and *block* need one, and so do measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from localspec.engine.constraint import legal
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    NO_REVIEW,
    Draft,
    Drafter,
    DraftRequest,
    Outcome,
    Proposal,
    Review,
    Target,
)
from localspec.errors import UsageError

MOST_NODES = 64


def depth_of(draft: Draft) -> int:
    parents = draft.parents.tolist()
    if parents == list(range(-1, len(parents) - 1)):
        return len(parents)  # a chain
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def fitting(
    target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft], exact: frozenset[int] | None
) -> list[Draft]:
    """Drafts, one per slot, cut from the end until every pass they make has a width in `exact`; None = any. `pending`:
    rows each slot must decode anyway."""
    longest = max(map(len, drafts), default=0)
    while exact is not None and longest > 0:
        rows = {slot: rows + len(draft) for slot, rows, draft in zip(slots, pending, drafts, strict=True)}
        if all(width in exact for width in target.pass_widths(rows)):
            break
        longest -= 1
        drafts = [draft.truncated(longest) for draft in drafts]
    return drafts


class FixedPlan:
    """Always drafts up to `max_draft_tokens`: the first drafter with a good guess is sent. Confidences of different
    drafters are never compared with each other."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        max_draft_tokens: int,
        exact_widths: frozenset[int] | None,
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        """Asks `drafters` in this order for at most `max_draft_tokens`, 0 = plain decoding. A pass may have one of
        `exact_widths`, 1 always among them; None = any (exactness is off). `thresholds`: by drafter, the confidence
        that its first guess needs (prompt lookup: tokens matched). Raises UsageError: `max_draft_tokens` is negative or
        above 64."""
        if not 0 <= max_draft_tokens <= MOST_NODES:
            raise UsageError(f"max_draft_tokens is {max_draft_tokens}; it must be between 0 and {MOST_NODES}.")
        self.drafters: Sequence[Drafter] = tuple(drafters)
        self.dropped: dict[str, str] = {}
        self.max_draft_tokens = max_draft_tokens
        self._exact, self._thresholds = exact_widths, dict(thresholds or {})

    def draft(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Proposal:
        limit = self.max_nodes(len(requests))
        asked = [request if request.max_nodes <= limit else request.limited(limit) for request in requests]
        drafts = [EMPTY_DRAFT] * len(asked)
        for drafter in self.drafters:
            places = [place for place, one in enumerate(asked) if not len(drafts[place]) and one.allows(drafter.name)]
            if not places or drafter.name in self.dropped:
                continue
            wanted = [asked[place] for place in places]
            for place, draft in zip(places, legal(wanted, drafter.draft(wanted)), strict=True):
                # One with `probs` is sent: dropping it by its tokens would bias the answer.
                scores = draft.confidence if len(draft) and draft.probs is None else None
                if scores is None or scores[0] >= self._thresholds.get(drafter.name, 0.0):
                    drafts[place] = draft
        return Proposal(fitting(target, [one.slot for one in requests], pending, drafts, self._exact))

    def learn(self, proposal: Proposal, outcomes: Sequence[Outcome], seconds: float) -> Review:
        for drafter in self.drafters:
            drafter.observe(outcomes)
        return NO_REVIEW

    def read(self, rows: int, length: int, seconds: float) -> None:
        pass  # it weighs no costs

    def drop(self, name: str, reason: str) -> None:
        for drafter in self.drafters:
            if drafter.name == name and name not in self.dropped:
                self.dropped[name] = reason
                drafter.close()

    def max_nodes(self, active: int) -> int:
        """The longest draft whose pass (all slots drafting alike) has an allowed width."""
        nodes = self.max_draft_tokens
        while self._exact is not None and nodes > 0 and active * (1 + nodes) not in self._exact:
            nodes -= 1
        return nodes
