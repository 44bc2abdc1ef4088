"""/v1/messages: Anthropic's API, for clients that speak only that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from fastapi import APIRouter, Request
from pydantic import Discriminator, Field, Tag, field_validator
from starlette.responses import Response
from typing_extensions import TypedDict

from localspec.chat.reply.reply import Content, Part
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.chat.answers import FinishWord, arguments_of
from localspec.server.chat.chat import STREAMED, Exchange
from localspec.server.chat.fields import (
    MOST_ITEMS,
    MOST_STOPS,
    MOST_TOOLS,
    Body,
    ChatFields,
    Json,
    SamplingFields,
    Speculative,
    Unused,
    about,
    only_text,
    part_kind,
)
from localspec.server.chat.prepare import prompt_length
from localspec.server.http.output import BODIES, NAMED, ApiError, respond
from localspec.server.http.reading import ModelRoute, Served

Cached = Annotated[Json | None, Field(description="Accepted and not needed: prompts are cached anyway.")]
_UNSEEN = Field(description="Accepted from answers of other servers; the model does not see it.")


class Block(Body):
    cache_control: Cached = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any] | None, _UNSEEN] = None


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Json
    caller: Annotated[Json | None, _UNSEEN] = None


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(max_length=MOST_ITEMS)] = ""
    is_error: bool | None = None

    _only_text = field_validator("content", mode="before")(only_text)


class ThinkingBlock(Block):
    type: Literal["thinking"]
    thinking: str
    signature: str = about('Always "" here: nothing is signed.', default="")


class RedactedThinkingBlock(Block):
    """A thought of another server that cannot be read here."""

    type: Literal["redacted_thinking"]
    data: str


ContentBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")],
    Discriminator(
        part_kind,
        custom_error_type="unknown_part",
        custom_error_message="this server reads text only: blocks of the type text, tool_use, tool_result, thinking",
    ),
]


class InputMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(max_length=MOST_ITEMS)]


class ToolDefinition(Body):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    name: str
    description: str = ""
    input_schema: Json
    strict: bool = False
    cache_control: Cached = None
    eager_input_streaming: bool | None = about("Accepted: a call always comes whole.")
    input_examples: list[Json] | None = about("Accepted; the model does not see them.")


class ToolWish(Body):
    """Whether a tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = about("Of the tool, with the type `tool`.")
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether the model shall think first, where its template offers the choice."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = about("Accepted, not enforced: `max_tokens` holds for thoughts and answer together.")
    display: str | None = about("Accepted: thoughts are always shown.")


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")


class OutputConfig(Body):
    effort: str | None = about("Accepted: the models here know no such thing.")
    format: OutputFormat | None = None


