"""What an answerer tells, as messages of Textual's: handlers are called `on_answer_part` and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message
from textual.message_pump import MessagePump

from localspec.remote import answerer
from localspec.remote.answerer import Told


@dataclass(eq=False, repr=False)
class Loading(answerer.Loading, Message):
    """A model is being loaded or measured."""


@dataclass(eq=False, repr=False)
class ModelReady(answerer.ModelReady, Message):
    """The model can be asked."""


@dataclass(eq=False, repr=False)
class LoadFailed(answerer.LoadFailed, Message):
    """The model cannot be used."""


@dataclass(eq=False, repr=False)
class Taken(answerer.Taken, Message):
    """The question is going to be answered."""


@dataclass(eq=False, repr=False)
class Prefilled(answerer.Prefilled, Message):
    """How far the prompt of an answer has been read."""


@dataclass(eq=False, repr=False)
class AnswerPart(answerer.AnswerPart, Message):
    """What some passes brought."""


@dataclass(eq=False, repr=False)
class AnswerEnded(answerer.AnswerEnded, Message):
    """The answer is over."""


_KINDS: dict[type, Callable[..., Message]] = {
    kind.__bases__[0]: kind for kind in (Loading, ModelReady, LoadFailed, Taken, Prefilled, AnswerPart, AnswerEnded)
}


def posted(told: Told) -> Message:
    """The message that a widget gets."""
    return _KINDS[type(told)](**vars(told))


class Posts:
    """A sink that hands everything on to a widget, a screen or the app, as it comes."""

    def __init__(self, owner: MessagePump) -> None:
        self._owner = owner

    def post_message(self, message: Told) -> bool:
        return self._owner.post_message(posted(message))
