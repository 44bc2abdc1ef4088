"""The reference pages tell what the program has, and nothing else: keys, commands, options, routes, fields."""

from __future__ import annotations

import argparse
import json
import re
from functools import cache
from typing import Any

import pytest

from localspec.cli import COMMANDS, build_parser
from localspec.cli.commands.line_chat import _HELP
from localspec.config import EngineSettings
from localspec.errors import LocalspecError
from localspec.runtime.pool import Pool
from localspec.server.http.app import create_app
from localspec.server.http.meter import Metrics
from localspec.server.http.reading import HEADER, SWITCHES
from localspec.settings import settings_of
from localspec.tui.screens.settings import parameters
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.registry import SCREENS, commands, known, load
from tests.docs.page import DOCS, Section, code_of, section, sections

PAGE = "chat.md"
COMMANDS_PAGE, SERVE_PAGE = "command-line.md", "serve.md"
PAGES = (PAGE, COMMANDS_PAGE, SERVE_PAGE)
_EVERYWHERE = ("--help", "--help-all", "--version")
"""Options that every command has, or that localspec has before a command."""
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
    assert len(opened) == 1 + sum(bool(row.key) for row in SCREENS)  # and Esc


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Commands below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@cache
def _parsers() -> dict[str, argparse.ArgumentParser]:
    """{command, with the words below it: its parser}."""
    found = {}
    for name in COMMANDS:
        parser = _children(build_parser(name))[name]
        found[name] = parser
        found |= {f"{name} {below}": one for below, one in _children(parser).items()}
    return found


def _options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """{long option: what the help puts after it}; those left out of it are for the program itself."""
    found = {}
    for action in (one for one in parser._actions if one.help != argparse.SUPPRESS):
        value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
        for name in action.option_strings:
            if name.startswith("--") and name not in _EVERYWHERE:
                found[name] = "" if action.nargs == 0 else str(value)
    return found


def _told_options(one: Section) -> dict[str, str]:
    """{long option: what is put after it} of a section's tables."""
    told = [code.partition(" ") for cells in one.rows for code in code_of(cells[0])]
    return {name: value for name, _, value in told if name.startswith("--")}


@cache
def _command_sections() -> dict[str, Section]:
    return {one.title: one for one in sections(COMMANDS_PAGE) if one.title in _parsers()}


def test_every_command_has_a_section_and_the_reverse() -> None:
    titles = [one.title for one in sections(COMMANDS_PAGE) if one.title == one.title.lower() and one.level > 1]
    assert sorted(titles) == sorted(_parsers())


@pytest.mark.parametrize("command", _parsers())
def test_a_section_tells_the_options_of_its_command_and_no_other(command: str) -> None:
    own = _command_sections()[command]
    below = [one for title, one in _command_sections().items() if title.startswith(f"{command} ")]
    told = {} if below else _told_options(own)
    shared = {one.anchor: one for one in sections(COMMANDS_PAGE) if one.title.startswith("Options of ")}
    for anchor in set() if below else own.links & set(shared):
        told |= _told_options(shared[anchor])
    assert told == _options_of(_parsers()[command])


@pytest.mark.parametrize("name", PAGES)
def test_an_option_that_is_named_anywhere_exists(name: str) -> None:
    real = {option for parser in _parsers().values() for option in _options_of(parser)} | set(_EVERYWHERE)
    named = {found for code in sections(name)[0].code for found in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code)}
    assert named
    assert not named - real


def test_every_exit_code_stands_on_the_page() -> None:
    told = {int(cells[0]) for cells in section(COMMANDS_PAGE, "Exit codes").rows}
    kinds, real = [LocalspecError], {0}
    while kinds:
        kind = kinds.pop()
        real.add(kind.exit_code)
        kinds += kind.__subclasses__()
    assert told == real


