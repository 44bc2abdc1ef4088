"""What the completion API answers with: whole or in chunks. Fields that are not set are not sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from localspec.server.shapes import Extra, FinishWord, TextLogProbs, Timings
from localspec.server.usage import Usage


class TextChoice(BaseModel):
    """One answer, or what is new of it."""

    index: int
    text: str
    logprobs: TextLogProbs | None
    finish_reason: FinishWord | None


class TextCompletion(BaseModel):
    """All of it, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | None = None
    timings: Timings | None = None
    localspec: list[Extra] | None = None
    """By choice."""
