"""The archive's data: chats, messages, attachments, search hits. Frozen; ids are the database's own.

Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from localspec.chat.turn import MadeCall

Role = Literal["user", "assistant", "system", "tool"]
State = Literal["streaming", "done", "stopped", "error"]
ROLES: tuple[str, ...] = get_args(Role)
STATES: tuple[str, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that goes with a user's message."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation, without its messages."""

    id: int
    key: str
    """Names the chat in exports, the same in every archive."""
    title: str = ""
    system: str = ""
    """System prompt; "" = none."""
    model: str = ""
    """Pair or model it was last used with."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling and other settings of this chat; see `prompt.sampling_params`."""
    pinned: bool = False
    tags: tuple[str, ...] = ()
    unsent: str = ""
    """The text in the input that was not sent."""
    window_first: int | None = None
    """The first message that the model still sees; None = all of them."""
    window_summary: str = ""
    """What the model is told of the messages before `window_first`."""
    created: float
    used: float
    messages: int = 0
    """How many there are, all branches together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    id: int
    key: str
    """Names the message in exports; distinct within its chat."""
    chat_id: int = 0
    parent_id: int | None = None
    """None = it begins the chat."""
    role: Role
    content: str
    reasoning: str = ""
    """What the model thought before it answered; "" = nothing."""
    state: State = "done"
    note: str = ""
    """What went wrong, if something did."""
    model: str = ""
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Settings an answer was drawn with, names of `SamplingParams`."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """`RequestStats.as_dict` of an answer; {} while there are none."""
    attachments: tuple[Attachment, ...] = ()
    calls: tuple[MadeCall, ...] = ()
    """The tools that an answer called, in their order, with places in `content` and `reasoning`."""
    created: float
    updated: float
    siblings: tuple[int, ...] = ()
    """Ids of all messages with this parent, this one included, oldest first."""

    @property
    def sibling_number(self) -> int:
        return self.siblings.index(self.id) + 1

    @property
    def pieces(self) -> list[str | MadeCall]:
        """What an answer says and the calls that it makes, in their order; texts that say nothing are left out."""
        found, said = list[str | MadeCall](), 0
        for made in self.calls:
            found += [self.content[said : made.said], made]
            said = made.said
        return [piece for piece in (*found, self.content[said:]) if not isinstance(piece, str) or piece.strip()]


def placed(calls: Sequence[MadeCall], content: str, reasoning: str) -> tuple[MadeCall, ...]:
    """Calls whose places rise and lie within these texts: files may be damaged. There are no more rounds than calls."""
    found, said, thought = list[MadeCall](), 0, 0
    for made in calls:
        said = max(said, min(made.said, len(content)))
        thought = max(thought, min(made.thought, len(reasoning)))
        found.append(replace(made, round=min(made.round, len(calls)), said=said, thought=thought))
    return tuple(found)


def moved(calls: Sequence[MadeCall], old: str, new: str) -> tuple[MadeCall, ...]:
    """Calls of a text that was edited: one stays where the text before it, or else all after it, is as it was; others
    go before what was changed. Their thoughts are gone."""
    start, longer = _alike(old, new), len(new) - len(old)
    same = len(old) - _alike(old[start:][::-1], new[start:][::-1])  # from here on
    places = (at + longer if at >= same and at > start else min(at, start) for at in (one.said for one in calls))
    return tuple(replace(one, said=at, thought=0) for one, at in zip(calls, places, strict=True))


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class WholeChat:
    """A chat with its tree of messages. Read from a file, ids are the file's own, and siblings are left out."""

    chat: Chat
    messages: Sequence[StoredMessage]
    """Parents before children."""
    chosen: frozenset[int]
    """Messages that are their parent's chosen child."""
    passes: Mapping[int, bytes] = field(default_factory=dict)
    """Origin data of answers, as `passes.encode` makes it."""

    @property
    def path(self) -> list[StoredMessage]:
        """The active path, from its first message to its last."""
        found: list[StoredMessage] = []
        for message in self.messages:
            if message.id in self.chosen and message.parent_id == (found[-1].id if found else None):
                found.append(message)
        return found


@dataclass(frozen=True, slots=True)
class Deletion:
    """Something deleted that can still be brought back."""

    id: int
    chat_id: int
    message_id: int | None
    """Root of what was deleted; None = the whole chat."""
    at: float
    title: str
    """Of the chat."""


@dataclass(frozen=True, slots=True)
class Hit:
    chat_id: int
    message_id: int | None
    """None = the chat's title matched."""
    title: str
    role: str
    """"" for a title."""
    snippet: str
    """One line around the match."""
    marks: tuple[tuple[int, int], ...]
    """(start, end) of what matched within `snippet`."""
    created: float


@dataclass(frozen=True, slots=True)
class Preset:
    """A named system prompt with parameters."""

    name: str
    system: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportReport:
    chats: int
    """New ones."""
    messages: int
    """New ones, in new and in known chats."""
    skipped: int
    """Chats of which everything was there already."""
    left_out: int = 0
    """Things that have no place in a chat, such as a tool's raw output."""

    def sentence(self) -> str:
        parts = [f"{_count(self.chats, 'chat')} and {_count(self.messages, 'message')} imported"]
        if self.skipped:
            parts.append(f"{_count(self.skipped, 'chat')} already there")
        if self.left_out:
            parts.append(f"{_count(self.left_out, 'message')} of tools, system or images left out")
        return "; ".join(parts) + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
