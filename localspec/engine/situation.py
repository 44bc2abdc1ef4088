"""A pass while it is planned: who takes part, what every width costs, what could be sent (see `adaptive`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.acceptance import Tracker
from localspec.engine.habits import LONG_COPY, SHORT_COPY
from localspec.engine.interfaces import EMPTY_DRAFT, Continuing, Draft, DraftRequest, History, Target
from localspec.engine.option import Choice, Option

_SETTLED = 3
"""Quiet passes in a row, after which those that cost have their turn: a text that is copied begins with two, for two
tokens are the shortest end that prompt lookup and suffix decoding look up, and has fewer where a copy is changed."""
_WEAK = 0.3
"""Tokens a pass under which drafts without cost are nothing to wait for."""
_QUIET = 0.7
"""A pass is quiet if drafts without cost leave more of it than this: where a copy may have begun they leave less."""
_USUAL_TOKENS, _QUIET_TOKENS = 48.0, 96.0
"""What earlier answers left to drafters that cost something counts as so many tokens, and at most so many of this one
are remembered. An answer begins without a copy, and most of its tokens may come of one."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """A draft that was not sent, and what it would have cost."""

    draft: Draft
    start: int
    """Tokens there were before it."""
    extra_seconds: float
    """What its pass would have taken over plain decoding's ..."""
    plain_seconds: float
    """... and that one's seconds for each token of a slot."""


@dataclass(frozen=True, slots=True)
class Graft:
    """What went on behind a draft (see `graft`), to be scored when the target has spoken."""

    index: int
    """Of its drafter, among all."""
    path: list[int]
    """Tokens it stands behind."""
    draft: Draft
    """A chain behind them."""

    def score(self, trackers: Sequence[Tracker], emitted: list[int]) -> None:
        """Its drafter learns from what was said, if the target took the way there."""
        behind = len(self.path)
        if emitted[:behind] == self.path:
            trackers[self.index].score(self.draft, emitted[behind:], levels=False)


@dataclass(slots=True)
class Served:
    """A request as the plan sees it, from its first pass to its last."""

    history: History
    start: int
    """Tokens there were before the first pass."""
    trackers: list[Tracker]
    """Per drafter."""
    first_copy: int = SHORT_COPY
    """Most nodes of a draft without cost, until it was right or wrong (`longest`)."""
    quiet: float = 1.0
    """Share of the tokens that drafts without cost leave to those that cost something, sent or not."""
    quiet_passes: int = _SETTLED
    """Passes in a row that were quiet."""
    longest: list[int] = field(init=False)
    """Per drafter, most nodes of its draft if it costs nothing: how long a text is copied, no match of a few tokens
    says; drafts that were right to their end do, whoever's was sent, and one that was sent and wrong early ends it."""
    imagined: Imagined | None = None
    """A draft without cost that could not be sent, until it is known what it would have brought."""
    drawn: list[Draft] = field(default_factory=list)
    """Per drafter, its guess for the coming pass."""
    grafts: list[Graft] = field(default_factory=list)
    """What a drafter without cost would say behind the guess of another (see `graft`); at most one."""
    length: int = 0
    """Tokens before the coming pass."""
    _copy: int | None = None
    """Tokens that the first long draft without cost was right about, and those behind it; None = none was sent."""
    _copy_ended: bool = False
    _left: float | None = None
    """What drafts without cost left of the last pass where that is known; None = it never was."""
    _heard: float = _USUAL_TOKENS
    """Tokens that `quiet` is known by."""

    def __post_init__(self) -> None:
        self.longest = [self.first_copy] * len(self.trackers)

    @property
    def generated(self) -> int:
        return self.length - self.start

    def heard(self, left: float) -> None:
        """Drafts without cost leave so much of this pass (sent or not: the guard has no say in it; see `left`)."""
        self._left = left
        self.quiet_passes = self.quiet_passes + 1 if left > _QUIET else 0

    def said(self, tokens: int) -> None:
        """So many tokens came of the pass, or of several."""
        if self._left is None:
            return
        self._heard = min(_QUIET_TOKENS, self._heard + tokens)
        self.quiet += min(1.0, tokens / self._heard) * (self._left - self.quiet)

    def judged(self, index: int, levels: int, accepted: int) -> None:
        """So many levels of that drafter's draft, which cost nothing, were right."""
        if accepted == levels:
            self.longest[index] = max(self.longest[index], 2 * levels + 1)
        elif 2 * accepted < levels:
            self.longest[index] = SHORT_COPY

    def sent(self, levels: int, accepted: int) -> None:
        """So many levels of a draft that cost nothing were sent and accepted in a pass; 0 = there was none."""
        if self._copy_ended or (self._copy is None and levels < SHORT_COPY):
            return
        self._copy = (self._copy or 0) + accepted
        self._copy_ended = accepted < levels or not levels or self._copy >= LONG_COPY

    @property
    def copied(self) -> int | None:
        """Tokens of the first copy; None = no long draft was sent, or the answer ended in the middle of it."""
        return self._copy if self._copy_ended else None

    @property
    def settled(self) -> bool:
        """Whether drafts without cost had their chance."""
        return self.quiet_passes >= _SETTLED

    def begin(self) -> None:
        """A pass is about to be planned."""
        self.length = len(self.history)
        self.drawn = [EMPTY_DRAFT] * len(self.trackers)
        self.grafts = []


