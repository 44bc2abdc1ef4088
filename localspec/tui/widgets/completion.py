"""The list above the input: slash commands at its start, files after an @; and what its keys do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.errors import LocalspecError
from localspec.models.installed import installed
from localspec.tui.talk import attach
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.registry import commands

# The list above the input: slash commands at its start, files after an @.


class Suggestion(NamedTuple):
    """What may stand there instead of the word before the cursor."""

    text: str
    doc: str = ""
    more: bool = False
    """Something is expected after it: no space, the list stays (folders)."""


class Suggestions(OptionList, can_focus=False):
    """Shown while it has anything to say; keys come through the input, which keeps the focus."""

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.display = False
        self._offered: list[Suggestion] = []

    def offer(self, suggestions: Sequence[Suggestion]) -> None:
        """Shows these, the first one marked; none = hides."""
        self._offered = list(suggestions)
        self.clear_options()
        self.display = bool(suggestions)
        if suggestions:
            width = max(len(suggestion.text) for suggestion in suggestions) + 2
            self.add_options(
                Option(Content.assemble(found.text.ljust(width), (found.doc, "$text-muted"))) for found in suggestions
            )
            self.highlighted = 0

    @property
    def chosen(self) -> Suggestion | None:
        """The marked one."""
        if not self.display or self.highlighted is None:
            return None
        return self._offered[self.highlighted]

    def move(self, step: int) -> None:
        """Marks another one."""
        if self._offered:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._offered)


_MOST_SUGGESTIONS = 8
_MODEL = "/model "
"""What the name of a model follows."""


class Completion:
    """Between one `Composer` and its `Suggestions`."""

    def __init__(self, composer: Composer, suggestions: Suggestions) -> None:
        self._composer, self._suggestions = composer, suggestions
        self._files: list[str] | None = None
        self._models: list[str] | None = None
        self._closed_for = ""
        composer.steer = self._steer

    def follow(self) -> None:
        """The text or the cursor moved."""
        composer, word = self._composer, self._composer.word_before_cursor()
        if word == self._closed_for and word:
            return
        self._closed_for = ""
        if word.startswith("/") and composer.text.startswith(word) and "\n" not in composer.text:
            self._suggestions.offer(_commands(word[1:]))
        elif composer.text == f"{_MODEL}{word}":
            self._follow_models(word)
        elif word.startswith("@"):
            offer = partial(self._offer_files, word)  # not a coroutine, which might never be awaited
            composer.run_worker(offer, exclusive=True, group="files")  # type: ignore[arg-type]
        else:
            self._suggestions.offer(())

    def _follow_models(self, word: str) -> None:
        if word and self._models is not None:
            self._offer_models(self._models, word)
            return
        self._suggestions.offer(())
        load = self._load_models  # not a coroutine, which might never be awaited
        self._composer.run_worker(load, exclusive=True, group="models", exit_on_error=False)  # type: ignore[arg-type]

    @property
    def shown(self) -> bool:
        """Whether anything is offered."""
        return bool(self._suggestions.display)

    def close(self) -> None:
        """Hides the list until another word is written."""
        self._closed_for = self._composer.word_before_cursor()
        self._suggestions.offer(())

    def take(self) -> bool:
        """Puts the marked suggestion in; False = it stands there already, or there is none."""
        chosen = self._suggestions.chosen
        if chosen is None or chosen.text == self._composer.word_before_cursor():
            self._suggestions.offer(())
            return False
        self._composer.replace_word(chosen.text + ("" if chosen.more else " "))
        return True

    def _steer(self, key: str) -> bool:
        if not self.shown:
            return False
        if key == "accept":
            return self.take()
        self._suggestions.move(-1 if key == "up" else 1)
        return True

    async def _offer_files(self, word: str) -> None:
        if self._files is None:
            self._files = await asyncio.to_thread(attach.files, Path.cwd())
        paths = await asyncio.to_thread(attach.matching, self._files, word[1:].strip('"'), _MOST_SUGGESTIONS)
        if self._composer.word_before_cursor() == word:
            self._suggestions.offer([_file(path) for path in paths])

    async def _load_models(self) -> None:
        """Anew each time the command is typed: models come and go."""
        try:
            self._models = await asyncio.to_thread(installed.names)
        except LocalspecError:
            self._models = []
        word = self._composer.word_before_cursor()
        if self._composer.text == f"{_MODEL}{word}":
            self._offer_models(self._models, word)

    def _offer_models(self, names: list[str], word: str) -> None:
        found = [Suggestion(name) for name in names if name.startswith(word)]
        self._suggestions.offer(found[:_MOST_SUGGESTIONS])


def _commands(typed: str) -> list[Suggestion]:
    names = [row for row in commands() if row.name.startswith(typed)]
    return [Suggestion(f"/{row.name}", row.doc) for row in names][:_MOST_SUGGESTIONS]


def _file(path: str) -> Suggestion:
    quoted = f'@"{path}"' if " " in path else f"@{path}"
    return Suggestion(quoted, more=quoted.endswith("/"))
