"""What /api/chat and /api/generate take: Ollama's bodies, and what they mean for a model here."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import from_json

from localspec.server.chat.fields import (
    MOST_ITEMS,
    MOST_STOPS,
    MOST_TOOLS,
    MOST_TOP,
    Body,
    ChatFields,
    CompletionFields,
    FunctionField,
    Json,
    SamplingFields,
    Speculative,
    Unused,
)
from localspec.server.http.errors import invalid

_DURATION = re.compile(r"[-+]?(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h)?)+")
"""As Go writes them, `5m` or `1h30m`; a number without a unit counts seconds."""
_AtStart = Annotated[Any, Field(description="Accepted and not used: `localspec serve` was told when it started.")]


class OllamaOptions(SamplingFields):
    """How an answer is drawn and limited; what is left out has llama.cpp's default."""

    ignored_switches: ClassVar[frozenset[str]] = frozenset({"mirostat", "tfs_z"})  # as Ollama has them now
    num_predict: int | None = Field(default=None, description="Most new tokens; 0 or less = until the model ends.")
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    num_ctx: int | None = Field(
        default=None, description="Accepted and not used: the context is that of `serve --context`; `/api/ps` tells it."
    )
    num_keep: Any = Field(default=None, description="Accepted and not used: a prompt that does not fit is refused.")
    num_batch: _AtStart = None
    num_gpu: _AtStart = None
    main_gpu: _AtStart = None
    num_thread: _AtStart = None
    use_mmap: _AtStart = None
    use_mlock: _AtStart = None


class OllamaFunction(Body):
    """What was called."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: Unused = None

    @field_validator("arguments", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        """As OpenAI's clients have them: JSON text."""
        try:
            return from_json(value) if isinstance(value, str) else value
        except ValueError:
            return value


class OllamaCall(Body):
    """A call in an assistant's message."""

    id: str | None = None
    type: Unused = None
    function: OllamaFunction


class OllamaMessage(Body):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = Field(default=None, description="What the assistant thought.")
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MOST_TOOLS)] | None = None
    tool_name: str | None = Field(default=None, description="The tool whose result this is.")
    tool_call_id: str | None = Field(
        default=None, description="The call whose result this is; left out: the first without one."
    )


class OllamaTool(Body):
    """A function the model may call."""

    type: Literal["function"] = "function"
    function: FunctionField


class KeptAlive(Body):
    """What names a model and says how long it stays in memory."""

    model: str | None = Field(default=None, description="Name of a model; left out: the default.")
    keep_alive: str | float | None = Field(
        default=None, description="0 frees the model's memory after the answer; else `--idle-unload` decides."
    )

    @field_validator("keep_alive")
    @classmethod
    def _is_duration(cls, value: str | float | None) -> str | float | None:
        if isinstance(value, str) and not _DURATION.fullmatch(value.strip()):
            raise ValueError("it must be a number of seconds or a duration such as 5m")
        return value

    @property
    def frees(self) -> bool:
        """Whether the model's memory is not needed after this request."""
        if isinstance(self.keep_alive, str):
            return not re.search("[1-9]", self.keep_alive)
        return self.keep_alive == 0


