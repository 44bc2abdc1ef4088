"""What is sent in passes that are not planned, where planning takes a good part of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from localspec.drafters.cascade import Cascade, Stage
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import PassCosts
from localspec.engine.guard import SHARE
from localspec.engine.habits import Habits
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Outcome, Verdict
from localspec.engine.loop import Loop
from localspec.engine.plan import FixedPlan
from localspec.engine.request import Request
from localspec.engine.situation import Served
from localspec.types import NO_TOKENS, LogitRows, SamplingParams, Tokens
from tests.engine.followed import PLAIN, Followed, Listener, known
from tests.engine.simulator import Clock, Curve, Process, Run, World, make, seconds, simulate
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, answer_all, parrot, prompt

LOOK = 2e-5
"""Seconds that go by each time somebody looks at the clock: a planned pass does so a dozen times."""
ANSWERS = 12
TOKENS = 300 * ANSWERS + 600


def flat(plain: float) -> Curve:
    """Passes that cost hardly more where they are wide."""
    return lambda width, length: plain * (1.0 + 0.05 * (width - 1))


@dataclass
class BusyClock(Clock):
    """Whatever is timed takes time."""

    look: float = LOOK

    def __call__(self) -> float:
        self.now += self.look
        return self.now


def world(chances: dict[str, np.ndarray], plain: float = PLAIN) -> World:
    """Drafters without cost that are right with these chances, position by position."""
    processes = {name: Process.of(each, seed) for seed, (name, each) in enumerate(chances.items())}
    return World(flat(plain), processes, noise=0.0)


def started(of: World, widths: frozenset[int] | None = None, habits: Habits | None = None) -> Run:
    return make(of, draft_costs={}, widths=widths, clock=BusyClock(), habits=habits)


def asked(run: Run) -> list[int]:
    return [len(guesser.asked) for guesser in run.guessers]


def test_where_passes_are_short_most_are_not_planned_and_nearly_all_carry_a_draft() -> None:
    """Who is asked alone was asked without a plan."""
    run = simulate(started(world({"good": np.full(TOKENS, 0.8), "bad": np.full(TOKENS, 0.1)})), range(ANSWERS))
    good, bad = asked(run)
    assert bad < 0.3 * good
    assert run.drafts(100) > 0.95 * len(run.widths[100:])
    best, _ = run.world.best_fixed(range(4, ANSWERS))
    assert seconds(run, range(4, ANSWERS)) < 1.15 * best, "and it takes little more than the best fixed choice"


def test_short_answers_do_not_wake_planning() -> None:
    """Where nothing pays, an answer's first pass is planned no sooner than others."""
    short = replace(world({"bad": np.zeros(TOKENS)}), answer=10)
    run = simulate(started(short), range(60))
    before = sum(asked(run))
    simulate(run, range(60, 200))
    assert 0 < sum(asked(run)) - before < 300, "of 1400 passes, in 140 answers"


def test_an_answers_first_pass_is_planned_no_sooner_than_others() -> None:
    run = simulate(started(replace(world({"bad": np.zeros(TOKENS)}), answer=40)), range(40))
    (guesser,), starts = run.guessers, list[int]()
    draft = guesser.draft

    def counted(requests: Sequence[DraftRequest]) -> list[Draft]:
        starts.extend(len(one.history) for one in requests if len(one.history) == run.world.prompt)
        return draft(requests)

    guesser.draft = counted  # type: ignore[method-assign]
    simulate(run, range(40, 80))
    assert len(starts) < 30, "of 40 answers"


def test_answers_for_which_nobody_may_draft_change_nothing() -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.8)})), range(4))
    account, habits = run.plan.account, run.plan._habits

    def known() -> tuple[object, ...]:
        return account.balance, account.risk, account.proof, account.tokens, habits.answer, habits.quiet

    before, passes = known(), len(run.widths)
    simulate(run, range(4, 7), limit=0)
    assert len(run.widths) == passes + 3 * run.world.answer
    assert known() == before


