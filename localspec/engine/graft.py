"""A drafter that costs nothing goes on behind the guess of one that costs something: where the text of a copy begins in
the middle of a draft, what follows it is known before the target has said a word of it.

A graft costs rows, no decoding of the drafter it stands on. What it brings is the reach of the draft's main chain times
the product of its own chances, so that the plan cuts it where it does not pay.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from localspec.engine.acceptance import Tracker
from localspec.engine.constraint import legal
from localspec.engine.interfaces import Draft
from localspec.engine.option import Option
from localspec.engine.situation import Graft, Situation

_CUTS = 2
"""Places to go on from: behind the last guess, and before it, for a draft often ends with one that is unsure."""
_LEAST_REACH = 0.1
"""What stands behind a place that is reached less often than this is worth no row."""


def grafted(option: Option, tracker: Tracker, now: Situation, place: int) -> list[Option]:
    """The same draft with the continuation that is worth most, or nothing.

    Args:
        option: a draft of a drafter that costs something, not empty.
        tracker: of that drafter.
        now: the pass; what goes on is kept with its request, to be scored.
        place: of the request.
    """
    request, served, draft = now.requests[place], now.served[place], option.draft
    most = min(now.limit, request.max_nodes)
    main = _main_chain(draft)
    reaches = _reaches(draft, main, tracker)
    best: Option | None = None
    for index, drafter in now.continuing:
        if not request.allows(drafter.name):
            continue
        for cut in range(len(main), max(0, len(main) - _CUTS), -1):
            begun = draft.truncated(main[cut] if cut < len(main) else len(draft))
            room = min(most - len(begun), now.free_limit)
            if room < 1 or reaches[cut - 1] < _LEAST_REACH:
                continue
            path = draft.tokens[main[:cut]]
            found = drafter.continued(request, path, room)
            if not len(found):
                continue
            (whole,) = legal([request], [_joined(begun, found, main[cut - 1])])
            found = found.truncated(len(whole) - len(begun))
            gains = served.trackers[index].gains(found)
            least = option.gains if best is None else best.gains
            if option.gains[len(begun)] + reaches[cut - 1] * gains[-1] > least[-1]:
                more = [option.gains[len(begun)] + reaches[cut - 1] * gain for gain in gains]
                best = Option(option.gains[: len(begun)] + more, whole)
                served.grafts = [Graft(index, path.tolist(), found)]
    return [] if best is None else [best]


def _main_chain(draft: Draft) -> list[int]:
    """Nodes from the first one down, first child by first child."""
    nodes: list[int] = []
    last = -1
    for node, parent in enumerate(draft.parents.tolist()):
        if parent == last:
            nodes.append(node)
            last = node
    return nodes


def _reaches(draft: Draft, main: list[int], tracker: Tracker) -> list[float]:
    """For each of these nodes, the probability that it and all before it are accepted."""
    found: list[float] = []
    reach = 1.0
    for depth, node in enumerate(main, 1):
        reach *= tracker.probability(0.0 if draft.confidence is None else float(draft.confidence[node]), depth)
        found.append(reach)
    return found


def _joined(draft: Draft, found: Draft, behind: int) -> Draft:
    """A draft, and a chain behind one of its nodes."""
    if not len(found):
        return draft
    count = len(draft)
    parents = np.where(found.parents < 0, behind, found.parents + count).astype(np.int32)
    return replace(
        draft,
        tokens=np.concatenate((draft.tokens, found.tokens)),
        parents=np.concatenate((draft.parents, parents)),
        confidence=None,  # scores of two drafters do not compare, and each is scored by itself
        origins=(draft.origin,) * count + (found.origin,) * len(found),
    )
