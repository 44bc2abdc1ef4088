"""What to do with a chat that outgrows its context. Pure functions: the face asks, and keeps what was decided.

`count` gives the tokens of a prompt, such as `lambda messages: len(engine.chat_tokens(messages))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.chat.turn import Message

Count = Callable[[Sequence[Message]], int]

_SUMMARISE = (
    "Summarise our conversation so far for yourself, so that you can go on with it without seeing it. Keep facts, "
    "names, numbers, decisions and open questions; leave out pleasantries. Answer with the summary alone, in at most "
    "400 words."
)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A prompt after its oldest turns were dropped."""

    messages: list[Message]
    dropped: int
    """How many of the messages after the system prompt were left out; they were the first."""
    tokens: int
    fits: bool
    """False: even the last turn alone is too long."""


def drop_oldest(messages: Sequence[Message], limit: int, count: Count) -> Trimmed:
    """The longest end of a chat that fits, cut before a user's message, with the system prompt in front.

    Args:
        messages: the whole prompt; the last turn is always kept.
        limit: tokens the prompt may have; leave room for the answer.
        count: called about log2(turns) times; more messages must not count less.
    """
    system = [message for message in messages[:1] if message.role == "system"]
    turns = list(messages[len(system) :])
    cuts = sorted({0, *(at for at, message in enumerate(turns) if message.role == "user")})

    def tokens(cut: int) -> int:
        return count([*system, *turns[cut:]])

    low, high = 0, len(cuts) - 1  # the first cut that fits is in low..high, or none is
    while low < high:
        middle = (low + high) // 2
        if tokens(cuts[middle]) <= limit:
            high = middle
        else:
            low = middle + 1
    needed = tokens(cuts[low])
    return Trimmed([*system, *turns[cuts[low] :]], cuts[low], needed, needed <= limit)


def summary_request(messages: Sequence[Message]) -> list[Message]:
    """A prompt whose answer can stand for these messages, for `Archive.set_window`."""
    asked = list(messages)
    if asked and asked[-1].role == "user":  # templates want turns to alternate
        return [*asked[:-1], Message("user", f"{asked[-1].content}\n\n{_SUMMARISE}")]
    return [*asked, Message("user", _SUMMARISE)]
