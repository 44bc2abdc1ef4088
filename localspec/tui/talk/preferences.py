"""What people like: looks, what new chats begin with, how models are loaded. One JSON file in the config folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from localspec import paths
from localspec.config import EngineSettings
from localspec.errors import UsageError, reason
from localspec.settings import settings_of


@dataclass(slots=True)
class Preferences:
    """Every field is saved when the settings screen saves; those of the file that only a newer version knows are left
    out, among the engine's settings, too."""

    theme: str = "localspec-dark"
    """Colours: localspec-dark, localspec-light, or any theme of Textual's (Ctrl+P, Theme)."""
    resume: bool = True
    """Start where you left off: every tab is back, with its unsent text, and the same one in front."""
    enter_sends: bool = True
    """Enter sends and Ctrl+J begins a line; off: Enter begins a line and Ctrl+J sends."""
    fold_thinking: bool = True
    """Thinking is folded once the answer begins."""
    fold_paste_lines: int = 8
    """A paste of so many lines or more becomes an attachment instead of text in the input."""
    messages_shown: int = 16
    """How many of the newest messages of a chat are drawn; scrolling up draws more."""
    answer_end: Literal["auto", "off", "bell", "notify"] = "auto"
    """What tells the end of an answer that took over 10 s: a bell, or a notification (OSC 9); auto: a bell where the
    terminal has said that it is not in front."""
    engine: dict[str, Any] = field(default_factory=dict)
    """How models are loaded: fields of EngineSettings; options of the command line beat them."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What new chats begin with: sampling settings, and thinking, max_tokens, stop, drafter."""
    system: str = ""
    """System message that new chats begin with."""

    @classmethod
    def load(cls, path: Path | None = None) -> Preferences:
        """What was saved; defaults without a file.

        Raises:
            UsageError: the file cannot be read, or a value has the wrong type; says which.
        """
        path = _file() if path is None else path
        try:
            saved = json.loads(paths.read_own(path))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read: {reason(error)}.", "Settings are at their defaults.") from None
        if not isinstance(saved, dict):
            raise UsageError(f"{path} is not a JSON object.", "Settings are at their defaults.")
        own = cls()
        for known in fields(cls):
            value = saved.get(known.name, getattr(own, known.name))
            if type(value) is not type(getattr(own, known.name)):
                raise UsageError(f"{path}: {known.name} is {value!r}, which has the wrong type.", "It is ignored.")
            setattr(own, known.name, value)
        for row in settings_of(Preferences):
            if row.choices and getattr(own, row.name) not in row.choices:
                what = f"{row.name} is {getattr(own, row.name)!r}; it must be one of {', '.join(row.choices)}"
                raise UsageError(f"{path}: {what}.", "Settings are at their defaults.")
        engine = {known.name for known in fields(EngineSettings)}
        own.engine = {name: value for name, value in own.engine.items() if name in engine}
        return own

    def save(self, path: Path | None = None) -> None:
        """Writes the file, whole or not at all.

        Raises:
            UsageError: it cannot be written.
        """
        path = _file() if path is None else path
        text = json.dumps({known.name: getattr(self, known.name) for known in fields(self)}, indent=2)
        try:
            paths.write_whole(path, text + "\n")
        except OSError as error:
            raise UsageError(f"Settings cannot be saved to {path}: {error.strerror}.") from None


def _file() -> Path:
    return paths.config_dir() / "settings.json"
