"""Tools in the chat: a scripted model, real servers, and what a user sees and is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Collapsible, Static
from textual.widgets._collapsible import CollapsibleTitle

from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.remote.answerer import Question
from localspec.tools.servers import Server
from localspec.tools.toolbox import REFUSED, FolderFile
from localspec.tui.screens.settings import SettingsScreen
from localspec.tui.screens.tools import ToolsScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.composer import WrittenPrompt
from localspec.tui.widgets.dialogs import ChoiceDialog
from localspec.tui.widgets.transcript import Bubble
from tests.tools.conftest import demo
from tests.tools.scripted import Said, Scripted, call
from tests.tools.server import TOOLS
from tests.tui.conftest import MakeApp, answered, front, say, until

pytestmark = pytest.mark.asyncio

ADD, SAY, HANG = call("add", a=2, b=3), call("say", text="Good day."), call("hang")
DONE = Said("It is done.")
CANCELLED = "Cancelled by the user."
Tooled = Callable[..., ChatApp]


@pytest.fixture
def tooled(make_app: MakeApp, folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tooled]:
    """`tooled(Said(...), ...)`: an app on a scripted model and a server; in the end no process of a server is left."""
    monkeypatch.setattr("localspec.tui.widgets.pane._SAVE_SECONDS", 0.05)
    made = list[ChatApp]()

    def make(*said: Said, servers: tuple[Server, ...] | None = None, **options: Any) -> ChatApp:
        servers = (demo(str(folders)),) if servers is None else servers
        made.append(make_app(answerer=Scripted(said), servers=servers, **options))
        return made[-1]

    yield make
    for app in made:
        app.session.close()
    assert not processes(folders)


def processes(folder: Path) -> list[str]:
    """The servers that a test has started, and that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        found += [path.parent.name] * (str(folder) in words)
    return found


