"""What a chat works with and no screen draws: who answers, the questions it gets, what comes of them, preferences."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain, groupby
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from textual.message import Message as TextualMessage
from textual.message_pump import MessagePump

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import Chat, StoredMessage
from localspec.chat.prompt.prompt import (
    drop_oldest,
    messages_of,
    prompt_messages,
    sampling_params,
    summary_request,
    window_start,
)
from localspec.chat.turn import Message, rounds
from localspec.config import EngineSettings
from localspec.engine.interfaces import fresh_seed
from localspec.errors import LocalspecError, UsageError, explained, reason
from localspec.options import LIMITS
from localspec.remote.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    Answerer,
    AnswerPart,
    Facts,
    Loading,
    Prefilled,
    Question,
    Taken,
    Told,
)
from localspec.settings import settings_of
from localspec.tools.answers import CallMade
from localspec.tools.connections import Connections
from localspec.tools.servers import Server
from localspec.tools.toolbox import Toolbox

ROOM = 256  # tokens kept free for an answer, where the context has so many
FULL = "full"  # of a context that the prompt alone fills, or more than fills
_NEARLY = 0.8
"""Share of a prompt's longest length from which on a chat is nearly full: another turn of usual length still fits."""
SUMMARY = 4096
"""Tokens that a summary of a chat may have, thoughts included: ten times what is asked for, as some models think first
and cannot be told not to. An eighth of the context where that is less."""


def question_of(
    chat: Chat,
    path: Sequence[StoredMessage],
    facts: Facts | None,
    go_on: bool = False,
    thought_out: bool = False,
    private: bool = False,
) -> Question:
    """What to ask so that the last message of a path is answered; or, with `go_on`, that the last answer continues.
    With `thought_out` as well, its thinking ends where it is. `private`: nothing of it is kept."""
    made, prefix, reasoning = list[Message](), "", ""
    if go_on and path and path[-1].role == "assistant":
        made, prefix, reasoning = rounds(path[-1].content, path[-1].reasoning, path[-1].calls)
        path = path[:-1]
    params = chat.params
    local = facts is None or not facts.remote
    seed = params.get("seed")
    return Question(
        messages=prompt_messages(chat, path) + made,
        sampling=sampling_params(params),
        seed=fresh_seed() if seed is None and local else seed,
        max_tokens=params.get("max_tokens"),
        stop=tuple(params.get("stop") or ()),
        prefix=prefix,
        reasoning=reasoning,
        thought_out=thought_out,
        thinking=params.get("thinking") if facts is not None and facts.can_think else None,
        drafter=params.get("drafter") if local else None,
        max_draft_tokens=params.get("max_draft_tokens") if local else None,
        chat=None if private else chat.key,
        private=private,
    )


