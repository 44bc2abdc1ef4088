"""Who drafts, and how much. `FixedPlan` asks for the same length every time; `engine.adaptive` for what pays.

A width is the number of rows in a pass. Under exactness only widths whose bits equal those of one row may run
(DESIGN section 5C), so a draft that would make a pass inexact is cut, never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from localspec.engine.constraint import legal
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, Outcome, Target
from localspec.errors import UsageError


@dataclass(frozen=True, slots=True)
class Review:
    """What a plan says of a pass when it is over."""

    plain_seconds: float = 0.0
    """What plain decoding's pass would have taken for each token of a slot; 0 = unknown."""
    plain: bool = False
    """It was plain decoding: nobody was asked for a draft, and nothing was decided."""
    guarded: bool = False
    """A setting forced a draft where the guard would have sent none."""


NO_REVIEW = Review()


class Plan(Protocol):
    """Decides who drafts, how many nodes, and what of the drafts is sent."""

    def draft(
        self, drafter: Drafter, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]
    ) -> list[Draft]:
        """The drafts to send in the coming pass, one per request; every pass they make has an allowed width.

        Args:
            drafter: all drafters there are, as one.
            target: says which widths are exact and how rows become passes.
            requests: one per slot that shares the pass; `max_nodes` is what the request itself allows.
            pending: rows each slot must decode anyway, at least 1.
        """
        ...

    def learn(self, drafter: Drafter, outcomes: Sequence[Outcome], seconds: float) -> Review:
        """What came of the drafts of the last call, in a pass of so many seconds (drafting not included).

        Drafters hear of it from the plan, which says when they guess and may want to know what they take.
        """
        ...


class FixedPlan:
    """Always drafts up to `max_draft_tokens`."""

    def __init__(self, max_draft_tokens: int, exact_widths: frozenset[int] | None) -> None:
        """
        Args:
            max_draft_tokens: longest draft, 0 = plain decoding.
            exact_widths: widths a pass may have, 1 always among them; None = any (exactness is off).

        Raises:
            UsageError: `max_draft_tokens` is negative or above 64.
        """
        if not 0 <= max_draft_tokens <= 64:
            raise UsageError(f"max_draft_tokens is {max_draft_tokens}; it must be between 0 and 64.")
        self.max_draft_tokens = max_draft_tokens
        self._exact = exact_widths

    def draft(
        self, drafter: Drafter, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]
    ) -> list[Draft]:
        limit = self.max_nodes(len(requests))
        asked = [request if request.max_nodes <= limit else request.limited(limit) for request in requests]
        drafts = legal(asked, drafter.draft(asked))
        return self.fit(target, [request.slot for request in requests], pending, drafts)

    def learn(self, drafter: Drafter, outcomes: Sequence[Outcome], seconds: float) -> Review:
        drafter.observe(outcomes)
        return NO_REVIEW

    def max_nodes(self, active: int) -> int:
        """The longest draft whose pass (all slots drafting alike) has an allowed width."""
        if self._exact is None:
            return self.max_draft_tokens
        nodes = self.max_draft_tokens
        while nodes > 0 and active * (1 + nodes) not in self._exact:
            nodes -= 1
        return nodes

    def fit(self, target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft]) -> list[Draft]:
        """Cuts drafts from the end until every width of the pass is allowed."""
        if self._exact is None:
            return drafts
        longest = max((len(draft) for draft in drafts), default=0)
        while longest > 0 and not self._allowed(target, slots, pending, drafts):
            longest -= 1
            drafts = [draft.truncated(longest) for draft in drafts]
        return drafts

    def _allowed(self, target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft]) -> bool:
        rows = {slot: rows + len(draft) for slot, rows, draft in zip(slots, pending, drafts, strict=True)}
        assert self._exact is not None
        return all(width in self._exact for width in target.pass_widths(rows))
