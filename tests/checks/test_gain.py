"""What a draft model brings: three sides answer the same prompts in turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.turn import Message
from localspec.checks import gain
from localspec.checks.compare import Ratio
from localspec.checks.gain import DraftGain, measure
from localspec.checks.prompts import shipped
from localspec.errors import ContextOverflowError
from tests.drafters.cut.conftest import cut as cut
from tests.drafters.cut.conftest import header as header
from tests.drafters.cut.conftest import part as part


def test_all_sides_say_the_same(tiny_target: Path, cut: Path, tiny_draft: Path) -> None:
    told: list[float] = []
    prompts = list(shipped())[:3]
    found = measure(tiny_target, cut, tiny_draft, prompts, 12, lambda what, share: told.append(share))
    assert found.equal == found.prompts == 3
    assert set(found.speeds) == set(gain.SIDES)
    assert all(speed > 0.0 for speed in found.speeds.values())
    assert found.tokens_a_pass >= 1.0
    assert found.gain is not None
    assert told[-1] < 1.0


def test_a_prompt_that_cannot_be_answered_is_not_counted(tiny_target: Path, cut: Path) -> None:
    long = (Message("user", "word " * 2 * gain.CONTEXT),)
    found = measure(tiny_target, cut, None, [*list(shipped())[:2], long], 8, lambda *_: None)
    assert found.equal == found.prompts == 2
    with pytest.raises(ContextOverflowError, match="context"):
        measure(tiny_target, cut, None, [long], 8, lambda *_: None)


def test_the_end_of_the_time_leaves_four_prompts(tiny_target: Path, cut: Path) -> None:
    found = measure(tiny_target, cut, None, list(shipped())[:6], 4, lambda *_: None, seconds=0.001)
    assert found.equal == found.prompts == gain.LEAST_PROMPTS


@pytest.mark.parametrize(
    ("before", "after", "low", "sentence"),
    [
        (110.0, 140.0, 1.1, "Worth it: answers ran at 1.40x plain decoding, 1.10x before, 2.00 tokens a pass."),
        (
            110.0,
            112.0,
            0.9,
            "Not worth it: answers ran at 1.12x plain decoding, 1.10x before, 2.00 tokens a pass; that is no more than "
            "chance.",
        ),
        (
            130.0,
            112.0,
            0.8,
            "Not worth it: answers ran at 1.12x plain decoding, 1.30x before, 2.00 tokens a pass; what drafted before "
            "is faster here.",
        ),
    ],
)
def test_the_verdict_is_one_sentence(before: float, after: float, low: float, sentence: str) -> None:
    speeds = {"plain": 100.0, "before": before, "after": after}
    found = DraftGain(2.0, speeds, Ratio(after / before, low, 2.0, "prompts", low, 2.0), 20, 20)
    assert found.sentence == sentence
    assert found.worth_it == sentence.startswith("Worth it")
    assert found.as_dict()["gain"] == [after / before, low, 2.0]
