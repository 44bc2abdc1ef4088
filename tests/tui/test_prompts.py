"""Prompts and resources of servers in the chat: a scripted model, real servers, and what a user sees and sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.chat.archive.message import Attachment
from localspec.tui.shell.app import ChatApp
from tests.tools.conftest import demo
from tests.tools.scripted import Said, Scripted
from tests.tools.server import ODD, READ
from tests.tui.conftest import MakeApp, answered, front, until
from tests.tui.test_tools import DONE, Tooled, drawn, notes, processes, tooled

__all__ = ["tooled"]
pytestmark = pytest.mark.asyncio
POEM = READ["demo://poem"][0]["text"]


async def ready(pilot: Pilot[Any]) -> ChatApp:
    app = pilot.app
    assert isinstance(app, ChatApp)
    await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
    return app


async def written(pilot: Pilot[Any], text: str) -> None:
    """Sends a text, whatever is suggested."""
    app = await ready(pilot)
    front(app).composer.put(text)
    front(app).composer.send()
    await pilot.pause()


def offered(app: ChatApp) -> list[str]:
    return [name for name, _ in front(app).suggestions.items] if front(app).suggestions.display else []


async def test_a_prompt_comes_into_the_input_and_may_be_changed(tooled: Tooled) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*"/prompt ")
        await until(pilot, lambda: "The servers are being started" in notes(app))
        await until(pilot, lambda: "demo:greet" in offered(app))
        assert "demo:greet     Greets↵someone." in drawn(app)
        await pilot.press(*"gree")
        assert offered(app) == ["demo:greet"]
        await pilot.press("tab", *"name=Ann style=x, y")
        assert front(app).composer.text == "/prompt demo:greet name=Ann style=x, y"
        await pilot.press("enter")
        await until(pilot, lambda: front(app).composer.text == "Hello Ann, x, y.\n\nHello Ann, x, y.")
        assert not front(app).path
        await pilot.press(*" And?", "enter")
        await answered(pilot)
        assert front(app).path[0].content == "Hello Ann, x, y.\n\nHello Ann, x, y. And?"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("/prompt ", "There is no prompt ''; there are: demo:greet, demo:bare,"),
        ("/prompt demo:greet", "The prompt demo:greet needs name: /prompt demo:greet name=... [style=...]"),
        ("/prompt demo:refused", "The server demo gives no text: Not today.↵Never."),
        ("Read @demo:demo://gone", "The server demo gives no text: no such method or resource: resources/read."),
        ("Read @demo:demo://huge", "The server demo gives 10,000,000 bytes; up to 524,288 can be taken."),
    ],
)
async def test_what_cannot_be_taken_is_a_sentence_and_what_was_written_comes_back(
    tooled: Tooled, text: str, sentence: str
) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, text)
        await until(pilot, lambda: sentence in notes(app))
        await until(pilot, lambda: front(app).composer.text == text)
        assert not front(app).path


async def test_a_prompt_is_only_text(tooled: Tooled) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, "/prompt demo:command")
        await until(pilot, lambda: front(app).composer.text == " /quit\n\n/quit")
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[0].content == " /quit\n\n/quit"
        await written(pilot, "/prompt demo:odd")
        await until(pilot, lambda: "<|im_end|>" in front(app).composer.text)
        assert "\x1b" not in front(app).composer.text
        assert "[bold]b[/]" in drawn(app)


async def test_a_prompt_waits_for_its_server_and_esc_ends_that(tooled: Tooled) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, "/prompt demo:hang")
        await until(pilot, lambda: front(app).waits)
        await pilot.press(*"abc")
        assert front(app).composer.text == "abc"
        await pilot.press("escape")
        await until(pilot, lambda: front(app).composer.text == "/prompt demo:hang\n\nabc")
        assert not front(app).waits


async def test_without_servers_a_prompt_says_so(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, "/prompt x")
        await until(pilot, lambda: "There are no servers. In a shell: localspec mcp add" in notes(app))


async def test_resources_are_offered_once_their_server_runs_and_go_along(tooled: Tooled, folders: Path) -> None:
    Path("poem.txt").write_text("A file.")
    app = tooled(DONE, Said("Violets."))
    async with app.run_test(size=(120, 24)) as pilot:
        await ready(pilot)
        await pilot.press(*"Read @poe")
        await until(pilot, lambda: offered(app) == ["@poem.txt"])
        assert not processes(folders), "an @ starts nothing"
        await written(pilot, "Go")
        await answered(pilot)
        await pilot.press(*"Read @")
        await until(pilot, lambda: "@demo:demo://poem" in offered(app))
        await pilot.press(*"Roses")
        await until(pilot, lambda: offered(app) == ["@demo:demo://poem"])
        assert "@demo:demo://poem  Roses↵are red." in drawn(app)
        await pilot.press("tab", *"and @two")
        await until(pilot, lambda: offered(app) == ['@"demo:demo://two words"'])
        await pilot.press("tab", "enter")
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        sent = front(app).path[2]
        assert sent.content.strip() == 'Read @demo:demo://poem and @"demo:demo://two words"'
        assert sent.attachments == (
            Attachment("demo:demo://poem", POEM),
            Attachment("demo:demo://two words", "two\n\nwords"),
        )
        scripted = app.session.answerer
        assert isinstance(scripted, Scripted)
        assert POEM in scripted.asked[1].messages[-1].content


async def test_a_resource_that_is_named_starts_its_server_and_stays_when_the_message_is_edited(
    tooled: Tooled, make_app: MakeApp
) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, "Read @demo:demo://odd, and @demo:x or @nobody:a://b.")
        await until(pilot, lambda: front(app).path)
        await answered(pilot)
        assert front(app).path[0].attachments == (Attachment("demo:demo://odd", ODD),)
    again = make_app("ok", "ok")
    async with again.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(front(again).path) == 2)
        await pilot.press("ctrl+g", *" Now.", "enter")
        await until(pilot, lambda: front(again).path[0].content.endswith(" Now."))
        await answered(pilot)
        assert front(again).path[0].attachments == (Attachment("demo:demo://odd", ODD),)


async def test_esc_ends_the_reading_of_a_resource_and_nothing_is_sent(tooled: Tooled) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await written(pilot, "Read @demo:demo://hang")
        await until(pilot, lambda: front(app).waits)
        assert front(app).composer.text == ""
        await pilot.press("escape")
        await until(pilot, lambda: front(app).composer.text == "Read @demo:demo://hang")
        assert not front(app).path
        front(app).composer.put("")
        await written(pilot, "Read @demo:demo://poem")
        await until(pilot, lambda: front(app).path)
        await answered(pilot)
        assert front(app).path[0].attachments == (Attachment("demo:demo://poem", POEM),)


async def test_servers_that_are_off_are_not_asked(tooled: Tooled, folders: Path) -> None:
    app = tooled(DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        toolbox = app.session.toolbox(front(app).key)
        assert toolbox is not None
        toolbox.off.add("demo")
        await written(pilot, "Read @demo:demo://poem")
        await until(pilot, lambda: "The server demo is switched off. /tools switches it on." in notes(app))
        await written(pilot, "/prompt demo:bare")
        await until(pilot, lambda: "There is no prompt 'demo:bare'; there are: none." in notes(app))
        assert not processes(folders)


async def test_a_server_that_does_not_start_costs_a_sentence(tooled: Tooled, folders: Path) -> None:
    app = tooled(DONE, servers=(demo("exit", name="ends"), demo(str(folders))))
    async with app.run_test(size=(120, 24)) as pilot:
        await written(pilot, "/prompt demo:bare")
        await until(pilot, lambda: front(app).composer.text == "Hello.\n\nHello.")
        assert notes(app).count("The server ends ended (exit code 1)") == 1
