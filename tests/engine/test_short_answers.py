"""Answers of 48 tokens: a draft model is asked in time, a copy is not read for it, long copies take wide passes."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.drafters.cascade import Cascade, Stage
from localspec.engine.acceptance import Acceptance
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import PassCosts
from localspec.engine.habits import Habits
from localspec.engine.interfaces import EMPTY_DRAFT, DraftRequest, History, Outcome, Verdict
from localspec.engine.situation import Served
from localspec.types import LogitRows, Noise, SamplingParams
from tests.engine.simulator import (
    TARGET,
    Clock,
    Curve,
    Guesser,
    Process,
    World,
    make,
    measured,
    seconds,
    simulate,
    steps,
)
from tests.fakes import FakeDrafter

TOKENS, ANSWERS = 48, 8
WIDE: Curve = steps(1.0, 1.13, 1.26, 1.38, 1.46, 1.53, 1.6, 1.68, *np.linspace(1.75, 2.22, 8).tolist())


def chances(*kinds: float) -> np.ndarray:
    """One kind of text after the other, `ANSWERS` answers each."""
    return np.repeat([*kinds, kinds[-1]], ANSWERS * TOKENS)


def silent_first(kinds: tuple[float, ...], silence: int) -> Process:
    """Prompt lookup: right with these chances, and never sure of anything in the first tokens of an answer."""
    process = Process.of(chances(*kinds), 5, spread=0.0)
    start = np.arange(len(process.right)) % TOKENS < silence
    return Process(process.right & ~start, np.where(start, 0.0, process.confidence).astype(np.float32))


def world(lookup: tuple[float, ...], draft: tuple[float, ...], prompt: int = 100, silence: int = 2) -> World:
    processes = {"lookup": silent_first(lookup, silence), "draft": Process.of(chances(*draft), 6)}
    return World(WIDE, processes, level=0.0035, read=0.0003, prompt=prompt, answer=TOKENS)


def cell(number: int) -> range:
    return range(number * ANSWERS, (number + 1) * ANSWERS)


def test_a_draft_model_behind_copied_text_is_asked_from_the_first_answer_on() -> None:
    """What copying reached is no reason to think that nothing less pays, nor that lookup does it here."""
    given = world((0.97, 0.03), (0.35, 0.85))
    run = simulate(make(given), cell(0))
    reads = run.guessers[-1].tokens_read
    simulate(run, range(ANSWERS, 2 * ANSWERS))
    assert run.guessers[-1].tokens_read - reads >= 0.8 * ANSWERS * given.prompt
    first = range(ANSWERS, ANSWERS + 1)
    assert given.plain(first) / seconds(run, first) > 1.15, "in the first answer of the kind"
    assert given.best_fixed(cell(1))[0] / seconds(run, cell(1)) >= 0.9


def test_a_good_draft_model_is_found_though_its_reading_is_no_trifle_for_a_short_answer() -> None:
    """100 tokens at 1 ms: three plain passes, of a pair that nobody knows."""
    given = World(WIDE, {"draft": Process.of(np.full(21 * TOKENS, 0.85), 6)}, level=0.0035, read=0.001, answer=TOKENS)
    run = simulate(make(given), range(20))
    late = range(10, 20)
    assert given.best_fixed(late)[0] / seconds(run, late) >= 0.9
    assert given.plain(range(20)) / seconds(run, range(20)) > 1.1


def test_a_copied_text_is_not_read_by_a_draft_model() -> None:
    given = world((0.97,), (0.9,), prompt=400)
    run = simulate(make(given), cell(0))
    assert run.guessers[-1].tokens_read == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_drafts_without_cost_have_had_their_chance_after_three_quiet_passes(quiet: bool) -> None:
    history = History([1])
    served = Served(history, 1, [], quiet=0.5, quiet_passes=0)
    for _ in range(2):
        served.heard(0.8)
        served.said(1)
    assert not served.settled
    before = served.quiet
    served.heard(0.8 if quiet else 0.4)
    served.said(1)
    assert served.settled == quiet
    assert (served.quiet > before) == quiet


def test_what_drafts_without_cost_leave_is_a_share_of_tokens_not_of_passes() -> None:
    served = Served(History([1]), 1, [], quiet=0.5)
    for left, tokens in [(0.0, 16)] * 6 + [(1.0, 1)] * 6:  # a copy brought nearly all there is
        served.heard(left)
        served.said(tokens)
    assert served.quiet < 0.3


def test_a_draft_that_was_right_to_its_end_reaches_further_next_time_whoever_was_sent() -> None:
    run = make(World(WIDE, {name: always(True, 0.99) for name in ("lookup", "suffix")}, answer=TOKENS, noise=0.0))
    simulate(run, range(2))
    assert min(run.plan._served[0].longest) > 7


def test_a_copy_takes_wide_passes_once_drafts_were_right_to_their_end() -> None:
    known = measured(WIDE)
    for length, row in known.items():
        row[16] = WIDE(16, length)
    given = world((0.99,), (0.1,))
    run = simulate(make(given, costs=PassCosts(known)), cell(0))
    assert max(run.widths) == 16
    assert given.best_fixed(cell(0))[0] / seconds(run, cell(0)) > 1.05, "of drafts of 7"
    exact = simulate(make(given, costs=PassCosts(known), widths=frozenset(range(1, 9))), cell(0))
    assert max(exact.widths) <= 8
    short = simulate(make(given, costs=PassCosts(known), longest=7), cell(0))
    assert max(short.widths) == 8


def test_a_draft_without_cost_reaches_further_only_behind_one_that_was_right() -> None:
    served = Served(History([1]), 1, [Acceptance().tracker(name, "coupled", 0.0) for name in ("lookup", "recycling")])
    assert served.longest == [7, 7]
    served.judged(0, 3, 3)
    assert served.longest == [7, 7]
    served.judged(0, 7, 7)
    assert served.longest == [15, 7], "each by its own drafts"
    served.judged(0, 15, 9)
    served.judged(1, 7, 0)
    assert served.longest == [15, 7]
    served.judged(0, 15, 2)
    assert served.longest == [7, 7]


def test_first_copies_that_went_far_let_the_next_answer_begin_with_a_long_draft() -> None:
    curve = steps(1.0, 1.13, 1.26, 1.38, 1.46, 1.53, 1.6, 1.68, *np.linspace(1.7, 2.0, 8).tolist())
    known = measured(curve)
    for length, row in known.items():
        row[16] = curve(16, length)
    given = World(curve, {"lookup": always(True, 0.99)}, answer=TOKENS, noise=0.0)
    run = make(given, costs=PassCosts(known), habits=Habits())
    simulate(run, range(1))
    assert next(width for width in run.widths if width > 1) <= 8
    simulate(run, range(1, 5))
    before = len(run.widths)
    simulate(run, range(5, 6))
    assert run.widths[before] == 16


@pytest.mark.parametrize(
    ("drafts", "copied"),
    [
        ([], None),
        ([(3, 3)], None),
        ([(7, 7)], None),
        ([(3, 0), (7, 7), (15, 4), (15, 15)], 11),
        ([(7, 0), (7, 7)], 0),
        ([(7, 7), (3, 0), (7, 7)], 7),
        ([(7, 7), (0, 0), (7, 7)], 7),
        ([(7, 7), (3, 3), (7, 2)], 12),
        ([(7, 7), (15, 15), (15, 15)], 22),
    ],
)
def test_a_copy_ends_with_its_first_wrong_token(drafts: list[tuple[int, int]], copied: int | None) -> None:
    served = Served(History([1]), 1, [])
    for levels, accepted in drafts:
        served.sent(levels, accepted)
    assert served.copied == copied


def test_a_draft_model_keeps_to_its_own_longest_draft() -> None:
    given = World(WIDE, {"draft": Process.of(chances(0.98), 6, spread=0.0)}, level=0.0005, read=0.0001, answer=TOKENS)
    run = simulate(make(given, acceptance=Acceptance(), habits=Habits()), cell(0))
    assert max(run.widths) == 8
    further = simulate(make(given, longest_costly=11), cell(0))
    assert max(further.widths) == 12


def always(right: bool, confidence: float) -> Process:
    return Process(np.full(400, right), np.full(400, confidence, dtype=np.float32))


@pytest.mark.parametrize("name", ["draft", "lookup"])
def test_what_a_draft_model_guessed_right_says_nothing_of_copies(name: str) -> None:
    run = make(World(WIDE, {name: always(True, 0.99)}, level=0.0005, read=0.0001, answer=TOKENS, noise=0.0))
    simulate(run, range(6))
    assert max(run.widths) >= 8
    assert (max(run.plan._served[0].longest) > 7) == (name == "lookup")


def test_a_drafter_nobody_timed_reads_no_long_prompt_before_copies_had_their_chance() -> None:
    clock = Clock()
    draft = Guesser("draft", always(True, 0.9), clock, level=0.003, read=0.001)
    silent = FakeDrafter(lambda request: EMPTY_DRAFT)
    plan = AdaptivePlan([silent, draft], None, costs=PassCosts(measured(WIDE)), clock=clock)
    cascade = Cascade([Stage(silent), Stage(draft)])
    history = History([1] * 200)  # of 100 it might read at once
    read: list[int] = []
    for _ in range(5):
        request = DraftRequest(0, history, 7, 7, SamplingParams(), Noise(1), room=200)
        (sent,) = plan.draft(cascade, TARGET, [request], [1])
        read.append(draft.tokens_read)
        history.append([1] * (len(sent) + 1))
        verdict = Verdict(np.arange(len(sent), dtype=np.int32), 1)
        rows = LogitRows.from_matrix(np.zeros((1 + len(sent), 2), dtype=np.float32))
        plan.learn(cascade, [Outcome(0, history, sent, verdict, rows)], WIDE(1 + len(sent), len(history)))
    assert read[:2] == [0, 0]
    assert read[-1] > 0


@pytest.mark.parametrize(("answer", "reads"), [(2, False), (48, True)])
def test_a_prompt_of_nearly_a_pass_is_read_where_enough_answer_is_left(answer: int, reads: bool) -> None:
    read = 0.8 * WIDE(1, 100) / 100
    given = World(WIDE, {"draft": Process.of(chances(0.8), 6, spread=0.0)}, level=0.001, read=read, answer=answer)
    run = simulate(make(given), range(4))
    assert (run.guessers[-1].tokens_read > 0) == reads
