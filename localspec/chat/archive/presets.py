"""Rows beside the chats: presets and the history of prompts. Functions over a connection, inside a transaction.

Presets are kept in the database, so that they share its backup, its mode and its safety when two programs write.
"""

from __future__ import annotations

import json
import sqlite3

from localspec.chat.archive.chats import clean, json_text
from localspec.chat.archive.message import Preset
from localspec.errors import UsageError

_MOST_PROMPTS = 5000
_LONGEST_NAME = 60


def listed(connection: sqlite3.Connection) -> list[Preset]:
    """All presets by name."""
    rows = connection.execute("SELECT name, system, params FROM preset ORDER BY name COLLATE NOCASE, name")
    return [Preset(row[0], row[1], json.loads(row[2])) for row in rows]


def save(connection: sqlite3.Connection, preset: Preset) -> None:
    """Adds a preset, or replaces the one of that name.

    Raises:
        UsageError: the name is empty or too long.
    """
    name = " ".join(clean(preset.name).split())
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise UsageError(f"A preset is named {name[:80]!r}; a name has 1 to {_LONGEST_NAME} characters.")
    connection.execute(
        "INSERT OR REPLACE INTO preset (name, system, params) VALUES (?, ?, ?)",
        (name, clean(preset.system), json_text(preset.params)),
    )


def delete(connection: sqlite3.Connection, name: str) -> None:
    """Removes a preset.

    Raises:
        UsageError: there is none of that name.
    """
    if not connection.execute("DELETE FROM preset WHERE name = ?", (clean(name),)).rowcount:
        raise UsageError(f"There is no preset {name!r}.")


def add_prompt(connection: sqlite3.Connection, text: str) -> None:
    """Puts a text at the end of the prompt history; an equal older one goes, and the oldest of too many."""
    text = clean(text)
    if not text.strip():
        return
    connection.execute("DELETE FROM prompt WHERE text = ?", (text,))
    connection.execute("INSERT INTO prompt (text) VALUES (?)", (text,))
    connection.execute("DELETE FROM prompt WHERE id <= (SELECT max(id) FROM prompt) - ?", (_MOST_PROMPTS,))


def prompts(connection: sqlite3.Connection, limit: int, containing: str) -> list[str]:
    """The prompt history, newest first; `containing`: only texts with that in it, letter case aside."""
    query = "SELECT text FROM prompt WHERE instr(lower(text), lower(?)) > 0 ORDER BY id DESC LIMIT ?"
    return [row[0] for row in connection.execute(query, (clean(containing), limit))]
