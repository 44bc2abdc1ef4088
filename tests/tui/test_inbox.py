"""How an answer reaches a screen: joined, seldom, and not at all after Esc; on a clock that only the test moves."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any, cast

import pytest
from textual.message import Message as TextualMessage
from textual.message_pump import MessagePump

from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.engine.slot import FinishReason, Origin
from localspec.engine.stats import RequestStats
from localspec.remote.answerer import POSTS_PER_SECOND, AnswerEnded, AnswerPart, Prefilled, Sink, Told
from localspec.tools.answers import CallingAnswer, CallMade
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Inbox, Posted
from localspec.tui.text.typesetting import Line, Typesetter
from tests.tui.conftest import MakeApp, front, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswer, ReplayAnswerer

ANSWER = ReplayAnswer(1)
CLOSE = 1e-6
"""Seconds by which sums of fractions may be off."""


class Screen:
    """A screen of known slowness: drawing a part takes `cost` seconds, in which the answerer goes on."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost = 0.0, cost
        self.drawn: list[tuple[float, Told]] = []
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = count()

    def post_message(self, message: TextualMessage) -> bool:
        assert isinstance(message, Posted)
        self.drawn.append((self.now, message.told))
        return True

    def call_later(self, callback: Callable[..., Any]) -> bool:
        self.set_timer(0.0, callback)
        return True

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any) -> bool:
        self.set_timer(self.cost, partial(callback, *args))
        return True

    def set_timer(self, delay: float, callback: Callable[..., Any]) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._number), callback))

    def run_until(self, when: float) -> None:
        """Calls what is due by then."""
        while self._due and self._due[0][0] <= when:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = when

    @property
    def parts(self) -> list[tuple[float, AnswerPart]]:
        return [(when, message) for when, message in self.drawn if isinstance(message, AnswerPart)]


def inbox_of(screen: Screen) -> Inbox:
    return Inbox(cast("MessagePump", screen), lambda: screen.now)


def part(number: int) -> AnswerPart:
    stats, call = RequestStats(generated=number), ToolCall(str(number), "f", "{}")
    return AnswerPart(ANSWER, f"{number} ", (number,), (Origin("draft", 1),), (), stats, calls=(call,))


def streamed(screen: Screen, inbox: Inbox, parts: int, rate: float) -> None:
    """An answer of so many parts, `rate` a second."""
    for number in range(parts):
        screen.run_until(number / rate)
        inbox.post_message(part(number))
    inbox.post_message(AnswerEnded(ANSWER, FinishReason.STOP, RequestStats()))
    screen.run_until(screen.now + 10.0)


@pytest.mark.parametrize("rate", [100.0, 500.0, 5_000.0])
@pytest.mark.parametrize("cost", [0.0, 0.01, 0.2])
def test_a_thousand_parts_are_few_draws_and_all_text(cost: float, rate: float) -> None:
    screen = Screen(cost)
    streamed(screen, inbox_of(screen), 1_000, rate)
    times = [when for when, _ in screen.parts]
    for start in times:
        assert sum(start <= when < start + 1.0 - CLOSE for when in times) <= POSTS_PER_SECOND <= 15
    assert all(after - before > 2 * cost - CLOSE for before, after in pairwise(times))
    parts = [drawn for _, drawn in screen.parts]
    assert "".join(drawn.text for drawn in parts) == "".join(f"{number} " for number in range(1_000))
    assert [token for drawn in parts for token in drawn.tokens] == list(range(1_000))
    assert sum(len(drawn.origins) for drawn in parts) == 1_000
    assert [call.id for drawn in parts for call in drawn.calls] == [str(number) for number in range(1_000)]
    assert parts[-1].stats.generated == 999
    assert isinstance(screen.drawn[-1][1], AnswerEnded)
    late = times[-1] - 999 / rate
    assert late <= max(1 / 15, 2 * cost) + CLOSE, "it never catches up"


def test_a_call_stands_between_what_is_said_before_and_after_it() -> None:
    screen = Screen(0.01)
    inbox, answer = inbox_of(screen), cast("CallingAnswer", ANSWER)
    made = [CallMade(answer, MadeCall(ToolCall(name, "f", "{}"), "")) for name in "ab"]
    for told in (part(0), part(1), *made, part(2), part(3)):
        inbox.post_message(told)
    screen.run_until(1.0)
    told_in_order = [one.text if isinstance(one, AnswerPart) else one for _, one in screen.drawn]
    assert told_in_order == ["0 1 ", *made, "2 3 "]


def test_a_slow_screen_stands_still_for_a_quarter_second_at_most() -> None:
    screen = Screen(1.0)
    streamed(screen, inbox_of(screen), 1_000, 100.0)
    times = [when for when, _ in screen.parts]
    assert all(after - before == pytest.approx(1.25) for before, after in pairwise(times))


