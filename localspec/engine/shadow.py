"""Drafters that cost nothing guess for a pass that is planned, and are scored whether they are sent or not.

Next to nothing, that is: asking one and scoring it takes some 0.1 ms, of a pass of a tiny model a tenth. So each has an
`Attention` of its own, and where passes are short those rest of which nothing comes: whose guesses are not the ones
that would be sent. One that rests learns nothing of those passes (recycling keeps none of their rows). Where a pass
takes 30 ms hardly anybody ever rests; nobody does where settings ask for drafts, or under a grammar: what it forces is
certain.

One that guesses trees is asked for a chain, too, where its tree forks: a tree brings more, and more of it has to be
decoded again. The tree is what is scored; it holds the chain's beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.engine.attention import Attention
from localspec.engine.constraint import legal
from localspec.engine.interfaces import Drafter, DraftRequest, Outcome
from localspec.engine.option import Choice, Option, depth_of
from localspec.engine.situation import Served, Situation


class Shadow:
    """One such drafter."""

    def __init__(self, index: int, drafter: Drafter, clock: Callable[[], float]) -> None:
        """
        Args:
            index: among all drafters.
            drafter: who guesses.
            clock: seconds.
        """
        self.index, self.drafter = index, drafter
        self.attention = Attention()
        self._clock = clock
        self.asked = False
        """Whether it was, for the coming pass ..."""
        self._gains = [0.0]
        """... what its guess is expected to bring, by nodes ..."""
        self._seconds = 0.0
        """... what that took so far ..."""
        self._anyway = 0.0
        """Seconds that hearing of a pass takes if it was not asked."""
        self._usual = False
        """... and whether it says what asking it takes: the first time of a request it may have read a prompt."""

    @property
    def rests(self) -> bool:
        """Whether nobody knows what it would have guessed for the coming pass."""
        return self.attention.rested > 0

    def ask(self, now: Situation, longest: int, passes: int, made: dict[tuple[int, int], DraftRequest]) -> None:
        """Its drafts join what is ready, unless it rests.

        Args:
            now: the pass.
            longest: most nodes of a draft.
            passes: since the last one that was planned, this one included.
            made: requests of this pass as drafters heard them, by place and nodes: they mostly share a length, and a
                copy takes 3 us.
        """
        if self.asked and self._usual:
            self.attention.took(self._seconds)
        self._gains = [0.0]
        places = now.places(self.drafter.name)
        constrained = any(request.constraint is not None for request in now.requests)
        may_guess = bool(places) and (constrained or not self.drafter.needs.constraint)
        always = now.forcing or constrained
        self.asked = may_guess and (always or not self.attention.rests(now.plain_seconds, passes))
        if not self.asked:
            return
        started = self._clock()
        asked = {place: _shortened(now, place, self.index, longest, made) for place in places}
        wanted = list(asked.values())
        for place, draft in zip(places, legal(wanted, self.drafter.draft(wanted)), strict=True):
            if len(draft):
                served = now.served[place]
                served.drawn[self.index] = draft
                tracker, again = served.trackers[self.index], now.again
                self._gains = tracker.gains(draft, again)
                now.ready[place].append(Option(self._gains, draft, True))
                if depth_of(draft) < len(draft):
                    alone = [replace(asked[place], chain=True)]
                    (chain,) = legal(alone, self.drafter.draft(alone))
                    now.ready[place].append(Option(tracker.gains(chain, again), chain, True))
        self._seconds = self._clock() - started
        self._usual = all(served.generated for served in now.served)

    def saves(self, now: Situation, nodes: int) -> float:
        """Seconds that sending its guess would save in a pass of one slot, up to so many nodes."""
        nodes = min(nodes, len(self._gains) - 1, now.limit)
        while nodes > 0 and now.prices[nodes] is None:
            nodes -= 1
        return self._gains[nodes] / now.rate - ((now.prices[nodes] or 0.0) - now.plain_price)

    def weighed(self, wish: Choice, now: Situation) -> None:
        """What would be sent of those that cost nothing is known."""
        if self.asked:
            drawn = [served.drawn[self.index] for served in now.served]
            picks = zip(wish.picks, drawn, strict=True)
            sent = any(pick and len(one) and pick.draft.origin == one.origin for pick, one in picks)
            self.attention.planned(sent, now.saves(wish) if sent else 0.0)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """The pass is over. What that takes counts as far as asking it is why."""
        started = self._clock()
        self.drafter.observe(outcomes)
        taken = self._clock() - started
        if self.asked:
            self._seconds += max(0.0, taken - self._anyway)
        else:
            self._anyway = taken

    def heard(self, served: Served, outcome: Outcome, emitted: Sequence[int]) -> bool:
        """What was said where it guessed; whether its own draft was sent, and maybe not all of it."""
        draft, sent = served.drawn[self.index], outcome.draft
        if not len(draft):
            return False
        started = self._clock()
        right = served.trackers[self.index].score(draft, emitted, levels=False)
        own = len(sent) > 0 and sent.origin == draft.origin
        if own:
            levels, accepted = depth_of(sent), len(outcome.verdict.accepted)
            served.judged(self.index, levels, accepted)
            served.sent(levels, accepted)
        elif right == depth_of(draft):
            served.judged(self.index, right, right)
        self._seconds += self._clock() - started
        return own


def ask(drafters: Sequence[Shadow], now: Situation, longest: int, passes: int = 1) -> None:
    """What they guess is what is ready.

    Args:
        drafters: all of them.
        now: the pass.
        longest: most nodes of a draft.
        passes: since the last one that was planned, this one included.
    """
    now.ready = [[] for _ in now.requests]
    made: dict[tuple[int, int], DraftRequest] = {}
    for one in drafters:
        one.ask(now, longest, passes, made)


def _shortened(
    now: Situation, place: int, index: int, longest: int, made: dict[tuple[int, int], DraftRequest]
) -> DraftRequest:
    """The request as that drafter hears it, one of those made already if it is the same."""
    request = now.requests[place]
    most = longest if now.forcing else min(longest, now.served[place].longest[index])
    nodes = max(0, min(request.max_nodes, most))
    if (place, nodes) not in made:
        made[place, nodes] = request.limited(nodes)
    return made[place, nodes]
