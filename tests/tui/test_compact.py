"""`/compact`: the model goes on with a summary of its own, and the chat keeps every word."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Collapsible

from localspec.chat.archive.archive import Archive
from localspec.remote.answerer import Facts
from localspec.remote.asking import ServedAnswerer
from localspec.runner.answering import ChildAnswerer
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences, Session
from localspec.tui.widgets.transcript import Seam
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.endpoint import Endpoint, served
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def small(*texts: str, context: int = 1000) -> ReplayAnswerer:
    """A model whose context holds so many tokens, a quarter of a token a character."""
    recording = Recording([Recorded.of_text(text) for text in texts], {}, Facts("small", context=context))
    return ReplayAnswerer(recording)


async def command(pilot: Pilot[Any], text: str) -> None:
    app = pilot.app
    assert isinstance(app, ChatApp)
    front(app).composer.put(text)
    await pilot.press("enter")


async def filled(pilot: Pilot[Any]) -> None:
    """Two turns: the first has 200 tokens, the second 25."""
    await say(pilot, "zebra " * 130)
    await say(pilot, "second " * 12)


def seams(app: ChatApp) -> list[Seam]:
    return list(front(app).transcript.query(Seam))


def noted(app: ChatApp, words: str) -> bool:
    return any(words in note.message for note in app._notifications)


async def test_the_model_goes_on_with_its_summary_and_every_word_stays(make_app: MakeApp) -> None:
    answerer = small("one", "two", "They spoke of [zebras].", "three")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        before = front(app).path
        await command(pilot, "/compact")
        await until(pilot, lambda: noted(app, "goes on with a summary"))
        asked = answerer.questions[2].messages
        assert [message.role for message in asked] == ["user", "assistant", "user"]
        assert "Summarise" in asked[2].content
        assert front(app).path == before, "the chat is as it was"
        (seam,) = seams(app)
        assert seam.parent is front(app).transcript.bubble(before[2].id)
        assert seam.query_one(Collapsible).collapsed
        assert str(seam.query_one(".summary").content) == "They spoke of [zebras]."  # type: ignore[attr-defined]
        await say(pilot, "Go on")
        sent = answerer.questions[3].messages
        assert [message.role for message in sent] == ["system", "user", "assistant", "user"]
        assert "They spoke of [zebras]." in sent[0].content
        assert not any("zebra zebra" in message.content for message in sent)
        assert before[0].id in {hit.message_id for hit in app.session.archive.search("zebra")}


async def test_it_survives_a_restart_and_can_be_undone(make_app: MakeApp, archive: Archive) -> None:
    app = make_app(answerer=small("one", "two", "A summary."))
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        await command(pilot, "/compact")
        await until(pilot, lambda: seams(app))
    assert archive.file is not None
    with Archive.open(archive.file) as again:
        answerer = small("three", "four")
        app = ChatApp(Session(answerer, again, Preferences()))
        async with app.run_test(size=(100, 40)) as pilot:
            await until(pilot, lambda: app.session.facts is not None and seams(app))
            await say(pilot, "Go on")
            assert "A summary." in answerer.questions[0].messages[0].content
            await command(pilot, "/compact off")
            await until(pilot, lambda: not seams(app))
            await say(pilot, "And now?")
            assert "zebra zebra" in answerer.questions[1].messages[0].content
            await command(pilot, "/compact of")
            await until(pilot, lambda: noted(app, "takes no 'of'"))


async def test_escape_stops_it_and_changes_nothing(make_app: MakeApp) -> None:
    answerer = small("one", "two", "A summary of everything that was said.", "three")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        answerer.hold = threading.Event()
        await command(pilot, "/compact")
        await until(pilot, lambda: "words so far" in str(front(app).compactor.content))
        assert front(app).compactor.display
        await command(pilot, "later")
        assert [prompt.text for prompt in front(app).queue.prompts] == ["later"]
        await command(pilot, "/compact")
        await until(pilot, lambda: noted(app, "summary is under way"))
        await pilot.press("escape")
        await until(pilot, lambda: noted(app, "The summary was stopped"))
        answerer.hold.set()
        assert front(app).composer.text == "later"
        assert not front(app).compactor.display
        assert front(app).chat.window_first is None
        assert not seams(app)
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 6)
        await answered(pilot)
        assert "zebra zebra" in answerer.questions[3].messages[0].content


async def test_closing_the_tab_stops_it(make_app: MakeApp) -> None:
    answerer = small("one", "two", "A summary of everything that was said.")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        answerer.hold = threading.Event()
        await command(pilot, "/compact")
        await until(pilot, lambda: front(app).compactor.writing)
        pane = front(app)
        await pilot.press("ctrl+f4")
        await until(pilot, lambda: front(app) is not pane and not pane.is_attached)
        await until(pilot, lambda: not any(worker.group == "compact" for worker in app.workers))
        answerer.hold.set()
        assert not pane.compactor.writing
        assert app.session.archive.chat(pane.chat_id).window_first is None


async def test_what_is_sent_meanwhile_is_answered_after_it(make_app: MakeApp) -> None:
    answerer = small("one", "two", "A summary.", "three")
    app = make_app(answerer=answerer)
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        answerer.hold = threading.Event()
        await command(pilot, "/compact")
        await until(pilot, lambda: front(app).compactor.writing)
        await command(pilot, "later")
        answerer.hold.set()
        await until(pilot, lambda: len(front(app).path) == 6)
        await answered(pilot)
        assert front(app).path[4].content == "later"
        assert "A summary." in answerer.questions[3].messages[0].content


async def test_it_is_offered_when_the_context_is_nearly_full(make_app: MakeApp) -> None:
    answerer = small("one", "two", "A summary.", context=280)
    app = make_app(answerer=answerer)
    async with app.run_test(size=(40, 24)) as pilot:
        line = front(app).compactor
        await say(pilot, "zebra " * 130)
        assert not line.display, "there is nothing before the last message"
        await say(pilot, "second")
        await until(pilot, lambda: line.display)
        assert "/compact goes on with a summary" in str(line.content)
        assert line.region.height == 1
        await pilot.click(line)
        await until(pilot, lambda: seams(app))
        await until(pilot, lambda: not line.display)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (("one", "two", " "), "The model wrote no summary; nothing is changed."),
        (("one", "two", "long " * 300), "The summary is as long as what it would stand for; nothing is changed."),
    ],
)
async def test_a_summary_that_is_none_changes_nothing(make_app: MakeApp, texts: tuple[str, ...], sentence: str) -> None:
    app = make_app(answerer=small(*texts))
    async with app.run_test(size=(100, 40)) as pilot:
        await command(pilot, "/compact")
        await until(pilot, lambda: noted(app, "nothing before your last message") or noted(app, "none is ready yet"))
        await filled(pilot)
        await command(pilot, "/compact")
        await until(pilot, lambda: noted(app, sentence))
        assert front(app).chat.window_first is None
        assert not front(app).busy


async def test_an_endpoint_summarises_too(make_app: MakeApp) -> None:
    with served(Endpoint()) as endpoint:
        remote = ServedAnswerer(endpoint.url)
        app = make_app(answerer=remote)
        async with app.run_test(size=(100, 40)) as pilot:
            await until(pilot, lambda: app.session.facts is not None)
            await filled(pilot)
            endpoint.deltas = [{"content": "They spoke "}, {"content": "of zebras."}]
            await command(pilot, "/compact")
            await until(pilot, lambda: seams(app))
            await say(pilot, "Go on")
            assert "They spoke of zebras." in endpoint.requests[3]["messages"][0]["content"]
            assert len(endpoint.requests[3]["messages"]) == 4
        await asyncio.to_thread(remote.close)


async def test_exports_to_read_show_the_summary_where_it_counts(make_app: MakeApp, folders: Path) -> None:
    app = make_app(answerer=small("one", "two", "About <zebras>."))
    async with app.run_test(size=(100, 40)) as pilot:
        await filled(pilot)
        await command(pilot, "/compact")
        await until(pilot, lambda: seams(app))
        chat = front(app).chat_id
        for kind, summary in (("markdown", "> About <zebras>."), ("html", "About &lt;zebras&gt;.")):
            text = app.session.archive.export([chat], kind)
            assert text.count(summary) == 1
            assert text.index("zebra zebra") < text.index("this summary instead") < text.index("second second")


async def test_the_mark_and_the_summary_are_whole_on_a_narrow_screen(make_app: MakeApp) -> None:
    app = make_app(answerer=small("one", "two", "Everybody spoke of zebras."))
    async with app.run_test(size=(20, 60)) as pilot:
        await filled(pilot)
        await command(pilot, "/compact")
        await until(pilot, lambda: seams(app))
        seams(app)[0].query_one(Collapsible).collapsed = False
        words = "The model sees a summary of what stands above Everybody spoke of zebras."
        await until(pilot, lambda: words in " ".join(screen(app).split()))


def screen(app: ChatApp) -> str:
    """What is seen of the mark, without its arrow."""
    seam = seams(app)[0].region
    strips = app.screen._compositor.render_strips()
    return " ".join(strip.crop(seam.x, seam.right).text for strip in strips[seam.y : seam.bottom]).replace("▼", "")


async def test_the_pair_itself_is_asked(make_app: MakeApp, live: ChildAnswerer) -> None:
    """It is too small to summarise well; it is asked all the same, and the chat goes on with what it says."""
    app = make_app(answerer=live, begin={"temperature": 0.0, "seed": 1})
    async with app.run_test(size=(100, 40)) as pilot:
        app.session.archive.update_chat(front(app).chat_id, params={"max_tokens": 10, "temperature": 0.0})
        for text in ("Repeat: " + "Maria bought 12 lanterns in Lisbon. " * 40, "Say: red house"):
            await say(pilot, text)
        await command(pilot, "/compact")
        await until(pilot, lambda: front(app).compactor.writing)
        await until(pilot, lambda: not front(app).busy)
        chat = front(app).chat
        assert (chat.window_first is not None) == noted(app, "goes on with a summary"), [
            note.message for note in app._notifications
        ]
        before = front(app).path[-1].stats["prompt_tokens"]
        await say(pilot, "Say: blue boat")
        assert (front(app).path[-1].stats["prompt_tokens"] < before) == (chat.window_first is not None)