def test_nothing_is_queued_after_a_stop_but_the_end() -> None:
    screen = Screen(0.5)
    inbox = inbox_of(screen)
    inbox.post_message(Prefilled(ANSWER, 4, 8))
    inbox.post_message(Prefilled(ANSWER, 8, 8))
    for number in range(100):
        screen.run_until(number / 100)
        inbox.post_message(part(number))
    assert [message.done for _, message in screen.drawn if isinstance(message, Prefilled)] == [8]
    before = len(screen.drawn)
    inbox.stop()
    assert not inbox.post_message(part(100))
    screen.run_until(60.0)
    assert len(screen.drawn) == before
    assert inbox.post_message(AnswerEnded(ANSWER, FinishReason.CANCELLED, RequestStats()))
    assert len(screen.drawn) == before + 1, "it comes at once"


def test_what_became_of_calls_is_told_after_a_stop_too() -> None:
    screen = Screen(0.5)
    inbox, answer = inbox_of(screen), cast("CallingAnswer", ANSWER)
    waits, late = (CallMade(answer, MadeCall(ToolCall(name, "f", "{}"), "")) for name in "ab")
    for told in (part(0), waits):
        inbox.post_message(told)
    inbox.stop()
    assert inbox.post_message(late)
    screen.run_until(10.0)
    assert [told for _, told in screen.drawn] == [waits, late]


class Flood(ReplayAnswerer):
    """Says more and more until it is stopped, and counts what it said."""

    said = 0

    def _play(self, answer: ReplayAnswer, recorded: Recorded, sink: Sink) -> None:
        while not answer.cancelled.wait(0.0005):
            sink.post_message(AnswerPart(answer, "word\n\n", (0,), (Origin("", 0),)))
            self.said += 1
        for _ in range(1_000):  # a model that hears it late
            sink.post_message(AnswerPart(answer, "too late", (0,), (Origin("", 0),)))
        sink.post_message(AnswerEnded(answer, FinishReason.CANCELLED, RequestStats()))


class Counted:
    """Parts that reach the chat in front."""

    def __init__(self, app: ChatApp) -> None:
        self.parts: list[AnswerPart] = []
        self._hear = app.chat_screen._hear
        app.chat_screen._hear = self._note  # type: ignore[method-assign]

    def _note(self, told: AnswerPart | AnswerEnded | Prefilled) -> None:
        if isinstance(told, AnswerPart):
            self.parts.append(told)
        self._hear(told)


@pytest.mark.asyncio
async def test_the_chat_draws_few_parts_and_none_after_escape(make_app: MakeApp) -> None:
    answerer = Flood(Recording([Recorded.of_text("unused")], {}))
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        counted = Counted(app)
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: answerer.said >= 1_000)
        await pilot.press("escape")
        drawn = len(counted.parts)
        await until(pilot, lambda: front(app).answer is None)
        assert len(counted.parts) == drawn
        stored = front(app).path[-1]
        assert stored.state == "stopped"
        assert stored.content == "".join(part.text for part in counted.parts)
        assert "too late" not in stored.content
        assert drawn < answerer.said / 10


@pytest.mark.asyncio
async def test_only_what_is_seen_is_set(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraph = "Some words of a paragraph. " * 30 + "\n\n"
    app = make_app(paragraph)
    async with app.run_test(size=(80, 24)) as pilot:
        pane = front(app)
        pane.composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: pane.transcript.bubbles and pane.transcript.bubbles[-1].texts)
        await until(pilot, lambda: pane.answer is None)
        (text,) = pane.transcript.bubbles[-1].texts
        set_ = list[str]()
        lines = Typesetter.lines

        def counted(setter: Typesetter, said: str, width: int, number: int = 1, goes_on: bool = False) -> list[Line]:
            set_.append(said)
            return lines(setter, said, width, number, goes_on)

        monkeypatch.setattr(Typesetter, "lines", counted)
        await text.extend(AnswerPart(ANSWER, paragraph * 200))
        assert len(set_) <= 1 + 24 // len(lines(text._setter, paragraph, 70))
        assert set_[0] == text.segments[-1].text
        pane.transcript.scroll_to(y=0, animate=False)
        await until(pilot, lambda: pane.transcript.scroll_y == 0 and text.complete)
        set_.clear()
        await text.extend(AnswerPart(ANSWER, paragraph * 200))
        assert set_ == [], "the reader looks at the beginning"


@pytest.mark.asyncio
async def test_heights_out_of_sight_are_found_when_the_answer_is_over(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(Recording([Recorded.of_text("Some words of a paragraph. " * 30 + "\n\n")], {}))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        pane = front(app)
        pane.composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: pane.transcript.bubbles[-1].texts)
        bubble = pane.transcript.bubbles[-1]
        (text,) = bubble.texts
        await until(pilot, lambda: len(text.segments[0].text) > 100)
        assert bubble.message.state == "streaming"
        await text.extend(AnswerPart(ANSWER, "\n\n" + "More words of another. " * 30 + "\n\n", ()))
        await text.extend(AnswerPart(ANSWER, ("Words of the others. " * 30 + "\n\n") * 100, ()))
        for _ in range(10):
            pane.transcript._look_around()
        measured = sum(segment.measured for segment in text.segments)
        assert measured < 10 < len(text.segments)
        answerer.hold.set()
        await until(pilot, lambda: pane.answer is None and text.complete)
