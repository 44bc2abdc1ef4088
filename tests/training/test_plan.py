"""What training takes is told before, and what does not fit is refused with numbers."""

from __future__ import annotations

import pytest

from localspec.drafters.cut import read_shape
from localspec.errors import ModelError, UsageError
from localspec.gguf import Header
from localspec.machine import ram
from localspec.training import course
from localspec.training.course import TrainingPlan, check_free, plan


def of(header: Header, layers: int = 2, minutes: float = 60.0, pass_seconds: float = 0.001) -> TrainingPlan:
    return plan(header, read_shape(header), layers, minutes, pass_seconds, [ram()])


def test_it_grows_with_what_is_asked_for(header: Header) -> None:
    found, larger, longer = of(header), of(header, layers=4), of(header, minutes=600.0)
    shape = read_shape(header)
    assert found.parameters == 2 * shape.layer_parameters + shape.vocabulary * shape.hidden
    assert larger.parameters == found.parameters + 2 * shape.layer_parameters
    assert larger.memory_bytes > found.memory_bytes
    assert longer.tokens == 10 * found.tokens
    assert longer.disk_bytes > found.disk_bytes > 24 * found.parameters
    assert found.lines()[0].startswith("20 minutes of answers (about 2,880,000 tokens), 40 of training 2.6 M weights")


def test_a_slow_target_is_measured_at_the_end_alone(header: Header) -> None:
    hour, slow = of(header), of(header, minutes=5.0, pass_seconds=0.04)
    assert [one.after for one in hour.measuring] == [0.4, 0.7, 1.0]
    seconds = [10.0 + tokens * 0.001 for tokens in (24 * 48, 24 * 48, 88 * 128)]
    assert [one.seconds for one in hour.measuring] == pytest.approx(seconds)
    assert of(header, pass_seconds=0.1).measuring[-1].seconds == pytest.approx(360.0), "a tenth of the minutes"
    assert [one.after for one in slow.measuring] == [1.0]
    assert slow.measuring[0].seconds == pytest.approx(10.0 + 24 * 128 * 0.04)
    for found in (hour, slow):
        measuring = sum(one.seconds for one in found.measuring)
        assert found.answer_seconds + found.training_seconds + measuring == pytest.approx(60.0 * found.minutes)
    with pytest.raises(UsageError, match=r"--minutes is 1; for this target it must be 5 or more\."):
        of(header, minutes=1.0, pass_seconds=0.04)


def test_what_does_not_fit_is_refused_with_numbers(header: Header) -> None:
    found = TrainingPlan(60.0, 10, 4_000_000_000, 2_000_000_000, 10, 10, ())
    check_free(found, 0, 0)  # unknown
    check_free(found, 5_000_000_000, 3_000_000_000)
    with pytest.raises(ModelError, match=r"Training takes 4\.0 GB of memory, and 1\.0 GB are free\.") as error:
        check_free(found, 1_000_000_000, 3_000_000_000)
    assert "--layers" in error.value.hint
    with pytest.raises(ModelError, match=r"Training takes 2\.0 GB of disk, and 1\.0 GB are free\.") as error:
        check_free(found, 5_000_000_000, 1_000_000_000)
    assert "--minutes" in error.value.hint
    with pytest.raises(UsageError, match=r"--minutes is nan; for this target it must be 1 or more\."):
        of(header, minutes=float("nan"))


def test_the_page_shows_loss_and_measures() -> None:
    speeds = {"plain": 100.0, "before": 120.0, "after": 150.0}
    measured = [{"seconds": 600.0, "tokens_a_pass": 1.93, "speeds": speeds, "equal": 20, "prompts": 20}]
    page = course.page("<my> draft", [(60.0 * n, 5.0 / (n + 1)) for n in range(20)], measured)
    assert "&lt;my&gt; draft" in page
    assert "<polyline" in page
    assert "<td>10</td><td>1.93</td><td>100</td><td>120</td><td>150</td><td>20 of 20</td>" in page
    assert "Too few steps" in course.page("x", [(1.0, float("nan"))], [])
