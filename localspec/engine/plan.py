"""The interface of a plan, which decides who drafts and how much. `planning` has the plans.

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
    """The drafts that a plan sends in the coming pass; `learn` gets the proposal back after the pass."""

    drafts: list[Draft]
    """One draft per request; every pass with these drafts has an allowed width."""


class Undrafted(Enum):
    """Why nothing was drafted in a pass, in words for people."""

    UNTIMED = "a plain pass is timed first"
    NOTHING = "no copy found"
    UNLIKELY = "guesses are too often wrong"
    PRICE = "a row costs {row:.2f} of a plain pass here"
    LOST = "allowance used up until some guesses are right"

    def said(self, row: float) -> str:
        """The reason in words; `row` is the cost of a further row in plain passes."""
        return self.value.format(row=row)


@dataclass(frozen=True, slots=True)
class Curve:
    """What passes cost beside each other by what a plan knows, for the length of one pass."""

    plain: float
    """Seconds in which plain decoding brings each slot one token, the machine's pace left out: of the unit alone it
    says nothing."""
    row: Sequence[float]
    """Seconds by width, the pace included."""
    pace: float
    """Factor of the machine's pace."""
    width: int
    """Rows of the pass; 0 = there may have been several passes."""

    def over_plain(self, width: int) -> float:
        """Seconds of a pass of this width over those of a plain one."""
        return self.row[width] / (self.pace * self.plain)


@dataclass(frozen=True, slots=True)
class Review:
    """What a plan reports of a pass that is over."""

    plain_seconds: float = 0.0
    """Seconds that plain decoding takes for each token of a slot, as the plan believes: fast passes at once, slow ones
    hardly; 0 = unknown: no plain pass has run yet."""
    plain: bool = False
    """Whether the pass had the rows of plain decoding, and no draft among them."""
    guarded: bool = False
    """Whether a setting or a request forced a draft that was not worth its time."""
    undrafted: Undrafted | None = None
    """Why no draft was sent; None = one was, or no drafter may guess."""
    row: float = 0.0
    """Cost of a further row of the pass, in plain passes; 0 = unknown."""
    curve: Curve | None = None
    """What passes cost beside each other; None = nothing is known of it."""


NO_REVIEW = Review()


class Plan(Protocol):
    """Decides who drafts, how many nodes, and what of the drafts is sent."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """All drafters, in the order in which the plan asks them."""
        ...

    @property
    def dropped(self) -> Mapping[str, str]:
        """{name of a drafter that is not asked any more: why}."""
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
        """Learns from a proposal's outcomes, in a pass of `seconds` without drafting; drafters observe them here."""
        ...

    def read(self, rows: int, length: int, seconds: float) -> None:
        """Learns from a pass of `seconds` that read `rows` tokens of a prompt alone, after `length` cached tokens."""
        ...

    def drop(self, name: str, reason: str) -> None:
        """Closes the drafter of that name and never asks this drafter again."""
        ...
