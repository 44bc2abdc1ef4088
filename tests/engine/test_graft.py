"""Grafts: a drafter that costs nothing goes on behind the guess of one that costs something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from localspec.drafters.cascade import Cascade, Stage
from localspec.drafters.suffix import SuffixDecoding
from localspec.engine.acceptance import Acceptance, Tracker
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import DraftCosts, PassCosts
from localspec.engine.graft import grafted
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    NEEDS_NOTHING,
    Continuing,
    Draft,
    Drafter,
    DraftRequest,
    History,
    Outcome,
    Verdict,
)
from localspec.engine.loop import Loop
from localspec.engine.option import Option
from localspec.engine.plan import FixedPlan
from localspec.engine.request import Origin, Request
from localspec.engine.situation import Graft, Served, Situation
from localspec.types import LogitRows, Noise, SamplingParams, Tokens
from tests.engine.simulator import FLAT, TARGET, Clock, measured
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, prompt

COPIED = list(range(100, 140))
HISTORY = [*COPIED, 3, 4]
MODEL = Draft.chain(prompt(7, 100, 101), confidence=np.array([0.9, 0.9, 0.5], np.float32), origin="draft")


def situation(free: Sequence[Drafter], limit: int = 8, chain: bool = True) -> Situation:
    """One request behind `HISTORY`; the drafter that costs comes last."""
    request = DraftRequest(0, History(HISTORY), limit, limit, SamplingParams(), Noise(1))
    trackers = [Acceptance().tracker(one.name, "coupled", 0.0) for one in (*free, FakeDrafter(lambda _: EMPTY_DRAFT))]
    served = Served(request.history, 2, trackers)
    served.begin()
    now = Situation([request], [1], [served], 2, [0.0, 1.0], [1.0] * (limit + 1), 1.0)
    now.continuing = [(index, one) for index, one in enumerate(free) if isinstance(one, Continuing)]
    return now


def option_of(draft: Draft, now: Situation) -> tuple[Option, Tracker]:
    tracker = now.served[0].trackers[-1]
    return Option(tracker.gains(draft), draft), tracker


def test_what_follows_the_guess_stands_behind_it_and_is_worth_the_product_of_all_chances() -> None:
    now = situation([SuffixDecoding()])
    option, tracker = option_of(MODEL, now)
    (found,) = grafted(option, tracker, now, 0)
    assert found.draft.tokens.tolist() == [7, 100, 101, 102, 103, 104, 105, 106]
    assert found.draft.parents.tolist() == list(range(-1, 7))
    assert found.draft.origins == ("draft",) * 3 + ("suffix",) * 5
    assert found.draft.origin == "draft"
    reach = np.prod(
        [
            tracker.probability(score, depth)
            for depth, score in enumerate(np.array([0.9, 0.9, 0.5], np.float32).tolist(), 1)
        ]
    )
    own = now.served[0].trackers[0]
    expected, chance = list(option.gains), float(reach)
    for depth, matched in enumerate((2, 3, 4, 5, 6), 1):
        chance *= own.probability(matched, depth)
        expected.append(expected[-1] + chance)
    assert found.gains == pytest.approx(expected)


def test_it_goes_on_behind_the_main_chain_of_a_tree() -> None:
    tree = Draft(prompt(100, 50, 101, 51), prompt(-1, -1, 0, 0), None, np.full(4, 0.5, np.float32), "draft")
    now = situation([SuffixDecoding()], limit=6)
    found = grafted(*option_of(tree, now), now, 0)[0].draft
    assert found.tokens.tolist() == [100, 50, 101, 51, 102, 103]
    assert found.parents.tolist() == [-1, -1, 0, 0, 2, 4]


@pytest.mark.parametrize(
    ("draft", "limit"),
    [(Draft.chain(MODEL.tokens[:1], origin="draft"), 1), (Draft.chain(prompt(7, 8, 9), origin="draft"), 8)],
    ids=["no room", "nothing follows"],
)
def test_a_draft_without_a_graft_stays_as_it_is(draft: Draft, limit: int) -> None:
    now = situation([SuffixDecoding(), FakeDrafter(lambda _: MODEL)], limit)
    option, tracker = option_of(draft, now)
    assert grafted(option, tracker, now, 0) == []
    assert now.served[0].grafts == []


def test_cut_short_it_is_the_same_draft() -> None:
    now = situation([SuffixDecoding()])
    whole = grafted(*option_of(MODEL, now), now, 0)[0].draft
    assert whole.truncated(4).origins == ("draft",) * 3 + ("suffix",)
    assert whole.truncated(3).tokens.tolist() == MODEL.tokens.tolist()


@pytest.mark.parametrize(
    ("emitted", "trials"),
    [([7, 100, 101, 102, 50], 2), ([7, 100, 101, 50], 1), ([7, 100, 101], 0), ([7, 9], 0)],
    ids=["one right", "none right", "nothing heard of it", "the way was wrong"],
)
def test_its_drafter_learns_of_it_where_the_target_came_that_way(emitted: list[int], trials: int) -> None:
    trackers = [Acceptance().tracker(name, "coupled", 0.0) for name in ("suffix", "draft")]
    Graft(0, [7, 100, 101], Draft.chain(prompt(102, 103, 104), origin="suffix")).score(trackers, emitted)
    assert [tracker.table.calibration.trials for tracker in trackers] == [trials, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_guess_is_credited_to_who_made_it_and_the_text_stays(temperature: float) -> None:
    model = HashModel(16)
    asked = Request(prompt(1, 2, 3), SamplingParams(temperature=temperature), 1, max_tokens=24)
    nobody = FakeDrafter(lambda _: EMPTY_DRAFT)
    plain = answer(Loop(FakeTarget(model, 16), nobody, FixedPlan(4, None), FakeVocabulary(16)), asked)
    told = [*asked.prompt.tolist(), *plain.tokens]

    def script(request: DraftRequest) -> Draft:
        place = len(request.history)
        right = told[place : place + 3]
        return Draft(
            prompt(*right, 15 - told[min(place + 3, len(told) - 1)]),
            prompt(-1, 0, 1, 2),
            origin="draft",
            origins=("draft", "draft", "suffix", "suffix"),
        ).truncated(min(request.max_nodes, 1 + len(right)))

    found = answer(Loop(FakeTarget(model, 16), FakeDrafter(script), FixedPlan(4, None), FakeVocabulary(16)), asked)
    assert found.tokens == plain.tokens
    assert found.origins[:4] == [Origin("draft", 1), Origin("draft", 2), Origin("suffix", 3), Origin("", 0)]
    stats = found.stats
    assert stats.accepted_by_drafter["draft"] > stats.accepted_by_drafter["suffix"] > 0
    assert stats.accepted_by_drafter.total() == stats.accepted
    assert stats.drafted_by_drafter.total() == stats.drafted


class Introducing:
    """Costs something, knows all of the text, and is unsure of what is copied."""

    name = "draft"
    needs = NEEDS_NOTHING
    free = False

    def __init__(self, text: list[int], clock: Clock) -> None:
        self.text, self.clock = text, clock

    def missing(self, slot: int, history: History) -> int:
        return 1

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        (request,) = requests
        tokens: list[int] = []
        scores: list[float] = []
        for token in self.text[len(request.history) :][: request.max_nodes]:
            copied = len(tokens) > 1 and min(tokens[-2:]) >= COPIED[0]
            tokens.append(1 if copied else token)
            scores.append(0.05 if copied else 0.95)
            self.clock.now += 0.002
            if copied or not request.price.pays(scores, len(tokens)):
                break
        return [Draft.chain(tokens, None, np.array(scores, np.float32), self.name)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def close(self) -> None:
        pass


class Alone(SuffixDecoding):
    """Never goes on behind another."""

    def continued(self, request: DraftRequest, path: Tokens, nodes: int) -> Draft:
        return EMPTY_DRAFT


def passes(suffix: Drafter) -> tuple[int, int]:
    """How many it takes to say a text in which twelve copies begin behind two new words each, and accepted grafts."""
    rng = np.random.default_rng(2)
    text = list(COPIED)
    for number in range(24):
        start = int(rng.integers(0, 34))
        text += [10 + 2 * number, 11 + 2 * number, *COPIED[start : start + 6]]
    clock = Clock()
    drafter = Introducing(text, clock)
    costs = PassCosts(measured(FLAT))
    timed = {"draft": DraftCosts({128: {1: 0.002}}, 0.0001)}
    plan = AdaptivePlan([suffix, drafter], None, costs=costs, draft_costs=timed, clock=clock)
    cascade = Cascade([Stage(suffix), Stage(drafter)])
    history, count, accepted_grafts = History(COPIED), 0, 0
    rows = LogitRows.from_matrix(np.zeros((1, 2), dtype=np.float32))
    while (room := len(text) - len(history)) > 0:
        request = DraftRequest(0, history, room - 1, room - 1, SamplingParams(), Noise(1), room=room)
        (draft,) = plan.draft(cascade, TARGET, [request], [1])
        assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
        said, right = text[len(history) :], 0
        while right < len(draft) and int(draft.tokens[right]) == said[right]:
            right += 1
        accepted_grafts += draft.origins[:right].count("suffix")
        history.append(said[: right + 1])
        clock.now += FLAT(1 + len(draft), len(history))
        verdict = Verdict(np.arange(right, dtype=np.int32), said[right])
        plan.learn(cascade, [Outcome(0, history, draft, verdict, rows)], FLAT(1 + len(draft), len(history)))
        count += 1
    return count, accepted_grafts


def test_where_copies_begin_in_the_middle_of_a_draft_grafts_save_passes() -> None:
    with_grafts, right = passes(SuffixDecoding())
    without, none = passes(Alone())
    assert right > 20
    assert none == 0
    assert with_grafts < 0.9 * without


def test_only_who_can_go_on_is_asked_to() -> None:
    assert isinstance(SuffixDecoding(), Continuing)
    assert not isinstance(FakeDrafter(lambda _: EMPTY_DRAFT), Continuing)
