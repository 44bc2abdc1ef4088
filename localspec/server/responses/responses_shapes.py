"""What `/v1/responses` answers with: OpenAI's response object and its items."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

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
