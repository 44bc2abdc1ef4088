"""A chat as the model is asked: its path and parameters become a `Question`; what to do when it no longer fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.archive.message import Chat, StoredMessage
from localspec.chat.prompt.prompt import drop_oldest, prompt_messages, sampling_params, summary_request, window_start
from localspec.chat.turn import Message
from localspec.engine.interfaces import fresh_seed
from localspec.options import LIMITS
from localspec.remote.answerer import Answerer, Facts, Question

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

    With `thought_out` as well, its thinking ends where it is. `private`: nothing of it is kept.
    """
    prefix = reasoning = ""
    if go_on and path and path[-1].role == "assistant":
        prefix, reasoning = path[-1].content, path[-1].reasoning
        path = path[:-1]
    params = chat.params
    local = facts is None or not facts.remote
    seed = params.get("seed")
    return Question(
        messages=prompt_messages(chat, path),
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
    """The messages of a path that `prompt_messages` hands on, in order."""
    return [
        message
        for message in path[window_start(chat, path) :]
        if message.role != "assistant" or message.content.strip() or message.attachments
    ]


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
