"""Drafters without cost: asked in every pass, but for those of which nothing comes where a pass is hardly longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from localspec.engine import shadow
from localspec.engine.acceptance import Table, Tracker
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Needs, Outcome, Verdict
from localspec.engine.option import best_choice
from localspec.engine.situation import Served, Situation, prices
from localspec.types import NO_TOKENS, LogitRows, Noise, SamplingParams, Tokens
from tests.fakes import FakeDrafter, FakeTarget, HashModel

ASKING = 1e-4
"""Seconds."""
GOOD, BAD = 0.85, 0.15


class Guesser(FakeDrafter):
    """Guesses one token, of this confidence, and takes its time."""

    def __init__(self, name: str, confidence: float, clock: list[float]) -> None:
        super().__init__(self._guess)
        self.name, self.confidence, self._clock = name, confidence, clock
        self.observing = self.observing_if_asked = 0.0
        """Seconds."""
        self._asked = False

    def _guess(self, request: DraftRequest) -> Draft:
        return Draft.chain([1], None, np.full(1, self.confidence, np.float32), self.name)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._clock[0] += ASKING
        self._asked = True
        return super().draft(requests)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._clock[0] += self.observing + (self.observing_if_asked if self._asked else 0.0)
        self._asked = False


class Anything:
    """A grammar that allows everything."""

    complete = False

    def fresh(self) -> Anything:
        return self

    def fits(self, path: Sequence[int]) -> int:
        return len(path)

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        return np.ones(8, dtype=np.bool_)

    def forced(self) -> Tokens:
        return NO_TOKENS

    def advance(self, token: int) -> None:
        pass


class World:
    """Two of them, before passes that take so long."""

    def __init__(
        self,
        plain: float,
        forcing: bool = False,
        only: str | None = None,
        ruled: bool = False,
        learning: float = 0.0,
    ) -> None:
        self.plain, self.forcing, self.learning, self._clock = plain, forcing, learning, [0.0]
        self.only, self.constraint = only, Anything() if ruled else None
        self.guessers = [Guesser("good", GOOD, self._clock), Guesser("bad", BAD, self._clock)]
        self.shadows = [shadow.Shadow(place, one, lambda: self._clock[0]) for place, one in enumerate(self.guessers)]

    def asked(self, passes: int) -> list[int]:
        """In how many of so many more passes each was asked."""
        before = [len(one.requests) for one in self.guessers]
        for _ in range(passes):
            self._pass()
        return [len(one.requests) - count for one, count in zip(self.guessers, before, strict=True)]

    def _pass(self) -> None:
        request = DraftRequest(
            0, History([1, 2]), 2, 2, SamplingParams(), Noise(1), drafter=self.only, constraint=self.constraint
        )
        served = Served(request.history, 1, [SlowTracker(self._clock, self.learning) for _ in self.guessers])
        request.history.append([2])  # not the first pass, in which they may read a prompt
        served.begin()
        row = [0.0, self.plain, 1.1 * self.plain, 1.2 * self.plain]
        by_nodes = prices(FakeTarget(HashModel(8), 8), [request], [1], row, 2, None)
        now = Situation([request], [1], [served], 2, row, by_nodes, 1.0 / self.plain)
        now.forcing = self.forcing
        shadow.ask(self.shadows, now, 2)
        wish = best_choice(now.ready, now.prices, now.rate)
        for one in self.shadows:
            one.weighed(wish, now)
            one.observe([said(request)])
            one.heard(served, said(request), [3])


class SlowTracker(Tracker):
    """Knows that confidences are chances; learning takes so long."""

    def __init__(self, clock: list[float], seconds: float) -> None:
        super().__init__(Table())
        self._clock, self._seconds = clock, seconds
        for confidence in (GOOD, BAD):
            for trial in range(100):
                self.table.learn(confidence, 1, trial < 100 * confidence)

    def score(self, draft: Draft, emitted: Sequence[int], levels: bool = True) -> int:
        self._clock[0] += self._seconds
        return 0


def said(request: DraftRequest) -> Outcome:
    """Nothing was sent."""
    rows = LogitRows.from_matrix(np.zeros((1, 8), np.float32))
    return Outcome(request.slot, request.history, EMPTY_DRAFT, Verdict(np.empty(0, np.int32), 3), rows)


@pytest.mark.parametrize("plain", [0.03, 0.2])
def test_where_passes_are_long_all_are_asked_in_every_pass(plain: float) -> None:
    assert World(plain).asked(200) == [200, 200]


def test_where_they_are_short_those_rest_whose_guesses_are_not_sent() -> None:
    good, bad = World(0.001).asked(200)
    assert good == 200
    assert 5 < bad < 60


def test_who_needs_a_grammar_is_not_asked_without_one() -> None:
    for ruled, times in ((False, 0), (True, 20)):
        world = World(0.03, ruled=ruled)
        world.guessers[1].needs = Needs(constraint=True)
        assert world.asked(20) == [20, times]


def test_what_it_takes_to_score_them_counts() -> None:
    good, bad = World(0.03, learning=5 * ASKING).asked(200)
    assert good == 200
    assert bad < 60


def test_what_it_takes_to_tell_them_counts_as_far_as_asking_is_why() -> None:
    world = World(0.03)
    world.guessers[1].observing_if_asked = 5 * ASKING
    assert world.asked(200)[1] < 60
    world = World(0.001)
    world.asked(60)
    usual = world.asked(200)[1]
    world.guessers[1].observing = 20 * ASKING
    world.asked(20)
    assert world.asked(200)[1] > 0.5 * usual, "resting saves none of that"


def test_one_that_rests_is_found_when_it_has_become_better() -> None:
    world = World(0.001)
    world.asked(60)
    world.guessers[0].confidence, world.guessers[1].confidence = BAD, GOOD
    world.asked(60 // 3 + 3)
    good, bad = world.asked(100)
    assert bad == 100
    assert good < 60


def test_nobody_rests_where_settings_ask_for_drafts() -> None:
    assert World(0.001, forcing=True).asked(200) == [200, 200]


def test_nobody_rests_under_a_grammar() -> None:
    """What it forces is certain, and comes after long stretches in which it forces nothing."""
    assert World(0.001, ruled=True).asked(200) == [200, 200]


def test_who_may_not_guess_is_not_found_wanting() -> None:
    world = World(0.001, only="good")
    assert world.asked(200) == [200, 0]
    world.only = None
    assert world.asked(3) == [3, 3]
