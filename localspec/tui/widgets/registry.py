"""What can be opened or written: the screens, the ways to look at a message, the slash commands. A row adds one. Every
binding has an id and a sentence; `keys.toml` in the config folder gives it other keys, by its id below `[keys]`."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode

from localspec import paths
from localspec.errors import UsageError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def bind(
    name: str, key: str, action: str, description: str, tooltip: str, *, show: bool = False, priority: bool = False
) -> Binding:
    """A binding that people can find and remap. `show`: in the footer. `priority`: before what has the focus."""
    return Binding(key, action, description, id=name, tooltip=tooltip, show=show, priority=priority)


CLOSE = bind("screen.close", "escape", "close", "Close", "Back to the chat", show=True)
"""For screens; the action `close` is `Dialog`'s and `Page`'s."""


def keys_file() -> Path:
    return paths.config_dir() / "keys.toml"


def read_keys() -> dict[str, str]:
    """{binding id: keys, comma between them} of the user's file; {} without one. Raises UsageError: the file cannot be
    read, or is not a table of texts."""
    path = keys_file()
    try:
        table = tomllib.loads(paths.read_own(path)).get("keys", {})
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}.", "Your keys are left as they were.") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: keys is {table!r}; it must be a table such as [keys].")
    for name, keys in table.items():
        if not isinstance(keys, str) or not keys.strip():
            raise UsageError(f'{path}: {name} is {keys!r}; it must be keys in quotes, such as "ctrl+g".')
    return {name: ",".join(key.strip() for key in keys.split(",")) for name, keys in table.items()}


def shown(app: App[Any], binding: Binding) -> str:
    """The keys of a binding as people read them, as remapped."""
    keys = app._keymap.get(binding.id or "", binding.key)
    return " ".join(app.get_key_display(binding.with_key(key)) for key in keys.split(","))


def known() -> dict[str, Binding]:
    """{id: binding} of every widget, screen and app of this package that has been imported."""
    found: dict[str, Binding] = {}
    kinds: list[type[DOMNode]] = [DOMNode]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("localspec.tui"):
            for binding in kind.__dict__.get("BINDINGS", ()):
                if isinstance(binding, Binding) and binding.id:
                    found[binding.id] = binding
    return found


class ScreenRow(NamedTuple):
    """A screen of its own: key, slash command and palette entry come from this row. Or another body for an answer."""

    name: str  # the slash command without its slash; the binding's id is `open.NAME`
    home: str
    """`module:Class`, imported when it is first opened and made with (ChatScreen), and words where there are any; a
    body is a Widget of (Session, StoredMessage, name), with `extend(AnswerPart)` and `settle(StoredMessage)`."""
    title: str  # two words at most, for footer and palette
    doc: str  # what it is for, in half a sentence: tooltip, palette and list of slash commands
    key: str = ""  # key that opens it; "" = none
    show: bool = False  # its key is in the footer


_AT = "localspec.tui.screens."
_VIEW = "localspec.tui.widgets.origin_view:OriginText"
SCREENS = (
    ScreenRow("help", _AT + "help:HelpScreen", "Help", "keys, commands, and what is where", "f1", True),
    ScreenRow("settings", _AT + "settings:SettingsScreen", "Settings", "models, looks, keys", "f2"),
    ScreenRow(
        "parameters",
        _AT + "settings:ParametersScreen",
        "Parameters",
        "system prompt, sampling and presets of this chat",
        "f3",
    ),
    ScreenRow("history", _AT + "history:HistoryScreen", "History", "all chats, and search in them", "f4,ctrl+o"),
    ScreenRow("models", _AT + "models:ModelsScreen", "Models", "use another model; search, pull, import, remove", "f5"),
    ScreenRow("tools", _AT + "tools:ToolsScreen", "Tools", "servers and tools of this chat: on, off, asked before"),
    ScreenRow("stats", _AT + "stats:StatsScreen", "Statistics", "what drafts brought", "f7"),
    ScreenRow("race", _AT + "race:RaceScreen", "Race", "plain against speculative", "f8"),
    ScreenRow("steps", _AT + "stats:StepsScreen", "Step view", "an answer pass by pass", "f9"),
    ScreenRow("doctor", _AT + "help:DoctorScreen", "Doctor", "why is it slow, and what mends it"),
)
VIEWS = (
    ScreenRow("origins", _VIEW, "Origins", "where each token came from, in colours"),
    ScreenRow("ghosts", _VIEW, "Rejected", "the same with rejected guesses"),
    ScreenRow("signs", _VIEW, "Signs", "origins as signs, readable without colour"),
)


def load(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


# Slash commands: what can be written instead of a message.

COMMANDS = _AT + "commands:SlashCommands"  # what runs them, imported at the first


class CommandRow(NamedTuple):
    name: str
    usage: str  # the words after the name; "" = none
    doc: str  # what it does, in half a sentence
    action: str = ""
    """The chat screen's action that it is without words; "" = a method of `SlashCommands`, which others have for those
    with words."""


OWN = (
    CommandRow("new", "", "a new chat, in a tab of its own", "new"),
    CommandRow("clear", "", "a new chat, as /new; this one is kept", "new"),
    CommandRow("close", "", "close this tab; the chat is kept", "close_tab"),
    CommandRow("system", "[TEXT]", "set this chat's system message, or remove it"),
    CommandRow("again", "", "answer the last message once more", "regenerate"),
    CommandRow("continue", "", "let the last answer go on", "go_on"),
    CommandRow("compact", "[off]", "let the model go on with a summary of what came before"),
    CommandRow("edit", "", "edit your last message and send it again", "edit"),
    CommandRow("editor", "[TEXT]", "write the prompt in your own editor"),
    CommandRow("branch", "", "a new chat with the messages up to here; this one is as it was", "branch"),
    CommandRow("copy", "[code]", "copy the last answer, or its code block", "copy"),
    CommandRow("rename", "[TITLE]", "give this chat another title"),
    CommandRow("pin", "", "pin this chat to the top of the list, or let it go"),
    CommandRow("tag", "TAG ...", "set this chat's tags"),
    CommandRow("delete", "", "delete this chat (undo with /undo)"),
    CommandRow("undo", "", "bring back what was deleted last", "undo"),
    CommandRow("export", "[FILE]", "write this chat to a .md, .json or .html file"),
    CommandRow("import", "FILE", "take in chats: own JSON, or ChatGPT's export"),
    CommandRow("find", "[WORDS]", "search all chats"),
    CommandRow("private", "", "chats of which nothing is kept; once more leads back"),
    CommandRow("preset", "NAME", "use a preset's system message and parameters"),
    CommandRow("prompt", "NAME [KEY=VALUE ...]", "put a prompt of a server into the input"),
    CommandRow("model", "[NAME]", "let another model answer from now on: here, of models.toml, or of the endpoint"),
    CommandRow("own", "", "let the model answer that answered in this chat before", "own_model"),
    CommandRow("servers", "", "look for model servers on this machine, and let one answer"),
    CommandRow("theme", "[NAME]", "change the colours", "app.change_theme"),
    CommandRow("stop", "", "stop the answer (Esc)"),
    CommandRow("quit", "", "leave", "app.quit"),
    CommandRow("exit", "", "leave, as /quit", "app.quit"),
)


@lru_cache(maxsize=1)
def commands() -> tuple[CommandRow, ...]:
    """All of them: those of the chat, and one for each screen."""
    taken = {row.name for row in OWN}
    screens = (CommandRow(row.name, "", row.doc) for row in SCREENS if row.name not in taken)
    return tuple(sorted((*OWN, *screens)))