async def begun(pilot: Pilot[Any], text: str = "Go") -> None:
    """Sends a message, and waits until its answer is under way."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
    front(app).composer.put(text)
    await pilot.press("enter")


async def asked(pilot: Pilot[Any]) -> ChoiceDialog[Any]:
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
    screen = pilot.app.screen
    assert isinstance(screen, ChoiceDialog)
    return screen


def question(app: ChatApp) -> str:
    return str(app.screen.query_one(".question", Static).content)


def drawn(app: ChatApp) -> str:
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


def results(app: ChatApp) -> list[str]:
    return [made.result for made in front(app).path[-1].calls]


def calls(app: ChatApp) -> list[Collapsible]:
    return list(front(app).query(".call").results(Collapsible))


async def test_a_call_is_asked_for_and_is_a_folded_line(tooled: Tooled) -> None:
    app = tooled(Said("I add.", [ADD]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await asked(pilot)
        assert question(app) == "Call a tool of demo?\n\nadd(a=2, b=3)"
        await pilot.press("enter")  # alone it answers nothing
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press("1", "enter")
        await answered(pilot)
        answer = front(app).path[-1]
        assert (answer.content, results(app)) == ("I add.\n\nIt is done.", ["5"])
        (line,) = calls(app)
        assert line.collapsed
        assert line.title.startswith("add(a=2, b=3), 0.")
        assert line.title.endswith(" s, 1 byte")
        await pilot.click(CollapsibleTitle)
        assert not line.collapsed
        assert "add(a=2, b=3)" in str(line.query_one(".result", Static).content)
        assert str(line.query_one(".result", Static).content).endswith("\n\n5")
        await pilot.press("ctrl+up", "t")
        await until(pilot, lambda: line.collapsed)


@pytest.mark.parametrize(
    ("keys", "result", "asks_again", "asks_elsewhere"),
    [
        (("1", "enter"), "Good day.", True, True),
        (("2", "enter"), "Good day.", False, True),
        (("3", "enter"), "Good day.", False, False),
        (("4", "enter"), REFUSED, True, True),
        (("escape",), REFUSED, True, True),
    ],
)
async def test_what_a_user_says_holds_as_long_as_it_says(
    tooled: Tooled, keys: tuple[str, ...], result: str, asks_again: bool, asks_elsewhere: bool
) -> None:
    app = tooled(Said(calls=[SAY]), DONE, Said(calls=[SAY]), DONE, Said(calls=[SAY]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await asked(pilot)
        await pilot.press(*keys)
        await answered(pilot)
        assert results(app) == [result]
        for new_chat, asks in ((False, asks_again), (True, asks_elsewhere)):
            if new_chat:
                await pilot.press("ctrl+n")
                await until(pilot, lambda: len(app.chat_screen.panes) == 2)
            await begun(pilot)
            if asks:
                await asked(pilot)
                await pilot.press("1", "enter")
            await until(pilot, lambda: len(front(app).path) == (2 if new_chat else 4))  # noqa: B023
            await answered(pilot)
            assert results(app) == ["Good day."]


async def test_long_arguments_are_all_there_to_be_read(tooled: Tooled) -> None:
    hidden = "\x9b31m\x90secret\x9c\u202e[bold]"
    text = hidden + " ".join(map(str, range(600)))
    long = ToolCall("1", "say", f'{{"text": "{text}"}}')
    app = tooled(Said(calls=[long]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        dialog = await asked(pilot)
        await until(pilot, lambda: "Do not call it" in drawn(app))
        assert "secret" in drawn(app), "what a terminal would hide is sent, too"
        assert "[bold]" in drawn(app)
        assert not any(0x7F <= ord(sign) < 0xA0 or sign == "\u202e" for sign in drawn(app))
        assert "598 599" not in drawn(app)
        await pilot.press("tab", *["pagedown"] * 12)
        assert "599" in drawn(app)
        assert "Do not call it" in drawn(app)
        await pilot.press("pageup")
        assert "599" not in drawn(app)
        assert dialog is app.screen
        await pilot.press("escape")
        await answered(pilot)


async def test_a_call_is_kept_branched_and_exported_and_read_without_servers(
    tooled: Tooled, make_app: MakeApp, folders: Path
) -> None:
    app = tooled(
        Said("I add.", [ADD], thinking="Hm."), Said("And now?", [SAY, call("add", a=1, b=4)]), DONE, unasked=True
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        assert front(app).path[-1].content == "I add.\n\nAnd now?\n\nIt is done."
        assert results(app) == ["5", "Good day.", "5"]
        assert [one.title.split("(")[0] for one in calls(app)] == ["add", "say", "add"]
    again = make_app("Still here.")
    async with again.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: len(calls(again)) == 3)
        await pilot.press("ctrl+up", "b")
        await until(pilot, lambda: len(again.chat_screen.panes) == 2)
        await until(pilot, lambda: len(calls(again)) == 3)
        await say(pilot, "And?")
        front(again).composer.put("/export chat.md")
        await pilot.press("enter")
        await until(pilot, lambda: Path("chat.md").exists())
        text = Path("chat.md").read_text(encoding="utf-8")
        assert "<summary>add(a=2, b=3), " in text
        assert "Good day." in text


async def test_calls_stand_where_they_were_made(tooled: Tooled) -> None:
    code = "```python\nx = 1\n```"
    app = tooled(Said(f"First.\n\n{code}", [ADD]), Said(calls=[SAY]), Said(f"Last.\n\n{code}", wait=True), unasked=True)

    def rows() -> list[str]:
        """What the answer shows, each of its texts and calls by its first word."""
        return re.findall(r"First|add|say|Last|code \d", drawn(app))

    async with app.run_test(size=(80, 40)) as pilot:
        await begun(pilot)
        await until(pilot, lambda: "code 2" in drawn(app))
        assert rows() == ["First", "code 1", "add", "say", "Last", "code 2"]
        parts = list(front(app).transcript.bubbles[-1]._parts)
        await pilot.press("escape")
        await until(pilot, lambda: front(app).path[-1].state == "stopped")
        await pilot.pause()
        assert front(app).transcript.bubbles[-1]._parts == parts, "what streamed in stays"
        await pilot.press("f6")
        await until(pilot, lambda: not front(app).transcript.bubbles[-1].texts)
        await until(pilot, lambda: rows()[-2:] == ["add", "say"])
        await pilot.press("f6", "f6", "f6")
        await until(pilot, lambda: rows() == ["First", "code 1", "add", "say", "Last", "code 2"])


async def test_servers_that_start_are_named_and_esc_waits_no_more(tooled: Tooled) -> None:
    app = tooled(DONE, servers=(demo("silent", name="slow"), demo("silent", name="git")))
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await until(pilot, lambda: "The servers start: slow, git ..." in drawn(app))
        await pilot.press("escape")
        await until(pilot, lambda: front(app).answer is None)
        await until(pilot, lambda: "The servers start" not in drawn(app))
        assert (front(app).path[-1].state, front(app).path[-1].content) == ("stopped", "")


async def test_a_call_under_way_is_shown_and_esc_ends_it(tooled: Tooled) -> None:
    app = tooled(Said("I wait.", [HANG]), DONE, unasked=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await until(pilot, lambda: "▷ hang() ..." in drawn(app))
        await pilot.press("escape")
        await until(pilot, lambda: front(app).answer is None and front(app).path[-1].state == "stopped")
        await until(pilot, lambda: "hang() ..." not in drawn(app) and "hang(), 0.0 s, cancelled" in drawn(app))
        assert (front(app).path[-1].content, results(app)) == ("I wait.", [CANCELLED])
        await say(pilot, "And now?")
        assert front(app).path[-1].content == "It is done."
        answerer = app.session.answerer
        assert isinstance(answerer, Scripted)
        assert [one.content for one in answerer.asked[-1].messages if one.role == "tool"] == [CANCELLED]


async def test_esc_ends_an_answer_after_a_call(tooled: Tooled) -> None:
    app = tooled(Said(calls=[ADD]), Said("It is", wait=True), DONE, unasked=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await until(pilot, lambda: "It is" in drawn(app))
        await pilot.press("escape")
        await until(pilot, lambda: front(app).path[-1].state == "stopped")
        assert (front(app).path[-1].content, results(app)) == ("It is", ["5"])
        await say(pilot, "And now?")
        assert front(app).path[-1].content == "It is done."


async def test_a_question_goes_when_its_answer_ends(tooled: Tooled) -> None:
    app = tooled(Said(calls=[ADD]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await asked(pilot)
        front(app).stop()
        await until(pilot, lambda: app.screen is app.chat_screen)
        await until(pilot, lambda: front(app).path[-1].state == "stopped")
        assert results(app) == [CANCELLED]
        await say(pilot, "And now?")
        assert front(app).path[-1].content == "It is done."


@pytest.mark.parametrize("wanted", ["asked", "hangs"])
@pytest.mark.parametrize("leaves", ["tab", "app"])
async def test_leaving_ends_everything(tooled: Tooled, folders: Path, wanted: str, leaves: str) -> None:
    app = tooled(Said(calls=[HANG]), DONE, unasked=wanted == "hangs")
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        if wanted == "asked":
            await asked(pilot)
        else:
            await until(pilot, lambda: "▷ hang() ..." in drawn(app))
        if leaves == "app":
            await pilot.press("ctrl+q")
            assert app._exit
            return
        await app.chat_screen.close_chat(front(app))
        await until(pilot, lambda: app.screen is app.chat_screen)
        await until(pilot, lambda: not processes(folders))
        await until(pilot, lambda: not front(app).path)


async def test_a_question_waits_until_its_chat_is_in_front(tooled: Tooled) -> None:
    app = tooled(Said(calls=[ADD]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        front(app).send(WrittenPrompt("Go"))
        await until(pilot, lambda: front(app).query(".running"))
        await until(pilot, lambda: "a call of add waits there" in notes(app))
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("escape")
        await asked(pilot)
        await pilot.press("1", "enter")
        await answered(pilot)
        assert results(app) == ["5"]


def notes(app: ChatApp) -> str:
    return "\n".join(note.message for note in app._notifications)


async def test_nobody_is_asked_while_they_write(tooled: Tooled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter at the end of a message is no consent."""
    app = tooled(Said(calls=[ADD]), DONE)
    monkeypatch.setattr("localspec.tui.widgets.pane._SAVE_SECONDS", 3600.0)  # each key was pressed just now
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(pilot)
        await until(pilot, lambda: front(app).query(".running"))
        await pilot.press(*"1 and 2")
        await pilot.pause(0.3)
        assert app.screen is app.chat_screen
        monkeypatch.setattr("localspec.tui.widgets.pane._SAVE_SECONDS", 0.0)
        await asked(pilot)
        await pilot.press("1", "enter")
        await answered(pilot)
        assert results(app) == ["5"]
        assert front(app).composer.text == "1 and 2"


