"""What the meter says while an answer is waited for: a clock of the test's own, so that every word is known."""

from __future__ import annotations

import pytest

from localspec.engine.stats import RequestStats
from localspec.remote.answerer import AnswerPart, Prefilled
from localspec.tui.widgets.meter import Live, ReadingSpeed, bar


class Clock:
    """Seconds, as the test sets them."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Asked:
    """An answer that somebody asked for."""

    seed: int | None = None

    def cancel(self) -> None:
        raise AssertionError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live:
    found = Live(clock=clock)
    found.begin(Asked())
    return found


def read(live: Live, done: int, total: int | None, speed: ReadingSpeed) -> None:
    assert live.answer is not None
    live.hear(Prefilled(live.answer, done, total), speed)


def test_a_prompt_is_named_before_anything_is_known_of_the_speed(live: Live, clock: Clock) -> None:
    speed = ReadingSpeed()
    read(live, 0, 312, speed)
    clock.seconds += 2
    assert live.waits(speed, False) == "reading 312 tokens: 2 s"


def test_the_speed_of_an_earlier_prompt_tells_how_long_this_one_takes(live: Live, clock: Clock) -> None:
    speed = ReadingSpeed(0.02)
    read(live, 0, 300, speed)
    assert live.waits(speed, False) == f"reading 300 tokens {bar(0, 10)} about 6 s"
    clock.seconds += 3
    assert live.waits(speed, False) == f"reading 300 tokens {bar(0.5, 10)} about 3 s"
    clock.seconds += 60
    assert live.waits(speed, False) == f"reading 300 tokens {bar(299 / 300, 10)} about 1 s"


def test_the_speed_is_learned_from_every_chunk(live: Live, clock: Clock) -> None:
    speed = ReadingSpeed()
    read(live, 100, 1612, speed)  # 100 were in the cache
    clock.seconds += 5.12
    read(live, 612, 1612, speed)
    assert speed.seconds == pytest.approx(0.01)
    clock.seconds += 10.24
    read(live, 1124, 1612, speed)
    assert speed.seconds == pytest.approx(0.015)


def test_a_prompt_that_is_read_waits_for_its_first_token(live: Live, clock: Clock) -> None:
    speed = ReadingSpeed()
    read(live, 0, 40, speed)
    read(live, 40, 40, speed)
    clock.seconds += 1
    assert live.waits(speed, True) == "waiting for the first token: 1 s"


def test_another_chat_is_waited_for_and_named(live: Live, clock: Clock) -> None:
    clock.seconds += 3
    assert live.waits(ReadingSpeed(), True) == "waiting for the other chat: 3 s"
    assert live.waits(ReadingSpeed(), False) == "waiting for the first token: 3 s"


def test_a_server_tells_no_length(live: Live) -> None:
    read(live, 0, None, ReadingSpeed())
    assert live.waits(ReadingSpeed(), False) == "waiting for the first token: 0 s"


def test_figures_take_the_place_of_waiting(live: Live) -> None:
    assert live.answer is not None
    stats = RequestStats(generated=3)
    live.hear(AnswerPart(live.answer, "Hello", stats=stats), ReadingSpeed())
    assert (live.waits(ReadingSpeed(), True), live.stats) == ("", stats)
    live.begin(Asked())
    assert live.stats == RequestStats()