def checked(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without what is not set."""
    sampling_params(params)
    for name in ("seed", "max_tokens", "max_draft_tokens"):
        LIMITS[name].check(params.get(name))
    return {name: value for name, value in params.items() if value is not None and value != () and value != []}


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a question fits the context."""

    tokens: int | None  # of the prompt; None = it is not known
    limit: int | None

    @property
    def full(self) -> bool:
        """No room is left for an answer worth the name."""
        return self.tokens is not None and self.limit is not None and self.tokens > self.limit - room(self.limit)

    @property
    def nearly_full(self) -> bool:
        if self.tokens is None or self.limit is None:
            return False
        return self.tokens > _NEARLY * (self.limit - room(self.limit))

    @property
    def share(self) -> str:
        """How full the context is, in words; "" = it is not known."""
        if self.tokens is None or not self.limit:
            return ""
        share = share_of(self.tokens, self.limit)
        return share if share == FULL else f"{share} full"


def share_of(tokens: int, limit: int) -> str:
    """How full a context of so many tokens is: a share that is never 100 %, or `FULL`."""
    return FULL if tokens >= limit else f"{min(99, round(100 * tokens / limit))}%"


def room(limit: int) -> int:
    """Tokens to keep free for the answer in a context of so many."""
    return min(ROOM, limit // 4)


def fit(answerer: Answerer, question: Question) -> Fit:
    """Counts; may take milliseconds. Raises what the template does."""
    limit = answerer.facts.context if answerer.facts else None
    return Fit(None if limit is None else answerer.count(question), limit)


@dataclass(frozen=True, slots=True)
class Window:
    """Where the model's view of a chat must begin so that there is room again."""

    first: StoredMessage  # the first message it still sees
    dropped: list[Message]  # what it no longer sees, with the system message and an earlier summary
    fits: bool  # false = even the last turn alone is too long


def window(answerer: Answerer, chat: Chat, path: Sequence[StoredMessage], question: Question) -> Window:
    """The longest end of a chat that leaves room for as much again as one answer. Counts: call it from a thread."""
    assert answerer.facts is not None
    assert answerer.facts.context is not None
    limit = answerer.facts.context

    def count(messages: Sequence[Message]) -> int:
        return answerer.count(replace(question, messages=list(messages), prefix="", reasoning="")) or 0

    trimmed = drop_oldest(question.messages, max(1, limit - max(2 * room(limit), limit // 3)), count)
    if not trimmed.fits:
        trimmed = drop_oldest(question.messages, limit - room(limit), count)
    seen = _seen(chat, path)
    system = [message for message in question.messages[:1] if message.role == "system"]
    dropped = [*system, *question.messages[len(system) : len(system) + trimmed.dropped]]
    return Window(seen[trimmed.dropped], dropped, trimmed.fits)


def _seen(chat: Chat, path: Sequence[StoredMessage]) -> list[StoredMessage]:
    """For each message of `prompt_messages` but the system's, the message of the path that it is of."""
    return [message for message in path[window_start(chat, path) :] for _ in messages_of(message)]


def last_turn(chat: Chat, path: Sequence[StoredMessage], question: Question) -> Window | None:
    """A view that begins with the last message of the user's; None = nothing is before it."""
    seen = _seen(chat, path)
    start = max((at for at, message in enumerate(seen) if message.role == "user"), default=0)
    if start == 0:
        return None
    system = sum(message.role == "system" for message in question.messages[:1])
    return Window(seen[start], list(question.messages[: system + start]), True)


def summary_question(answerer: Answerer, found: Window, question: Question) -> Question:
    """Asks for a summary of what is dropped; if that is too long itself, of its end. Counts: call it from a thread."""
    facts = answerer.facts
    limit = facts.context if facts is not None else None
    longest = SUMMARY if limit is None else max(32, min(SUMMARY, limit // 8))
    asked = replace(
        question,
        prefix="",
        reasoning="",
        stop=(),
        max_tokens=longest,
        thinking=False if facts is not None and facts.can_think else None,
    )
    messages = summary_request(found.dropped)
    if limit is None:
        return replace(asked, messages=messages)

    def count(messages: Sequence[Message]) -> int:
        return answerer.count(replace(asked, messages=list(messages))) or 0

    return replace(asked, messages=drop_oldest(messages, limit - longest, count).messages)


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
    tool_rounds: int = 20
    """Rounds of tool calls that an answer may have."""
    read_only_tools: bool = False
    """Tools that their server calls read-only are called without a question."""
    engine: dict[str, Any] = field(default_factory=dict)
    """How models are loaded: fields of EngineSettings; options of the command line beat them."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What new chats begin with: sampling settings, and thinking, max_tokens, stop, drafter."""
    system: str = ""
    """System message that new chats begin with."""

    @classmethod
    def load(cls, path: Path | None = None) -> Preferences:
        """What was saved; defaults without a file. Raises UsageError: the file cannot be read, or a value has the wrong
        type; says which."""
        path = path or paths.config_dir() / "settings.json"
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
        """Writes the file, whole or not at all. Raises UsageError: it cannot be written."""
        path = path or paths.config_dir() / "settings.json"
        text = json.dumps({known.name: getattr(self, known.name) for known in fields(self)}, indent=2)
        with explained(f"Settings cannot be saved to {path}", UsageError):
            paths.write_whole(path, text + "\n")


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
        servers: Sequence[Server] = (),
        unasked: bool = False,
    ) -> None:
        """`make`: how another model of this machine is loaded; None = the one that answers is the only one. `begin`:
        parameters of new chats, and their "system", on top of the preferences'. `resume`: whether the last chat may be
        gone on with; not with anything in `begin`. `fault`: why the chosen model does not answer; "" = it does.
        `servers`: of tools, which each chat may use; `unasked`: without a question."""
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
        self.servers, self._unasked = list(servers), unasked
        self._toolboxes: dict[str, Toolbox] = {}  # by the key of a chat
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
        """Models of this machine, with the engine settings of the preferences and these on top; not loaded yet. Raises
        UsageError: the one that answers is the only one."""
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

    # ---- tools

    def toolbox(self, chat: str) -> Toolbox | None:
        """The tools of a chat by its key; None = there are no servers."""
        if self.servers and chat not in self._toolboxes:
            likes = self.preferences.read_only_tools
            self._toolboxes[chat] = Toolbox(Connections(self.servers), read_only=likes, unasked=self._unasked)
        if (found := self._toolboxes.get(chat)) is not None:
            found.read_only = self.preferences.read_only_tools
        return found

    def end_tools(self, chat: str) -> None:
        """Ends the servers of a chat that was left. May take seconds."""
        if (toolbox := self._toolboxes.pop(chat, None)) is not None:
            toolbox.connections.close()

    # ---- chats

    def set_private(self, private: bool) -> None:
        """From now on chats are private, or those on disk again; private ones that were are gone."""
        if self.private:
            self.archive.close()
        self.archive, self.private = Archive(None) if private else self._own, private

    def close(self) -> None:
        """Frees the models and what is private. May take as long as a pass."""
        with ThreadPoolExecutor(32) as side_by_side:
            side_by_side.map(self.end_tools, list(self._toolboxes))
        self.answerer.close()
        if self.private:
            self.archive.close()

    def forget(self, chat: str) -> None:
        """Deletes the KV cache of a chat that was deleted, and its answers in the corpus; warns if that fails. May take
        as long as a pass: call it from a thread."""
        from localspec.runtime.kept.caches import CacheFolder
        from localspec.runtime.kept.corpus import erase

        try:
            if not self.answerer.forget_chat(chat):
                CacheFolder().remove(chat)
                erase(chat)
        except LocalspecError as error:
            _LOG.warning("%s", error)


_LONGEST_REST = 0.25  # seconds between two parts at most: text that stands still for longer seems to be stuck


@dataclass
class Posted(TextualMessage):
    """What an answerer tells, as a widget, a screen or the app gets it."""

    told: Told


class Posts:
    """A sink that hands everything on to a widget, a screen or the app, as it comes."""

    def __init__(self, owner: MessagePump) -> None:
        self._owner = owner

    def post_message(self, message: Told) -> bool:
        return self._owner.post_message(Posted(message))


class Inbox(Posts):
    """A sink for one answer; its owner gets at most `POSTS_PER_SECOND` parts a second. After each part the owner rests
    for as long as the part took to be handled and drawn, so that keys have half of the time on a slow machine, too."""

    def __init__(self, owner: MessagePump, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(owner)
        self._clock = clock
        self._waiting: deque[Told] = deque()
        self._expected = False  # a call of `_deliver` is on its way
        self._stopped = False

    def post_message(self, message: Told) -> bool:
        if self._stopped:
            return isinstance(message, AnswerEnded | CallMade) and super().post_message(message)
        if isinstance(message, Taken):  # the first of all
            return super().post_message(message)
        self._waiting.append(message)
        if self._expected:
            return True
        self._expected = True
        return self._owner.call_later(self._deliver)

    def stop(self) -> None:
        """Screen's thread only: drops what waits and what still comes, but for what became of calls, which the model is
        told later; that and the end of the answer come at once."""
        self._stopped = True
        for message in self._take():
            if isinstance(message, CallMade):
                super().post_message(message)

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

            def rest() -> None:
                took = self._clock() - began
                self._owner.set_timer(max(1 / POSTS_PER_SECOND - took, min(took, _LONGEST_REST)), self._deliver)

            for message in _joined(taken):
                super().post_message(message)
            self._owner.call_after_refresh(rest)
            return
        self._expected = False
        if self._waiting and not self._stopped:  # it came just now, when a call was still expected
            self._expected = True
            self._owner.call_later(self._deliver)


def _joined(messages: list[Told]) -> list[Told]:
    """In their order, parts in a row as one, of the progress of the prompt the last."""
    found = list[Told]()
    for kind, group in groupby(messages, type):
        same = list(group)
        found += [_whole(same)] if kind is AnswerPart else same[-1:] if kind is Prefilled else same
    return found


def _whole(parts: list[Any]) -> AnswerPart:
    last: AnswerPart = parts[-1]
    whole: dict[str, Any] = {name: "".join(getattr(part, name) for part in parts) for name in ("text", "thinking")}
    for name in ("tokens", "origins", "records", "calls"):
        whole[name] = tuple(chain.from_iterable(getattr(part, name) for part in parts))
    return replace(last, **whole)
