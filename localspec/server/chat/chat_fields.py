"""Fields that the chat and the completion API share, and the chat API's own.

The form an answer must have, by whichever field asks for it: a JSON schema, a grammar, an expression, a choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from localspec.chat.reply.tool import Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.grammar.grammar import Grammar
from localspec.server.chat.fields import (
    MOST_CHOICES,
    MOST_ITEMS,
    MOST_STOPS,
    MOST_TOOLS,
    Body,
    Harmless,
    Prediction,
    ResponseFormat,
    SamplingFields,
    Speculative,
    StreamOptions,
    TextPart,
    Unused,
    limit,
)
from localspec.server.http.errors import invalid, not_json

MOST_WAYS = 1024
"""Texts of a choice."""
Ways = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MOST_WAYS)]
Schema = dict[str, Any]


MOST_TOP = 20
"""Likely tokens that are told at each position."""
MOST_PROMPTS = 2048
"""Prompts in one request, as for embeddings; fewer have places."""
TokenIds = Annotated[list[int], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MOST_PROMPTS)
Prompts = str | Annotated[list[str], _Several] | TokenIds | Annotated[list[TokenIds], _Several]


class StructuredOutputs(Body):
    """vLLM's object for the form of an answer: one of these."""

    json_: Schema | str | None = Field(default=None, alias="json", description="A schema, or its text.")
    json_object: bool | None = None
    regex: str | None = Field(default=None, description="The whole answer; Rust's syntax.")
    choice: Ways | None = None
    grammar: str | None = Field(default=None, description="GBNF text.")


