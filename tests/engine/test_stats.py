"""Statistics: the glossary's formulas, on numbers worked out by hand and on whole answers."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.interfaces import Draft, Request, Undrafted
from localspec.engine.loop import Loop
from localspec.engine.slot import TARGET_ORIGIN, Origin
from localspec.engine.stats import RequestStats, kept_comparison, percentile
from localspec.planning.plan import FixedPlan
from localspec.types import Rule, SamplingParams
from tests.fakes import Answer, FakeDrafter, FakeTarget, FakeVocabulary, HashModel, Script, answer, parrot, prompt

MODEL = HashModel(16)
REQUEST = Request(prompt(1, 2, 3), sampling=SamplingParams(temperature=1.0), seed=5, max_tokens=20)


def answered(script: Script | None, request: Request = REQUEST, target: FakeTarget | None = None) -> Answer:
    target = target or FakeTarget(MODEL, 16)
    drafters = [] if script is None else [FakeDrafter(script)]
    return answer(Loop(target, FixedPlan(drafters, 4, target.exact_widths), FakeVocabulary(16)), request)


def test_formulas_by_hand() -> None:
    stats = RequestStats()
    stats.add_pass("x", 4, 4, generated=5)
    stats.add_pass("x", 4, 1, generated=2)
    stats.add_pass("y", 2, 0, generated=1)
    stats.add_pass("", 0, 0, generated=1)
    assert (stats.passes, stats.draft_passes, stats.generated) == (4, 3, 9)
    assert stats.acceptance_rate == 5 / 10
    assert stats.mean_accepted_tokens == 5 / 3
    assert stats.mean_accepted_length == 1 + 5 / 3
    assert stats.tokens_per_pass == 9 / 4
    assert stats.accepted_per_position == [2, 1, 1, 1]
    assert stats.accepted_histogram == {4: 1, 1: 1, 0: 1}
    assert stats.drafted_by_drafter == {"x": 8, "y": 2}
    assert stats.accepted_by_drafter == {"x": 5, "y": 0}


def test_nothing_drafted_divides_nothing_by_nothing() -> None:
    stats = RequestStats()
    assert (stats.acceptance_rate, stats.mean_accepted_tokens, stats.mean_accepted_length) == (0.0, 0.0, 1.0)
    assert (stats.tokens_per_pass, stats.tokens_per_second) == (0.0, 0.0)


def test_an_answer_without_drafts_is_compared_with_nothing() -> None:
    stats = RequestStats(generated=10, verify_seconds=2.0, plain_seconds=1.0, compared=10, compared_seconds=2.0)
    assert stats.estimated_speedup == 0.0
    assert kept_comparison(stats.as_dict()) == (2.0, 2.0), "it lost nothing"
    stats.drafted = 1
    assert stats.estimated_speedup == 0.5
    assert kept_comparison(stats.as_dict()) == (1.0, 2.0)
    assert kept_comparison({"generated_tokens": 10, "tokens_per_second": 5.0}) == (0.0, 0.0), "of another server"


def test_guesses_are_called_wrong_too_often_only_after_some() -> None:
    few = RequestStats(undrafted=Counter({Undrafted.UNLIKELY: 2, Undrafted.UNTIMED: 1}))
    assert few.undrafted_reasons == [("no copy found", 2), ("a plain pass is timed first", 1)]
    few.undrafted[Undrafted.NOTHING] = 3
    assert few.undrafted_reason == "no copy found"
    assert few.undrafted_reasons[0] == ("no copy found", 5)
    few.undrafted[Undrafted.UNLIKELY] = 8
    assert few.undrafted_reason == "guesses are too often wrong"
    assert few.as_dict()["undrafted_passes"] == {"unlikely": 8, "nothing": 3, "untimed": 1}
    assert not RequestStats().undrafted_reasons


def test_speed_leaves_prefill_out() -> None:
    stats = RequestStats(generated=10, prefill_seconds=99, draft_seconds=1, verify_seconds=3, host_seconds=1)
    assert stats.decode_seconds == 5
    assert stats.tokens_per_second == 2


@given(samples=st.lists(st.floats(0, 10), min_size=1, max_size=40), share=st.floats(0.01, 1))
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(samples: list[float], share: float) -> None:
    found = percentile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= share * len(samples)
    below = [sample for sample in samples if sample < found]
    assert len(below) < share * len(samples)


def test_the_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 0.5) == 0.0


def test_as_dict_is_json_with_the_glossarys_names() -> None:
    stats = RequestStats(prompt_tokens=3, gaps=[0.1, 0.2, 0.3])
    stats.add_pass("x", 3, 2, 3)
    data = json.loads(json.dumps(stats.as_dict()))
    assert data["acceptance_rate"] == 0.6667
    assert data["mean_accepted_length"] == 3.0
    assert data["accepted_histogram"] == {"2": 1}
    assert data["itl_p50_seconds"] == 0.2
    assert data["itl_p99_seconds"] == 0.3
    assert data["exact"] is True


def test_plain_decoding_drafts_nothing_and_is_exact() -> None:
    found = answered(None)
    stats = found.stats
    assert (stats.generated, stats.passes, stats.drafted, stats.draft_passes) == (20, 20, 0, 0)
    assert stats.exact
    assert stats.prompt_tokens == 3
    assert len(stats.gaps) == 19
    assert found.origins == [TARGET_ORIGIN] * 20


def test_counts_agree_with_the_events_and_with_what_the_target_decoded() -> None:
    plain = answered(None)
    target = FakeTarget(MODEL, 16)
    found = answered(parrot([1, 2, 3, *plain.tokens], 0.8, np.random.default_rng(2), 16), target=target)
    stats = found.stats
    assert found.tokens == plain.tokens
    assert stats.passes == len(found.events) == len(target.passes)
    assert stats.drafted == sum(target.widths) - stats.passes
    assert stats.generated == len(found.tokens) == stats.accepted + stats.passes
    assert sum(stats.accepted_histogram.values()) == stats.draft_passes
    assert sum(depth * passes for depth, passes in stats.accepted_histogram.items()) == stats.accepted
    assert sum(stats.accepted_per_position) == stats.accepted
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert stats.drafted_by_drafter == {"scripted": stats.drafted}
    for event in found.events:
        *guessed, own = event.origins
        assert own == TARGET_ORIGIN
        assert guessed == [Origin("scripted", depth + 1) for depth in range(len(guessed))]


def test_a_tree_counts_every_node_that_was_sent() -> None:
    def two_leaves(request: object) -> Draft:
        return Draft(prompt(7, 8, 9), prompt(-1, -1, -1), origin="tree")

    stats = answered(two_leaves).stats
    assert stats.drafted == 3 * stats.draft_passes > 0
    assert set(stats.accepted_histogram) <= {0, 1}


def test_reused_tokens_are_those_found_in_the_cache() -> None:
    target = FakeTarget(MODEL, 16)
    first = answered(None, target=target)
    assert first.stats.reused_tokens == 0
    again = Request(prompt(1, 2, 3, *first.tokens, 4, 4), max_tokens=2)
    stats = answered(None, again, target).stats
    assert stats.reused_tokens == 3 + 19, "all but the last token, which no pass had taken"
    assert target.prefilled[-1] == (0, 2)


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_other_rules_keep_the_distribution_but_not_the_text_and_say_so(rule: Rule) -> None:
    request = Request(prompt(1, 2), max_tokens=8, rule=rule, seed=3)
    widths = set(range(1, 9))
    assert not answered(None, request).stats.exact, "plain text is that of *coupled*"
    drafting = answered(parrot([], 0.0, np.random.default_rng(1), 16), request, FakeTarget(MODEL, 16, 256, widths))
    assert drafting.stats.drafted > 0
    assert not drafting.stats.exact


def test_a_drafted_pass_of_unknown_width_is_not_called_exact() -> None:
    script = parrot([], 0.0, np.random.default_rng(1), 16)
    assert not answered(script).stats.exact
    assert answered(script, target=FakeTarget(MODEL, 16, 256, range(1, 9))).stats.exact


def test_figures_of_two_rounds_fit_together() -> None:
    first = RequestStats(prompt_tokens=100, prefill_seconds=9.0, ttft_seconds=10.0, generated=20, verify_seconds=2.0)
    second = RequestStats(prompt_tokens=150, reused_tokens=110, prefill_seconds=3.0, ttft_seconds=3.5, generated=5)
    second.draft_seconds = 0.5
    both = first.before(second)
    assert (both.prompt_tokens, both.reused_tokens, both.prefill_seconds) == (250, 110, 12.0)
    assert both.prompt_tokens - both.reused_tokens == 100 + 40, "what was read"
    assert (both.ttft_seconds, both.tokens_per_second) == (10.0, 10.0)