@dataclass(slots=True)
class Situation:
    """What is decided about one pass, and what it is decided by."""

    requests: Sequence[DraftRequest]
    pending: Sequence[int]
    """Rows each slot must decode anyway."""
    served: list[Served]
    length: int
    """Mean cached length."""
    row: list[float]
    """Seconds of a pass by width."""
    prices: list[float | None]
    """Seconds of this pass by nodes each slot sends, what a draft costs a later one included; None where a width is not
    allowed."""
    rate: float
    """lambda, tokens/s."""
    rebuilding: float = 0.0
    """Seconds that a draft costs a later pass (see `rebuild`)."""
    affordable: list[float | None] = field(default_factory=list)
    """The same, passes left out that could lose more than may be lost."""
    most: float = 0.0
    """Seconds the pass may take at most, drafting for it included."""
    only: int = 0
    """Forced number of nodes; 0 = none is."""
    forcing: bool = False
    """Settings leave no choice but to draft."""
    may_bring: float = 0.0
    """Tokens a pass over plain decoding, at best, of the best of the drafters that cost something."""
    ready: list[list[Option]] = field(default_factory=list)
    """Per slot, the drafts that are there."""
    free_limit: int = 2**31
    """Most nodes of a draft without cost, or of one that goes on behind another, by what it may lose."""
    continuing: Sequence[tuple[int, Continuing]] = ()
    """Drafters that can go on behind another's draft, with their places among all."""
    asked: int = -1
    """Index of the drafter that cost something."""
    probing: bool = False
    """It was asked to see how it does, not because it pays ..."""
    beside: bool = False
    """... in the place of one that does."""
    retrying: bool = False
    """The guard would cut or stop drafts; one may be sent to see whether they pay by now."""
    trial: bool = False
    """What this pass loses was spent to learn something."""
    draft_seconds: float = 0.0
    """Seconds that the drafter took that was asked ..."""
    booked: float = 0.0
    """... those of them that are booked, which are not all where it stalled ..."""
    invested: float = 0.0
    """... and those of these that shall be paid back later."""
    planning: float = 0.0
    """Seconds that choosing took, drafters that cost something left out."""
    drafted: bool = False
    width: int = 0
    """Of the one pass that will run; 0 = there will be several."""
    expected: float = 0.0
    """Seconds of the pass."""
    guarded: bool = False
    unread: bool = False
    """The drafter that was asked has not read everything yet, and could not guess."""

    @property
    def again(self) -> float:
        """Tokens that a row of the next pass costs, at lambda: what is accepted beside a main chain needs one."""
        widest = 1 + self.limit
        if self.active > 1 or widest < 2:
            return 0.0  # chains only
        return max(0.0, self.rate * (self.row[widest] - self.row[1]) / (widest - 1))

    @property
    def active(self) -> int:
        return len(self.requests)

    @property
    def waiting(self) -> bool:
        """Whether rows must be decoded besides each slot's last token: what was accepted beside a main chain."""
        return sum(self.pending) > self.active

    @property
    def quiet(self) -> float:
        """Share of the tokens that drafts without cost leave to others."""
        return sum(served.quiet for served in self.served) / len(self.served)

    @property
    def settled(self) -> bool:
        """Whether drafts without cost had their chance, and leave at least half of the slots to others."""
        return 2 * sum(served.settled for served in self.served) >= len(self.served)

    def places(self, name: str) -> list[int]:
        """Indices of the requests that let this drafter guess."""
        return [place for place, request in enumerate(self.requests) if request.allows(name)]

    @property
    def limit(self) -> int:
        """Most nodes a slot may send."""
        return len(self.prices) - 1

    @property
    def plain_price(self) -> float:
        """This pass without drafts."""
        return self.prices[0] or 0.0

    @property
    def plain_seconds(self) -> float:
        """A pass of plain decoding."""
        return self.row[len(self.requests)]

    def bound(self, risk: float) -> None:
        """Leaves out passes that would lose more than so many seconds, were every guess wrong; what they cost a later
        pass is booked, but no reason to begin a copy with shorter drafts.
        """
        self.most = self.plain_price + self.rebuilding + risk
        self.affordable = self.prices
        if self.prices[-1] is None or self.prices[-1] > self.most:
            self.affordable = [
                None if price is None or (nodes and price > self.most) else price
                for nodes, price in enumerate(self.prices)
            ]

    def weak(self, choice: Choice) -> bool:
        """Whether drafts without cost are worth next to nothing."""
        return choice.value < _WEAK * self.active

    def saves(self, choice: Choice) -> float:
        """Seconds that it is expected to save over plain decoding, at lambda."""
        return choice.value / self.rate if choice.nodes and self.rate else 0.0

    def left(self, choice: Choice) -> float:
        """How much of the pass drafts without cost that are worth so much leave to those that cost something: from 0
        where these could not bring more, to 1.
        """
        if self.weak(choice):
            return 1.0
        return max(0.0, 1.0 - choice.value / self.may_bring) if self.may_bring > 0.0 else 0.0

    def cut(self) -> None:
        """What is ready cost nothing, and loses no more than may be lost now (`bound`), whoever else is asked."""
        if self.affordable is self.prices:
            return
        most = max((nodes for nodes, price in enumerate(self.affordable) if price is not None), default=0)
        self.free_limit = most
        self.ready = [
            [Option(one.gains[: most + 1], one.draft.truncated(most), True) for one in ready] if most else []
            for ready in self.ready
        ]


