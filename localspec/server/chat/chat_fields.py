"""The body of a chat request, and its messages and tools in localspec's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from localspec.chat.reply.tool import Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.server.chat.fields import MOST_ITEMS, MOST_TOOLS, Body, TextPart
from localspec.server.chat.generation_fields import GenerationFields
from localspec.server.chat.thinking import ThinkingFields
from localspec.server.http.errors import invalid

_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
MOST_TOP = 20


class ContentPart(TextPart):
    """A piece of text in a message."""

    cache_control: Any = Field(default=None, description="Accepted and not used.")


class RefusalPart(Body):
    """A piece of what an assistant refused."""

    type: Literal["refusal"]
    refusal: str


def part_kind(part: Any) -> str:
    """What tells the parts of a content apart. The tags are no names, so that no error takes them for a field's."""
    return f"<{part.get('type') if isinstance(part, dict) else getattr(part, 'type', None)}>"


Part = Annotated[
    Annotated[ContentPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(
        part_kind,
        custom_error_type="unknown_part",
        custom_error_message="this server reads text only, in parts of the type 'text' or 'refusal'",
    ),
]


class CalledFunction(Body):
    """What was called."""

    name: str
    arguments: str
    parsed_arguments: Any = Field(default=None, description="Accepted and not used.")


class CallField(Body):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Any = Field(default=None, description="Accepted and not used.")


class ChatMessage(Body):
    """One turn. What an answer of this API holds is taken back as it is."""

    other_names: ClassVar[Mapping[str, str]] = {"reasoning": "reasoning_content"}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(max_length=MOST_ITEMS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallField], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Any = Field(default=None, description="Accepted and not used.")
    annotations: Any = Field(default=None, description="Accepted and not used.")
    parsed: Any = Field(default=None, description="Accepted and not used.")
    audio: None = None
    function_call: None = None


class FunctionField(Body):
    """A function the model may ask for."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionField


class NamedFunction(Body):
    """A function by its name."""

    name: str


class NamedChoice(Body):
    """A tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatFields(GenerationFields, ThinkingFields):
    """POST /v1/chat/completions."""

    tool_types: ClassVar[frozenset[str]] = frozenset({"function"})
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_ITEMS)]
    max_completion_tokens: int | None = Field(default=None, ge=-1, description="Newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    tools: Annotated[list[ToolField], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=MOST_ITEMS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables for the chat template.")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        default=None, description="Go on with the last message, which is the assistant's; left out: if it is."
    )

    def limit(self) -> int | None:
        """Most new tokens, by whichever name.

        Raises:
            ApiError: 400, two names and two limits.
        """
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid("max_tokens and max_completion_tokens differ.", "max_completion_tokens", "invalid_value")
        return old if new is None else new

    def conversation(self) -> tuple[list[Message], str]:
        """The messages to show, and the beginning of the answer that is given: "" = none.

        Raises:
            ApiError: 400, an impossible order.
        """
        messages = [message_of(one) for one in self.messages]
        last_is_answer = messages[-1].role == "assistant" and not messages[-1].tool_calls
        if self.continue_final_message and (self.add_generation_prompt or not last_is_answer):
            why = "add_generation_prompt is true" if last_is_answer else "the last message is not the assistant's"
            raise invalid(f"continue_final_message is true and {why}.", "continue_final_message", "invalid_value")
        if not last_is_answer or self.continue_final_message is False or self.add_generation_prompt:
            return messages, ""
        if len(messages) > 1 and messages[-2].role == "assistant" and not messages[-2].tool_calls:
            raise invalid("The last two messages are both the assistant's.", "messages", "invalid_value")
        return messages[:-1], messages[-1].content

    def variables(self) -> dict[str, Any]:
        """For the chat template.

        Raises:
            ApiError: 400, a variable that is not the client's to set.
        """
        given = dict(self.chat_template_kwargs or {})
        own = sorted(_OWN_VARIABLES & set(given))
        if own:
            what = f"chat_template_kwargs.{own[0]} is set by the server."
            raise invalid(what, f"chat_template_kwargs.{own[0]}", "invalid_value")
        return self.thought() | given

    def choice_of_tool(self) -> ToolChoice:
        """What is said about calling."""
        if isinstance(self.tool_choice, NamedChoice):
            return ToolChoice("named", self.tool_choice.function.name)
        return ToolChoice(self.tool_choice or "auto")


def message_of(given: ChatMessage) -> Message:
    """A message for the chat template."""
    content = given.content or ""
    if not isinstance(content, str):
        content = "\n".join(part.text if isinstance(part, ContentPart) else part.refusal for part in content)
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in given.tool_calls or ())
    return Message(
        "system" if given.role == "developer" else given.role,
        content,
        tool_calls=calls,
        tool_call_id=given.tool_call_id or "",
        name=given.name or "",
        reasoning=given.reasoning_content or "",
    )


def tool_of(given: ToolField) -> Tool:
    """A tool.

    Raises:
        UsageError: a name or parameters that no tool can have.
    """
    function = given.function
    more = {} if function.parameters is None else {"parameters": function.parameters}
    return Tool(function.name, function.description or "", strict=bool(function.strict), **more)