async def test_two_chats_use_tools_at_once(tooled: Tooled) -> None:
    app = tooled(Said(calls=[ADD]), Said(calls=[SAY]), DONE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
        first = front(app)
        second = await app.chat_screen.open_chat()
        first.send(WrittenPrompt("Go"))
        await until(pilot, lambda: first.query(".running"))
        assert "a call of add waits there for your word" in notes(app)
        await begun(pilot)
        await asked(pilot)
        assert "say(" in question(app)
        await pilot.press("1", "enter")
        await answered(pilot)
        assert first.answer is not None
        app.chat_screen.action_tab(-1)
        await asked(pilot)
        assert "add(" in question(app)
        await pilot.press("4", "enter")
        await until(pilot, lambda: front(app) is first)
        await answered(pilot)
        assert [made.result for made in second.path[-1].calls] == ["Good day."]
        assert results(app) == [REFUSED]


async def test_a_server_that_does_not_start_is_said_once(tooled: Tooled, folders: Path) -> None:
    app = tooled(DONE, servers=(Server("gone", "/no/such/program"), demo("exit", name="ends"), demo(str(folders))))
    async with app.run_test(size=(120, 40)) as pilot:
        await say(pilot, "Go")
        assert front(app).path[-1].content == "It is done."
        assert notes(app).count("The server gone cannot be started: /no/such/program") == 1
        assert notes(app).count("The server ends ") == 1
        await pilot.pause()
        assert not app.chat_screen.panes[0].queue.prompts


async def test_a_result_is_only_text(tooled: Tooled) -> None:
    odd = "<|im_end|>[bold]x[/] [@click=app.quit]y[/]\x1b[2J\x1b]0;title\x07\\[red]"
    app = tooled(Said(calls=[call("say", text=odd)]), DONE, unasked=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await say(pilot, "Go")
        assert results(app) == [odd]
        (line,) = calls(app)
        line.collapsed = False
        await until(pilot, lambda: drawn(app).count("<|im_end|>[bold]x[/] [@click=app.quit]y[/]") == 3)
        assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in drawn(app).replace("\n", ""))
        scripted = app.session.answerer
        assert isinstance(scripted, Scripted)
        assert scripted.asked[1].messages[-1].content == odd


async def test_the_screen_of_tools(tooled: Tooled, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tooled(Said(calls=[SAY]), DONE)
    monkeypatch.setattr(Scripted, "count", lambda self, asked: 10 + 5 * len(asked.tools))
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(pilot)
        await asked(pilot)
        await pilot.press("3", "enter")
        await answered(pilot)
        app.chat_screen.open("tools")
        await until(
            pilot, lambda: f"{len(TOOLS)} tools are on; they take {5 * len(TOOLS)} tokens of the context." in drawn(app)
        )
        assert isinstance(app.screen, ToolsScreen)
        assert "● demo" in drawn(app)
        assert "● say  not asked  Gives a text." in drawn(app)
        await pilot.press("down", "down", "ctrl+d")
        await until(pilot, lambda: "not asked" not in drawn(app))
        await pilot.press("space")
        await until(pilot, lambda: f"{len(TOOLS) - 1} tools are on" in drawn(app))
        assert "○ say" in drawn(app)
        await pilot.press("up", "up", "space")
        await until(pilot, lambda: "0 tools are on" in drawn(app))
        assert "○ demo" in drawn(app)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat_screen)


async def test_tools_stand_under_their_server_and_a_folder_is_asked_for_again(
    tooled: Tooled, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = demo(str(folders)), replace(demo(str(folders)), name="second")
    entry = {"command": second.command, "args": second.args, "env": dict(second.env)}
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"second": entry}}))
    folder = FolderFile.find([])
    assert folder is not None
    app = tooled(DONE, servers=tuple(folder.added([first])))
    counted = list[int]()

    def count(scripted: Scripted, question: Question) -> int:
        counted.append(len(question.tools))
        return 10

    monkeypatch.setattr(Scripted, "count", count)
    async with app.run_test(size=(120, 60)) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
        app.chat_screen.open("tools")
        await until(pilot, lambda: "they take" in drawn(app))
        names = re.findall(r"[●○] (\w+)", drawn(app))
        assert names.index("second") == 0
        assert names.index("demo") == len(TOOLS) + 1
        assert names[1] == f"second__{TOOLS[0]['name']}"
        assert "second  not asked" in drawn(app)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: not folder.is_allowed)
        await until(pilot, lambda: "not asked" not in drawn(app))
        counted.clear()
        await pilot.press("space")
        await until(pilot, lambda: counted == [len(TOOLS)])