def test_every_variable_of_localspec_stands_on_the_page() -> None:
    told = {code_of(cells[0])[0] for cells in section(COMMANDS_PAGE, "Environment variables").rows}
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "localspec").rglob("*.py"))
    real = set(
        re.findall(r"\b(?:LOCALSPEC_[A-Z_]+[A-Z]|HF_(?:TOKEN|HOME|ENDPOINT|HUB_OFFLINE)|OPENAI_API_KEY)\b", text)
    )
    assert {one for one in told if one.startswith("LOCALSPEC_")} == {
        one for one in real if one.startswith("LOCALSPEC_")
    }
    assert real <= told


@cache
def _api() -> dict[str, Any]:
    """The description of the endpoint; no model is needed for it."""
    return create_app(Pool(settings={})).openapi()


def _operations() -> dict[str, dict[str, Any]]:
    """{`METHOD path`: its description}."""
    return {f"{method.upper()} {path}": one for path, all_ in _api()["paths"].items() for method, one in all_.items()}


def _fields_of(name: str) -> set[str]:
    return set(_api()["components"]["schemas"][name].get("properties", {}))


def _named(name: str) -> str:
    """A model as the page calls it: `NamedChoice`, or `fields.NamedChoice` where two modules have one."""
    return ".".join(name.split("__")[-2:])


def _models_of_requests() -> set[str]:
    """Models that the bodies of requests are made of."""
    refers = re.compile(r'"#/components/schemas/(\w+)"')
    left = refers.findall(json.dumps([one.get("requestBody") for one in _operations().values()]))
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += refers.findall(json.dumps(_api()["components"]["schemas"][name]))
    return found


@cache
def _told_fields() -> dict[str, set[str]]:
    """{model: its fields}, from the tables that a comment such as `<!-- fields: A, B -->` stands before."""
    found: dict[str, set[str]] = {}
    names: list[str] = []
    for line in (DOCS / SERVE_PAGE).read_text(encoding="utf-8").splitlines():
        if comment := re.fullmatch(r"<!-- fields: (.+) -->", line):
            names = comment[1].split(", ")
        elif field := re.match(r"\| `(\w+)` \|", line):
            for name in names:
                found.setdefault(name, set()).add(field[1])
        elif line and not line.startswith("|"):
            names = []
    return found


def test_every_route_stands_on_the_page_and_no_other() -> None:
    told = [code_of(cells[0])[0] for cells in section(SERVE_PAGE, "Routes").rows]
    assert sorted(told) == sorted(_operations())


def test_a_route_that_is_named_anywhere_exists() -> None:
    named = {code for code in sections(SERVE_PAGE)[0].code if re.fullmatch("(GET|POST|DELETE) /.*", code)}
    assert not named - {*_operations(), "GET /openapi.json"}


@pytest.mark.parametrize("name", sorted(_models_of_requests()))
def test_every_field_of_a_request_stands_on_the_page(name: str) -> None:
    assert _told_fields()[_named(name)] == _fields_of(name)


def test_no_field_is_told_that_does_not_exist() -> None:
    real = {_named(name): _fields_of(name) for name in _api()["components"]["schemas"]}
    assert {name: fields - real[name] for name, fields in _told_fields().items() if fields - real[name]} == {}


def test_every_parameter_of_an_address_stands_on_the_page() -> None:
    code = set(sections(SERVE_PAGE)[0].code)
    real = {
        one["name"] for about in _operations().values() for one in about.get("parameters", []) if one["in"] == "query"
    }
    assert real <= code


def test_every_metric_stands_on_the_page_and_no_other() -> None:
    told = {code_of(cells[0])[0].removesuffix("_total") for cells in section(SERVE_PAGE, "Metrics").rows}
    assert told == {metric.name for metric in Metrics().registry.collect()}


def test_fields_that_are_said_to_be_refused_are_refused() -> None:
    told = next(line for line in section(SERVE_PAGE, "Fields that are not known").lines if "400" in line)
    assert set(re.findall(r"`(\w+)`", told)) <= set(SWITCHES)
    assert HEADER in (DOCS / SERVE_PAGE).read_text(encoding="utf-8")