def prices(
    target: Target,
    requests: Sequence[DraftRequest],
    pending: Sequence[int],
    row: Sequence[float],
    limit: int,
    exact: frozenset[int] | None,
    rebuilding: float = 0.0,
) -> list[float | None]:
    """Seconds of a pass by nodes a slot sends, from 0 to `limit`; None where a width is not allowed.

    Args:
        target: says how rows become passes.
        requests: those that share the pass.
        pending: rows each of them must decode anyway.
        row: seconds by width.
        limit: most nodes a slot.
        exact: widths that are allowed, besides those of a pass without drafts; None = any.
        rebuilding: seconds that a draft of a slot alone costs a later pass.
    """
    if len(requests) == 1:
        first = pending[0]
        found: list[float | None] = [
            row[width] + rebuilding if exact is None or width in exact else None
            for width in range(first, first + limit + 1)
        ]
        # Rows that wait are decoded one by one.
        found[0] = first * row[1] if found[0] is None else row[first]
        return found
    found = []
    for nodes in range(limit + 1):
        rows = {
            request.slot: waiting + min(nodes, max(0, request.max_nodes))
            for request, waiting in zip(requests, pending, strict=True)
        }
        widths = target.pass_widths(rows)
        allowed = exact is None or nodes == 0 or all(width in exact for width in widths)
        found.append(sum(row[width] for width in widths) if allowed else None)
    return found
