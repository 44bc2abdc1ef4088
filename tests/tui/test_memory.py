"""What is held after long answers, one after the other: their text, and nothing else that grows."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import NamedTuple

import pytest
from textual._styles_cache import StylesCache

from localspec.remote.answerer import Facts
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.answer_text import AnswerText
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer
from tests.tui.test_answer_text import LONG


class Held(NamedTuple):
    """Counted over all objects of the process."""

    bubbles: int
    answers: int
    lines: int
    """Lines that are set."""
    drawn: int
    """Lines that Textual keeps, or keeps a number for; those of removed widgets, too."""


def held() -> Held:
    gc.collect()
    everything = gc.get_objects()  # not isinstance, which asks proxies of what is gone
    answers = [one for one in everything if type(one) is AnswerText]
    caches = [one for one in everything if type(one) is StylesCache]
    return Held(
        sum(type(one) is Bubble for one in everything),
        len(answers),
        sum(len(segment.lines or ()) for answer in answers for segment in answer.segments),
        sum(len(cache._cache) + len(cache._dirty_lines) for cache in caches),
    )


def more_than(before: Held) -> Held:
    """What is held now, without what other tests left behind."""
    return Held(*(now - then for now, then in zip(held(), before, strict=True)))


def other(app: ChatApp, before: object) -> bool:
    return app.focused is not before


@pytest.mark.trial
@pytest.mark.asyncio
async def test_a_further_long_answer_takes_no_more_than_its_text(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.transcript._KEPT_PAGES", 1)  # shorter answers show it, too
    roomy = Recording([Recorded.of_text(LONG)], {}, Facts("talker", context=1 << 20))
    app, before = make_app(answerer=ReplayAnswerer(roomy)), held()
    async with app.run_test(size=(80, 24)) as pilot:
        transcript, counts = front(app).transcript, list[Held]()
        for number in range(5):
            await say(pilot, f"Go {number}")
            await until(pilot, lambda: all(text.complete for bubble in transcript.bubbles for text in bubble.texts))
            await until(pilot, lambda: len(transcript._near) <= 2)
            counts.append(more_than(before))
        tall = transcript.bubbles[-1].size.height
        assert tall > 4 * 24, "longer than what is kept"
        assert [one.answers for one in counts[1:]] == [2] * 4, "the last, and the one before"
        assert max(one.bubbles for one in counts) <= 4
        assert max(one.lines for one in counts[1:]) <= counts[1].lines + 24
        assert counts[-1].drawn <= counts[1].drawn + 24, "nothing is left of removed ones"
        for _ in range(10):  # all of it is there again for who goes up to it
            focused = app.focused
            await pilot.press("ctrl+up")
            await until(pilot, partial(other, app, focused))
        assert isinstance(app.focused, Bubble)
        assert app.focused.message.content == "Go 0"


@pytest.mark.asyncio
async def test_old_garbage_is_searched_for_when_nobody_does_anything(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = list[bool]()
    monkeypatch.setattr("localspec.tui.shell.app.gc.collect", lambda: searches.append(True))
    answerer = ReplayAnswerer(Recording([Recorded.of_text("Gone on with later")], {}))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).answer)
        app._quiet = app.set_interval(0.01, app._tidy)  # as where there is a screen
        await pilot.pause(0.05)
        assert not searches, "an answer is under way"
        answerer.hold.set()
        await until(pilot, lambda: searches)
        searches.clear()
        await pilot.press("a")
        await until(pilot, lambda: searches)