class MessagesPrompt(Body):
    """What makes up the prompt; all that counting tokens takes."""

    tool_types: ClassVar[frozenset[str]] = frozenset({"custom"})
    model: str = about('Name of a model; "" = the default one.', default="")
    messages: list[InputMessage] = Field(min_length=1, max_length=MOST_ITEMS)
    system: str | Annotated[list[TextBlock], Field(max_length=MOST_ITEMS)] = ""
    tools: Annotated[list[ToolDefinition], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolWish | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Cached = None
    context_management: Json | None = about("Accepted and not done: a conversation that does not fit is refused.")

    def fields(self, **more: Any) -> ChatFields:
        """The same as a body of the chat API, with `more` of its fields."""
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        if self.output_config is not None and self.output_config.format is not None:
            wanted = {"schema": self.output_config.format.schema_}
            more["response_format"] = {"type": "json_schema", "json_schema": wanted}
        if self.thinking is not None:
            more["enable_thinking"] = self.thinking.type != "disabled"
        if self.tool_choice is not None:
            named = {"type": "function", "function": {"name": self.tool_choice.name or ""}}
            more["tool_choice"] = {"tool": named, "any": "required"}.get(self.tool_choice.type, self.tool_choice.type)
            more["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        functions = [
            tool.model_dump(include={"name", "description", "strict"}) | {"parameters": tool.input_schema}
            for tool in self.tools or ()
        ]
        return ChatFields.model_validate({
            "model": self.model or None,
            "messages": [*system, *(turn for message in self.messages for turn in _turns(message))],
            "tools": [{"type": "function", "function": function} for function in functions],
            **more,
        })  # fmt: skip


class MessagesBody(MessagesPrompt, SamplingFields):
    """A conversation that wants an answer."""

    max_tokens: int = Field(ge=1, description="Most new tokens, thoughts included.")
    stream: bool = False
    stop_sequences: list[str] | None = Field(default=None, max_length=MOST_STOPS)
    metadata: Unused = None
    service_tier: Unused = None
    inference_geo: Unused = None
    speed: Any = about("Accepted and not used: it is always as fast as it can be.")
    speculative: Speculative | None = about("How drafts are made (localspec's own field).")

    def fields(self, **more: Any) -> ChatFields:
        """The same with how to answer."""
        own = {"max_tokens": self.max_tokens, "stop": self.stop_sequences, "speculative": self.speculative}
        return super().fields(**own, **self.drawn(), **more)


def _turns(message: InputMessage) -> list[Json]:
    """One turn; results of calls are messages of their own here."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    found: list[Json] = []
    calls: list[Json] = []
    texts: list[TextBlock] = []
    thought = ""
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            found.append({"role": "tool", "content": _text(block.content), "tool_call_id": block.tool_use_id})
        elif isinstance(block, ToolUseBlock):
            function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
            calls.append({"id": block.id, "function": function})
        elif isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ThinkingBlock):
            thought += block.thinking
    text = _text(texts)
    if text or calls or thought or not found:
        found.append({"role": message.role, "content": text, "tool_calls": calls, "reasoning_content": thought})
    return found


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


class Blocks:
    """Anthropic's content blocks, put together from the parts of an answer; one is open at a time."""

    def __init__(self) -> None:
        self.content: list[Json] = []  # complete blocks, and the one that is open
        self._open = False
        self._arguments = ""  # of the call that is open

    def add(self, parts: Sequence[Part]) -> list[Json]:
        """Takes parts, returns the events they bring."""
        events: list[Json] = []
        for part in parts:
            if isinstance(part, CallBegun):
                events += self._begin({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
                self._arguments = ""
            elif isinstance(part, CallArguments):
                self._arguments += part.text
                events.append(self._delta({"type": "input_json_delta", "partial_json": part.text}))
            elif isinstance(part, CallEnded):
                self.content[-1]["input"] = arguments_of(self._arguments)
                events += self.close()
            else:
                kind = "text" if isinstance(part, Content) else "thinking"
                if not self._open or self.content[-1]["type"] != kind:
                    events += self._begin({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
                self.content[-1][kind] += part.text
                events.append(self._delta({"type": f"{kind}_delta", kind: part.text}))
        return events

    def close(self) -> list[Json]:
        """Ends the open block."""
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self.content) - 1}]

    def _begin(self, block: Json) -> list[Json]:
        events = self.close()
        self._open = True
        self.content.append(block)
        start = {"type": "content_block_start", "index": len(self.content) - 1, "content_block": dict(block)}
        return [*events, start]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


ROUTER = APIRouter(tags=["messages"], route_class=ModelRoute)
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS: dict[FinishWord, StopReason] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}


class MessageUsage(TypedDict):
    """Tokens, those of the prompt that were cached apart."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class MessageAnswer(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]  # blocks of text, thinking and tool_use, in the order they came
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(TypedDict):
    input_tokens: int


def _error_body(error: ApiError) -> Json:
    kind = _ERROR_TYPES.get(error.status_code, "api_error" if error.status_code >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


BODIES["/v1/messages"] = _error_body
BODIES["/messages"] = _error_body


@ROUTER.post(
    "/messages", summary="Answer a conversation (Anthropic's API)", response_model=MessageAnswer, responses=STREAMED
)
async def create(request: Request, service: Served, body: MessagesBody) -> Response:
    """The assistant's next turn, as one message or as a stream of events."""
    exchange = await Exchange.chat(service, body.fields())
    return await respond(request, exchange.answers, MessageReply(exchange), body.stream, NAMED)


@ROUTER.post("/messages/count_tokens", summary="Count the tokens of a conversation (Anthropic's API)")
async def count_tokens(service: Served, body: MessagesPrompt) -> TokenCount:
    """How long the prompt would be; nothing is generated."""
    return {"input_tokens": await prompt_length(service, body.fields())}


class MessageReply:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._blocks = exchange, Blocks()
        self._head = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": exchange.name}

    async def chunks(self, silence: float) -> AsyncIterator[Json]:
        """Events in Anthropic's order."""
        yield {"type": "message_start", "message": self._message({"stop_reason": None, "stop_sequence": None})}
        async for news in self._exchange.news(silence):
            for event in [{"type": "ping"}] if news is None else self._blocks.add(news.parts):
                yield event
        for event in self._blocks.close():
            yield event
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage()}
        yield {"type": "message_stop"}

    async def collected(self) -> Json:
        async for news in self._exchange.news():
            self._blocks.add(news.parts if news else ())
        return self._message(self._end())

    def _usage(self) -> MessageUsage:
        stats = self._exchange.choices[0].generation.stats
        return {
            "input_tokens": stats.prompt_tokens - stats.reused_tokens,
            "output_tokens": stats.generated,
            "cache_read_input_tokens": stats.reused_tokens,
            "cache_creation_input_tokens": 0,
        }

    def _end(self) -> Json:
        """Why the answer ended."""
        stopped = self._exchange.stop_string()
        reason = "stop_sequence" if stopped is not None else _STOP_REASONS[self._exchange.choices[0].finish]
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _message(self, end: Json) -> Json:
        return {**self._head, "content": self._blocks.content, **end, "usage": self._usage()}
