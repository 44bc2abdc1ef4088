"""Fields that the APIs share, those of the chat and the completion API, and what they mean to the engine.

A field that is not listed is ignored or refused, as `reading.BodyReading` says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from localspec.chat.reply.tool import Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.grammar.grammar import Grammar
from localspec.options import LIMITS
from localspec.server.http.output import invalid, not_json
from localspec.server.http.reading import BodyReading, renamed
from localspec.settings import Setting, numbers_of
from localspec.types import SamplingParams

MOST_STOPS = 64  # stop strings in one request; each is searched for in every new text
MOST_CHOICES = 128  # choices of one request (OpenAI's limit)
MOST_ITEMS = 10_000
"""Messages, items or parts in one list: far more than conversations have, and validated in less than 0.1 s."""
MOST_TOOLS = 1024  # tools of one request, and calls of one message
MOST_BIASES = 4096  # biased tokens or texts of one request; each text is made into tokens
MOST_WAYS = 1024  # texts of a choice
MOST_TOP = 20  # likely tokens that are told at each position
LONG_TOKEN = 64  # characters of a token at most, in texts that are cut: few tokens are longer
MOST_PROMPTS = 2048  # prompts in one request, as for embeddings; fewer have places

Json: TypeAlias = dict[str, Any]  # a JSON object, read or to be written
Ways = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MOST_WAYS)]
TokenIds = Annotated[list[int], Field(min_length=1)]
_Several = Field(min_length=1, max_length=MOST_PROMPTS)
Prompts = str | Annotated[list[str], _Several] | TokenIds | Annotated[list[TokenIds], _Several]
_Pair = Annotated[list[int | str | float | bool], Field(min_length=2, max_length=3)]
LogitBias: TypeAlias = (
    Annotated[dict[str, float | bool], Field(max_length=MOST_BIASES)]
    | Annotated[list[_Pair], Field(max_length=MOST_BIASES)]
)
Unused = Annotated[Any, Field(description="Accepted and not used.")]
"""A field that clients send and that changes nothing here."""


def about(description: str, default: Any = None, **more: Any) -> Any:
    """A field that may be left out, with what the OpenAPI document says of it; `more` as for `pydantic.Field`."""
    return Field(default=default, description=description, **more)


def limit(name: str, description: str) -> Any:
    """The field of a number of `Options` in a body; null = the default."""
    return _ranged(LIMITS[name], description)


def _ranged(row: Setting, description: str) -> Any:
    least, most = min((row.declared.least, *row.declared.stands_for)), row.declared.most
    return about(description, ge=least, le=None if most == math.inf else most)


class Body(BaseModel):
    """A JSON object whose fields are of the type they should have. Unknown ones are refused, unless a `BodyReading`,
    which is the context of the validation, takes them out first."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    other_names: ClassVar[Mapping[str, str]] = {}
    """Names that other servers have for fields, and ours."""
    ignored_switches: ClassVar[frozenset[str]] = frozenset()
    """Fields that are not known and would change the answer, and that are ignored all the same."""
    tool_types: ClassVar[frozenset[str]] = frozenset()
    """Types of tools that clients run; others are for servers that run tools themselves. Empty = there are no tools."""

    @model_validator(mode="before")
    @classmethod
    def _taken(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        if cls.other_names:
            data = renamed(data, cls.other_names)
        whole = _whole_numbers(cls)
        data = {
            name: int(value) if name in whole and isinstance(value, float) and value.is_integer() else value
            for name, value in data.items()
        }
        if not isinstance(info.context, BodyReading):
            return data
        data = info.context.taken(data, cls)
        return info.context.with_tools(data, cls.tool_types) if cls.tool_types else data


@cache
def _whole_numbers(kind: type[Body]) -> frozenset[str]:
    """Names of the fields that are whole numbers. JSON has one kind of number: 20.0 is 20, as some clients write it."""
    kinds = {
        field.alias or name: get_args(field.annotation) or (field.annotation,)
        for name, field in kind.model_fields.items()
    }
    return frozenset(name for name, each in kinds.items() if int in each and float not in each)


class Harmless(Body):
    """Fields of OpenAI's that change nothing here and that clients send all the same."""

    user: Unused = None
    store: Any = about("Accepted and not used: nothing is kept.")
    metadata: Unused = None
    service_tier: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Any = about("Accepted and not used: prefixes are found by their tokens.")
    prompt_cache_retention: Unused = None


class StreamOptions(Body):
    include_usage: bool | None = about("A last chunk with `usage` and no choices.")
    include_obfuscation: Unused = None


class Speculative(Body):
    """How drafts are made for this request. The text does not depend on it."""

    enabled: bool = about("false = plain decoding.", default=True)
    drafter: str | None = about("Which drafter guesses, by name; null = the plan chooses.")
    max_draft_tokens: int | None = limit("max_draft_tokens", "Longest draft; null = what pays.")
    force: bool = about("Draft in every pass, paying or not, as `serve --drafter NAME` does.", default=False)


class TextPart(Body):
    type: Literal["text"]
    text: str


class PredictedText(Body):
    """Text that is expected in the answer: where it comes true it costs almost nothing."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[TextPart], Field(max_length=MOST_ITEMS)]


# How tokens are drawn.

SAMPLING = numbers_of(SamplingParams)  # what is declared of drawing tokens


if TYPE_CHECKING:

    class _Sampling(Body):
        """A field for each of `SAMPLING`, by its name in the APIs."""

else:
    _Sampling = create_model(
        "_Sampling", __base__=Body, **{row.api_name: (row.kind | None, _ranged(row, row.doc)) for row in SAMPLING}
    )


class SamplingFields(_Sampling):
    """Defaults are llama.cpp's."""

    other_names: ClassVar[Mapping[str, str]] = {
        other: row.api_name for row in SAMPLING for other in row.declared.other_names
    }
    seed: int | None = limit("seed", "Equal seeds give equal text; -1 = random.")
    dry_sequence_breakers: list[str] | None = Field(default=None, max_length=64)
    logit_bias: LogitBias | None = about("By token id or text; false bans.")
    min_tokens: int | None = limit("min_tokens", "Nothing ends the answer before so many tokens.")

    def sampling(self) -> dict[str, Any]:
        """What is given of `SamplingParams`, logit bias apart."""
        given = [(row, getattr(self, row.api_name)) for row in SAMPLING]
        found = {row.name: row.meant(value) for row, value in given if value is not None}
        if self.dry_sequence_breakers is not None:
            found["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        return found

    def drawn(self) -> dict[str, Any]:
        """These fields of any API, by name."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}


# The form an answer must have, by whichever field asks for it: a JSON schema, a grammar, an expression, a choice.


class JsonSchema(Body):
    model_config = ConfigDict(populate_by_name=True)
    name: str | None = None
    description: str | None = None
    schema_: Json | bool | None = Field(default=None, alias="schema")
    strict: bool | None = about("The schema is always kept to.")


class ResponseFormat(Body):
    model_config = ConfigDict(populate_by_name=True)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Json | None = about("With json_object, as llama-server has it.", alias="schema")

    def schema_wanted(self) -> Json:
        """The schema of a form that is JSON; ApiError 400: there is none."""
        if self.type == "json_object":
            return {"type": "object"} if self.schema_ is None else self.schema_
        schema = self.json_schema.schema_ if self.json_schema is not None else None
        if not isinstance(schema, dict):
            what = "response_format is json_schema without json_schema.schema."
            raise invalid(what, "response_format", "missing_required_parameter")
        return schema


class StructuredOutputs(Body):
    """vLLM's object for the form of an answer: one of these."""

    json_: Json | str | None = about("A schema, or its text.", alias="json")
    regex: str | None = about("The whole answer; Rust's syntax.")
    choice: Ways | None = None
    grammar: str | None = about("GBNF text.")
    json_object: bool | None = None


def _grammar(field: str, value: Any) -> Grammar:
    """What a field asks for, as it is written."""
    name = field.rpartition(".")[2].removeprefix("guided_")
    if name == "grammar":
        return Grammar("gbnf", value)
    if name == "regex":
        return Grammar("regex", value)
    if name == "choice":
        lark = "start: " + " | ".join(json.dumps(way, ensure_ascii=False) for way in value)
        return Grammar("lark", lark, "choice")
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError as error:
            raise not_json(field, error, field) from None
        if not isinstance(value, dict):
            raise invalid(f"{field} is no JSON object.", field, "invalid_value")
    return Grammar("schema", json.dumps(value))


class GenerationFields(Harmless, SamplingFields):
    """How an answer is drawn, limited, formed and drafted: what the chat and the completion API share."""

    other_names: ClassVar[Mapping[str, str]] = {**SamplingFields.other_names, "n_predict": "max_tokens"}
    model: str | None = about("Name of an installed model or pair; left out: the default.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = about("Choices; each has its own random numbers.", ge=1, le=MOST_CHOICES)
    max_tokens: int | None = limit("max_tokens", "Most new tokens; -1 = until the model ends.")
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOPS)] | None = about(
        "Tokens that end the answer, besides the model's own."
    )
    ignore_eos: bool | None = about("Go on where the model would end (benchmarks).")
    prediction: PredictedText | None = None
    speculative: Speculative | None = None
    timings_per_token: bool | None = about("`timings` on every chunk of a stream.")
    cache_prompt: bool | None = about(
        "Accepted and not used: what is cached is reused, and the text does not depend on it."
    )
    response_format: ResponseFormat | None = None
    json_schema: Json | None = about("As response_format with a schema.")
    grammar: str | None = about("GBNF text.")
    structured_outputs: StructuredOutputs | None = None
    guided_json: Json | str | None = about("A schema, or its text.")
    guided_regex: str | None = about("The whole answer; Rust's syntax.")
    guided_choice: Ways | None = None
    guided_grammar: str | None = about("GBNF text.")

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def answer_grammar(self) -> tuple[Grammar, str] | None:
        """What form is asked for, as it is written, and the field that asks; None = none. ApiError 400: several ask."""
        names = ("grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        given = {name: getattr(self, name) for name in names}
        if self.structured_outputs is not None:
            several = self.structured_outputs.model_dump(by_alias=True)
            several["json_object"] = {"type": "object"} if several["json_object"] else None
            given |= {f"structured_outputs.{name}": value for name, value in several.items()}
        if self.response_format is not None and self.response_format.type != "text":
            given["response_format"] = self.response_format.schema_wanted()
        asked = [field for field, value in given.items() if value is not None]
        if len(asked) > 1:
            raise invalid(f"{' and '.join(asked)} exclude each other.", asked[0], "invalid_value")
        return (_grammar(asked[0], given[asked[0]]), asked[0]) if asked else None


class CompletionFields(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompts
    suffix: str | None = about("Text after the gap that the answer fills.")
    echo: bool | None = about("Begin the text with the prompt.")
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    best_of: int | None = about("Must equal n.", ge=1)
    drawn_log_probs: ClassVar[bool] = False
    """Whether log-probabilities are those that tokens were drawn by."""

    @property
    def only_echo(self) -> bool:
        """Whether nothing is to be generated: the prompt comes back, scored if log-probabilities are asked for."""
        return bool(self.echo) and self.max_tokens == 0


# Messages of a conversation.


class ContentPart(TextPart):
    cache_control: Unused = None


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str


def part_kind(part: Any, default: str | None = None) -> str:
    """What tells the parts of a content apart. The tags are no names, so that no error takes them for a field's.
    `default`: of one that leaves its type out."""
    return f"<{part.get('type', default) if isinstance(part, dict) else getattr(part, 'type', None)}>"


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
    """Parts of a tool's result, not validated, with a text of `kind` in place of each that cannot be read: a client
    sends it again in every request that follows, and would get no answer any more."""
    if not isinstance(parts, list):
        return parts
    unread = [isinstance(one, dict) and isinstance(one.get("type"), str) and one["type"] in _UNREAD for one in parts]
    return [
        {"type": kind, "text": f"[{one['type']}: not shown, text only]"} if hidden else one
        for one, hidden in zip(parts, unread, strict=True)
    ]


class CalledFunction(Body):
    name: str
    arguments: str
    parsed_arguments: Unused = None


class CallField(Body):
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


def message_of(given: ChatMessage) -> Message:
    content = given.content or ""
    if not isinstance(content, str):
        content = "\n".join(part.text if isinstance(part, ContentPart) else part.refusal for part in content)
    return Message(
        "system" if given.role == "developer" else given.role,
        content,
        tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in given.tool_calls or ()),
        tool_call_id=given.tool_call_id or "",
        name=given.name or "",
        reasoning=given.reasoning_content or "",
    )


class NamedFunction(Body):
    name: str


class FunctionField(NamedFunction):
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = about("Whether calls must fit the schema.")


class ToolField(Body):
    type: Literal["function"]
    function: FunctionField


class NamedChoice(Body):
    """A tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


# Whether and how hard the model shall think, by the names that servers have for it: variables of the chat template.

_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


class ReasoningField(Body):
    effort: str | None = None
    enabled: bool | None = None
    exclude: Any = about("Accepted and not used: thoughts are always shown.")
    max_tokens: Any = about("Accepted and not used: the request's limit holds.")


class ThinkingField(Body):
    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Any = about("Accepted and not used: the request's limit holds.")


class ChatFields(GenerationFields):
    """POST /v1/chat/completions."""

    tool_types: ClassVar[frozenset[str]] = frozenset({"function"})
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_ITEMS)]
    max_completion_tokens: int | None = limit("max_tokens", "Newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    tools: Annotated[list[ToolField], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    return_progress: bool | None = about("A stream says how far the prompt is read.")
    verbose: Unused = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=MOST_ITEMS)] | None = None
    reasoning_effort: str | None = about("For chat templates that know it; none = no thoughts.")
    reasoning: bool | str | ReasoningField | None = about("An effort, or whether to think.")
    thinking: bool | ThinkingField | None = about("Whether to think.")
    enable_thinking: bool | None = about("Whether to think.")
    chat_template_kwargs: Json | None = about("Variables for the chat template.")
    add_generation_prompt: bool | None = about(
        "false = the prompt ends after the last message, or, if that goes on, inside it."
    )
    continue_final_message: bool | None = about(
        "Go on with the last message, which is the assistant's; left out: if it is."
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
        """For the chat template, which uses those it knows, `enable_thinking` and `reasoning_effort` among them where
        something is said of thinking; ApiError 400: one that is not the client's to set."""
        given = dict(self.chat_template_kwargs or {})
        own = sorted(_OWN_VARIABLES & set(given))
        if own:
            what = f"chat_template_kwargs.{own[0]} is set by the server."
            raise invalid(what, f"chat_template_kwargs.{own[0]}", "invalid_value")
        reasoning, thinking = self.reasoning, self.thinking
        effort, enabled = self.reasoning_effort, self.enable_thinking
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
        thought = {"enable_thinking": enabled, "reasoning_effort": None if effort == "none" else effort}
        return {name: value for name, value in thought.items() if value is not None} | given

    def choice_of_tool(self) -> ToolChoice:
        if isinstance(self.tool_choice, NamedChoice):
            return ToolChoice("named", self.tool_choice.function.name)
        return ToolChoice(self.tool_choice or "auto")

    def functions(self) -> list[Tool]:
        return [
            Tool(
                one.name,
                one.description or "",
                **({} if one.parameters is None else {"parameters": one.parameters}),
                strict=bool(one.strict),
            )
            for one in (tool.function for tool in self.tools or ())
        ]
