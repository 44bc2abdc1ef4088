"""A pass as it was planned: what is kept from its drafts to its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.interfaces import Draft
from localspec.engine.plan import Proposal, Undrafted
from localspec.planning.asking import Asking, Offer
from localspec.planning.coming import Coming
from localspec.planning.weighing import Option


@dataclass(slots=True)
class Asked:
    """A drafter that costs something has guessed."""

    asking: Asking
    offer: Offer
    probing: bool
    """It was asked to see how it does, not because it promised enough."""
    seconds: float
    """That it took."""
    levels: int = 0
    """Of its longest draft."""
    first_guesses: dict[int, int] = field(default_factory=dict)
    """By place."""


@dataclass(slots=True)
class Planned(Proposal):
    """A pass that was considered, and what is sent in it."""

    now: Coming
    options: list[Option] = field(default_factory=list)
    """Drafts that were drawn, sent or not ..."""
    drawn: list[tuple[int, Draft]] = field(default_factory=list)
    """... and each one's drafter, by index, and itself."""
    asked: Asked | None = None
    width: int = 0
    """Of the one pass that will run; 0 = there will be several."""
    expected: float = 0.0
    """Seconds that the pass is believed to take."""
    plain: bool = True
    """It is plain decoding's."""
    trial: bool = False
    """It tries what a pass with a draft costs."""
    undrafted: Undrafted | None = None
    """Why nothing is sent."""
    planned: bool = False
    """Drafts were asked for and weighed."""
    host: float = 0.0
    """Seconds that this took."""
    guarded: bool = False
    """Only settings had a draft sent."""