def test_what_drafts_without_cost_leave_to_others_is_not_learned_before_it_is_known() -> None:
    served = Served(History([1] * 20), 20, [], quiet=0.4)
    served.said(9)
    assert served.quiet == 0.4
    served.heard(1.0)
    served.said(9)
    assert served.quiet > 0.4


def test_a_long_prompt_behind_short_ones_loses_no_more_than_the_guard_allows() -> None:
    """The first answers' passes hardly cost more where they are wide, those of the last one eight times as much."""

    def steep(width: int, length: int) -> float:
        return PLAIN * (1.0 + length / 1000.0) * (1.0 + (0.05 + length / 20000.0) * (width - 1))

    chances = np.concatenate((np.full(TOKENS // 2, 0.9), np.zeros(TOKENS // 2)))
    given = replace(world({"once": chances}), curve=steep, answer=100)
    costs = PassCosts({n: {width: steep(width, n) for width in range(1, 17)} for n in (64, 1024, 4096, 16384)})
    run = make(given, draft_costs={}, clock=BusyClock(), costs=costs)
    simulate(run, range(12))
    first = len(run.widths)
    assert run.drafts(50) > 0.9 * len(run.widths[50:])
    run.world.prompt = 16_000
    run.world.processes["once"].right[:] = False
    run.world.processes["once"].confidence[:] = 0.9
    simulate(run, range(1))
    assert run.widths[first] <= 2, "a pass whose guesses are not proved may lose about a plain pass"


def test_where_passes_are_long_all_are_planned() -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.8), "bad": np.full(TOKENS, 0.1)}, 0.1)), range(2))
    good, bad = asked(run)
    assert good == bad >= len(run.widths) - 2, "all but the last token of each answer"


def test_a_routine_that_brings_nothing_any_more_is_given_up() -> None:
    half = TOKENS // 2
    chances = np.concatenate((np.full(half, 0.9), np.full(TOKENS - half, 0.03)))
    run = simulate(started(world({"once": chances})), range(ANSWERS))
    late = range(ANSWERS - 4, ANSWERS)
    assert seconds(run, range(2, 5)) < 0.5 * run.world.plain(range(2, 5))
    assert seconds(run, late) < 1.06 * run.world.plain(late)


def test_one_that_begins_to_pay_is_found() -> None:
    half = TOKENS // 2
    chances = np.concatenate((np.full(half, 0.03), np.full(TOKENS - half, 0.9)))
    run = simulate(started(world({"late": chances})), range(ANSWERS))
    assert seconds(run, range(4)) < 1.06 * run.world.plain(range(4))
    late = range(ANSWERS - 4, ANSWERS)
    assert seconds(run, late) < 0.6 * run.world.plain(late)


def test_a_debt_is_paid_and_what_pays_is_sent_again() -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.9)})), range(2))
    account = run.plan.account
    account.balance = account.risk = -4.0 * PLAIN
    account.proof = 0.0
    simulate(run, range(2, ANSWERS))
    assert account.balance > 0.0
    late = range(ANSWERS - 2, ANSWERS)
    assert seconds(run, late) < 0.6 * run.world.plain(late)


@pytest.mark.parametrize("widths", [{1, 2, 4}, {1, 3}, {1}])
def test_passes_that_are_not_planned_have_exact_widths_too(widths: set[int]) -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.8)}), frozenset(widths)), range(4))
    assert set(run.widths) <= widths
    assert len(widths) == 1 or run.drafts() > 0.8 * len(run.widths)


