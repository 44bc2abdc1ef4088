"""How much to draft. `FixedPlan` asks for the same length every time and keeps every pass to exact widths.

A width is the number of rows in a pass. Under exactness only widths whose bits equal those of one row may run
(DESIGN section 5C), so a draft that would make a pass inexact is cut, never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.engine.interfaces import Draft, Target
from localspec.errors import UsageError


class Plan(Protocol):
    """Decides how many nodes each slot may draft and what of the drafts is sent."""

    def max_nodes(self, active: int) -> int:
        """Nodes each of `active` slots may draft in the coming pass."""
        ...

    def fit(self, target: Target, slots: Sequence[int], pending: Sequence[int], drafts: list[Draft]) -> list[Draft]:
        """The part of the drafts to send, given the rows each slot must decode anyway (`pending`, >= 1)."""
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