class FormFields(Body):
    """Fields that ask for a form; at most one may."""

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = Field(default=None, description="As response_format with a schema.")
    grammar: str | None = Field(default=None, description="GBNF text.")
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = Field(default=None, description="A schema, or its text.")
    guided_regex: str | None = Field(default=None, description="The whole answer; Rust's syntax.")
    guided_choice: Ways | None = None
    guided_grammar: str | None = Field(default=None, description="GBNF text.")

    def answer_grammar(self) -> tuple[Grammar, str] | None:
        """What is asked for, as it is written, and the field that asks; None = nothing. ApiError 400: several ask."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        }
        if (own := self.structured_outputs) is not None:
            several = {"json": own.json_, "regex": own.regex, "choice": own.choice, "grammar": own.grammar}
            several["json_object"] = {"type": "object"} if own.json_object else None
            given |= {f"structured_outputs.{name}": value for name, value in several.items()}
        if self.response_format is not None and self.response_format.type != "text":
            given["response_format"] = _schema_of(self.response_format)
        asked = [field for field, value in given.items() if value is not None]
        if len(asked) > 1:
            raise invalid(f"{' and '.join(asked)} exclude each other.", asked[0], "invalid_value")
        return (_grammar(asked[0], given[asked[0]]), asked[0]) if asked else None


def _grammar(field: str, value: Any) -> Grammar:
    name = field.rpartition(".")[2].removeprefix("guided_")
    if name == "grammar":
        return Grammar("gbnf", value)
    if name == "regex":
        return Grammar("regex", value)
    if name == "choice":
        lark = "start: " + " | ".join(json.dumps(way, ensure_ascii=False) for way in value)
        return Grammar("lark", lark, "choice")
    return Grammar("schema", json.dumps(_parsed(field, value) if isinstance(value, str) else value))


def _parsed(field: str, text: str) -> Schema:
    from pydantic_core import from_json

    try:
        schema = from_json(text)
    except ValueError as error:
        raise not_json(field, error, field) from None
    if not isinstance(schema, dict):
        raise invalid(f"{field} is no JSON object.", field, "invalid_value")
    return schema


def _schema_of(wanted: ResponseFormat) -> Schema:
    if wanted.type == "json_object":
        return {"type": "object"} if wanted.schema_ is None else wanted.schema_
    schema = wanted.json_schema.schema_ if wanted.json_schema is not None else None
    if not isinstance(schema, dict):
        what = "response_format is json_schema without json_schema.schema."
        raise invalid(what, "response_format", "missing_required_parameter")
    return schema


# Fields that the chat and the completion API share.


class GenerationFields(Harmless, SamplingFields, FormFields):
    """How an answer is drawn, limited and drafted."""

    other_names: ClassVar[Mapping[str, str]] = {**SamplingFields.other_names, "n_predict": "max_tokens"}
    model: str | None = Field(default=None, description="Name of an installed model or pair; left out: the default.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES, description="Choices; each has its own random numbers.")
    max_tokens: int | None = limit("max_tokens", "Most new tokens; -1 = until the model ends.")
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOPS)] | None = Field(
        default=None, description="Tokens that end the answer, besides the model's own."
    )
    ignore_eos: bool | None = Field(default=None, description="Go on where the model would end (benchmarks).")
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    timings_per_token: bool | None = Field(default=None, description="`timings` on every chunk of a stream.")

    @property
    def choices(self) -> int:
        """How many are asked for."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionFields(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompts
    suffix: str | None = Field(default=None, description="Text after the gap that the answer fills.")
    echo: bool | None = Field(default=None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    best_of: int | None = Field(default=None, ge=1, description="Must equal n.")
    drawn_log_probs: ClassVar[bool] = False
    """Whether log-probabilities are those that tokens were drawn by."""

    @property
    def wants_scores(self) -> bool:
        """Whether the prompt's own log-probabilities are asked for."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def only_echo(self) -> bool:
        """Whether nothing is to be generated: the prompt comes back, scored if log-probabilities are asked for."""
        return bool(self.echo) and self.max_tokens == 0


# Whether and how hard the model shall think, by the names that servers have for it: variables of the chat template.


class ReasoningField(Body):
    """How to think, in an object."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: Any = Field(default=None, description="Accepted and not used: thoughts are always shown.")
    max_tokens: Any = Field(default=None, description="Accepted and not used: the request's limit holds.")


class ThinkingField(Body):
    """Whether to think, in an object."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Any = Field(default=None, description="Accepted and not used: the request's limit holds.")


class ThinkingFields(Body):
    """Fields about thinking. Templates that do not know the variables do not use them."""

    reasoning_effort: str | None = Field(
        default=None, description="For chat templates that know it; none = no thoughts."
    )
    reasoning: bool | str | ReasoningField | None = Field(default=None, description="An effort, or whether to think.")
    thinking: bool | ThinkingField | None = Field(default=None, description="Whether to think.")
    enable_thinking: bool | None = Field(default=None, description="Whether to think.")

    def thought(self) -> dict[str, Any]:
        """`enable_thinking` and `reasoning_effort` for the chat template, where something is said of them."""
        reasoning, thinking = self.reasoning, self.thinking
        effort = self.reasoning_effort
        enabled = self.enable_thinking
        if enabled is None and thinking is not None:
            enabled = thinking if isinstance(thinking, bool) else thinking.type != "disabled"
        if isinstance(reasoning, ReasoningField):
            effort = effort or reasoning.effort
            enabled = reasoning.enabled if enabled is None else enabled
        elif isinstance(reasoning, bool):
            enabled = reasoning if enabled is None else enabled
        else:
            effort = effort or reasoning
        if effort is not None and enabled is None:
            enabled = effort != "none"
        found = {"enable_thinking": enabled, "reasoning_effort": None if effort == "none" else effort}
        return {name: value for name, value in found.items() if value is not None}


_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


class ContentPart(TextPart):
    """A piece of text in a message."""

    cache_control: Unused = None


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


_UNREAD = frozenset({
    "image", "image_url", "input_image", "document", "file", "input_file", "audio", "input_audio", "search_result",
    "tool_reference",
})  # fmt: skip
"""Kinds of parts that results of tools have in the APIs, besides text."""


def only_text(parts: Any, kind: str = "text") -> Any:
    """Parts of a tool's result, not validated, with a text of `kind` in place of each that cannot be read: whoever
    sends it does so in every request that follows, and would get no answer any more."""
    if not isinstance(parts, list):
        return parts
    unread = [isinstance(one, dict) and isinstance(one.get("type"), str) and one["type"] in _UNREAD for one in parts]
    return [
        {"type": kind, "text": f"[{one['type']}: not shown, text only]"} if hidden else one
        for one, hidden in zip(parts, unread, strict=True)
    ]


class CalledFunction(Body):
    """What was called."""

    name: str
    arguments: str
    parsed_arguments: Unused = None


class CallField(Body):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Unused = None


class ChatMessage(Body):
    """One turn. What an answer of this API holds is taken back as it is."""

    other_names: ClassVar[Mapping[str, str]] = {"reasoning": "reasoning_content"}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(max_length=MOST_ITEMS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[CallField], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Unused = None
    annotations: Unused = None
    parsed: Unused = None
    audio: None = None
    function_call: None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any, info: ValidationInfo) -> Any:
        return only_text(content) if info.data.get("role") == "tool" else content


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
    max_completion_tokens: int | None = limit("max_tokens", "Newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    tools: Annotated[list[ToolField], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    return_progress: bool | None = Field(default=None, description="A stream says how far the prompt is read.")
    verbose: Unused = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=MOST_ITEMS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables for the chat template.")
    add_generation_prompt: bool | None = Field(
        default=None, description="false = the prompt ends after the last message, or, if that goes on, inside it."
    )
    continue_final_message: bool | None = Field(
        default=None, description="Go on with the last message, which is the assistant's; left out: if it is."
    )

    def limit(self) -> int | None:
        """Most new tokens, by whichever name; ApiError 400: two names and two limits."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise invalid("max_tokens and max_completion_tokens differ.", "max_completion_tokens", "invalid_value")
        return old if new is None else new

    def conversation(self) -> tuple[list[Message], str]:
        """The messages to show, and the beginning of the answer that is given: "" = none. ApiError 400: an impossible
        order."""
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
        """For the chat template; ApiError 400: one that is not the client's to set."""
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
    """A tool."""
    function = given.function
    more = {} if function.parameters is None else {"parameters": function.parameters}
    return Tool(function.name, function.description or "", strict=bool(function.strict), **more)
