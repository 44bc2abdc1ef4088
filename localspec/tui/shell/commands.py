"""Slash commands: what can be written instead of a message. The chat screen has a method for each."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from localspec.tui.shell.registry import SCREENS


class CommandRow(NamedTuple):
    """One command."""

    name: str
    usage: str
    """The words after the name; "" = none."""
    doc: str
    """What it does, in half a sentence."""


OWN = (
    CommandRow("new", "", "a new chat, in a tab of its own"),
    CommandRow("clear", "", "a new chat, as /new; this one is kept"),
    CommandRow("close", "", "close this tab; the chat is kept"),
    CommandRow("system", "[TEXT]", "set this chat's system message, or remove it"),
    CommandRow("again", "", "answer the last message once more"),
    CommandRow("continue", "", "let the last answer go on"),
    CommandRow("compact", "[off]", "let the model go on with a summary of what came before"),
    CommandRow("edit", "", "edit your last message and send it again"),
    CommandRow("copy", "[code]", "copy the last answer, or its last code block"),
    CommandRow("rename", "[TITLE]", "give this chat another title"),
    CommandRow("pin", "", "pin this chat to the top of the list, or let it go"),
    CommandRow("tag", "TAG ...", "set this chat's tags"),
    CommandRow("delete", "", "delete this chat (undo with /undo)"),
    CommandRow("undo", "", "bring back what was deleted last"),
    CommandRow("export", "[FILE]", "write this chat to a .md, .json or .html file"),
    CommandRow("import", "FILE", "take in chats: own JSON, or ChatGPT's export"),
    CommandRow("find", "[WORDS]", "search all chats"),
    CommandRow("preset", "NAME", "use a preset's system message and parameters"),
    CommandRow("model", "[NAME]", "let another model answer from now on: here, of models.toml, or of the endpoint"),
    CommandRow("servers", "", "look for model servers on this machine, and let one answer"),
    CommandRow("theme", "[NAME]", "change the colours"),
    CommandRow("stop", "", "stop the answer (Esc)"),
    CommandRow("quit", "", "leave"),
    CommandRow("exit", "", "leave, as /quit"),
)


@lru_cache(maxsize=1)
def commands() -> tuple[CommandRow, ...]:
    """All of them: those of the chat, and one for each screen."""
    taken = {row.name for row in OWN}
    screens = (CommandRow(row.name, "", row.doc) for row in SCREENS if row.name not in taken)
    return tuple(sorted((*OWN, *screens)))
