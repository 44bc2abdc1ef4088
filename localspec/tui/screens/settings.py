"""F2: looks, what new chats begin with, and how models are loaded. Made from the documented settings themselves."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static, TextArea

from localspec.config import EngineSettings
from localspec.errors import LocalspecError
from localspec.settings import Setting, settings_of
from localspec.tui.screens.page import Page
from localspec.tui.screens.parameters import parameters
from localspec.tui.talk.conversation import checked
from localspec.tui.talk.preferences import Preferences
from localspec.tui.widgets.bindings import CLOSE, bind
from localspec.tui.widgets.corner import say
from localspec.tui.widgets.form import Form
from localspec.tui.widgets.themes import DARK

_TEXT = "system"
"""The preference that gets a text area of its own."""


def looks() -> list[Setting]:
    """Preferences that fit a row."""
    return [setting for setting in settings_of(Preferences) if setting.name != _TEXT]


def loading() -> list[Setting]:
    """Engine settings that fit a row."""
    return list(settings_of(EngineSettings))


class SettingsScreen(Page):
    """Saves on Ctrl+S; Esc leaves without."""

    CSS_PATH = "form.tcss"
    TITLE = "Settings"
    BINDINGS: ClassVar[list[BindingType]] = [
        CLOSE,
        bind("settings.save", "ctrl+s", "save", "Save", "Keep these settings", show=True, priority=True),
        bind("settings.reload", "ctrl+l", "reload", "Save, reload", "Keep them and load the models again", show=True,
             priority=True),
    ]  # fmt: skip

    def body(self) -> ComposeResult:
        """What is seen at first; the rest follows while that is read, as it takes most of the time."""
        liked = self.session.preferences
        self._look = Form(looks(), {row.name: getattr(liked, row.name) for row in looks()}, "look-")
        self._new = Form(parameters(), liked.parameters, "new-")
        self._load = Form(loading(), liked.engine, "load-")
        with VerticalScroll(classes="sheet"):
            yield Static("Looks and keys", classes="section")
            yield self._look
            yield Static("What new chats begin with", classes="section")
            yield Static("System message", classes="doc")
            yield TextArea(liked.system, id="system", tab_behavior="focus")

    def on_mount(self) -> None:
        self.call_after_refresh(self._follow, [self._new])
        loading_words = Static("How models are loaded (from the next load on)", classes="section")
        self.call_after_refresh(self._follow, [loading_words, self._load])

    async def _follow(self, widgets: list[Widget]) -> None:
        if self.is_running:
            await self.query_one(".sheet").mount_all(widgets)

    def action_save(self) -> None:
        """Keeps everything, or says what is wrong and keeps nothing."""
        if self._keep():
            self.dismiss(None)

    def action_reload(self) -> None:
        """Keeps everything and loads the models again with it."""
        if self._keep():
            self.dismiss(None)
            self.chats.reload()

    def _keep(self) -> bool:
        try:
            look_values, new_values, engine = self._look.values(), checked(self._new.values()), self._load.values()
            check_engine(engine)
            theme = look_values.get("theme", DARK.name)
            if theme not in self.app.available_themes:
                raise LocalspecError(
                    f"There is no theme {theme!r}.", f"There are: {', '.join(self.app.available_themes)}."
                )
        except LocalspecError as error:
            say(self, str(error), problem=True)
            return False
        liked = self.session.preferences
        for row in looks():
            setattr(liked, row.name, look_values.get(row.name, row.default))
        liked.system, liked.parameters, liked.engine = self.query_one("#system", TextArea).text, new_values, engine
        try:
            liked.save()
        except LocalspecError as error:
            say(self, str(error), problem=True)
        self.app.theme = liked.theme
        return True


def check_engine(values: dict[str, Any]) -> None:
    """Raises: UsageError for a value that no engine takes."""
    from pathlib import Path

    from localspec.drafters import plugin

    EngineSettings(target=Path(), **values)
    plugin.check_name(values.get("drafter", "auto"))
