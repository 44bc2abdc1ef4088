"""What the completion API answers with, and what it shares with the chat API. Fields that are not set are not sent."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from localspec.server.chat.shapes import Extra, FinishWord, TextLogProbs, Timings
from localspec.server.chat.usage import Usage


class Completion(BaseModel):
    """What every answer of both APIs has, whole or as one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    usage: Usage | None = None
    timings: Timings | None = None
    localspec: list[Extra] | None = None
    """By choice."""


class TextChoice(BaseModel):
    """One answer, or what is new of it."""

    index: int
    text: str
    logprobs: TextLogProbs | None
    finish_reason: FinishWord | None


class TextCompletion(Completion):
    """All of it, or one event of a stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