@pytest.mark.parametrize("widths", [None, {1, 2, 3, 4, 8}, {1, 3}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_text_is_that_of_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, temperature: float, widths: set[int] | None
) -> None:
    """On the real loop."""
    monkeypatch.setattr("localspec.engine.loop.perf_counter", BusyClock(look=PLAIN / 4))
    model = HashModel(24)
    request = Request(prompt(3, 1, 4), SamplingParams(temperature=temperature), 5, max_tokens=120, ignore_end=True)
    vocabulary = FakeVocabulary(24)
    known = answer(Loop(FakeTarget(model, 24), Cascade([]), FixedPlan(0, None), vocabulary), request).tokens
    guessers = [
        FakeDrafter(parrot([3, 1, 4, *known], right, np.random.default_rng(seed), 24))
        for seed, right in enumerate((0.9, 0.1))
    ]
    guessers[1].name = "other"
    target = FakeTarget(model, 24, exact_widths=widths, same_bits=widths, streams=True)
    costs = PassCosts({100: {width: PLAIN * (1.0 + 0.02 * width) for width in range(1, 9)}})
    plan = AdaptivePlan(guessers, target.exact_widths, costs=costs, clock=BusyClock())
    loop = Loop(target, Cascade([Stage(one) for one in guessers]), plan, vocabulary)
    for _ in range(4):
        found = answer(loop, request)
        assert found.tokens == known
    good, bad = (len(one.requests) for one in guessers)
    assert bad < 0.7 * good, "passes were not planned"
    assert found.stats.drafted > 0
    for _ in range(3):
        short = {1: 40, 2: 80, 0: 120}
        several = answer_all(loop, {slot: replace(request, max_tokens=most) for slot, most in short.items()})
        assert {slot: one.tokens for slot, one in several.items()} == {n: known[:most] for n, most in short.items()}


class Never:
    """A grammar that allows nothing that was guessed."""

    complete = False

    def fresh(self) -> Never:
        return self

    def fits(self, path: Sequence[int]) -> int:
        return 0

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        return None

    def forced(self) -> Tokens:
        return NO_TOKENS

    def advance(self, token: int) -> None:
        pass


def test_it_sends_what_the_plan_sends_and_planning_is_worth_what_asking_takes() -> None:
    followed = Followed()
    assert followed.sent() == 7
    assert followed.worth == pytest.approx(1e-5)


def test_nobody_is_followed_before_it_is_known_what_asking_takes() -> None:
    assert Followed(asking=0.0).sent() == 0


def test_where_asking_takes_more_than_it_saves_nobody_is_followed() -> None:
    assert Followed(asking=0.02).sent() == 0


def test_no_more_than_the_guard_allows() -> None:
    followed = Followed()
    followed.account.risk = followed.account.proof = 0.0
    assert followed.sent() == 0
    followed.account.proof = 0.125 * PLAIN
    assert followed.sent() == 2
    assert followed.sent(pending=2) == 1, "rows that wait are part of the pass"


def test_what_is_sent_costs_no_more_than_the_guard_allows_either() -> None:
    """A pass of five rows costs more than one of eight, and only four nodes are guessed."""
    followed = Followed(row=(1.0, 1.05, 1.1, 1.15, 1.9, 1.9, 1.25, 1.3))
    followed.account.risk, followed.account.proof = 0.0, 0.5 * PLAIN
    assert followed.sent() == 7
    followed.guesses(4)
    assert followed.sent() == 3


def test_no_more_than_the_longest_draft_nor_than_the_request_wants() -> None:
    assert Followed(longest=5).sent() == 5
    assert Followed(most=3).sent() == 3
    other = Followed()
    other.request = replace(other.request, drafter="another")
    assert other.sent() == 0


def test_nothing_where_more_rows_wait_than_passes_were_timed_with() -> None:
    assert Followed().sent(pending=40) == 0


def test_exact_widths_alone_and_nothing_is_guessed_in_vain() -> None:
    followed = Followed(exact=frozenset({1, 2, 4}))
    assert followed.sent() == 3
    assert followed.guesser.asked[-1] == 3


def test_nothing_that_a_grammar_forbids() -> None:
    followed = Followed()
    followed.request = replace(followed.request, constraint=Never())
    assert followed.sent() == 0


def test_with_several_slots_passes_that_are_not_planned_are_plain() -> None:
    followed = Followed()
    two = [followed.request, followed.request]
    drafts = followed.routines.draft(two, [1, 1], {0: followed.served, 1: followed.served})
    assert drafts == [EMPTY_DRAFT, EMPTY_DRAFT]
    assert followed.sent() == 7


def test_what_may_be_sent_follows_from_what_passes_of_this_request_cost() -> None:
    """The one before was short; passes of this one are so much longer that a draft could lose more than may be lost."""
    followed = Followed()
    followed.request = replace(followed.request, slot=1)
    followed.routines.begin(1, [0.0, *(PLAIN * width for width in range(1, 17))])
    (draft,) = followed.routines.draft([followed.request], [1], {1: followed.served})
    assert len(draft) < 7
    followed.routines.begin(1, followed.costs.row(20))
    (draft,) = followed.routines.draft([followed.request], [1], {1: followed.served})
    assert len(draft) == 7


def test_what_a_right_draft_saved_is_booked_and_more_is_hoped_of_it() -> None:
    followed = Followed()
    before, balance, saves = followed.account.plain, followed.account.spent, followed.saves
    followed.guesser.clock.now = 0.0
    review = followed.hear(7, 1.35 * PLAIN, observing=0.1 * PLAIN)
    assert review.plain_seconds == pytest.approx(PLAIN)
    assert followed.account.plain - before == pytest.approx(8 * PLAIN)
    assert followed.account.spent - balance == pytest.approx(1.45 * PLAIN), "hearing of it is part of it"
    assert followed.saves[1] == pytest.approx(saves[1] + 0.05 * (7 - 0.35 - saves[1]))
    assert followed.saves[0] == pytest.approx(saves[0] + 0.05 * (3 - 0.15 - saves[0])), "so it would have gone with 3"
    assert followed.saves[2] == pytest.approx(saves[2] + 0.05 * (7 - 0.35 - saves[2])), "no more was guessed"
    rate = followed.habits.rate(1)
    assert rate.tokens == 8
    assert rate.seconds == pytest.approx(1.45 * PLAIN)
    assert followed.served.longest == [15]


def short() -> Followed:
    """One whose shortest routine is followed, although it guesses more."""
    followed = Followed()
    brief, *others = followed.habits.routines("good")
    for other in others:
        other.saves = 0.0
    followed.plan()
    assert followed.sent() == brief.nodes
    return followed


@pytest.mark.parametrize(("accepted", "goes_on"), [(3, True), (3, False), (1, False)])
def test_what_a_longer_guess_would_have_brought_is_known_for_a_token_more(accepted: int, goes_on: bool) -> None:
    followed = short()
    saves = followed.saves
    (draft,) = followed.routines.draft([followed.request], [1], {0: followed.served})
    following = followed.routines.unplanned
    assert following is not None
    assert following.followed is not None
    guess = following.followed.guess
    assert (len(draft), len(guess)) == (3, 7)
    followed.hear(accepted, 1.15 * PLAIN, said=int(guess.tokens[3]) if goes_on else 1 + int(guess.tokens[3]))
    assert followed.saves[0] == pytest.approx(saves[0] + 0.05 * (accepted - 0.15 - saves[0]))
    for place in (1, 2):
        right = accepted + goes_on
        assert followed.saves[place] == pytest.approx(saves[place] + 0.05 * (right - 0.35 - saves[place]))


def test_a_copy_is_soon_followed_with_longer_drafts() -> None:
    """Without a plan: planning rests for long where a routine does well."""
    followed = short()
    passes = 0
    while (nodes := followed.sent()) == 3 and passes < 100:
        following = followed.routines.unplanned
        assert following is not None
        assert following.followed is not None
        followed.hear(3, 1.15 * PLAIN, said=int(following.followed.guess.tokens[3]))
        passes += 1
    assert 3 < nodes <= 15
    assert passes < 40


def test_of_a_tree_only_what_was_sent_is_known() -> None:
    followed = short()
    saves, draft = followed.saves, followed.guesser.draft

    def forked(requests: Sequence[DraftRequest]) -> list[Draft]:
        return [replace(one, parents=np.full(len(one), -1, np.int32)) for one in draft(requests)]

    followed.guesser.draft = forked  # type: ignore[method-assign]
    followed.hear(1, 1.15 * PLAIN)
    assert followed.saves[0] == pytest.approx(saves[0] + 0.05 * (1 - 0.15 - saves[0]))
    assert followed.saves[1:] == saves[1:]


def test_a_wrong_one_shortens_what_comes_next_and_is_a_loss() -> None:
    followed = Followed()
    followed.served.longest = [15]
    risk = followed.account.risk
    followed.hear(0, 1.35 * PLAIN)
    assert followed.account.risk == pytest.approx(risk - (0.35 - SHARE) * PLAIN)
    assert followed.served.longest == [7]


def test_a_routine_that_loses_goes_on_until_the_guard_stops_it() -> None:
    followed = Followed()
    passes = 0
    while followed.sent() and passes < 100:
        followed.hear(0, 1.35 * PLAIN)
        passes += 1
    assert 2 < passes < 20
    assert followed.account.risk <= 0.15 * PLAIN


def test_where_the_guard_lets_nothing_be_sent_it_takes_nothing_and_is_not_forgotten() -> None:
    """Else a debt would never be paid: what hearing of a pass takes is more than the share that every pass may lose."""
    followed = Followed()
    followed.account.risk = followed.account.proof = 0.0
    balance = followed.account.balance = -2.0 * PLAIN
    saves, asked = followed.saves, list(followed.guesser.asked)
    for _ in range(20):
        followed.hear(0, PLAIN, observing=0.05 * PLAIN)
    assert followed.account.balance == pytest.approx(balance + 20 * SHARE * PLAIN)
    assert (followed.saves, followed.guesser.asked) == (saves, asked)


def test_a_pass_without_a_draft_is_no_loss_however_long_it_took() -> None:
    followed = Followed()
    followed.guesses(0)
    spent, plain = followed.account.spent, followed.account.plain
    followed.hear(0, 3.0 * PLAIN)
    assert followed.account.spent - spent == followed.account.plain - plain > 0.0


@pytest.mark.parametrize(("exact", "expected"), [(None, 1.05), (frozenset({1, 8}), 2.0)])
def test_rows_that_waited_are_booked_as_they_were_decoded(exact: frozenset[int] | None, expected: float) -> None:
    """In one pass, or one by one; that is no single pass to learn from."""
    followed = Followed(exact=exact)
    followed.guesses(0)
    spent, row = followed.account.spent, followed.costs.row(20)
    review = followed.hear(0, expected * PLAIN, pending=2)
    assert followed.account.spent - spent == pytest.approx(expected * PLAIN)
    assert review.plain_seconds == pytest.approx(PLAIN)
    assert followed.costs.row(20) == row


def test_who_failed_in_a_pass_of_several_is_no_loss() -> None:
    followed = Followed()
    request = followed.request
    served = {slot: Served(request.history, 20, [known()]) for slot in range(2)}
    costs = followed.costs.copy(2)
    followed.routines.draft([request, request], [1, 1], served)
    request.history.append([1])
    rows = LogitRows.from_matrix(np.zeros((1, 8), np.float32))
    outcome = Outcome(0, request.history, EMPTY_DRAFT, Verdict(np.empty(0, np.int32), 1), rows)
    risk = followed.account.risk
    followed.routines.learn(Listener(Clock(), 0.0), [outcome], 1.05 * PLAIN, lambda slots, widest: costs)
    assert followed.account.risk > risk


def test_what_was_found_out_survives_a_new_plan() -> None:
    """Who drafts may be changed between two requests."""
    content, habits = world({"good": np.full(TOKENS, 0.8), "bad": np.full(TOKENS, 0.1)}), Habits()
    simulate(started(content, habits=habits), range(6))
    good, bad = asked(simulate(started(content, habits=habits), range(6, 7)))
    assert bad < 0.25 * good
