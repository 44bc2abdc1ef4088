"""Forms of documented settings. F2: looks, new chats, how models are loaded. F3: the chat in front, and presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Checkbox, Input, Static, TextArea

from localspec.chat.archive.message import Preset
from localspec.config import EngineSettings
from localspec.errors import LocalspecError
from localspec.remote.answerer import Question
from localspec.settings import Setting, settings_of
from localspec.tui.screens.chat import Page
from localspec.tui.talk.session import Preferences, checked
from localspec.tui.widgets.dialogs import ChoiceDialog, Line, errors_said, say
from localspec.tui.widgets.registry import bind
from localspec.types import SamplingParams


class Tick(Checkbox):
    """A box that reads without colour, `[x]` or `[ ]`; Enter, Space or a click turns it over."""

    @property
    def _button(self) -> Content:
        """What stands for the state, in place of Textual's sign, whose colour alone tells it."""
        return Content.styled("[x]" if self.value else "[ ]", self.get_visual_style("toggle--button"))


class Pick(Static, can_focus=True):
    """One word of a few, on one line: what Textual's list that opens takes eight widgets for. Right, Enter, Space or a
    click goes to the next word, Left to the one before; after the last comes the first."""

    ALLOW_SELECT = False
    value = reactive("", init=False)  # the word that is chosen

    def __init__(self, words: Sequence[str], value: str, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id, markup=False)
        self._words = tuple(words) if value in words else (value, *words)
        self.set_reactive(Pick.value, value)

    def render(self) -> Content:
        return Content(f"‹ {self.value} ›")  # noqa: RUF001 - brackets to look at

    def key_left(self) -> None:
        self.value = self._words[self._words.index(self.value) - 1]

    def key_right(self) -> None:
        self.value = self._words[(self._words.index(self.value) + 1) % len(self._words)]

    key_enter = key_space = on_click = key_right


_UNSET = "default"
_SWITCH = {"on": True, "off": False}


class Row(Static):
    """A setting: its name, beside it the field that holds its value, and below both what it does. Name and text are
    drawn by the row itself: widgets of their own would take most of the time that a form takes."""

    def __init__(self, label: str, doc: str, field: Widget) -> None:
        super().__init__(Content.assemble((label, "bold"), "\n", (doc, "$text-muted")), classes="row")
        self._field = field

    def compose(self) -> ComposeResult:
        yield self._field

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """That of the text; the field has no lines of its own."""
        return self.visual.get_height(self.styles.get_rules(), width)


class Form(Vertical):
    """`values` reads it back."""

    def __init__(self, settings: Sequence[Setting], values: Mapping[str, Any], prefix: str = "") -> None:
        """`values`: what is set; other settings show their defaults. `prefix`: of the inputs' ids."""
        super().__init__(classes="form")
        self._prefix = prefix
        self._fields = [(setting, self._field(setting, values)) for setting in settings]
        """What is typed is here, whether it is on the screen yet or not."""

    def compose(self) -> ComposeResult:
        for setting, field in self._fields:
            yield Row(setting.label, setting.doc, field)

    def values(self) -> dict[str, Any]:
        found = {setting.name: (setting, _read(setting, field)) for setting, field in self._fields}
        return {name: value for name, (setting, value) in found.items() if value != setting.default}

    def show(self, values: Mapping[str, Any]) -> None:
        for setting, field in self._fields:
            field.value = _shown(setting, values.get(setting.name, setting.default))

    def _field(self, setting: Setting, values: Mapping[str, Any]) -> Any:
        shown, name = _shown(setting, values.get(setting.name, setting.default)), f"{self._prefix}{setting.name}"
        if isinstance(shown, bool):
            return Tick(value=shown, id=name, compact=True)
        if setting.kind is bool or setting.choices:
            return Pick(list(_words(setting)), shown, id=name)
        return Input(shown, placeholder=setting.show(setting.default) or _UNSET, id=name, compact=True)


def _words(setting: Setting) -> dict[str, Any]:
    """What can be picked, and the value of each word."""
    words: dict[str, Any] = {word: word for word in setting.choices}
    return ({_UNSET: None} if setting.optional else {}) | (words or _SWITCH)


def _shown(setting: Setting, value: Any) -> bool | str:
    """A value as its field holds it."""
    if setting.kind is bool and not setting.optional:
        return bool(value)
    if setting.kind is not bool and not setting.choices:
        return setting.show(value)
    return next((word for word, meant in _words(setting).items() if meant == value), str(value))


def _read(setting: Setting, field: Any) -> Any:
    if isinstance(field, Input):
        return setting.read(field.value)
    return _words(setting).get(field.value, field.value) if isinstance(field, Pick) else field.value


_OF_QUESTIONS = ("seed", "max_tokens", "stop", "thinking", "drafter", "max_draft_tokens")


