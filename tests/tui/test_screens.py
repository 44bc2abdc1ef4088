"""History, parameters, settings, help, tabs, palette, keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static, TextArea

from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.history import HistoryScreen
from localspec.tui.screens.settings import ParametersScreen, SettingsScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.dialogs import ChoiceDialog, Line
from localspec.tui.widgets.registry import commands, read_keys
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio


async def opened(pilot: Pilot[Any], kind: type) -> Any:
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    await pilot.pause(0.05)
    return pilot.app.screen


def said(app: ChatApp, part: str) -> bool:
    return any(part in note.message for note in app._notifications)


async def test_tabs(make_app: MakeApp) -> None:
    app = make_app("a", "b")
    async with app.run_test() as pilot:
        await say(pilot, "one")
        first = front(app).chat_id
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).chat_id != first)
        await say(pilot, "two")
        assert [message.content for message in front(app).path] == ["two", "b"]
        await pilot.press("ctrl+pageup")
        await until(pilot, lambda: front(app).chat_id == first)
        await pilot.press("ctrl+f4")
        await until(pilot, lambda: front(app).chat_id != first)
        await pilot.press("ctrl+f4")
        await until(pilot, lambda: front(app).path == [])
        assert len(app.chat_screen.panes) == 1


async def test_an_answer_goes_on_in_its_tab_while_another_is_in_front(make_app: MakeApp) -> None:
    app = make_app("slow " * 50, "b")
    async with app.run_test() as pilot:
        front(app).composer.put("one")
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 2)
        first = front(app)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app) is not first)
        await until(pilot, lambda: first.answer is None and first.path[-1].state == "done")
        assert first.path[-1].content == "slow " * 50


async def test_history_finds_opens_renames_tags_pins_deletes_and_undoes(make_app: MakeApp) -> None:
    app = make_app("the moon is far", "the sun is hot")
    async with app.run_test(size=(120, 40)) as pilot:
        await say(pilot, "moon?")
        await pilot.press("ctrl+n")
        await pilot.pause()
        await say(pilot, "sun?")
        await pilot.press("f4")
        screen = await opened(pilot, HistoryScreen)
        entries = screen.query_one("#entries", OptionList)
        await until(pilot, lambda: entries.option_count == 2)
        await pilot.press(*"far")
        await until(pilot, lambda: entries.option_count == 1)
        await pilot.press("ctrl+t")
        line = await opened(pilot, Line)
        line.query_one(Input).value = "Astronomy"
        await pilot.press("enter")
        await opened(pilot, HistoryScreen)
        await pilot.press("ctrl+g")
        line = await opened(pilot, Line)
        line.query_one(Input).value = "space night"
        await pilot.press("enter")
        await opened(pilot, HistoryScreen)
        await pilot.press("ctrl+b")
        chat = app.session.archive.chats()[0]
        assert (chat.title, chat.tags, chat.pinned) == ("Astronomy", ("night", "space"), True)
        screen.query_one("#words", Input).value = "#space"
        await until(pilot, lambda: entries.option_count == 1)
        await pilot.press("ctrl+d")
        await until(pilot, lambda: entries.option_count == 0)
        await pilot.press("ctrl+u")
        await until(pilot, lambda: entries.option_count == 1)
        screen.query_one("#words", Input).value = "moon far"
        await pilot.pause(0.1)
        screen.query_one("#words", Input).value = "far"
        await until(pilot, lambda: entries.option_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 1 and isinstance(app.focused, Bubble))
        assert app.focused.message.content == "the moon is far"  # type: ignore[union-attr]


async def test_parameters_of_a_chat_reach_the_model(make_app: MakeApp) -> None:
    app = make_app("a", "b")
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("f3")
        screen = await opened(pilot, ParametersScreen)
        screen.query_one("#system", TextArea).text = "Speak like a pirate."
        screen.query_one("#chat-temperature", Input).value = "0.3"
        screen.query_one("#chat-max_tokens", Input).value = "many"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: said(app, "max tokens is 'many'"))
        screen.query_one("#chat-max_tokens", Input).value = "50"
        screen.query_one("#chat-stop", Input).value = "END, STOP"
        await pilot.press("ctrl+k")
        line = await opened(pilot, Line)
        line.query_one(Input).value = "pirate"
        await pilot.press("enter")
        await opened(pilot, ParametersScreen)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await say(pilot, "Hello")
        question = app.session.answerer.questions[0]  # type: ignore[attr-defined]
        assert question.messages[0].content == "Speak like a pirate."
        assert (question.sampling.temperature, question.max_tokens, question.stop) == (0.3, 50, ("END", "STOP"))
        await pilot.press("ctrl+n")
        await pilot.pause()
        front(app).composer.put("/preset pirate")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: front(app).chat.system == "Speak like a pirate.")
        assert front(app).chat.params["temperature"] == 0.3


async def test_a_preset_fills_the_form_and_can_be_deleted(make_app: MakeApp) -> None:
    from localspec.chat.archive.message import Preset

    app = make_app("a")
    app.session.archive.save_preset(Preset("calm", "Be calm.", {"top_k": 5}))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("f3")
        screen = await opened(pilot, ParametersScreen)
        await pilot.press("ctrl+y")
        await opened(pilot, ChoiceDialog)
        await pilot.press("enter")
        await opened(pilot, ParametersScreen)
        assert screen.query_one("#chat-top_k", Input).value == "5"
        assert screen.query_one("#system", TextArea).text == "Be calm."
        await pilot.press("ctrl+d")
        await opened(pilot, ChoiceDialog)
        await pilot.press("enter")
        await until(pilot, lambda: not app.session.archive.presets())


async def test_every_engine_and_sampling_setting_is_in_a_form_with_its_doc(make_app: MakeApp) -> None:
    from localspec.config import EngineSettings
    from localspec.settings import settings_of

    app = make_app("a")
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("f2")
        screen = await opened(pilot, SettingsScreen)
        await until(pilot, lambda: screen.query("#load-threads"))
        docs = " ".join(str(part.content) for part in screen.query(".row").results(Static))
        for setting in settings_of(EngineSettings):
            assert setting.doc
            assert setting.doc in docs
            assert screen.query(f"#load-{setting.name}")
        assert {"threads", "context", "exact", "wide", "slots"} <= {row.name for row in settings_of(EngineSettings)}


async def test_a_number_that_may_be_a_word_is_read_as_either() -> None:
    from localspec.config import EngineSettings
    from localspec.errors import UsageError
    from localspec.settings import settings_of

    (layers,) = [row for row in settings_of(EngineSettings) if row.name == "gpu_layers"]
    assert [layers.read(text) for text in ("", " auto ", "-1", "12")] == ["auto", "auto", -1, 12]
    assert (layers.show("auto"), layers.show(12)) == ("auto", "12")
    with pytest.raises(UsageError, match="gpu layers is 'all'; it must be a whole number or auto"):
        layers.read("all")


async def test_settings_are_saved_and_wrong_ones_are_refused(make_app: MakeApp, folders: Path) -> None:
    app = make_app("a")
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("f2")
        screen = await opened(pilot, SettingsScreen)
        await until(pilot, lambda: screen.query("#load-threads"))
        screen.query_one("#load-threads", Input).value = "0"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: said(app, "threads is 0"))
        screen.query_one("#load-threads", Input).value = "2"
        screen.query_one("#new-temperature", Input).value = "0.5"
        screen.query_one("#look-theme", Input).value = "nord"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.theme == "nord"
    saved = json.loads((folders / "config" / "settings.json").read_text())
    assert (saved["engine"], saved["parameters"], saved["theme"]) == ({"threads": 2}, {"temperature": 0.5}, "nord")
    assert Preferences.load().engine == {"threads": 2}


async def test_reloading_makes_another_answerer_with_the_settings(make_app: MakeApp) -> None:
    from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

    made: list[tuple[Any, ...]] = []

    def make(*arguments: Any) -> ReplayAnswerer:
        made.append(arguments)
        return ReplayAnswerer(Recording([Recorded.of_text("new one")], {}))

    app = make_app("old one", make=make)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hello")
        old = app.session.answerer
        app.chat_screen.load("other", None, context=512)
        await until(pilot, lambda: app.session.facts is not None and app.session.answerer is not old)
        assert made == [("other", None, {"context": 512})]
        assert old.closed  # type: ignore[attr-defined]
        await say(pilot, "Hello")
        assert front(app).path[-1].content == "new one"


async def test_help_names_every_command(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.press("f1")
        screen = await opened(pilot, HelpScreen)
        text = "\n".join(str(part.content) for part in screen.query(Static))
        assert all(f"/{row.name}" in text for row in commands())
        assert "/export [FILE]" in text
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_keys_can_be_remapped_by_file(make_app: MakeApp, folders: Path) -> None:
    (folders / "config").mkdir()
    (folders / "config" / "keys.toml").write_text('[keys]\n"chat.new" = "f12"\n"chat.nosuch" = "f11"\n')
    assert read_keys() == {"chat.new": "f12", "chat.nosuch": "f11"}
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: said(app, "chat.nosuch"))
        await pilot.press("f12")
        await until(pilot, lambda: len(app.chat_screen.panes) == 2)
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert len(app.chat_screen.panes) == 2


@pytest.mark.parametrize("text", ["keys = 3", "[keys]\na = 1", "[keys", '[keys]\n"chat.new" = " "'])
async def test_a_broken_keys_file_is_said_in_one_sentence(make_app: MakeApp, folders: Path, text: str) -> None:
    (folders / "config").mkdir()
    (folders / "config" / "keys.toml").write_text(text)
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: said(app, "keys.toml"))


@pytest.mark.parametrize("text", ["{", "[]", '{"theme": 3}'])
async def test_a_broken_settings_file_is_refused_in_one_sentence(folders: Path, text: str) -> None:
    from localspec.errors import UsageError

    (folders / "settings.json").write_text(text)
    with pytest.raises(UsageError, match=r"settings\.json"):
        Preferences.load(folders / "settings.json")


async def test_the_palette_offers_screens_and_commands(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("ctrl+p")
        await pilot.pause(0.2)
        offered = {command.title for command in app.get_system_commands(app.chat_screen)}
        assert {"Help", "Settings", "History", "/export", "/undo", "Theme"} <= offered
        await pilot.press(*"parameters")
        await pilot.pause(0.3)
        await pilot.press("enter")
        await pilot.pause(0.2)
        await pilot.press("enter")
        await opened(pilot, ParametersScreen)


async def test_export_and_import(make_app: MakeApp, folders: Path) -> None:
    app = make_app("the answer")
    async with app.run_test() as pilot:
        await say(pilot, "the question")
        for name in ("chat.md", "chat.json", "chat.html"):
            front(app).composer.put(f"/export {name}")
            await pilot.press("escape", "enter")
            await until(pilot, (folders / "work" / name).exists)
            await until(pilot, lambda: "the answer" in (folders / "work" / name).read_text())  # noqa: B023
        front(app).composer.put("/export chat.md")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: said(app, "exists already"))
        front(app).composer.put("/export chat.doc")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: said(app, ".doc"))
        front(app).composer.put("/import chat.json")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: said(app, "chat"))
