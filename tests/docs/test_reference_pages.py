"""docs/chat.md and the chat have the same keys, commands, settings and parameters."""

from __future__ import annotations

import re

from localspec.cli.line_chat import _HELP
from localspec.config import EngineSettings
from localspec.tui.app import ChatApp
from localspec.tui.bindings import known
from localspec.tui.commands import commands
from localspec.tui.documented import settings_of
from localspec.tui.preferences import Preferences
from localspec.tui.registry import SCREENS, load
from localspec.tui.screens.parameters import parameters
from tests.docs.page import Section, code_of, section, sections

PAGE = "chat.md"
_SPELLED = {"esc": "escape", "+": "plus", "=": "equals_sign", "-": "minus", "/": "slash"}
_NO_KEYS = {"k_up"}
"""In bindings, and no key of any terminal."""


def _whole() -> Section:
    return sections(PAGE)[0]


def _key(text: str) -> str:
    """Textual's name of a key as the page writes it: `Ctrl+Page Up` is `ctrl+pageup`, `Shift+G` is `G`."""
    *with_, last = [text] if text in _SPELLED else text.split("+")
    last = last.lower().replace(" ", "")
    if with_ == ["Shift"] and len(last) == 1:
        return last.upper()
    return "+".join([*(one.lower() for one in with_), _SPELLED.get(last, last)])


def _told() -> dict[str, set[str]]:
    """{name of a binding: its keys} of the page's tables."""
    found = {}
    for cells in _whole().rows:
        names = code_of(cells[1])
        if len(cells) == 3 and len(names) == 1 and "." in names[0] and "`" not in cells[0]:
            assert names[0] not in found, names[0]
            found[names[0]] = {_key(key) for key in cells[0].split(", ")}
    return found


def test_every_key_stands_on_the_page_and_no_other() -> None:
    assert ChatApp.BINDINGS  # with it come the chat's own; those of dialogs come with the screens that open them
    for row in SCREENS:
        load(row.home)
    real = {}
    for name, binding in known().items():
        keys = set(binding.key.split(",")) - _NO_KEYS
        real[name] = {key[-1].upper() if re.fullmatch("shift[+].", key) else key for key in keys}
    assert _told() == real


def test_every_slash_command_stands_on_the_page_with_its_usage_and_no_other() -> None:
    told = {code_of(cells[0])[0] for cells in section(PAGE, "Commands").rows}
    assert told == {f"/{row.name} {row.usage}".strip() for row in commands()}


def test_a_slash_command_that_is_named_anywhere_exists() -> None:
    plain = {word for word in _HELP.split() if word.startswith("/")} | {"/quit"}
    real = {f"/{row.name}" for row in commands()} | plain
    named = [code.split()[0] for code in _whole().code if code.startswith("/") and len(code) > 1]
    assert not set(named) - real


def test_the_plain_chat_has_these_commands() -> None:
    told = {code_of(cells[0])[0] for cells in section(PAGE, "Line by line").rows}
    lines = [line.split("   ")[0].strip() for line in _HELP.splitlines() if line.startswith("/")]
    assert told == set(lines)


def test_every_setting_stands_on_the_page_and_no_other() -> None:
    told = {code_of(cells[0])[0] for cells in section(PAGE, "Settings (F2)").rows if code_of(cells[0])}
    own = {row.name for row in settings_of(Preferences)} - {"system"}  # which has an input of its own
    assert told == own | {row.name for row in settings_of(EngineSettings)}


def test_every_parameter_stands_on_the_page_and_no_other() -> None:
    told = {code_of(cells[0])[0] for cells in section(PAGE, "Parameters of a chat (F3)").rows if code_of(cells[0])}
    assert told == {row.name for row in parameters()}


def test_every_screen_has_a_section() -> None:
    opened = {cells[2] for cells in section(PAGE, "Screens").rows}
    anchors = {one.anchor for one in sections(PAGE)}
    linked = section(PAGE, "Screens").links
    assert linked <= anchors
    assert len(opened) == len(SCREENS)  # all but the doctor, and Esc
