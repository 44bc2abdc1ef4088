"""What a chat works with and no screen draws: who answers, what comes of it, where chats are kept, what people like."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from textual.message import Message
from textual.message_pump import MessagePump

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.config import EngineSettings
from localspec.errors import LocalspecError, UsageError, reason
from localspec.remote.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    Answerer,
    AnswerPart,
    Facts,
    Loading,
    Prefilled,
    Taken,
    Told,
)
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


MakeAnswerer = Callable[[str | None, str | None, dict[str, Any]], Answerer]
"""(target, draft, engine settings) -> an answerer that has not started."""
_LOG = logging.getLogger("localspec")


class Session:
    """From the start of the chat until it is left; screens and widgets get it when they are made."""

    def __init__(
        self,
        answerer: Answerer,
        archive: Archive,
        preferences: Preferences,
        make: MakeAnswerer | None = None,
        begin: Mapping[str, Any] | None = None,
        resume: bool = True,
        fault: str = "",
        private: bool = False,
    ) -> None:
        """
        Args:
            make: how another model of this machine is loaded; None = the one that answers is the only one.
            begin: parameters of new chats, and their "system", on top of the preferences'.
            resume: whether the last chat may be gone on with; not with anything in `begin`.
            fault: why the model that was chosen does not answer, in sentences; "" = it does.
        """
        self.answerer, self.archive, self.preferences = answerer, archive, preferences
        self._make = make
        self.named: tuple[str | None, str | None] = (None, None)
        """Target and draft that were named last; None = as the start named them."""
        self.begin = dict(begin or {})  # what new chats begin with because the command line says so
        self.resume = resume and preferences.resume and not self.begin
        """Whether an earlier chat is in front at the start; with tabs that come back it may be one of them."""
        self.facts: Facts | None = None  # of the model that answers; None while it is being loaded
        self.fault = fault  # why the chosen model does not answer, until another one does
        self.failure = ""  # why there is no model; "" = there is one, or it is being loaded
        self.stranger = ""
        """Address of the server that answers, until the user has agreed that prompts go there; "" = they may."""
        self.loading: Loading | None = None  # how far loading is; None = nothing is being loaded
        self._own = archive
        self.private = False  # chats are in memory alone, and answers go into no cache and no corpus
        if private:
            self.set_private(True)

    # ---- who answers

    @property
    def piece(self) -> Callable[[int], bytes]:
        """The bytes of a token of the model that answers; nothing where that is unknown."""
        return self.answerer.piece or (lambda token: b"")

    @property
    def model(self) -> str:
        """What a new chat is signed with."""
        return (self.facts.key or self.facts.name) if self.facts is not None else self.answerer.name

    def made(self, target: str | None, draft: str | None = None, **settings: Any) -> Answerer:
        """Models of this machine, with the engine settings of the preferences and these on top; not loaded yet.

        Raises:
            UsageError: the one that answers is the only one.
        """
        if self._make is None:
            raise UsageError(
                "Answers come from an endpoint, whose models /model lists; without --endpoint localspec loads others."
            )
        self.named = (target, draft)
        return self._make(target, draft, self.preferences.engine | settings)

    def use(self, answerer: Answerer, stranger: str = "") -> Answerer:
        """Another one answers from now on, once it is loaded; returns the old one, which is to be closed before."""
        self.facts, self.fault, self.failure, self.stranger = None, "", "", stranger
        old, self.answerer = self.answerer, answerer
        return old

    # ---- chats

    def set_private(self, private: bool) -> None:
        """From now on chats are private, or those on disk again; private ones that were are gone."""
        if self.private:
            self.archive.close()
        self.archive, self.private = Archive(None) if private else self._own, private

    def close(self) -> None:
        """Frees the models and what is private. May take as long as a pass."""
        self.answerer.close()
        if self.private:
            self.archive.close()

    def forget(self, chat: str) -> None:
        """Deletes the KV cache of a chat that was deleted, and its answers in the corpus; warns if that fails.

        May take as long as a pass: call it from a thread.
        """
        from localspec.runtime.kept.caches import CacheFolder
        from localspec.runtime.kept.corpus import erase

        try:
            if not self.answerer.forget_chat(chat):
                CacheFolder().remove(chat)
                erase(chat)
        except LocalspecError as error:
            _LOG.warning("%s", error)


_LONGEST_REST = 0.25  # seconds between two parts at most: text that stands still for longer seems to be stuck


class Posted(Message):
    """What an answerer tells, as a widget, a screen or the app gets it."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self.told = told


class Posts:
    """A sink that hands everything on to a widget, a screen or the app, as it comes."""

    def __init__(self, owner: MessagePump) -> None:
        self._owner = owner

    def post_message(self, message: Told) -> bool:
        return self._owner.post_message(Posted(message))


class Inbox(Posts):
    """A sink for one answer; its owner gets at most `POSTS_PER_SECOND` parts a second.

    After each part the owner rests for as long as the part took to be handled and drawn, so that keys have half of the
    time on a slow machine, too.
    """

    def __init__(self, owner: MessagePump, clock: Callable[[], float] = monotonic) -> None:
        """`clock` tells seconds."""
        super().__init__(owner)
        self._clock = clock
        self._waiting: deque[Told] = deque()
        self._expected = False  # a call of `_deliver` is on its way
        self._stopped = False

    def post_message(self, message: Told) -> bool:
        if self._stopped:
            return isinstance(message, AnswerEnded) and super().post_message(message)
        if isinstance(message, Taken):  # the first of all, and no part is to come later for it
            return super().post_message(message)
        self._waiting.append(message)
        if self._expected:
            return True
        self._expected = True
        return self._owner.call_later(self._deliver)

    def stop(self) -> None:
        """Screen's thread only: drops what waits and what still comes; the end of the answer comes at once."""
        self._stopped = True
        self._take()

    def _take(self) -> list[Told]:
        taken = list[Told]()
        with suppress(IndexError):  # a thread may add meanwhile
            while True:
                taken.append(self._waiting.popleft())
        return taken

    def _deliver(self) -> None:
        taken = self._take()
        if taken:
            began = self._clock()
            for message in _joined(taken):
                super().post_message(message)
            self._owner.call_after_refresh(self._rest, began)
            return
        self._expected = False
        if self._waiting and not self._stopped:  # it came just now, when a call was still expected
            self._expected = True
            self._owner.call_later(self._deliver)

    def _rest(self, began: float) -> None:
        took = self._clock() - began
        self._owner.set_timer(max(1 / POSTS_PER_SECOND - took, min(took, _LONGEST_REST)), self._deliver)


def _joined(messages: list[Told]) -> list[Told]:
    """In their order, all parts as one, of the progress of the prompt the last."""
    parts = [message for message in messages if isinstance(message, AnswerPart)]
    others = {type(message): message for message in messages if not isinstance(message, AnswerPart)}
    prefilled, ended = others.pop(Prefilled, None), others.pop(AnswerEnded, None)
    ordered = [prefilled, *others.values(), _one(parts) if parts else None, ended]
    return [message for message in ordered if message is not None]


def _one(parts: list[AnswerPart]) -> AnswerPart:
    last = parts[-1]
    if len(parts) == 1:
        return last
    return AnswerPart(
        last.answer,
        "".join(part.text for part in parts),
        tuple(chain.from_iterable(part.tokens for part in parts)),
        tuple(chain.from_iterable(part.origins for part in parts)),
        tuple(chain.from_iterable(part.records for part in parts)),
        last.stats,
        "".join(part.thinking for part in parts),
    )
