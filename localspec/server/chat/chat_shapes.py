"""What the chat API answers with: whole or in chunks. Fields that are not set are not sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from localspec.server.chat.completion_shapes import Completion
from localspec.server.chat.shapes import ChatLogProbs, Extra, FinishWord, Timings
from localspec.server.chat.usage import Usage


class Function(BaseModel):
    """What is to be called."""

    name: str
    arguments: str
    """JSON text; the beginning of one, if the answer was cut within the call."""


class Call(BaseModel):
    """A tool call of a whole answer."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class FunctionDelta(BaseModel):
    """What is new of a tool call."""

    name: str | None = None
    """Only where the call begins."""
    arguments: str
    """What comes next of the JSON text."""


class CallDelta(BaseModel):
    """A part of a tool call in a stream: its id and name first, then its arguments as they are written."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class AnswerMessage(BaseModel):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    """One whole answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogProbs | None
    finish_reason: FinishWord


class ChatCompletion(Completion):
    """All of it."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    localspec: list[Extra]


class Delta(BaseModel):
    """What is new."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """What is new of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogProbs | None = None
    finish_reason: FinishWord | None


class ChatChunk(Completion):
    """One event of a stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
