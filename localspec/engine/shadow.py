"""Drafters that cost nothing guess in every pass that is planned, and are scored whether they are sent or not.

One that guesses trees is asked for a chain, too, where its tree forks: a tree brings more, and more of it has to be
decoded again. The tree is what is scored; it holds the chain's beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.constraint import legal
from localspec.engine.interfaces import Drafter, DraftRequest
from localspec.engine.option import Option, depth_of
from localspec.engine.situation import Situation


def ask(drafters: Sequence[tuple[int, Drafter]], now: Situation, longest: int) -> None:
    """Their drafts join what is ready.

    Args:
        drafters: with their places among all drafters.
        now: the pass.
        longest: most nodes of a draft.
    """
    now.ready = [[] for _ in now.requests]
    if not drafters:
        return
    made: dict[tuple[int, int], DraftRequest] = {}  # drafters mostly share a length, and a copy takes 3 us
    for index, drafter in drafters:
        places = now.places(drafter.name)
        asked = {place: _shortened(now, place, index, longest, made) for place in places}
        wanted = list(asked.values())
        for place, draft in zip(places, legal(wanted, drafter.draft(wanted)), strict=True):
            if len(draft):
                served = now.served[place]
                served.drawn[index] = draft
                tracker, again = served.trackers[index], now.again
                now.ready[place].append(Option(tracker.gains(draft, again), draft, True))
                if depth_of(draft) < len(draft):
                    alone = [replace(asked[place], chain=True)]
                    (chain,) = legal(alone, drafter.draft(alone))
                    now.ready[place].append(Option(tracker.gains(chain, again), chain, True))


def _shortened(
    now: Situation, place: int, index: int, longest: int, made: dict[tuple[int, int], DraftRequest]
) -> DraftRequest:
    """The request as that drafter hears it, one of those made already if it is the same."""
    request = now.requests[place]
    most = longest if now.forcing else min(longest, now.served[place].longest[index])
    nodes = max(0, min(request.max_nodes, most))
    if (place, nodes) not in made:
        made[place, nodes] = replace(request, max_nodes=nodes, max_depth=nodes)
    return made[place, nodes]
