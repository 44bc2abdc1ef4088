"""What an answerer tells, from its threads to a screen: parts of an answer are joined until the last one is drawn.

An answerer never waits for the screen, and the screen is never more than one part late, however slow it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from time import monotonic

from textual.message import Message
from textual.message_pump import MessagePump

from localspec.remote.answerer import POSTS_PER_SECOND, AnswerEnded, AnswerPart, Prefilled, Taken, Told

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
