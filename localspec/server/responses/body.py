"""What `POST /v1/responses` takes: OpenAI's body, and what it means for a model here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from localspec.server.chat.fields import (
    MOST_ITEMS,
    MOST_TOOLS,
    MOST_TOP,
    Body,
    ChatFields,
    FunctionField,
    Harmless,
    Json,
    NamedFunction,
    SamplingFields,
    Speculative,
    Unused,
    about,
    only_text,
    part_kind,
)
from localspec.server.http.output import invalid

Earlier = Annotated[Any, Field(description="Accepted from earlier answers; the model does not see it.")]


class InputText(Body):
    """A piece of text, of either side."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Earlier = None
    logprobs: Earlier = None


Texts = str | Annotated[list[InputText], Field(max_length=MOST_ITEMS)]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    id: str | None = None
    status: Earlier = None
    phase: Earlier = None


class CallItem(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Earlier = None


class OutputItem(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[Texts, BeforeValidator(lambda output: only_text(output, "input_text"))]
    id: str | None = None
    status: Earlier = None


class ReasoningText(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[list[ReasoningText], Field(max_length=MOST_ITEMS)] | None = None
    content: Annotated[list[ReasoningText], Field(max_length=MOST_ITEMS)] | None = None
    encrypted_content: str | None = about("Accepted from other servers; the model does not see it.")
    status: Earlier = None


Item = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(
        lambda item: part_kind(item, default="message"),
        custom_error_type="unknown_item",
        custom_error_message="items are of the type message, function_call, function_call_output or reasoning",
    ),
]


def _known(item: Any) -> Any:
    """An item of the history that another tool than a function left, as a call of a function, or its result:
    clients send it with every request of the session."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "custom_tool_call":
        call = {"call_id": item.get("call_id"), "name": item.get("name")}
        return {"type": "function_call", **call, "arguments": json.dumps({"input": item.get("input")})}
    if kind == "local_shell_call":
        call = {"call_id": item.get("call_id") or item.get("id"), "name": "local_shell"}
        return {"type": "function_call", **call, "arguments": json.dumps(item.get("action"))}
    if kind in ("custom_tool_call_output", "local_shell_call_output"):
        result = {"call_id": item.get("call_id") or item.get("id"), "output": item.get("output")}
        return {"type": "function_call_output", **result}
    if kind in _OTHER_CALLS:
        return {"role": "assistant", "content": f"[{kind}: not shown]"}
    return item


_OTHER_CALLS = frozenset({
    "web_search_call", "file_search_call", "computer_call", "code_interpreter_call", "image_generation_call",
    "mcp_call", "mcp_list_tools", "tool_search_call", "shell_call", "apply_patch_call",
})  # fmt: skip
"""Calls of tools that a server runs, in the history of an answer by another server."""


class FunctionTool(FunctionField):
    """A function of the client's own; tools that a server would run are not here."""

    type: Literal["function"]


class NamedTool(NamedFunction):
    type: Literal["function"]


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Json | None = Field(default=None, alias="schema")
    strict: bool | None = about("The schema is always kept to.")


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: Unused = None


class ReasoningOptions(Body):
    effort: str | None = None
    """`none` asks the template for an answer without thoughts, all else for one with, where it knows the difference."""
    summary: Any = about("Accepted: thoughts are shown as they are.")
    generate_summary: Unused = None


class ResponseStreamOptions(Body):
    include_obfuscation: Unused = None


class ResponsePrompt(Body):
    """What makes up the prompt; all that counting tokens takes."""

    tool_types: ClassVar[frozenset[str]] = frozenset({"function"})
    model: str | None = about("Name of a model; null = the default one.")
    input: str | Annotated[list[Item], Field(max_length=MOST_ITEMS)]
    """A message of the user, or items of a conversation."""
    instructions: str | None = None
    """System message of this answer alone: the next one that refers to it does not inherit it."""
    previous_response_id: str | None = None
    """Goes on with the conversation of an earlier answer, as long as it is remembered (in memory only)."""
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None

    @field_validator("input", mode="before")
    @classmethod
    def _known_items(cls, items: Any) -> Any:
        return [_known(item) for item in items] if isinstance(items, list) else items

    def added(self) -> list[Json]:
        """What this request adds to the conversation, without `instructions`."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        if not self.input:
            raise invalid("input is empty.", "input", "invalid_value")
        return conversation(self.input)

    def fields(self, before: Sequence[Json], **more: Any) -> ChatFields:
        """The same as a body of the chat API, after the conversation `before`, with `more` of its fields."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        form, chosen = self.text.format if self.text is not None else None, self.tool_choice
        if form is not None and form.type == "json_schema" and form.schema_ is None:
            what = "text.format is json_schema without a schema."
            raise invalid(what, "text.format.schema", "missing_required_parameter")
        wanted = None if form is None else {"type": form.type, "json_schema": {"schema": form.schema_}}
        return ChatFields.model_validate({
            "model": self.model,
            "messages": [*system, *before, *self.added()],
            "tools": [{"type": "function", "function": tool} for tool in self.tools or ()],
            "tool_choice": {"type": "function", "function": chosen} if isinstance(chosen, NamedTool) else chosen,
            "parallel_tool_calls": self.parallel_tool_calls,
            "continue_final_message": False,
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
            "response_format": wanted,
            **more,
        })  # fmt: skip


class ResponsesBody(ResponsePrompt, SamplingFields, Harmless):
    """A conversation that wants an answer."""

    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = about("false = the answer is not remembered.")
    max_output_tokens: int | None = about("Most new tokens, thoughts included.", ge=1)
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    """With `message.output_text.logprobs` in `include`: how many likely tokens at each position."""
    truncation: Literal["disabled"] | None = None
    """Only `disabled`: a conversation that does not fit is refused."""
    background: Literal[False] | None = about("Only false.")
    include: list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]] | None = None
    """`reasoning.encrypted_content` is accepted and changes nothing: thoughts come as text."""
    metadata: dict[str, str] | None = about("Comes back with the answer.")
    max_tool_calls: Any = None
    """Accepted: it counts calls of tools that a server runs, and there are none."""
    prompt_cache_options: Unused = None
    client_metadata: Unused = None
    speculative: Speculative | None = about("How drafts are made (localspec's own field).")
    timings_per_token: bool | None = about("`timings` on every piece of a stream, as llama-server has it.")
    return_progress: bool | None = None
    """A stream says how far the prompt is read: `prompt_progress`, as llama-server has it."""

    @property
    def wants_log_probs(self) -> bool:
        """Whether log-probabilities are asked for."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)

    def answered(self, before: Sequence[Json]) -> ChatFields:
        """The same as a body of the chat API, with how to answer."""
        return self.fields(
            before,
            max_tokens=self.max_output_tokens,
            speculative=self.speculative,
            logprobs=self.wants_log_probs,
            top_logprobs=self.top_logprobs,
            **self.drawn(),
        )


def conversation(items: Sequence[Item]) -> list[Json]:
    """Items as messages: thoughts, text and calls of one turn of the assistant become one message."""
    found: list[Json] = []
    for item in items:
        if isinstance(item, OutputItem):
            found.append({"role": "tool", "content": _joined(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, MessageItem) and item.role != "assistant":
            found.append({"role": item.role, "content": _joined(item.content)})
        else:  # the assistant's: said in its turn, which may begin with it
            last = found[-1] if found else None
            if last is None or last["role"] != "assistant" or (last["tool_calls"] and not isinstance(item, CallItem)):
                last = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
                found.append(last)
            if isinstance(item, CallItem):
                function = {"name": item.name, "arguments": item.arguments}
                last["tool_calls"].append({"id": item.call_id, "function": function})
            elif isinstance(item, ReasoningItem):
                last["reasoning_content"] += "".join(part.text for part in item.content or item.summary or ())
            else:
                last["content"] += _joined(item.content)
    return found


def _joined(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