async def test_without_servers_the_screen_says_what_to_do(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None)
        front(app).composer.put("/tools")
        await pilot.press("enter")
        await until(pilot, lambda: "In a shell: localspec mcp add NAME -- COMMAND" in drawn(app))


async def test_private_chats_end_their_servers(tooled: Tooled, folders: Path) -> None:
    app = tooled(Said(calls=[ADD]), DONE, private=True, unasked=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        assert results(app) == ["5"]
        assert processes(folders) or not Path("/proc").exists()
        front(app).composer.put("/private")
        await pilot.press("enter")
        await until(pilot, lambda: not app.session.private and app.chat_screen.pane is not None)
        await until(pilot, lambda: not processes(folders))


async def test_read_only_tools_are_not_asked_for_if_that_is_wanted(tooled: Tooled) -> None:
    app = tooled(Said(calls=[ADD]), DONE, preferences=Preferences(read_only_tools=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        assert results(app) == ["5"]
        assert isinstance(front(app).transcript.bubbles[-1], Bubble)


async def test_calls_of_another_window_come_in(make_app: MakeApp) -> None:
    app = make_app("It is 5.")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        mine, answer = front(app).path
        for count in (1, 2, 2):
            await front(app).transcript.catch_up([mine, replace(answer, calls=(MadeCall(ADD, "5"),) * count)])
            assert len(calls(app)) == count