class Wanted(KeptAlive):
    """What both routes that answer take."""

    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        default=None, description="`json`, or a JSON schema that the answer has."
    )
    options: OllamaOptions | None = None
    think: bool | str | None = Field(default=None, description="Whether to think, or how hard: low, medium, high.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP)
    truncate: Any = Field(default=None, description="Accepted and not used: a prompt that does not fit is refused.")
    shift: Any = Field(default=None, description="Accepted and not used: an answer ends where the context is full.")
    speculative: Speculative | None = None

    def drawn(self) -> Json:
        """How to answer, as fields of the APIs of OpenAI's kind."""
        options = self.options or OllamaOptions()
        limit = options.num_predict
        found = options.drawn() | {"stop": options.stop, "speculative": self.speculative}
        found["max_tokens"] = -1 if limit is not None and limit <= 0 else limit
        if isinstance(self.format, dict):
            found["response_format"] = {"type": "json_schema", "json_schema": {"schema": self.format}}
        elif self.format == "json":
            found["response_format"] = {"type": "json_object"}
        return found

    def conversation(self, messages: Sequence[Json], **more: Any) -> ChatFields:
        """A body of the chat API."""
        scored = {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs if self.logprobs else None}
        return ChatFields.model_validate({
            "messages": list(messages), "reasoning": self.think, **self.drawn(), **scored, **more
        })  # fmt: skip


class OllamaChat(Wanted):
    """POST /api/chat."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MOST_ITEMS)] = Field(
        default_factory=list, description="The conversation; none = only load the model."
    )
    tools: Annotated[list[OllamaTool], Field(max_length=MOST_TOOLS)] | None = None

    def fields(self) -> ChatFields:
        """The same as a body of the chat API."""
        tools = [{"type": "function", "function": tool.function} for tool in self.tools or ()]
        return self.conversation(_turns(self.messages), tools=tools)


class OllamaGenerate(Wanted):
    """POST /api/generate."""

    prompt: str = Field(default="", description="What is asked; none = only load the model.")
    suffix: str | None = Field(default=None, description="Text after the gap that the answer fills.")
    system: str | None = Field(default=None, description="A system message.")
    raw: bool = Field(default=False, description="The prompt goes to the model as it is, without its chat template.")
    template: str | None = Field(default=None, description="Refused: the model's own chat template is used.")
    context: list[int] | None = Field(
        default=None, description="Tokens that the prompt goes on from: `context` of an earlier answer."
    )

    def check(self) -> None:
        """
        Raises:
            ApiError: 400, a field that would change the answer, or fields that exclude each other.
        """
        if self.template:
            raise invalid("template is not supported: the model's own chat template is used.", "template")
        if self.context and (self.raw or self.suffix):
            raise invalid("raw and suffix take the prompt alone, so there is no place for context.", "context")
        if self.system and (self.raw or self.suffix):
            raise invalid("raw and suffix use no chat template, so there is no place for system.", "system")

    def fields(self, said: str = "") -> ChatFields:
        """The same as a body of the chat API; a system message that was `said` is not said again."""
        system = [{"role": "system", "content": self.system}] if self.system and self.system not in said else []
        return self.conversation([*system, {"role": "user", "content": self.prompt}])

    def text_fields(self, prompt: str | list[int]) -> CompletionFields:
        """The same as a body of the completion API."""
        scores = (self.top_logprobs or 0) if self.logprobs else None
        own = {"prompt": prompt, "suffix": self.suffix or None, "logprobs": scores}
        return CompletionFields.model_validate(own | self.drawn())


def _turns(messages: Sequence[OllamaMessage]) -> list[Json]:
    """Turns of the chat API. Ollama's calls may have no ids: results then go with the calls in their order."""
    found, waiting = list[Json](), list[Json]()
    for number, message in enumerate(messages):
        calls = [_call(call, f"call_{number}_{index}") for index, call in enumerate(message.tool_calls or ())]
        waiting += calls
        answered = message.tool_call_id
        if message.role == "tool" and answered is None:
            named = (call for call in waiting if call["function"]["name"] == message.tool_name)
            call = next(named, waiting[0] if waiting else None)
            answered = None if call is None else call["id"]
        waiting = [call for call in waiting if call["id"] != answered]
        turn = message.model_dump(include={"role", "content"})
        turn |= {"reasoning_content": message.thinking, "tool_calls": calls or None}
        found.append(turn | {"name": message.tool_name, "tool_call_id": answered})
    return found


def _call(given: OllamaCall, id_: str) -> Json:
    arguments = json.dumps(given.function.arguments, ensure_ascii=False)
    return {"id": given.id or id_, "function": {"name": given.function.name, "arguments": arguments}}
