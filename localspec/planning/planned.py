"""A planned pass: what is kept from its drafts to its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.interfaces import Draft
from localspec.engine.plan import Proposal, Undrafted
from localspec.planning.asking import Asking, Offer
from localspec.planning.coming import Coming
from localspec.planning.weighing import Option


@dataclass(slots=True)
class Asked:
    """A draft by a drafter that costs something: who was asked, why, and what it took."""

    asking: Asking
    offer: Offer
    probing: bool
    """The drafter was asked to learn its acceptance, not because it promised enough."""
    seconds: float
    """Time that the drafter took for reading and guessing."""
    levels: int = 0
    """Levels of its longest draft."""
    first_guesses: dict[int, int] = field(default_factory=dict)
    """First token of each draft, by index of the request."""


@dataclass(slots=True)
class Planned(Proposal):
    """What is sent in a pass, and what was considered for it."""

    now: Coming
    """The pass before any drafter was asked."""
    options: list[Option] = field(default_factory=list)
    """Drafts that were drawn, whether sent or not, as `weigh` takes them."""
    drawn: list[tuple[int, Draft]] = field(default_factory=list)
    """For each of `options`: index of the drafter, and the draft."""
    asked: Asked | None = None
    """The draft of the costly drafter that was asked; None = none was."""
    width: int = 0
    """Rows of the one pass that runs; 0 = there may be several passes."""
    expected: float = 0.0
    """Expected seconds of the pass, drafting left out."""
    plain: bool = True
    """Whether the pass has the rows of plain decoding, no draft among them."""
    trial: bool = False
    """Whether the draft is sent to measure the cost of its pass, not because it pays."""
    undrafted: Undrafted | None = None
    """Why no draft is sent; None = one is, or no drafter may guess."""
    looked: bool = False
    """Whether drafters were asked and their drafts weighed."""
    host: float = 0.0
    """Seconds of planning and learning, costly drafters left out."""
    guarded: bool = False
    """Whether a draft is sent only because settings or a request force it."""


@dataclass(slots=True)
class Rest(Proposal):
    """A pass in which no drafter is asked. Between two passes the CPU's caches hold the model's weights and code runs
    cold, so such passes are noted, and learned from together."""

    last: Planned
    """The last pass that was planned."""
    host: float
    """Seconds of planning."""
