"""The plan against worlds whose best fixed choice is known (see `simulator`), and on the real loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.search import PromptLookup
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, Request, Undrafted
from localspec.engine.loop import Loop
from localspec.engine.stats import RequestStats
from localspec.errors import DecodeError
from localspec.planning.budget import LOOK_SHARE, LOSS_PASSES, LOSS_SHARE
from localspec.planning.costs import READING_ALLOWANCE, DraftCosts, Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan, FixedPlan, Forced
from localspec.types import Rule, SamplingParams
from tests.fakes import (
    Answer,
    FakeDraftContext,
    FakeDrafter,
    FakeTarget,
    FakeVocabulary,
    HashModel,
    answer,
    answer_all,
    prompt,
)
from tests.planning.simulator import (
    CURVES,
    Curve,
    Process,
    Run,
    World,
    make,
    measured,
    regret,
    seconds,
    simulate,
    steps,
)
from tests.planning.worlds import ANSWERS, LATER, PLACES, PROCESSES, constant, switching

SHORT = {
    ("draft model right in 0.7", "Q8_0"): 0.90,
    ("draft model right in 0.3", "wide passes"): 0.94,
    ("draft model right in 0.9", "Q8_0"): 0.90,
}
"""Worlds in which 0.95 of the best fixed choice is not reached with every luck. Noise seeds 7, 8, 9 bring the first to
0.957, 0.910, 0.942 (the best choice, three tokens, ends at the cliff of width 5 and gains little over two), the second
to 0.949, 0.970, 0.955 (one token, and what it gains is not much more than what finding that out costs). In the third an
answer whose first two drafts fail has no budget left for what pays: a failed draft of three tokens costs 1.3 passes."""


def told(curve: Curve, world: World) -> Knowledge:
    """What is known where passes were measured on another curve."""
    return Knowledge(PassCosts(measured(curve)), {"draft": DraftCosts({1: world.level}, world.read)})


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("process", PROCESSES)
def test_it_is_near_the_best_fixed_choice_and_never_slower_than_plain(process: str, curve: str) -> None:
    world = World(CURVES[curve], PROCESSES[process])
    run = simulate(make(world), ANSWERS, seed=7)
    best, name = world.best_fixed(LATER)
    assert best / seconds(run, LATER) >= SHORT.get((process, curve), 0.95), f"the best is {name}"
    assert world.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.98
    found = regret(run, ANSWERS)
    assert found.lowest >= 0.8
    assert found.mean >= 0.9


@pytest.mark.parametrize(("widths", "share"), [({1}, 0.95), ({1, 2}, 0.90), ({1, 2, 4}, 0.75), ({1, 5}, 0.90)], ids=str)
def test_only_exact_widths_are_used_and_the_best_of_them(widths: set[int], share: float) -> None:
    """Width 5 alone brings 9 % at best: too little to read prompts for."""
    exact, spent, best = frozenset(widths), 0.0, 0.0
    for luck in (1, 2, 3):
        world = World(CURVES["Q8_0"], {"draft": Process.of(constant(0.9), luck)})
        run = simulate(make(world, widths=exact), ANSWERS)
        assert set(run.widths) <= exact
        best += world.best_fixed(LATER, exact)[0]
        spent += seconds(run, LATER)
    assert best / spent >= share


def test_cliffs_are_used_and_avoided() -> None:
    """Widths 3 and 5 are bad buys on this curve, 4 a good one."""
    world = World(steps(1.0, 1.6, 1.95, 2.0, 3.1, 3.1, 3.1, 3.1), PROCESSES["draft model right in 0.9"])
    run = simulate(make(world), ANSWERS)
    count = np.bincount(run.widths, minlength=9)
    assert count[4] > 0.5 * count[2:].sum()
    assert count[3] + count[5] < 0.05 * count.sum()


def test_nearly_free_widths_are_used_in_full() -> None:
    world = World(CURVES["GPU"], {"lookup": Process.of(constant(0.97), 1, spread=0.0)})
    run = simulate(make(world), ANSWERS, limit=7)
    assert np.mean(np.array(run.widths[50:]) == 8) > 0.9


@settings(max_examples=12)
@given(
    growth=st.lists(st.floats(0.0, 1.2), min_size=7, max_size=7),
    chance=st.floats(0.0, 1.0),
    scale=st.sampled_from([0.3, 1.0, 4.0]),
    level=st.floats(0.0005, 0.03),
    read=st.floats(0.0, 0.006),
    period=st.sampled_from([0, 40, 500]),
)
def test_whatever_the_machine_and_the_draft_it_is_never_slower(
    growth: list[float], chance: float, scale: float, level: float, read: float, period: int
) -> None:
    curve = steps(*(1.0 + sum(growth[:extra]) for extra in range(8)))
    chances = switching(chance, 1.0 - chance, period) if period else constant(chance)
    world = World(curve, {"draft": Process.of(chances, 3, scale=scale)}, level, read)
    answers = range(6)
    run = simulate(make(world), answers, seed=5)
    assert world.plain(answers) / seconds(run, answers) >= 0.98


def test_an_adversary_that_watches_gains_nothing() -> None:
    world = World(CURVES["Q4_K_M"], {"lookup": Process.of(constant(0.5), 1), "draft": Process.of(constant(0.5), 2)})
    run = make(world)
    for guesser in run.guessers:
        honest = guesser.draft

        def draft(requests: Sequence[DraftRequest], honest: Any = honest) -> list[Draft]:
            right = not run.widths or run.widths[-1] == 1
            return [Draft.chain([int(right)] * len(one), None, one.confidence, one.origin) for one in honest(requests)]

        guesser.draft = draft  # type: ignore[method-assign]
    simulate(run, ANSWERS)
    assert run.drafts() > 10, "it was tempted"
    lost = LOSS_SHARE + LOOK_SHARE + LOSS_PASSES / world.answer
    assert world.plain(ANSWERS) / seconds(run, ANSWERS) >= 1.0 / (1.0 + lost)


def test_costs_that_calibration_got_wrong_are_corrected_by_the_passes() -> None:
    """It was told that width 8 costs 1.7 rows; it costs 6.6."""
    world = World(CURVES["Q4_K_M"], {"lookup": Process.of(constant(0.4), 1)})
    run = simulate(make(world, told(CURVES["wide passes"], world)), ANSWERS)
    assert world.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.93
    assert world.plain(LATER) / seconds(run, LATER) >= 0.97


@pytest.mark.parametrize("process", ["draft model right in 0.9", "useless draft model", "lookup switching"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_changes_no_choice(process: str, factor: float) -> None:
    def curve(width: int, length: int) -> float:
        return CURVES["wide passes"](width, length) * (factor if len(run.widths) > 400 else 1.0)

    world = World(curve, PROCESSES[process])
    run = make(world, told(CURVES["wide passes"], world))
    simulate(run, ANSWERS)
    steady = simulate(make(World(CURVES["wide passes"], PROCESSES[process])), ANSWERS)
    drafted = [[width for width in one.widths if width > 1] or [1] for one in (run, steady)]
    assert np.mean(drafted[0]) == pytest.approx(np.mean(drafted[1]), rel=0.12)


def test_what_was_learned_is_there_from_the_first_token_on() -> None:
    world = World(CURVES["wide passes"], PROCESSES["draft model right in 0.7"])
    learned = simulate(make(world), range(3))
    again = simulate(make(world, learned.plan.knowledge), range(1))
    best, _ = world.best_fixed(range(1))
    assert best / seconds(again, range(1)) >= 0.95


def test_plain_decodings_time_is_known_without_running_it() -> None:
    world = World(CURVES["Q8_0"], PROCESSES["draft model right in 0.9"])
    run = simulate(make(world), range(4))
    assert sum(run.estimates) == pytest.approx(world.plain(range(4)), rel=0.05)
    assert run.guarded == 0


def test_the_budget_bounds_what_is_lost() -> None:
    world = World(CURVES["Q4_K_M"], PROCESSES["far too sure"], noise=0.0)
    run = simulate(make(world), ANSWERS)
    plain = world.plain(ANSWERS)
    largest = world.curve(8, 400) + 7 * world.level
    passes = READING_ALLOWANCE + len(ANSWERS) * LOSS_PASSES
    assert seconds(run, ANSWERS) <= (1.0 + LOSS_SHARE + LOOK_SHARE) * plain + passes * world.curve(1, 400) + largest


# -- drafters that cost ----------------------------------------------------------------------------------------------


def levels_of(run: Run) -> int:
    return run.guessers[-1].levels


def test_a_draft_model_that_does_not_pay_is_left_alone() -> None:
    world = World(CURVES["wide passes"], PROCESSES["useless draft model"])
    run = simulate(make(world), range(3))
    before = levels_of(run)
    simulate(run, range(3, 10))
    assert levels_of(run) - before < 40, "2,100 passes"
    assert before >= 8, "it was tried"


def test_a_draft_model_that_gets_better_is_found_again() -> None:
    chances = np.where(np.arange(PLACES) < 450, 0.02, 0.95)
    world = World(CURVES["GPU"], {"draft": Process.of(chances, 1)}, read=0.0002)
    run = simulate(make(world), range(5))
    assert np.mean(run.widths[-50:]) > 5


def test_a_draft_model_stops_where_the_next_guess_no_longer_pays() -> None:
    chances = np.where(np.random.default_rng(4).random(PLACES) < 0.3, 0.05, 0.97)
    world = World(CURVES["GPU"], {"draft": Process.of(chances, 1, spread=0.01)}, level=0.006)
    run = simulate(make(world), ANSWERS)
    drawn, passes = levels_of(run), len(run.widths)
    assert drawn / passes < 4.0, "of 7"
    best, _ = world.best_fixed(LATER)
    assert best / seconds(run, LATER) >= 1.05


LONG = World(CURVES["GPU"], PROCESSES["draft model right in 0.9"], prompt=3000)
"""Reading the prompt costs what 73 plain passes cost."""


def experienced() -> Knowledge:
    return simulate(make(World(CURVES["GPU"], PROCESSES["draft model right in 0.9"])), range(3)).plan.knowledge


def test_a_long_prompt_is_not_read_on_trust() -> None:
    run = simulate(make(LONG), range(1))
    assert run.guessers[0].tokens_read == 0
    assert run.drafts() == 0


def test_a_long_prompt_is_read_where_experience_says_it_pays() -> None:
    run = simulate(make(LONG, experienced()), range(2))
    assert run.guessers[0].tokens_read > 3000
    assert LONG.plain(range(2)) / seconds(run, range(2)) > 1.15


def test_a_long_prompt_is_not_read_for_a_few_tokens() -> None:
    short = replace(LONG, answer=40)
    run = simulate(make(short, experienced()), range(1))
    assert run.guessers[0].tokens_read == 0


# -- settings and requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_a_requests_limit_is_kept(limit: int) -> None:
    world = World(CURVES["GPU"], PROCESSES["both"])
    run = simulate(make(world), range(2), limit=limit)
    assert max(run.widths) == 1 + limit
    if not limit:
        assert levels_of(run) == 0


@pytest.mark.parametrize("process", ["useless draft model", "draft model right in 0.9", "both"])
def test_a_forced_length_is_used_and_the_guard_says_what_it_thinks(process: str) -> None:
    world = World(CURVES["Q4_K_M"], PROCESSES[process])
    run = simulate(make(world, forced=Forced(nodes=3)), range(3))
    inner = [width for width in run.widths if width == 4]
    assert len(inner) >= len(run.widths) - 3 * 3, "all but the last passes of an answer"
    if process == "useless draft model":
        assert run.guarded > 0.95 * len(run.widths)
        assert sum(run.estimates) < 0.5 * run.seconds[-1]


def test_a_forced_drafter_drafts_in_every_pass_as_much_as_is_best() -> None:
    world = World(CURVES["Q4_K_M"], PROCESSES["useless draft model"])
    run = simulate(make(world, forced=Forced(drafting=True)), range(2))
    assert run.drafts() >= len(run.widths) - 2, "all but the last pass of each answer"
    assert np.mean(run.widths) < 2.2
    world = World(CURVES["GPU"], PROCESSES["draft model right in 0.9"])
    assert np.mean(simulate(make(world, forced=Forced(drafting=True)), range(2)).widths) > 6


@pytest.mark.parametrize(("look", "rest", "between"), [(0.008, 0.002, 1), (0.03, 0.002, 2), (0.1, 0.03, 32)])
def test_drafters_are_asked_no_more_often_than_looking_may_take_and_now_and_then_in_any_case(
    look: float, rest: float, between: int
) -> None:
    """Shares of a plain pass; where a rest alone takes more than its share, there are 32 passes between two looks."""
    wrong = Process(np.zeros(PLACES, dtype=bool), np.full(PLACES, 0.02, dtype=np.float32))
    world = World(CURVES["GPU"], {"lookup": wrong}, noise=0.0, look=look, idle=rest)
    run = simulate(make(world), range(3))
    assert len(run.widths) / len(run.guessers[0].asked) == pytest.approx(between, rel=0.25)


# -- on the real loop ------------------------------------------------------------------------------------------------

VOCABULARY = FakeVocabulary(24, end_tokens={23})
MODEL = HashModel(24)
FREE_WIDTHS = {100: {width: 0.01 * (1 + 0.01 * width) for width in range(1, 9)}}


def drafters(branches: int = 1) -> list[Drafter]:
    context = FakeDraftContext(MODEL.like(0.8))
    model = DraftModel(context, VOCABULARY.end_tokens, branches)
    return [PromptLookup(1, 3), model]


def loop_with(target: FakeTarget, found: list[Drafter], **more: Any) -> Loop:
    plan = AdaptivePlan(found, target.exact_widths, Knowledge(PassCosts(FREE_WIDTHS)), clock=lambda: 0.0, **more)
    return Loop(target, plan, VOCABULARY)


def request_of(seed: int, temperature: float = 0.8, max_tokens: int = 60) -> Request:
    return Request(
        prompt(3, 1, 4, 1, 5), sampling=SamplingParams(temperature=temperature), seed=seed, max_tokens=max_tokens
    )


def plain(request: Request) -> Answer:
    return answer(Loop(FakeTarget(MODEL, 24), FixedPlan((), 0, None), VOCABULARY), request)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    widths=st.none() | st.sets(st.integers(2, 8)),
    forced=st.sampled_from([Forced(), Forced(drafting=True), Forced(nodes=3)]),
    branches=st.integers(1, 3),
)
def test_the_text_does_not_depend_on_the_plan(
    seed: int, temperature: float, widths: set[int] | None, forced: Forced, branches: int
) -> None:
    request = request_of(seed, temperature)
    exact = None if widths is None else {1, *widths}
    target = FakeTarget(MODEL, 24, exact_widths=exact, same_bits=exact)
    loop = loop_with(target, drafters(branches), forced=forced)
    for _ in range(2):  # the second time it knows something
        found = answer(loop, request)
        assert found.tokens == plain(request).tokens
        assert found.stats.exact == (exact is not None or not found.stats.drafted)


@pytest.mark.parametrize("widths", [None, {1, 2, 3, 4, 6, 8}, {1, 3}], ids=str)
@pytest.mark.parametrize("slots", [2, 3])
def test_slots_share_a_plan_without_disturbing_each_other(slots: int, widths: set[int] | None) -> None:
    requests = {slot: request_of(slot, max_tokens=20 + 7 * slot) for slot in range(slots)}
    target = FakeTarget(MODEL, 24, exact_widths=widths, same_bits=widths, streams=True)
    loop = loop_with(target, drafters())
    for _ in range(3):
        found = answer_all(loop, requests)
        for slot, request in requests.items():
            assert found[slot].tokens == plain(request).tokens
    assert widths is not None or sum(one.stats.drafted for one in found.values()) > 0


class OneByOne(FakeTarget):
    """Every slot has a pass of its own, as in passes of one width."""

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        return list(rows.values())


def test_slots_that_are_served_one_by_one_are_drafted_for_as_well() -> None:
    requests = {slot: replace(request_of(slot, max_tokens=200), ignore_end=True) for slot in range(3)}
    texts, rng = {slot: plain(one).tokens for slot, one in requests.items()}, np.random.default_rng(0)

    def script(request: DraftRequest) -> Draft:
        said = len(request.history) - 5
        guess = np.array(texts[request.slot][said : said + request.max_nodes], dtype=np.int32)
        wrong = rng.random(len(guess)) > 0.6
        guess[wrong] = (guess[wrong] + 1) % 22
        return Draft.chain(guess, None, np.full(len(guess), 0.6, dtype=np.float32), "scripted")

    loop = loop_with(OneByOne(MODEL, 24, exact_widths=range(1, 9)), [FakeDrafter(script)])
    found = answer_all(loop, requests)
    assert {slot: one.tokens for slot, one in found.items()} == texts
    accepted = sum(one.stats.accepted for one in found.values())  # 240 to 290 of 600: real times of the host count
    assert accepted > 180, "the poorest answer's budget counts"


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_rules_that_need_a_fixed_plan_get_one(rule: Rule) -> None:
    """Whatever was learned before: the same seed gives the same text, that of `FixedPlan`."""
    found = drafters()
    loop = loop_with(FakeTarget(MODEL, 24), found, fixed=FixedPlan(found, 3, None))
    request = replace(request_of(5, 1.0), rule=rule)
    fixed = Loop(FakeTarget(MODEL, 24), FixedPlan(drafters(), 3, None), VOCABULARY)
    expected = answer(fixed, request)
    for _ in range(3):
        assert answer(loop, request).tokens == expected.tokens
        answer(loop, request_of(8))
    assert expected.stats.drafted > 0


def test_a_request_may_switch_drafting_off() -> None:
    loop = loop_with(FakeTarget(MODEL, 24), drafters(), forced=Forced(drafting=True))
    off = answer(loop, replace(request_of(1), max_draft_tokens=0, ignore_end=True))
    assert (off.stats.drafted, off.stats.passes) == (0, 60)
    one = answer(loop, replace(request_of(1), max_draft_tokens=1, ignore_end=True))
    assert 0 < one.stats.drafted <= one.stats.passes
    assert off.tokens == one.tokens


def test_a_request_may_force_drafts() -> None:
    """Forced, as by settings: the useless draft model guesses in every pass; the next request is free again."""
    loop = loop_with(FakeTarget(MODEL, 24), drafters())
    request = replace(request_of(1), drafter="draft", ignore_end=True)
    forced = answer(loop, replace(request, forced=True))
    assert forced.stats.draft_passes >= forced.stats.passes - 1
    assert not forced.stats.undrafted
    assert forced.tokens == answer(loop, request).tokens == plain(request).tokens


def test_every_pass_without_a_draft_has_its_reason() -> None:
    loop = loop_with(FakeTarget(MODEL, 24), drafters()[:1])
    stats = answer(loop, replace(request_of(1), ignore_end=True)).stats
    assert stats.undrafted.total() == stats.passes - stats.draft_passes - 1, "of the last pass none may be drafted"
    assert stats.undrafted_reason in {why.value.format(row=stats.row_cost) for why in Undrafted}
    dear = RequestStats(undrafted=Counter({Undrafted.PRICE: 2, Undrafted.NOTHING: 1}), row_cost=0.894)
    assert dear.undrafted_reason == "a row costs 0.89 of a plain pass here"


def test_a_draft_model_that_fails_is_dropped_and_the_chat_goes_on() -> None:
    found = drafters()
    context = FakeDraftContext(MODEL)
    calls = [0]

    def fail(feeds: Any) -> Any:
        calls[0] += 1
        raise DecodeError("llama.cpp could not evaluate a pass: it could not allocate memory for the pass.")

    context.decode = fail  # type: ignore[method-assign]
    found[1] = DraftModel(context, VOCABULARY.end_tokens)
    loop = loop_with(FakeTarget(MODEL, 24), found)
    request = request_of(4)
    assert answer(loop, request).tokens == answer(loop, request).tokens == plain(request).tokens
    assert calls == [1]
    assert "could not allocate" in loop.plan.dropped["draft"]
    loop.plan.drop("draft", "again")
    assert "could not allocate" in loop.plan.dropped["draft"], "it is gone already"


def test_stats_say_what_plain_decoding_would_have_taken() -> None:
    loop = loop_with(FakeTarget(MODEL, 24), drafters())
    stats = answer(loop, request_of(4)).stats
    assert stats.plain_seconds > 0
    assert 0 < stats.compared <= stats.generated
    assert 0 < stats.compared_seconds <= stats.decode_seconds
    assert stats.estimated_speedup == pytest.approx(stats.plain_seconds / stats.compared_seconds)
    assert {"plain_seconds", "compared_tokens", "compared_seconds", "estimated_speedup", "guarded_passes"} <= set(
        stats.as_dict()
    )
