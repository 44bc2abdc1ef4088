"""What `/v1/responses` answers with: OpenAI's response object, its items, and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from pydantic import BaseModel, Field

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.chat.shapes import Extra, Timings, TokenLogProbs

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(BaseModel):
    """Text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[TokenLogProbs] = Field(default_factory=list)


class OutputMessage(BaseModel):
    """What the model says."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    content: list[OutputText] = Field(default_factory=list)


class ThoughtText(BaseModel):
    """Text of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class Thought(BaseModel):
    """What the model thinks."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[Any] = Field(default_factory=list)
    content: list[ThoughtText] = Field(default_factory=list)
    status: Status = "in_progress"


class FunctionCall(BaseModel):
    """What the model asks its caller to run."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str = ""
    status: Status = "in_progress"


OutputItem: TypeAlias = OutputMessage | Thought | FunctionCall


class InputDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    """Of the generated tokens."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """Why there is no answer."""

    code: Literal["server_error"] = "server_error"
    message: str


class IncompleteDetails(BaseModel):
    """Why the answer is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseObject(BaseModel):
    """An answer."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: Literal[False] = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    timings: Timings | None = None
    """llama-server's, once the answer is there."""
    localspec: Extra | None = None
    """Seed and statistics, once the answer is there."""


class InputTokens(BaseModel):
    """Length of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Deleted(BaseModel):
    """An answer that is forgotten now."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


# OpenAI's output items, put together from the parts of an answer, and the events that say so while it streams.

Event = dict[str, Any]


class Items:
    """The items of one answer; the last may be open, which its `status` says."""

    def __init__(self) -> None:
        self.output: list[OutputItem] = []

    def add(self, parts: Sequence[Part], log_probs: Sequence[TokenLogProbs] = ()) -> list[Event]:
        """Takes parts, and log-probabilities of the text among them; returns the events they bring."""
        events: list[Event] = []
        for part in parts:
            if isinstance(part, CallBegun):
                events += self._begin(FunctionCall(id=f"fc_{uuid4().hex}", call_id=part.id, name=part.name))
            elif isinstance(part, CallArguments):
                events.append(self._add_arguments(part))
            elif isinstance(part, CallEnded):
                events += self.close("completed" if part.whole else "incomplete")
            elif isinstance(part, Reasoning):
                events += self._add_thought(part)
            else:
                events += self._add_text(part, log_probs)
                log_probs = ()
        return events

    def close(self, status: Status) -> list[Event]:
        """Ends the open item."""
        item = self.output[-1] if self.output else None
        if item is None or item.status != "in_progress":
            return []
        item.status = status
        events: list[Event] = []
        if isinstance(item, OutputMessage | Thought):
            part = item.content[0]
            kind = "output_text" if isinstance(part, OutputText) else "reasoning_text"
            done: Event = {"text": part.text}
            if isinstance(part, OutputText):
                done["logprobs"] = [one.model_dump() for one in part.logprobs]
            events.append(self._about_text(f"response.{kind}.done", item.id, **done))
            events.append(self._about_text("response.content_part.done", item.id, part=_fields(part)))
        else:
            kind = "response.function_call_arguments.done"
            events.append(self._about(kind, item_id=item.id, name=item.name, arguments=item.arguments))
        return [*events, self._about("response.output_item.done", item=_fields(item))]

    def finish(self, status: Status) -> list[Event]:
        """Ends the answer; one that says nothing has an empty message."""
        events = [] if self.output else self._add_text(Content(""), ())
        return [*events, *self.close(status)]

    def _add_text(self, part: Content, log_probs: Sequence[TokenLogProbs]) -> list[Event]:
        events: list[Event] = []
        item = self.output[-1] if self.output else None
        if not isinstance(item, OutputMessage) or item.status != "in_progress":
            item = OutputMessage(id=f"msg_{uuid4().hex}")
            events += self._begin(item)
            item.content.append(OutputText())
            events.append(self._about_text("response.content_part.added", item.id, part=_fields(OutputText())))
        item.content[0].text += part.text
        item.content[0].logprobs.extend(log_probs)
        shown = [one.model_dump() for one in log_probs]
        if part.text:
            events.append(self._about_text("response.output_text.delta", item.id, delta=part.text, logprobs=shown))
        return events

    def _add_thought(self, part: Reasoning) -> list[Event]:
        events: list[Event] = []
        item = self.output[-1] if self.output else None
        if not isinstance(item, Thought) or item.status != "in_progress":
            item = Thought(id=f"rs_{uuid4().hex}")
            events += self._begin(item)
            item.content.append(ThoughtText())
            events.append(self._about_text("response.content_part.added", item.id, part=_fields(ThoughtText())))
        item.content[0].text += part.text
        return [*events, self._about_text("response.reasoning_text.delta", item.id, delta=part.text)]

    def _add_arguments(self, part: CallArguments) -> Event:
        item = self.output[-1]
        assert isinstance(item, FunctionCall)
        item.arguments += part.text
        return self._about("response.function_call_arguments.delta", item_id=item.id, delta=part.text)

    def _begin(self, item: OutputItem) -> list[Event]:
        events = self.close("completed")
        self.output.append(item)
        return [*events, self._about("response.output_item.added", item=_fields(item))]

    def _about(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "output_index": len(self.output) - 1, **fields}

    def _about_text(self, kind: str, item: str, **fields: Any) -> Event:
        return self._about(kind, item_id=item, content_index=0, **fields)


_fields: Callable[[BaseModel], Event] = BaseModel.model_dump
