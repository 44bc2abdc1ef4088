"""What answers: the seam between faces and models. A server, an engine and recordings implement it.

An answerer works on threads of its own and only posts messages to a face, so that neither waits for the other. Nothing
of HTTP is imported here: the first key comes before.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol

from localspec.chat.archive.passes import Recorder
from localspec.chat.reply.harmony import joined
from localspec.chat.reply.tool import Tool, ToolCall
from localspec.chat.turn import Message
from localspec.engine.interfaces import Undrafted
from localspec.engine.slot import Event, FinishReason, Origin, PassRecord
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError
from localspec.settings import settings_of
from localspec.types import SamplingParams

POSTS_PER_SECOND = 15  # parts of an answer drawn in a second: text in steps of 67 ms still seems to flow
_BANNED = -100.0  # the bias that bans a token, as OpenAI says; JSON has no infinity


class Sink(Protocol):
    """Where it is posted. Safe to call from any thread."""

    def post_message(self, message: Told) -> bool:
        """Queues a message; False = it is closed, and the message is gone."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a screen may know about the model that answers."""

    name: str  # stored with each message: the name in its file, the file's, or the endpoint's model
    context: int | None = None  # tokens a chat can hold; None = unknown (endpoints)
    draft: str | None = None  # name of the draft model; None = there is none, or it is unknown
    configuration: str = ""  # what the target's passes run on, in one line; "" = unknown
    can_think: bool = False  # the chat template has a switch for thinking
    completes: bool = False  # it has no chat template: it only goes on with a text
    channels: bool = False  # it writes gpt-oss's headers
    bundled: bool = False  # it is the tiny pair that comes with localspec
    remote: bool = False  # answers come from another process: no origins, no pass records
    key: str = ""  # what loads it again: a name or a whole path; "" = unknown, or a server's
    target: Path | None = None  # its file; None = a server's
    layers: tuple[str, ...] = ()  # what of it runs where, in words; nothing on a machine without a GPU


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to ask for. A server is asked what `body` has; what is below `thinking` only an engine can be told."""

    messages: Sequence[Message]
    """The conversation, system message included; ends with the user's turn, or with results of tools."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    """With the same number the same question gets the same answer; empty = a fresh one each time."""
    max_tokens: int | None = None
    """An answer ends after so many tokens; empty = when the model ends it, or the context is full."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it, with commas between them."""
    prefix: str = ""
    """What the answer already says: it is continued, and only what is new comes back."""
    reasoning: str = ""
    """What it has thought already; the thinking goes on if it says nothing yet."""
    thinking: bool | None = None
    """Whether the model thinks before it answers, where its chat template can switch that; default = as it likes."""
    thought_out: bool = False
    """The thinking ends where it is, and the answer begins."""
    drafter: str | None = None
    """Who guesses, such as lookup or draft; none = plain decoding; empty = what pays."""
    max_draft_tokens: int | None = None
    """Longest guess of a pass, in tokens; 0 = plain decoding; empty = what pays."""
    chat: str | None = None
    """Key of the chat, under which its KV cache is kept on disk; None = it is not kept."""
    private: bool = False
    """Neither past answers help it, nor does it join them; with no `chat` nothing of it is kept."""
    raw: bool = False
    """The text comes as the model says it, its marks included; a server's does not."""
    room: int | None = None
    """Tokens that must be free after the prompt, else it is refused; if it is not, `Taken` says so. None = neither is
    wanted. Heeded where the context is known."""
    alone: bool = False
    """It is measured: nothing of earlier answers helps it, and nothing of it helps later ones."""
    tools: tuple[Tool, ...] = ()
    """What the model may call; its calls come as `AnswerPart.calls`. With any, `raw` counts for nothing."""

    def body(self, model: str) -> dict[str, Any]:
        """The request's JSON. Sampling settings at localspec's own defaults are left to the server."""
        messages = [_in_openais_form(message) for message in self.messages]
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_fields(self.sampling, changed=True),
        }
        body |= {name: getattr(self, name) for name in ("seed", "max_tokens") if getattr(self, name) is not None}
        if self.stop:
            body["stop"] = list(self.stop)
        if self.tools:
            body["tools"] = [tool.as_function() for tool in self.tools]
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        begun = joined(self.reasoning, self.prefix)
        if begun:  # vLLM's words; llama-server continues a last assistant message by itself
            body["messages"] = [*messages, {"role": "assistant", "content": begun}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body


def _in_openais_form(message: Message) -> dict[str, Any]:
    """A call's arguments are a text there. Thoughts go back with calls only: not every server takes them."""
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        told["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        told |= {"content": message.content or None, "tool_calls": [call.as_call() for call in message.tool_calls]}
        if message.reasoning:
            told["reasoning_content"] = message.reasoning
    return told


def sampling_fields(sampling: SamplingParams, *, more: bool = True, changed: bool = False) -> dict[str, Any]:
    """Sampling settings as fields of a request; `more`: those beyond OpenAI's, too; `changed`: only those that are not
    at localspec's own default."""
    fields: dict[str, Any] = {}
    for row in settings_of(SamplingParams):
        value = getattr(sampling, row.name)
        if (more or row.declared.openai) and not (changed and value == row.default):
            fields[row.api_name] = value
    if biases := sampling.logit_bias:
        fields["logit_bias"] = {str(token): _BANNED if bias == -math.inf else bias for token, bias in biases}
    return fields


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What the doctor is told of the models in use."""

    use: Sequence[Mapping[str, str]]  # fields of a `Finding` each, of the models in use
    parts: Sequence[Mapping[str, str]]  # the same, of their files, exactness and passes
    files: tuple[Path, ...]  # of the target and the draft model
    wide: bool  # localspec's kernels may be used
    last_log: tuple[str, ...] = ()  # what the process wrote that had these models before, and died


class Answer(Protocol):
    seed: int | None  # None = unknown (endpoints that were not told one)

    def cancel(self) -> None:
        """Asks for the end; never blocks. What still comes may be ignored. A second call does nothing."""


class Answerer(Protocol):
    """A model, loaded or on its way. `count`, `forget_chat`, `look` and `close` may take as long as a pass: call them
    from a thread. They raise a LocalspecError where they fail."""

    name: str  # what to call it before `Facts` are there
    facts: Facts | None  # None until it is ready

    def start(self, sink: Sink) -> None:
        """Begins to load in the background: posts `Loading`s, then one `ModelReady` or `LoadFailed`."""

    def answer(self, question: Question, sink: Sink) -> Answer:
        """Returns at once; posts `Taken` where that is wanted, `Prefilled`s and `AnswerPart`s, then one `AnswerEnded`,
        which has the error if the question is wrong."""

    def count(self, question: Question) -> int | None:
        """Tokens of the prompt; None = unknown."""

    @property
    def piece(self) -> Callable[[int], bytes] | None:
        """The bytes of a token of an answer, for views that show tokens; None = unknown (endpoints)."""

    def forget_chat(self, chat: str) -> bool:
        """Deletes the KV cache of a chat and its answers in the corpus; False = nothing is loaded that has them."""

    def look(self, context: int) -> ModelReport | None:
        """Looks at the models, of which a chat of so many tokens is in front; None = none is loaded here."""

    def close(self) -> None:
        """Stops everything and frees the models."""


class Told:
    """What an answerer says of its model or of an answer."""


@dataclass(eq=False, repr=False)
class Loading(Told):
    what: str
    share: float


@dataclass(eq=False, repr=False)
class ModelReady(Told):
    facts: Facts


@dataclass(eq=False, repr=False)
class LoadFailed(Told):
    error: LocalspecError


@dataclass(eq=False, repr=False)
class Taken(Told):
    """The question fits, and is going to be answered."""

    answer: Answer
    tokens: int  # of the prompt


@dataclass(eq=False, repr=False)
class Prefilled(Told):
    """How far the prompt of an answer has been read."""

    answer: Answer
    done: int
    total: int | None  # tokens of the prompt; None = unknown (endpoints): the first token is waited for


@dataclass(eq=False, repr=False)
class AnswerPart(Told):
    """What some passes brought."""

    answer: Answer
    text: str  # new text of the answer, whole characters; may be later than the tokens
    tokens: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()  # of each token; empty from endpoints, as the tokens
    records: tuple[PassRecord, ...] = ()  # one for each pass, in order; empty from endpoints
    stats: RequestStats = field(default_factory=RequestStats)  # live figures so far; one object for the whole answer
    thinking: str = ""  # new text of the model's thinking, which is no part of the answer
    calls: tuple[ToolCall, ...] = ()  # whole ones that the model asks for


@dataclass(eq=False, repr=False)
class AnswerEnded(Told):
    answer: Answer
    finish: FinishReason
    stats: RequestStats
    error: LocalspecError | None = None  # set when `finish` is ERROR
    notice: str = ""  # what else the user should know, in a sentence

    @property
    def state(self) -> tuple[Literal["done", "stopped", "error"], str]:
        """State and note that are stored with the answer."""
        if self.finish is FinishReason.ERROR:
            return "error", self.error.message if self.error else ""
        if self.finish is FinishReason.CANCELLED:
            return "stopped", ""
        notes = {FinishReason.LENGTH: "ended at the token limit", FinishReason.CONTEXT: "the context is full"}
        return "done", notes.get(self.finish, "")


def question_out(question: Question) -> dict[str, Any]:
    """A question as JSON for a process of the models, which has the same version."""
    sampling = asdict(question.sampling)
    sampling["logit_bias"] = [(token, None if bias == -math.inf else bias) for token, bias in sampling["logit_bias"]]
    rest = {one.name: getattr(question, one.name) for one in fields(question)}
    listed = {"messages": list(map(asdict, question.messages)), "tools": list(map(asdict, question.tools))}
    return rest | listed | {"sampling": sampling}


def question_in(told: Mapping[str, Any]) -> Question:
    sampling = told["sampling"] | {"dry_sequence_breakers": tuple(told["sampling"]["dry_sequence_breakers"])}
    biases = ((token, -math.inf if bias is None else bias) for token, bias in sampling["logit_bias"])
    more = {
        "messages": [_message_in(one) for one in told["messages"]],
        "sampling": SamplingParams(**sampling | {"logit_bias": tuple(biases)}),
        "stop": tuple(told["stop"]),
        "tools": tuple(Tool(**one) for one in told["tools"]),
    }
    return Question(**{**told, **more})


def _message_in(told: Mapping[str, Any]) -> Message:
    return Message(**{**told, "tool_calls": tuple(ToolCall(**call) for call in told["tool_calls"])})


_COUNTERS = ("accepted_histogram", "accepted_by_drafter", "drafted_by_drafter", "undrafted")
_LISTS = ("accepted_per_position", "gaps")
_PLAIN = tuple(one.name for one in fields(RequestStats) if one.name not in (*_COUNTERS, *_LISTS))
_plain = attrgetter(*_PLAIN)


@dataclass(frozen=True, slots=True)
class Steps:
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    records: tuple[PassRecord, ...]
    finish: FinishReason | None  # set by the last pass of an answer
    progress: tuple[int, int] | None  # tokens of the prompt cached, and those to cache; None = as it was


class Teller:
    """Puts the steps of one answer into JSON, which goes beside its text to another localspec of the same version:
    tokens with their origins, passes, the bytes of each token at its first use, and the figures so far, of which the
    gaps come one by one."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._recorder = Recorder(piece)
        self._gaps = 0  # those that were told
        self._progress: tuple[int, int] | None = None

    def told(
        self, events: Sequence[Event], stats: RequestStats, progress: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """What has come since the last time, the figures by now, and how far the prompt is read (`Steps.progress`)."""
        for event in events:
            if event.record is not None:
                self._recorder.add(event.record)
        records, pieces = self._recorder.fresh()
        self._recorder.forget(len(records), pieces)
        gaps = stats.gaps[self._gaps :]
        self._gaps += len(gaps)
        finish = events[-1].finish if events else None
        news, self._progress = progress if progress != self._progress else None, progress
        return {
            "tokens": [token for event in events for token in event.tokens],
            "origins": [origin for event in events for origin in event.origins],
            "records": records,
            "pieces": {token: b64encode(piece).decode() for token, piece in pieces.items()},
            "figures": figures_out(stats),
            "gaps": gaps,
            "finish": None if finish is None else finish.value,
            "progress": news,
        }


class Hearer:
    def __init__(self) -> None:
        self.stats = RequestStats()  # figures so far; one object for the whole answer
        self.pieces: dict[int, bytes] = {}  # bytes of the tokens so far, guesses included

    def take(self, told: Mapping[str, Any]) -> Steps:
        figures_in(self.stats, told["figures"])
        self.stats.gaps += told["gaps"]
        self.pieces.update({int(token): b64decode(piece) for token, piece in told["pieces"].items()})
        finish, progress = told["finish"], told["progress"]
        return Steps(
            tuple(told["tokens"]),
            tuple(Origin(*one) for one in told["origins"]),
            tuple(PassRecord._make(tuple(x) if isinstance(x, list) else x for x in one) for one in told["records"]),
            None if finish is None else FinishReason(finish),
            None if progress is None else (progress[0], progress[1]),
        )


def figures_out(stats: RequestStats) -> Sequence[Any]:
    """A copy of an answer's figures without its gaps, as JSON: they change with the next pass."""
    return (
        _plain(stats),
        tuple(stats.accepted_per_position),
        dict(stats.accepted_histogram),
        dict(stats.accepted_by_drafter),
        dict(stats.drafted_by_drafter),
        {reason.name: passes for reason, passes in dict(stats.undrafted).items()},
    )


def figures_in(stats: RequestStats, figures: Sequence[Any]) -> None:
    plain, positions, histogram, accepted, drafted, undrafted = figures
    for name, value in zip(_PLAIN, plain, strict=True):
        setattr(stats, name, value)
    stats.accepted_per_position = list(positions)
    stats.accepted_histogram = Counter({int(depth): passes for depth, passes in histogram.items()})
    stats.accepted_by_drafter, stats.drafted_by_drafter = Counter(accepted), Counter(drafted)
    stats.undrafted = Counter({Undrafted[reason]: passes for reason, passes in undrafted.items()})
