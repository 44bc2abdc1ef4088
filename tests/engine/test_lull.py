"""Passes that are not planned and send nothing: what is decided about them, and heard of them, when they are over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.guard import SHARE
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History
from tests.engine.followed import PLAIN, Followed


class Asleep(Followed):
    """The guard lets no draft be sent, and it is known that planning rests for long."""

    def __init__(self) -> None:
        super().__init__()
        self.account.risk = self.account.proof = 0.0
        self.habits.planning.skip(1000)
        self.habits.planning.rested = 0
        self.habits.planning.seconds = PLAIN

    def passes(self, most: int = 500) -> int:
        """Plain ones of which nothing is heard before they are over."""
        count = 0
        while count < most and self.routines.lulls([self.request], [1]):
            assert self.routines.draft([self.request], [1], {}) == [EMPTY_DRAFT]
            self.request.history.append([1])
            count += 1
        return count


def test_where_the_guard_lets_nothing_be_sent_passes_go_on_until_it_does() -> None:
    followed = Asleep()
    followed.hear(0, PLAIN)
    plain = followed.account.plain
    passes = followed.passes()
    assert passes == int((0.05 / SHARE) - 1.0)
    assert followed.account.plain - plain == pytest.approx(passes * PLAIN), "they are heard of when they are over"
    assert followed.habits.planning.rested == passes
    followed.hear(0, PLAIN)
    assert followed.sent() == 1


def test_no_longer_than_planning_rests() -> None:
    followed = Asleep()
    followed.account.risk = -2.0 * PLAIN
    followed.habits.planning.rested = 240
    coming = followed.habits.planning.coming(PLAIN)
    followed.hear(0, PLAIN)
    assert 0 < followed.passes() == coming < 20


@pytest.mark.parametrize("wide", [1.5, 3.0])
def test_nor_where_waiting_is_of_no_use(wide: float) -> None:
    """Passes of two rows cost just what may be lost, or more than may be before a draft is proved."""
    followed = Asleep()
    followed.routines.begin(0, [0.0, PLAIN, *(wide * PLAIN for _ in range(14))])
    followed.account.risk = wide * PLAIN - PLAIN
    followed.habits.planning.rested = 240
    coming = followed.habits.planning.coming(PLAIN)
    assert followed.sent() == 0
    assert followed.passes() <= coming


def test_another_request_ends_it() -> None:
    followed = Asleep()
    followed.hear(0, PLAIN)
    assert followed.passes(3) == 3
    other = replace(followed.request, history=History([1] * 20))
    plain = followed.account.plain
    assert not followed.routines.lulls([other], [1])
    assert not followed.routines.lulls([followed.request], [1])
    assert followed.account.plain - plain == pytest.approx(3 * PLAIN)
    followed.hear(0, PLAIN)
    assert not followed.routines.lulls([followed.request, other], [1, 1]), "nor do two share it"


def test_what_is_left_to_others_is_learned_of_all_these_passes() -> None:
    followed = Asleep()
    followed.served.quiet = 0.0
    followed.served.heard(1.0)
    followed.hear(0, PLAIN)
    before = followed.served.quiet
    followed.passes()
    assert 1.0 >= followed.served.quiet > before


ASKING = 0.03 * PLAIN


class Listening(Followed):
    """Planning rests for long, and the drafter that is followed guesses now and then."""

    def __init__(self, asking: float = 0.0) -> None:
        super().__init__()
        self.habits.planning.skip(1000)
        self.habits.planning.rested = 0
        self.habits.planning.seconds = PLAIN
        self.found, self.times = 0, 0
        draft = self.guesser.draft

        def guess(requests: Sequence[DraftRequest]) -> list[Draft]:
            self.clock.now += asking
            self.times += 1
            return [one.truncated(self.found) for one in draft(requests)]

        self.guesser.draft = guess  # type: ignore[method-assign]

    def step(self, found: int = 0, accepted: int = 0, lulls: bool = True, observing: float = 0.0) -> int:
        """A pass for which it guesses so many nodes, as the plan has it drafted; returns how many were sent."""
        self.found = found
        lull = lulls and self.routines.lulls([self.request], [1])
        assert lull or self.habits.planning.rests(PLAIN), "it would be planned"
        (draft,) = self.routines.draft([self.request], [1], {} if lull else {0: self.served})
        assert not (lull and len(draft))
        self.end(draft, min(len(draft), accepted), PLAIN * (1.0 + 0.05 * len(draft)), observing)
        return len(draft)

    def over(self) -> None:
        """Another request comes."""
        self.routines.lulls([replace(self.request, history=History([1] * 20))], [1])


def test_a_lull_ends_with_the_pass_for_which_there_is_a_guess() -> None:
    followed = Listening()
    assert [followed.step(found, 1) for found in (7, 0, 0, 0, 3, 0)] == [7, 0, 0, 0, 3, 0]
    assert followed.times == 6, "it is asked once a pass"


def test_what_asking_took_is_booked_at_once_and_what_came_of_it_when_it_is_over() -> None:
    followed = Listening(ASKING)
    followed.step(7, 7)
    account, rate, saves = followed.account, followed.habits.rate(1), followed.saves
    plain, spent, tokens, seconds, rested = (
        account.plain,
        account.spent,
        rate.tokens,
        rate.seconds,
        followed.habits.planning.rested,
    )
    for passes in range(1, 5):
        assert followed.step(observing=ASKING / 2) == 0
        assert account.spent - spent == pytest.approx(1.5 * passes * ASKING)
        assert account.plain == plain
        assert followed.saves == saves
    followed.over()
    assert account.plain - plain == pytest.approx(4 * PLAIN)
    assert account.spent - spent == pytest.approx(4 * PLAIN + 6 * ASKING)
    kept, each = 0.98**4, PLAIN + 1.5 * ASKING
    assert rate.tokens == pytest.approx(kept * tokens + (1.0 - kept) / 0.02)
    assert rate.seconds == pytest.approx(kept * seconds + (1.0 - kept) / 0.02 * each)
    assert followed.saves == pytest.approx([0.95**4 * one for one in saves])
    assert followed.habits.planning.rested == rested + 4


def test_asking_ends_where_the_guard_lets_nothing_be_sent() -> None:
    """Of what may be lost in this answer, asking has its share as well."""
    followed = Listening(0.3 * PLAIN)
    followed.step(7, 0)
    passes = 0
    while followed.account.unproven > 0.05 * PLAIN:
        assert followed.step() == 0
        passes += 1
    assert 2 < passes < 20
    times = followed.times
    assert [followed.step(7) for _ in range(2)] == [0, 0]
    assert followed.times == times


def test_requests_that_share_passes_or_draft_nothing_are_no_part_of_it() -> None:
    followed = Listening(ASKING)
    followed.step(7, 7)
    followed.step()
    spent, plain = followed.account.spent, followed.account.plain
    request, followed.request = followed.request, replace(followed.request, history=History([1] * 20), max_nodes=0)
    (draft,) = followed.routines.draft([followed.request], [1], {})
    assert followed.end(draft, 0, PLAIN, ASKING).plain
    assert (followed.account.spent, followed.account.plain) == (spent, plain)
    followed.request = request
    assert followed.step() == 0
    assert followed.account.spent - spent == pytest.approx(ASKING)
    assert followed.account.plain == plain, "and it goes on"
    assert not followed.routines.lulls([request, request], [1, 1])
    assert followed.account.plain - plain == pytest.approx(2 * PLAIN)


def test_it_is_no_longer_than_planning_rests() -> None:
    followed = Listening()
    followed.step(7, 7)
    coming, followed.found, times = followed.habits.planning.coming(PLAIN), 0, 0
    while followed.routines.lulls([followed.request], [1]):
        followed.request.history.append([1])
        times += 1
    assert times == coming > 100


@pytest.mark.parametrize("worth", [True, False])
def test_it_begins_behind_a_pass_that_was_planned(worth: bool) -> None:
    followed = Listening()
    if not worth:
        for routine in followed.habits.routines("good"):
            routine.saves = -1.0
        followed.guesses(0)
        followed.plan()
    followed.routines.planned(followed.served)
    assert followed.routines.lulls([followed.request], [1])
    followed.found = 7
    assert followed.routines.lulls([followed.request], [1]) is not worth


@pytest.mark.parametrize("pending", [1, 2])
def test_only_a_pass_of_a_row_for_which_nobody_was_asked_is_plain_decodings(pending: int) -> None:
    asleep, listening = Asleep(), Listening()
    assert not asleep.hear(0, PLAIN).plain, "it was decided that nobody is asked"
    assert asleep.routines.lulls([asleep.request], [1])
    (draft,) = asleep.routines.draft([asleep.request], [pending], {})
    assert asleep.end(draft, 0, PLAIN).plain is (pending == 1)
    listening.step(7, 7)
    listening.found = 0
    assert listening.routines.lulls([listening.request], [1])
    (draft,) = listening.routines.draft([listening.request], [pending], {})
    assert not listening.end(draft, 0, PLAIN).plain


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 3, 7]), st.integers(0, 7)), max_size=40))
def test_what_is_sent_and_known_is_the_same_without_it(passes: Sequence[tuple[int, int]]) -> None:
    """But for the time that goes by."""
    with_lulls, without = Listening(), Listening()
    for found, accepted in passes:
        assert with_lulls.step(found, accepted) == without.step(found, accepted, lulls=False)
    for one in (with_lulls, without):
        one.over()
    assert with_lulls.times == without.times
    assert with_lulls.saves == pytest.approx(without.saves)
    assert with_lulls.habits.planning.rested == without.habits.planning.rested
    assert with_lulls.account.plain == pytest.approx(without.account.plain)
    assert with_lulls.account.spent == pytest.approx(without.account.spent)
    assert with_lulls.account.balance == pytest.approx(without.account.balance)
    assert with_lulls.account.risk == pytest.approx(without.account.risk)
    ours, theirs = with_lulls.habits.rate(1), without.habits.rate(1)
    assert (ours.tokens, ours.seconds) == pytest.approx((theirs.tokens, theirs.seconds))
    assert with_lulls.served.longest == without.served.longest
    assert with_lulls.served.copied == without.served.copied
