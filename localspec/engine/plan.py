"""Who drafts, and how much, as the loop sees it. `planning` has the plans.

A width is the number of rows in a pass. Under exactness only widths whose bits equal those of one row may run, so a
draft that would make a pass inexact is cut, never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from localspec.engine.interfaces import Draft, Drafter, DraftRequest, Outcome, Target


@dataclass(slots=True)
class Proposal:
    """What a plan sends in the coming pass; `learn` is given it back."""

    drafts: list[Draft]
    """One per request; every pass they make has an allowed width."""


class Undrafted(Enum):
    """Why nothing was drafted in a pass, in words for people."""

    UNTIMED = "a plain pass is timed first"
    NOTHING = "no copy found"
    UNLIKELY = "guesses are too often wrong"
    PRICE = "a row costs {row:.2f} of a plain pass here"
    LOST = "off: it lost what an answer may lose"

    def said(self, row: float) -> str:
        """The words, where a further row costs so many plain passes."""
        return self.value.format(row=row)


@dataclass(frozen=True, slots=True)
class Review:
    """What a plan says of a pass when it is over."""

    plain_seconds: float = 0.0
    """What plain decoding's pass would have taken for each token of a slot; 0 = unknown: none has run yet."""
    plain: bool = False
    """It was plain decoding: no drafter was asked, and nothing was decided."""
    guarded: bool = False
    """A setting forced a draft where none was worth its time."""
    undrafted: Undrafted | None = None
    """Why nothing was drafted; None = something was, or no drafter may guess."""
    row: float = 0.0
    """What a further row costs, in plain passes; 0 = unknown."""


NO_REVIEW = Review()


class Plan(Protocol):
    """Decides who drafts, how many nodes, and what of the drafts is sent."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """All there are, in the order in which they are asked."""
        ...

    @property
    def dropped(self) -> Mapping[str, str]:
        """By name, drafters that are not asked any more, and why."""
        ...

    def draft(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Proposal:
        """The drafts to send in the coming pass.

        Args:
            target: says which widths are exact and how rows become passes.
            requests: one per slot that shares the pass; `max_nodes` is what the request itself allows.
            pending: rows each slot must decode anyway, at least 1.
        """
        ...

    def learn(self, proposal: Proposal, outcomes: Sequence[Outcome], seconds: float) -> Review:
        """What came of a proposal, in a pass of so many seconds (drafting not included). Drafters observe it here."""
        ...

    def read(self, rows: int, length: int, seconds: float) -> None:
        """So many rows of a prompt were read after `length` cached tokens, alone in a pass of so many seconds."""
        ...

    def drop(self, name: str, reason: str) -> None:
        """Never asks the drafter of that name again, and lets it free what it holds."""
        ...
