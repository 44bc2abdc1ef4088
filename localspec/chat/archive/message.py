"""What the archive hands out: chats, messages, attachments, search hits. Frozen data; ids are the database's own.

Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["user", "assistant", "system", "tool"]
State = Literal["streaming", "done", "stopped", "error"]
ROLES: tuple[str, ...] = get_args(Role)
STATES: tuple[str, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text file that goes with a user's message."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, without its messages."""

    id: int
    key: str
    """Names the chat in exports, the same in every archive."""
    title: str
    system: str
    """System prompt; "" = none."""
    model: str
    """Pair or model it was last used with."""
    params: Mapping[str, Any]
    """Sampling and other settings of this chat; see `prompt.sampling_params`."""
    pinned: bool
    tags: tuple[str, ...]
    unsent: str
    """What stands in the input and was not sent."""
    window_first: int | None
    """The first message that the model still sees; None = all of them."""
    window_summary: str
    """What the model is told of the messages before `window_first`."""
    created: float
    used: float
    messages: int
    """How many there are, all branches together."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of the tree."""

    id: int
    key: str
    """Names the message in exports; distinct within its chat."""
    chat_id: int
    parent_id: int | None
    """None = it begins the chat."""
    role: Role
    content: str
    reasoning: str
    """What the model thought before it answered; "" = nothing."""
    state: State
    note: str
    """What went wrong, if something did."""
    model: str
    seed: int | None
    sampling: Mapping[str, Any]
    """Settings an answer was drawn with, names of `SamplingParams`."""
    stats: Mapping[str, Any]
    """`RequestStats.as_dict` of an answer; {} while there are none."""
    attachments: tuple[Attachment, ...]
    created: float
    updated: float
    siblings: tuple[int, ...]
    """Ids of all messages with this parent, this one included, oldest first."""

    @property
    def sibling_number(self) -> int:
        """Its place among its siblings, from 1."""
        return self.siblings.index(self.id) + 1


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
    """Something a search found."""

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
