"""Every key of every screen reaches its action, and F1 names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

from localspec.models.installed.store import Store
from localspec.tui.screens.pull import FindModelScreen, ImportScreen, PathInput, PullScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.composer import Composer, WrittenPrompt
from localspec.tui.widgets.dialogs import ChoiceDialog, Line
from localspec.tui.widgets.registry import SCREENS, VIEWS, known, load
from localspec.tui.widgets.transcript import Bubble
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.scenes import no_hub

pytestmark = pytest.mark.asyncio
ELSEWHERE = {"models.use", "app.interrupt"}
"""The table takes Enter itself and tells the screen: pressed in test_models_screen.py. Ctrl+C comes to the app where
there is nothing to copy: pressed in test_chat.py."""


def owned() -> list[tuple[type[DOMNode], Binding]]:
    """(owner, binding) of the whole package."""
    for home in [*(row.home for row in SCREENS), *(row.home for row in VIEWS)]:
        load(home)
    kinds: list[type[DOMNode]] = [DOMNode]
    found = []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("localspec.tui"):
            for binding in kind.__dict__.get("BINDINGS", ()):
                assert isinstance(binding, Binding), (kind, binding)
                found.append((kind, binding))
    return found


async def test_every_binding_has_an_id_and_a_sentence() -> None:
    bindings = [binding for _, binding in owned()]
    assert all(binding.id and len(binding.tooltip) > 8 for binding in bindings), bindings
    ids = [str(binding.id) for binding in bindings if binding.id != "screen.close"]
    assert sorted(set(ids)) == sorted(ids)
    assert set(ids) | {"screen.close"} == set(known())
    assert len(ids) > 40


async def test_help_names_every_key_as_it_is_now(make_app: MakeApp, folders: Path) -> None:
    (folders / "config").mkdir()
    (folders / "config" / "keys.toml").write_text('[keys]\n"steps.draft" = "f12"\n')
    bindings = {binding.id: binding for _, binding in owned()}
    app = make_app("a")
    async with app.run_test(size=(140, 60)) as pilot:
        app.chat_screen.open("help")
        await until(pilot, lambda: len(app.screen_stack) == 2 and app.screen.query(Static))
        lines = "\n".join(str(part.content) for part in app.screen.query(Static)).splitlines()
        for name, binding in bindings.items():
            keys = ["f12"] if name == "steps.draft" else binding.key.split(",")
            (line,) = (line for line in lines if line.startswith(f"  {name} "))
            assert all(app.get_key_display(binding.with_key(key)) in line for key in keys), line
            assert any(line.endswith(f"  {binding.tooltip or binding.description}") for line in lines), name


async def test_help_is_read_as_a_whole_in_40_columns(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(40, 12)) as pilot:
        app.chat_screen.open("help")
        await until(pilot, lambda: len(app.screen_stack) == 2 and str(app.screen.query_one("#help > Static").content))  # type: ignore[attr-defined]
        text = app.screen.query_one("#help > Static", Static)
        keys = str(text.content).partition("Other keys")[0]
        assert all(cell_len(line) <= text.size.width for line in keys.splitlines())
        for binding in (one for _, one in owned()):
            assert " ".join(binding.tooltip.split()) in " ".join(keys.split()), binding


class Heard:
    """The actions that keys asked for; none is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actions: list[tuple[str, DOMNode | None]] = []

        async def run_action(app: App[Any], action: Any, default_namespace: Any = None, *rest: Any) -> bool:
            self.actions.append((str(action), default_namespace))
            return True

        monkeypatch.setattr(App, "run_action", run_action)

    async def press_all(self, pilot: Pilot[Any], node: DOMNode, names: set[str]) -> None:
        """Presses every key of a widget, screen or app and looks at what was asked for."""
        for kind, binding in owned():
            if type(node) is not kind and not (binding.id == "screen.close" and isinstance(node, kind)):
                continue
            assert binding.id is not None
            names.add(binding.id)
            if binding.id in ELSEWHERE:
                continue
            for key in binding.key.split(","):
                self.actions.clear()
                await pilot.app._press_keys(
                    [key, *["f20"] * isinstance(node, Bubble)]
                )  # a letter waits for another key
                await until(pilot, lambda: self.actions)
                assert (binding.action, node) in self.actions, (binding.id, key, self.actions)


def screens(app: ChatApp, folder: Path) -> list[Screen[Any]]:
    store = Store(folder / "models")
    pull: Any = PullScreen(lambda: no_hub(folder), store)
    pull._plan = object()  # its keys are for plans
    pages = [load(row.home)(app.chat_screen) for row in SCREENS]
    return [
        *pages,
        pull,
        ImportScreen(store),
        FindModelScreen(lambda: no_hub(folder)),
        Line("?"),
        ChoiceDialog("?", []),
    ]


async def test_every_key_reaches_its_action(make_app: MakeApp, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()
    names: set[str] = set()
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hello")
        heard = Heard(monkeypatch)
        for screen in screens(app, folders):
            app.push_screen(screen)
            await until(pilot, lambda: app.screen is screen and screen.is_mounted)  # noqa: B023
            for field in screen.query(PathInput):
                field.focus()
                await heard.press_all(pilot, field, names)
            if screen.query("#prompt, #name"):
                screen.set_focus(None)  # else letters are text
            await heard.press_all(pilot, screen, names)
            app.pop_screen()
            await until(pilot, lambda: app.screen is app.chat_screen)
        await heard.press_all(pilot, app, names)
        front(app).composer.focus()
        await heard.press_all(pilot, front(app).query_one(Composer), names)
        queue = front(app).queue
        queue.add(WrittenPrompt("Wait"))
        queue.focus()
        await pilot.pause()
        await heard.press_all(pilot, queue, names)
        queue.pop_all()
        await until(pilot, lambda: app.focused is front(app).composer)
        bubble = front(app).transcript.bubbles[-1]
        bubble.focus()
        await pilot.pause()
        await heard.press_all(pilot, bubble, names)
        await heard.press_all(pilot, app.chat_screen, names)  # in the input Ctrl+U is the line's
    assert isinstance(app, ChatApp)
    assert names == {binding.id for _, binding in owned()}
