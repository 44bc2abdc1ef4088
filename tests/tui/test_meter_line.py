"""The meter's line: figures in the glossary's formulas, in any width, the most important ones longest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from localspec.engine.interfaces import Undrafted
from localspec.engine.slot import PassRecord
from localspec.engine.stats import RequestStats
from localspec.remote.answerer import AnswerPart
from localspec.tui.widgets.meter import Live, ReadingSpeed, meter_line
from tests.tui.replayer import ReplayAnswer


def stats() -> RequestStats:
    return RequestStats(
        generated=120,
        passes=40,
        draft_passes=30,
        drafted=120,
        accepted=80,
        accepted_per_position=[28, 24, 18, 10],
        accepted_histogram=Counter({4: 10}),
        draft_seconds=0.1,
        verify_seconds=0.2,
        host_seconds=0.02,
        plain_seconds=0.64,
        compared=120,
        compared_seconds=0.32,
    )


def test_everything_fits_80_columns() -> None:
    line = meter_line(stats(), ("lookup", 5), 80)
    assert line.plain == "375 tok/s  2.00x plain  acceptance 67%  accepted length 3.67  █▇▅▃  lookup w5"


@pytest.mark.parametrize("width", range(1, 160))
def test_it_never_overflows(width: int) -> None:
    line = meter_line(stats(), ("draft", 8), width, (900, 4096), "tiny + tiny-draft")
    assert line.cell_length <= width


def test_short_answers_are_not_compared_with_plain_decoding() -> None:
    assert "x plain" not in meter_line(replace(stats(), compared=99), None, 120).plain
    assert "x plain" in meter_line(replace(stats(), compared=100), None, 120).plain


def test_where_nothing_is_drafted_it_says_why() -> None:
    open_text = replace(stats(), drafted=0, draft_passes=0, undrafted=Counter({Undrafted.NOTHING: 30}))
    assert meter_line(open_text, ("", 1), 80).plain == "375 tok/s  plain decoding: no copy found"
    dear = replace(open_text, undrafted=Counter({Undrafted.PRICE: 30}), row_cost=0.9)
    assert meter_line(dear, ("", 1), 80).plain == "375 tok/s  plain decoding: a row costs 0.90 of a plain pass here"
    assert meter_line(dear, ("", 1), 30).plain == "375 tok/s  plain w1"
    used_up = replace(open_text, undrafted=Counter({Undrafted.LOST: 30}))
    said = "375 tok/s  plain decoding: allowance used up until some guesses are right"
    assert meter_line(used_up, ("", 1), 80).plain == said


def test_narrow_lines_keep_the_speed() -> None:
    seen = [meter_line(stats(), ("draft", 8), width, (900, 4096)).plain for width in (75, 50, 32, 22, 10)]
    assert "acceptance 67%" in seen[0]
    assert "acc" in seen[2]
    assert seen[3] == "375 tok/s  2.00x plain"
    assert seen[4] == "375 tok/s"


def test_wide_lines_have_it_all() -> None:
    plain = meter_line(stats(), ("draft", 8), 150, (900, 4096), "tiny").plain
    for words in ("tiny", "draft model, width 8", "by position", "context 22%", "accepted length 3.67"):
        assert words in plain


def test_what_is_not_known_is_not_shown() -> None:
    endpoint = RequestStats(generated=10, verify_seconds=1.0)
    assert meter_line(endpoint, None, 80).plain == "10.0 tok/s"
    assert meter_line(RequestStats(), None, 80, (0, 4096), "tiny").plain == "tiny  context 0%"
    assert meter_line(RequestStats(), None, 80).plain == ""


def test_inexact_passes_are_never_silent() -> None:
    one = stats()
    one.exact = False
    assert "not exact" in meter_line(one, ("draft", 8), 100).plain


def test_now_is_the_most_usual_of_the_last_passes() -> None:
    live = Live()
    assert live.usual is None
    draft = PassRecord("draft", (1, 2), (-1, 0), (0,), 3, 3, 0.01)
    plain = PassRecord("", (), (), (), 3, 1, 0.01)

    def hear(*records: PassRecord) -> None:
        live.hear(AnswerPart(ReplayAnswer(0), "", records=records), ReadingSpeed())

    hear(*[plain] * 20, *[draft] * 5)
    assert live.usual == ("", 1)
    hear(*[draft] * 5)
    assert live.usual == ("draft", 3)
