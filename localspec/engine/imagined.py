"""A draft without cost that is not sent because of what it could lose: would it have paid?

What it guessed is compared with what is emitted, as if it had been sent, and no other is imagined before that is known.
So where a pass costs much more than a row, drafts prove themselves before anything is risked for them: what they would
have saved may be lost by those that follow (`guard`), and what they would have lost is subtracted from it.
"""

from __future__ import annotations

from localspec.engine.interfaces import History
from localspec.engine.option import MARGIN, Choice, correct_levels
from localspec.engine.situation import Imagined, Served, Situation


def imagine(now: Situation, wish: Choice, sent: Choice) -> None:
    """Keeps the drafts in mind that only the guard keeps from being sent. Where one without cost is sent, it proves
    itself, and nothing is imagined beside it.

    Args:
        now: a pass for which drafters without cost have guessed.
        wish: what would be sent of these, were there no guard.
        sent: what is sent.
    """
    if sent.nodes and not sent.paid:
        return
    price = now.prices[wish.nodes]
    if price is None or wish.value <= MARGIN or wish.nodes <= now.free_limit:
        return
    for served, pick in zip(now.served, wish.picks, strict=True):
        if pick is not None and served.imagined is None:
            draft, extra = pick.draft.truncated(wish.nodes), (price - now.plain_price) / now.active
            served.imagined = Imagined(draft, served.length, extra, now.plain_seconds / now.active)


def judged(served: Served, history: History) -> float:
    """Seconds the draft that was kept in mind would have saved, below 0 if it would have lost; 0 = not known yet.

    Args:
        served: the request.
        history: with the tokens that are there by now.
    """
    kept = served.imagined
    if kept is None:
        return 0.0
    levels, known = correct_levels(kept.draft, history.tokens[kept.start :].tolist())
    if not known:
        return 0.0
    served.imagined = None
    return levels * kept.plain_seconds - kept.extra_seconds