def parameters() -> list[Setting]:
    """What can be set for a chat: sampling, and what else a question has."""
    asked = {setting.name: setting for setting in settings_of(Question)}
    drawing = [setting for setting in settings_of(SamplingParams) if setting.kind is not tuple]
    return [*drawing, *(asked[name] for name in _OF_QUESTIONS)]


class ParametersScreen(Page):
    """Applies to this chat alone, from the next answer on."""

    CSS_PATH = "form.tcss"
    TITLE = "Parameters of this chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("parameters.save", "ctrl+s", "save", "Apply", "Use this for the chat", show=True, priority=True),
        bind(
            "parameters.preset", "ctrl+y", "preset", "Presets", "Fill the form from a preset", show=True, priority=True
        ),
        bind("parameters.keep", "ctrl+k", "keep", "Save preset", "Keep this as a preset", show=True, priority=True),
        bind("parameters.forget", "ctrl+d", "forget", "Delete preset", "Delete a preset", show=True, priority=True),
    ]

    def body(self) -> ComposeResult:
        chat = self.chats.front.chat
        with VerticalScroll(classes="sheet"):
            yield Static("System message", classes="section")
            yield TextArea(chat.system, id="system", tab_behavior="focus")
            yield Static("Sampling and limits; empty = the default", classes="section")
            yield Form(parameters(), chat.params, "chat-")

    def action_save(self) -> None:
        if (found := self._read()) is not None:
            pane, (system, params) = self.chats.front, found
            self.session.archive.update_chat(pane.chat_id, system=system, params=params)
            pane.count()
            self.dismiss(None)

    @work
    async def action_preset(self) -> None:
        if (preset := await self._pick("Which preset?")) is not None:
            self.query_one("#system", TextArea).text = preset.system
            self.query_one(Form).show(preset.params)

    @work
    async def action_keep(self) -> None:
        if (found := self._read()) is not None:
            name = (await self.app.push_screen_wait(Line("Name of the preset")) or "").strip()
            if name:
                self.session.archive.save_preset(Preset(name, *found))
                say(self, f"Preset {name} is saved; /preset {name} uses it.")

    @work
    async def action_forget(self) -> None:
        if (preset := await self._pick("Delete which preset?")) is not None:
            self.session.archive.delete_preset(preset.name)
            say(self, f"Preset {preset.name} is deleted.")

    async def _pick(self, question: str) -> Preset | None:
        rows = [(preset, preset.name, preset.system[:70]) for preset in self.session.archive.presets()]
        if not rows:
            say(self, "There are no presets yet; Ctrl+K saves one.", problem=True)
            return None
        return await self.app.push_screen_wait(ChoiceDialog(question, rows))

    def _read(self) -> tuple[str, dict[str, Any]] | None:
        with errors_said(self):
            return self.query_one("#system", TextArea).text, checked(self.query_one(Form).values())
        return None


def looks() -> list[Setting]:
    """All preferences but the system message, which gets a text area of its own."""
    return [setting for setting in settings_of(Preferences) if setting.name != "system"]


class SettingsScreen(Page):
    CSS_PATH = "form.tcss"
    TITLE = "Settings"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("settings.save", "ctrl+s", "save", "Save", "Keep these settings", show=True, priority=True),
        bind("settings.reload", "ctrl+l", "reload", "Save, reload", "Keep them and load the models again", show=True,
             priority=True),
    ]  # fmt: skip

    def body(self) -> ComposeResult:
        """What is seen at first; the rest follows while that is read, as it takes most of the time."""
        liked = self.session.preferences
        self._look = Form(looks(), {row.name: getattr(liked, row.name) for row in looks()}, "look-")
        self._new = Form(parameters(), liked.parameters, "new-")
        self._load = Form(settings_of(EngineSettings), liked.engine, "load-")
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

    def action_save(self) -> bool:
        """Keeps everything, or says what is wrong and keeps nothing."""
        with errors_said(self):
            look_values, new_values, engine = self._look.values(), checked(self._new.values()), self._load.values()
            check_engine(engine)
            theme = look_values.get("theme", Preferences().theme)
            if theme not in self.app.available_themes:
                raise LocalspecError(
                    f"There is no theme {theme!r}.", f"There are: {', '.join(self.app.available_themes)}."
                )
            liked = self.session.preferences
            for row in looks():
                setattr(liked, row.name, look_values.get(row.name, row.default))
            liked.system, liked.parameters, liked.engine = self.query_one("#system", TextArea).text, new_values, engine
            with errors_said(self):
                liked.save()
            self.app.theme = liked.theme
            self.dismiss(None)
            return True
        return False

    def action_reload(self) -> None:
        if self.action_save():
            self.chats.load(*self.session.named)


def check_engine(values: dict[str, Any]) -> None:
    """Raises: UsageError for a value that no engine takes."""
    from pathlib import Path

    from localspec.drafters import plugin

    EngineSettings(target=Path(), **values)
    plugin.check_name(values.get("drafter", "auto"))
