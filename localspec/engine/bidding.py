"""Which of the drafters that cost something is asked in a pass: who promises most, or one whose turn it is to be
tried. What one brings that has become better is not known while another one pays, so now and then it takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.costly import Costly
from localspec.engine.guard import Account
from localspec.engine.habits import Habits
from localspec.engine.offer import Offer
from localspec.engine.option import MARGIN, Choice
from localspec.engine.situation import Situation


def ask(drafters: Sequence[Costly], now: Situation, best: Choice, account: Account, habits: Habits) -> bool:
    """Asks the drafter that promises most over what is ready, or one that is tried; whether any was asked.

    Args:
        drafters: all of them.
        now: the pass; what the drafter guesses joins what is ready.
        best: what would be sent without them.
        account: what may be lost.
        habits: when one is tried in the place of another that pays, and what answers are like.
    """
    found: tuple[Costly, Offer] | None = None
    others: list[tuple[Costly, Offer]] = []
    ready = value = best.value if best.nodes else 0.0
    rivals = len(drafters) > 1 and sum(one.may_guess(now) for one in drafters) > 1
    for one in drafters:
        if not one.may_hope(now):
            continue
        offer = one.offer(now, rivals)
        if _pays(one, offer, now, value, account, habits) or (now.forcing and not (best.nodes or found)):
            others += [found] if found else []
            found, value = (one, offer), offer.value
        else:
            others.append((one, offer))
    probe: tuple[Costly, Offer] | None = None
    tried = not now.forcing and (found is None or habits.aside.due)
    for one, offer in others:
        open_to_it = tried and (found is None or one.may_replace(offer, now))
        if open_to_it and one.due(offer, now, account):  # who has waited longest
            probe = (one, offer) if probe is None or one.waited > probe[0].waited else probe
        elif now.weak(best) and not (offer.small and offer.value > ready):
            one.refused()  # beside a draft that is there it may only have to wait for its turn
    if probe is not None:
        now.beside = found is not None and habits.aside.again()
        probe[0].ask(probe[1], now, probing=True)
    elif found is not None:
        found[0].ask(found[1], now, probing=False)
    return now.asked >= 0


def _pays(one: Costly, offer: Offer, now: Situation, ready: float, account: Account, habits: Habits) -> bool:
    """Whether an offer beats what is `ready`, in tokens a pass."""
    gain = offer.value - ready
    if gain <= MARGIN or now.forcing:
        return gain > MARGIN
    return (account.open or now.retrying) and one.may_read(offer, gain, now, account, habits.answer)
