"""A chat that outgrows its context: it is said before, and the person decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from localspec.remote.answerer import Facts, Question, Sink
from localspec.runner.answering import ChildAnswer
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import ChoiceDialog
from localspec.tui.widgets.meter import Meter
from tests.tui.conftest import MakeApp, answered, front, of_child, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def small(*texts: str) -> ReplayAnswerer:
    """A model whose context holds 600 tokens, a quarter of a token a character."""
    return ReplayAnswerer(Recording([Recorded.of_text(text) for text in texts], {}, Facts("small", context=600)))


async def filled(pilot: Pilot[Any], app: ChatApp) -> None:
    """A chat with two turns of about 200 tokens each, and the question whether a third may follow."""
    await say(pilot, "first " * 130)
    await say(pilot, "second " * 110)
    front(app).composer.put("third " * 50)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
    await pilot.pause(0.05)


async def test_the_oldest_messages_can_be_left_out(make_app: MakeApp) -> None:
    answerer = small("one", "two", "three")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await filled(pilot, app)
        assert len(answerer.questions) == 2
        await pilot.press("enter")
        await until(pilot, lambda: len(answerer.questions) == 3)
        await answered(pilot)
        sent = " ".join(message.content for message in answerer.questions[2].messages)
        assert "first" not in sent
        assert "third" in sent
        assert len(front(app).path) == 6  # nothing is gone from the chat
        tokens = answerer.count(answerer.questions[2])
        assert tokens is not None
        assert tokens < 600 - 150


async def test_or_summarised(make_app: MakeApp) -> None:
    answerer = small("one", "two", "They spoke of firsts.", "four")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await filled(pilot, app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: len(answerer.questions) == 4)
        await answered(pilot)
        assert "Summarise" in answerer.questions[2].messages[-1].content
        assert "They spoke of firsts." in answerer.questions[3].messages[0].content
        assert "first first" not in answerer.questions[3].messages[0].content
        assert front(app).path[-1].content == "four"


async def test_or_asked_in_a_new_chat(make_app: MakeApp) -> None:
    answerer = small("one", "two", "three")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await filled(pilot, app)
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: len(answerer.questions) == 3)
        await answered(pilot)
        assert [message.content for message in answerer.questions[2].messages] == ["third " * 50]
        assert len(app.chat_screen.panes) == 2


async def test_or_shortened(make_app: MakeApp) -> None:
    answerer = small("one", "two", "three")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await filled(pilot, app)
        await pilot.press("escape")
        await until(pilot, lambda: front(app).editing is not None)
        assert front(app).composer.text == "third " * 50


async def test_a_message_that_can_never_fit_is_said(make_app: MakeApp) -> None:
    answerer = small("one")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("word " * 600)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.pause(0.05)
        asked = str(app.screen.query_one(".question", Static).content)
        tokens = answerer.count(front(app).question())
        assert asked.startswith(f"Your message alone is too long: there are {tokens} tokens, and 150 more are for the")
        assert "the context holds 600. `localspec --context N` begins with a larger one." in asked
        labels = [str(option.prompt).split("\n")[0] for option in app.screen.query_one(OptionList).options]
        assert labels == ["Let me shorten it"]
        await pilot.press("enter")
        await until(pilot, lambda: front(app).editing is not None)
        assert not answerer.questions


async def test_an_attachment_that_is_too_long_can_be_taken_out(make_app: MakeApp) -> None:
    answerer = small("one")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("see ")
        front(app).composer.fold("row\n" * 700)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: front(app).composer.text == "see  [pasted text 1: 700 lines]")
        await pilot.press("backspace")
        assert front(app).composer.text == "see  "
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[0].attachments == ()
        assert len(front(app).path[0].siblings) == 2


async def test_what_an_edit_still_names_is_kept(make_app: MakeApp, folders: Path) -> None:
    Path("a.md").write_text("A")
    app = make_app("one", "two", "three")
    async with app.run_test() as pilot:
        front(app).composer.put("see @a.md ")
        front(app).composer.fold("row\n" * 9)
        await pilot.press("enter")
        await answered(pilot)
        Path("a.md").unlink()
        await pilot.press("ctrl+g")
        assert front(app).composer.text == "see @a.md  [pasted text 1: 9 lines]"
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path[-1].content == "two")
        assert [one.name for one in front(app).path[0].attachments] == ["a.md", "pasted text 1"]
        await answered(pilot)
        await pilot.press("ctrl+g")
        front(app).composer.put("see [pasted text 1: 9 lines]")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path[-1].content == "three")
        assert [one.name for one in front(app).path[0].attachments] == ["pasted text 1"]


async def test_the_status_shows_how_full_the_context_is(make_app: MakeApp) -> None:
    app = make_app(answerer=small("one"))
    async with app.run_test(size=(120, 24)) as pilot:
        await say(pilot, "first " * 130)
        await until(pilot, lambda: "context 3" in str(app.query_one(Meter).content))


async def test_who_has_the_models_says_that_it_does_not_fit_and_nothing_is_counted_before(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, calls = of_child(context=512), list[str]()
    count, answer = local.count, local.answer

    def counting(question: Question) -> int | None:
        calls.append("count")
        return count(question)

    def answering(question: Question, sink: Sink) -> ChildAnswer:
        calls.append("answer")
        return answer(question, sink)

    monkeypatch.setattr(local, "count", counting)
    monkeypatch.setattr(local, "answer", answering)
    app = make_app(answerer=local, begin={"temperature": 0.0, "max_tokens": 20})
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        calls.clear()
        await say(pilot, "Say: red house")
        assert calls == ["answer", "count"]
        calls.clear()
        front(app).composer.put("word " * 600)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.pause(0.05)
        assert calls[:2] == ["answer", "count"]
        asked = str(app.screen.query_one(".question", Static).content)
        tokens = count(front(app).question())
        assert asked.startswith(
            f"Your message alone is too long: there are {tokens:,} tokens, and 128 more are for the"
        )
        assert "the context holds 512. `localspec --context N` begins with a larger one." in asked
        assert [message.role for message in front(app).path] == ["user", "assistant", "user"]
        assert front(app).answer is None
        await pilot.press("enter")
        await until(pilot, lambda: front(app).editing is not None)
        front(app).composer.put("Say: blue boat")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path[-1].role == "assistant")
        await answered(pilot)
        assert front(app).path[-1].state == "done"
        assert front(app).context_tokens is not None
    local.close()
