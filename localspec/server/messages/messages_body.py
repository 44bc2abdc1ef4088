"""What `POST /v1/messages` takes: Anthropic's body, and what it means for a model here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from localspec.server.chat.chat_fields import (
    CalledFunction,
    CallField,
    ChatFields,
    ChatMessage,
    FunctionField,
    NamedChoice,
    NamedFunction,
    ToolField,
    only_text,
    part_kind,
)
from localspec.server.chat.fields import (
    MOST_ITEMS,
    MOST_STOPS,
    MOST_TOOLS,
    Body,
    JsonSchema,
    ResponseFormat,
    SamplingFields,
    Speculative,
)


class Block(Body):
    """A block of content."""

    cache_control: dict[str, Any] | None = None
    """Accepted and not needed: prompts are cached anyway."""


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None
    """Accepted from answers of other servers; the model does not see them."""


class ToolUseBlock(Block):
    """A call the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    """Accepted from answers of other servers; the model does not see it."""


class ToolResultBlock(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(max_length=MOST_ITEMS)] = ""
    is_error: bool | None = None

    _only_text = field_validator("content", mode="before")(only_text)


class ThinkingBlock(Block):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""
    """Always "" here: nothing is signed."""


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
    """A turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(max_length=MOST_ITEMS)]


class ToolDefinition(Body):
    """A tool of the client's own."""

    type: Literal["custom"] | None = None
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = False
    cache_control: dict[str, Any] | None = None
    """Accepted and not needed."""
    eager_input_streaming: bool | None = None
    """Accepted: a call always comes whole."""
    input_examples: list[dict[str, Any]] | None = None
    """Accepted; the model does not see them."""


class Choice(Body):
    """Whether something is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Of the tool, with the type `tool`."""
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """Whether the model shall think first, where its template offers the choice."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    """Accepted, not enforced: `max_tokens` holds for thoughts and answer together."""
    display: str | None = None
    """Accepted: thoughts are always shown."""


class OutputFormat(Body):
    """A schema for the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """What the answer shall be like."""

    effort: str | None = None
    """Accepted: the models here know no such thing."""
    format: OutputFormat | None = None


class Prompt(Body):
    """What makes up the prompt; all that counting tokens takes."""

    tool_types: ClassVar[frozenset[str]] = frozenset({"custom"})
    model: str = ""
    """Name of a model; "" = the default one."""
    messages: list[InputMessage] = Field(min_length=1, max_length=MOST_ITEMS)
    system: str | Annotated[list[TextBlock], Field(max_length=MOST_ITEMS)] = ""
    tools: Annotated[list[ToolDefinition], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    """Accepted and not needed."""
    context_management: dict[str, Any] | None = None
    """Accepted and not done: a conversation that does not fit is refused."""

    def fields(self, **more: Any) -> ChatFields:
        """The same as a body of the chat API.

        Args:
            more: further fields of it.
        """
        system = [ChatMessage(role="system", content=_text(self.system))] if self.system else []
        wanted = self.output_config.format if self.output_config is not None else None
        if wanted is not None:
            schema = JsonSchema(schema=wanted.schema_)
            more["response_format"] = ResponseFormat(type="json_schema", json_schema=schema)
        if self.thinking is not None:
            more["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
        if self.tool_choice is not None:
            more["tool_choice"] = _choice(self.tool_choice)
            more["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        return ChatFields(
            model=self.model or None,
            messages=[*system, *(turn for message in self.messages for turn in _turns(message))],
            tools=[_tool(tool) for tool in self.tools or ()],
            **more,
        )


class MessagesBody(Prompt, SamplingFields):
    """A conversation that wants an answer."""

    max_tokens: int = Field(ge=1)
    """Most new tokens, thoughts included."""
    stream: bool = False
    stop_sequences: list[str] | None = Field(None, max_length=MOST_STOPS)
    metadata: Any = None
    """Accepted and not used."""
    service_tier: Any = None
    """Accepted and not used."""
    inference_geo: Any = None
    """Accepted and not used."""
    speed: Any = None
    """Accepted and not used: it is always as fast as it can be."""
    speculative: Speculative | None = None
    """How drafts are made (localspec's own field)."""

    def answered(self) -> ChatFields:
        """The same as a body of the chat API, with how to answer."""
        return self.fields(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            speculative=self.speculative,
            **self.drawn(),
        )


def _tool(given: ToolDefinition) -> ToolField:
    function = FunctionField(
        name=given.name, description=given.description, parameters=given.input_schema, strict=given.strict
    )
    return ToolField(type="function", function=function)


def _choice(given: Choice) -> Literal["auto", "none", "required"] | NamedChoice:
    if given.type == "tool":
        return NamedChoice(type="function", function=NamedFunction(name=given.name or ""))
    if given.type == "any":
        return "required"
    return given.type


def _turns(message: InputMessage) -> list[ChatMessage]:
    """One turn; results of calls are messages of their own here."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    found, blocks = [], message.content
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            content = block.content if isinstance(block.content, str) else _text(block.content)
            found.append(ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id))
    calls = [
        CallField(
            id=block.id,
            function=CalledFunction(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False)),
        )
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    text = _text([block for block in blocks if isinstance(block, TextBlock)])
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    if text or calls or thought or not found:
        found.append(ChatMessage(role=message.role, content=text, tool_calls=calls, reasoning_content=thought))
    return found


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
