"""The chat: writing, streaming, stopping, and what is kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from textual.widgets import Collapsible, Static

from localspec.chat.archive.archive import Archive
from localspec.chat.turn import Message
from localspec.models.installed import installed
from localspec.remote.answerer import Facts
from localspec.tui.widgets.meter import Meter
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def shown(bubble: Bubble) -> str:
    """The Markdown that an answer shows, all segments."""
    return "".join(part.text for text in bubble.texts for part in text.segments)


async def test_a_message_is_answered_and_kept(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("One *fine* answer.")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        user, answer = front(app).path
        assert (user.role, user.content) == ("user", "Hello")
        assert (answer.role, answer.content, answer.state) == ("assistant", "One *fine* answer.", "done")
        bubbles = front(app).transcript.bubbles
        assert [bubble.message.id for bubble in bubbles] == [user.id, answer.id]
        assert shown(bubbles[1]) == "One *fine* answer."
        assert front(app).composer.text == ""
        assert answer.seed is not None
    assert archive.path(archive.last_chat().id)[1].content == "One *fine* answer."  # type: ignore[union-attr]


async def test_the_model_sees_the_conversation(make_app: MakeApp) -> None:
    app = make_app("first", "second", begin={"system": "Be brief."})
    async with app.run_test() as pilot:
        await say(pilot, "one")
        await say(pilot, "two")
        messages = app.session.answerer.questions[1].messages  # type: ignore[attr-defined]
        assert list(messages) == [
            Message("system", "Be brief."),
            Message("user", "one"),
            Message("assistant", "first"),
            Message("user", "two"),
        ]


async def test_typing_and_sending_is_possible_while_the_model_loads(make_app: MakeApp) -> None:
    load = threading.Event()
    answerer = ReplayAnswerer(Recording([Recorded.of_text("Here I am.")], {}), load=load)
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "Loading the target" in str(app.query_one(Meter).content))
        await pilot.press(*"Hi", "enter")
        await until(pilot, lambda: len(front(app).path) == 2)
        load.set()
        await answered(pilot)
        assert front(app).path[1].content == "Here I am."
        await until(pilot, lambda: "bundled pair" in str(app.query_one(Meter).content))


async def test_escape_stops_at_once_and_keeps_what_came(make_app: MakeApp) -> None:
    words = "word " * 4000
    answerer = ReplayAnswerer(Recording([Recorded.of_text(words, 40)], {}), pause=0.03)
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: "word word" in shown(front(app).transcript.bubbles[-1]))
        await pilot.press("escape")
        await until(pilot, lambda: front(app).answer is None)
        await answered(pilot)
        stored = front(app).path[1]
        assert stored.state == "stopped"
        assert 0 < len(stored.content) < len(words)
        assert shown(front(app).transcript.bubbles[-1]) == stored.content


async def test_an_answer_streams_in_parts_and_is_painted_whole_at_its_end(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(
        Recording([Recorded.of_text("# A\n\n```python\nx = 1\n```\n\n- one\n- two\n")], {}), pause=0.01
    )
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 2 and "- one" in shown(front(app).transcript.bubbles[-1]))
        assert front(app).answer is not None
        answerer.hold.set()
        await answered(pilot)
        bubble = front(app).transcript.bubbles[-1]
        (text,) = bubble.texts
        drawn = [text.render_line(y).text.rstrip() for y in range(text.size.height)]
        assert drawn == ["A", "", "  code 1 · python", "  x = 1", "", " • one", " • two"]


async def test_thinking_is_apart_and_folded(make_app: MakeApp) -> None:
    app = make_app("<think>\nLet me see.\n</think>\n\nFour.")
    async with app.run_test() as pilot:
        await say(pilot, "2 + 2?")
        answer = front(app).path[1]
        assert (answer.reasoning.strip(), answer.content) == ("Let me see.", "Four.")
        fold = front(app).transcript.bubbles[1].query_one(Collapsible)
        assert fold.display
        assert fold.collapsed
        front(app).transcript.bubbles[1].focus()
        await pilot.press("t")
        await until(pilot, lambda: not fold.collapsed)


async def test_an_error_of_the_model_is_said_and_the_chat_goes_on(make_app: MakeApp) -> None:
    app = make_app("fine", begin={"seed": 3})
    async with app.run_test() as pilot:
        app.session.archive.update_chat(front(app).chat_id, params={"temperature": -1.0})
        front(app).composer.put("Hello")
        await pilot.press("enter")
        await until(pilot, lambda: any("temperature" in note.message for note in app._notifications))
        app.session.archive.update_chat(front(app).chat_id, params={})
        await pilot.press("ctrl+r")
        await answered(pilot)
        assert front(app).path[-1].content == "fine"


async def test_figures_of_the_recording_are_stored_and_shown(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await say(pilot, "Repeat")
        answer = front(app).path[1]
        assert answer.stats["generated_tokens"] > 5
        assert f"{answer.stats['generated_tokens']} tokens" in str(
            front(app).transcript.bubbles[1].query_one(".foot").content  # type: ignore[attr-defined]
        )
        assert app.session.archive.replay(answer.id).passes


async def test_the_last_chat_and_its_unsent_text_come_back(make_app: MakeApp, archive: Archive) -> None:
    app = make_app("A.")
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        await pilot.press(*"draft")
        await pilot.press("ctrl+q")
    again = make_app("B.")
    async with again.run_test() as pilot:
        assert [message.content for message in front(again).path] == ["Hello", "A."]
        assert front(again).composer.text == "draft"
    fresh = make_app("C.", resume=False)
    async with fresh.run_test() as pilot:
        await pilot.pause()
        assert front(fresh).path == []


@pytest.mark.parametrize(("can_think", "asked"), [(True, False), (False, None)])
async def test_thinking_is_switched_where_the_template_has_a_switch(
    make_app: MakeApp, can_think: bool, asked: bool | None
) -> None:
    facts = Facts("thinker", context=4096, can_think=can_think)
    answerer = ReplayAnswerer(Recording([Recorded.of_text("So.")], {}, facts))
    app = make_app(answerer=answerer, begin={"thinking": False})
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await say(pilot, "Hello")
        assert answerer.questions[0].thinking is asked


async def test_a_stopped_thought_goes_on_as_a_thought(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(Recording([Recorded.of_text("<think>first half"), Recorded.of_text("rest")], {}))
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await say(pilot, "Hello")
        front(app).composer.put("/continue")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: len(answerer.questions) == 2)
        await answered(pilot)
        assert (answerer.questions[1].reasoning, answerer.questions[1].prefix) == ("first half", "")


async def test_thinking_is_ended_by_a_key_and_the_answer_begins(make_app: MakeApp) -> None:
    answers = [Recorded.of_text("<think>first half of it"), Recorded.of_text("So: four.")]
    answerer = ReplayAnswerer(Recording(answers, {}))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await pilot.press("ctrl+t")
        assert answerer.questions == []
        front(app).composer.put("2 + 2?")
        await pilot.press("enter")
        await until(
            pilot, lambda: "first" in str(front(app).transcript.bubbles[-1].query_one(".thoughts", Static).content)
        )
        front(app).composer.put("And 3 + 3?")
        await pilot.press("enter", "ctrl+t")
        await until(pilot, lambda: len(answerer.questions) == 2)
        begun = answerer.questions[1]
        assert (begun.thought_out, begun.prefix, begun.messages) == (True, "", answerer.questions[0].messages)
        assert "first half of it".startswith(begun.reasoning)
        assert begun.reasoning
        await until(pilot, lambda: front(app).path[1].content)
        await pilot.press("ctrl+t")  # it answers: there is nothing to end
        answerer.hold.set()
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        assert len(answerer.questions) == 3
        assert not answerer.questions[2].thought_out
        first = front(app).path[1]
        assert (first.state, first.reasoning, first.content) == ("done", begun.reasoning, "So: four.")
        assert all(part.collapsed for part in front(app).transcript.query(Collapsible))


async def test_the_thinking_of_an_endpoint_cannot_be_ended(make_app: MakeApp) -> None:
    facts = Facts("far", remote=True, can_think=True)
    answerer = ReplayAnswerer(Recording([Recorded.of_text("<think>on and on")], {}, facts))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("2 + 2?")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).transcript.bubbles[-1].query(".thoughts"))
        await pilot.press("ctrl+t")
        assert [note.message for note in app._notifications] == [
            "A server's thinking cannot be ended early; Esc stops its answer."
        ]
        assert (len(answerer.questions), front(app).answer is None) == (1, False)
        await pilot.press("escape")
        answerer.hold.set()


async def test_ctrl_c_stops_the_answer_and_twice_leaves(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(Recording([Recorded.of_text("word " * 4000, 40)], {}), pause=0.03)
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: "word word" in shown(front(app).transcript.bubbles[-1]))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: front(app).answer is None)
        assert front(app).path[1].state == "stopped"
        assert app.is_running
        app._interrupted -= 60  # a minute later
        await pilot.press("ctrl+c")
        assert app.is_running
        await pilot.press("ctrl+c")
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0


async def test_ctrl_c_copies_what_is_marked(make_app: MakeApp) -> None:
    app = make_app("Yes.")
    async with app.run_test() as pilot:
        front(app).composer.put("some words")
        front(app).composer.select_all()
        await pilot.press("ctrl+c", "ctrl+c", "ctrl+c")
        assert (app.clipboard, app.is_running) == ("some words", True)


async def test_a_chosen_model_answers_at_later_starts(make_app: MakeApp) -> None:
    made = []

    def make(target: str | None, draft: str | None, settings: dict[str, Any]) -> ReplayAnswerer:
        made.append((target, draft))
        return ReplayAnswerer(Recording([Recorded.of_text("Yes.")], {}))

    app = make_app("No.", make=make)
    async with app.run_test() as pilot:
        front(app).composer.put("/model tiny-draft")
        await pilot.press("enter")
        await until(pilot, lambda: made == [("tiny-draft", None)])
        assert front(app).chat.model == "tiny-draft"
        assert installed.default() == installed.DefaultModel("tiny-draft")
        app.chat_screen.load(*app.session.named)
        assert made[1:] == [("tiny-draft", None)], "the model in use, not the first one"
        front(app).composer.put("/model nosuch")
        await pilot.press("enter")
        await until(pilot, lambda: "No model is called 'nosuch'" in str([*app._notifications]))
        assert installed.default() == installed.DefaultModel("tiny-draft")
