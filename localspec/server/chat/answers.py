"""The answers of one request, read from the event loop while the engine's thread writes them; and what the chat and the
completion API tell of them, tokens counted and log-probabilities spelled. Fields that have nothing to say are left out.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic_core import from_json
from typing_extensions import NotRequired, TypedDict

from localspec.chat.reply.reply import AnswerParser, Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun
from localspec.engine.slot import Event, FinishReason, TokenLogProb
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError
from localspec.runtime.generation import Generation
from localspec.server.http.output import ApiError, from_localspec

if TYPE_CHECKING:
    from localspec.llama.model import Model
    from localspec.runtime.engine import Engine


class Answers:
    """Generations of one request, merged as their events come. Belongs to the event loop it was made on.

    Nothing polls: the engine's thread wakes the loop when it has delivered an event. The maker of one closes it,
    whatever happens; then what still runs is cancelled, and its slot is free within a pass. Until then the model may
    be used to spell and to count what came.
    """

    def __init__(
        self,
        generations: Sequence[Generation],
        ended: Callable[[Generation], None] = lambda _: None,
        over: Callable[[], None] = lambda: None,
    ) -> None:
        """`generations`: one for each choice; there may be none. Both are called on the event loop: `ended` once for
        each, when its last event has come, read or not; `over` once, when all have ended and `close` was called: the
        model is free."""
        self.generations = tuple(generations)
        self._ended, self._over = ended, over
        self.closed = False  # the reader wants no more, having read all or not
        self._running = set(range(len(generations)))
        self._arrived: asyncio.Queue[tuple[int, Event] | ApiError] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._unread = set(self._running)  # choices whose last event was not read
        for index, generation in enumerate(generations):
            generation.notify(partial(self._wake, index))

    async def events(self, silence: float | None = None) -> AsyncIterator[tuple[int, Event] | None]:
        """Events as they come, to the last one, each with the index of its choice; None whenever `silence` seconds
        brought nothing. ApiError: a generation failed, or the server ended it (`stop`)."""
        while self._unread:
            item: tuple[int, Event] | ApiError | None = None
            if not self._arrived.empty():
                item = self._arrived.get_nowait()
            else:
                with anyio.move_on_after(silence):
                    item = await self._arrived.get()
            if isinstance(item, ApiError):
                raise item
            if item is not None and item[1].finish is not None:
                self._unread.discard(item[0])
            yield item

    def stop(self, error: ApiError) -> None:
        """Ends the request with an error for its reader, and what still runs."""
        self._arrived.put_nowait(error)
        self._cancel()

    def close(self) -> None:
        """The reader wants no more: cancels what still runs. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._cancel()
        if not self._running:
            self._over()

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Closes them if what is to read them cannot be made."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _cancel(self) -> None:
        for index in self._running:
            self.generations[index].cancel()

    def _wake(self, index: int) -> None:
        """Engine thread: something has arrived."""
        with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
            self._loop.call_soon_threadsafe(self._take, index)

    def _take(self, index: int) -> None:
        """Event loop: reads what has arrived."""
        if index not in self._running:
            return
        generation = self.generations[index]
        try:
            for event in generation.poll():
                self._arrived.put_nowait((index, event))
        except LocalspecError as error:
            self._arrived.put_nowait(from_localspec(error))
        except Exception as error:  # noqa: BLE001 - a fault of the engine, told to the client without its insides
            self._arrived.put_nowait(ApiError(500, "server_error", f"The engine failed: {type(error).__name__}."))
        if generation.finish is not None:
            self._running.discard(index)
            self._ended(generation)
            if self.closed and not self._running:
                self._over()


class Joined:
    """What one answer brings, joined: all up to its first events at once, later ones at most so many times a second.

    Belongs to the event loop it was made on, which the engine's thread wakes only while it waits for an event: a loop
    that wakes takes the interpreter from that thread.
    """

    def __init__(self, generation: Generation, per_second: float) -> None:
        self.generation = generation
        self._pause = 1 / per_second
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._told = generation.progress
        self._woken, self._cancelled = asyncio.Event(), asyncio.Event()
        generation.notify(self._wake)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Events to the last one; none where only more of the prompt was read. LocalspecError: what went wrong on the
        engine's thread."""
        while self.generation.finish is None:
            events, failure = await self._next()
            if events or failure is None:
                yield events
            if failure is not None:
                raise failure
            if events and self.generation.finish is None:
                with anyio.move_on_after(self._pause):
                    await self._cancelled.wait()

    def cancel(self) -> None:
        """Asks for the end, whose event comes at once."""
        self.generation.cancel()
        self._cancelled.set()

    async def _next(self) -> tuple[list[Event], LocalspecError | None]:
        events, failure = list[Event](), None
        while True:
            self._woken.clear()
            self._armed = True  # before the look: what comes after it wakes
            try:
                for event in self.generation.poll():
                    events.append(event)
            except LocalspecError as error:
                failure = error
            if events or failure is not None or self.generation.progress != self._told:
                self._told = self.generation.progress
                self._armed = False
                return events, failure
            await self._woken.wait()

    def _wake(self) -> None:
        """Engine thread: something has arrived."""
        if self._armed:
            self._armed = False
            with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
                self._loop.call_soon_threadsafe(self._woken.set)


FINISH_WORDS: dict[FinishReason, FinishWord] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.CANCELLED: "stop",
    FinishReason.ERROR: "stop",
}
"""OpenAI's `finish_reason` for ours."""


class OneAnswer:
    """One answer as it is read: its parts, the log-probabilities of what it says, and why it ended."""

    def __init__(self, generation: Generation, end_tokens: frozenset[int], parser: AnswerParser | None = None) -> None:
        """`parser`: that of a conversation's answer; None = a text that goes on."""
        self.generation = generation
        self._ends = end_tokens | generation.request.stop_tokens
        self._parser = parser
        self.log_probs: list[TokenLogProb] = []  # not yet handed out; none of tokens that end it
        self.content, self.reasoning = "", ""
        self.calls: list[ToolCalled] = []  # the last may be incomplete
        self._cut = False  # within a call

    def take(self, event: Event) -> list[Part]:
        """Reads an event; returns what it brings. The last one also brings what was held back."""
        self.log_probs += [one for one in event.log_probs if one.token not in self._ends]
        if self._parser is None:
            parts: list[Part] = [Content(event.text)] if event.text else []
        else:
            parts = self._parser.push(event.text)
            if event.finish is not None:
                parts += self._parser.finish(cut=event.finish in (FinishReason.LENGTH, FinishReason.CONTEXT))
            elif self._parser.done:
                self.generation.cancel()  # the one call that was wanted is there
        for part in parts:
            if isinstance(part, Content):
                self.content += part.text
            elif isinstance(part, Reasoning):
                self.reasoning += part.text
            elif isinstance(part, CallBegun):
                self.calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
            elif isinstance(part, CallArguments):
                self.calls[-1]["function"]["arguments"] += part.text
            else:
                self._cut = not part.whole
        return parts

    def new_log_probs(self) -> list[TokenLogProb]:
        """Log-probabilities that came since the last call."""
        found, self.log_probs = self.log_probs, []
        return found

    @property
    def finish(self) -> FinishWord:
        """Why it ended."""
        reason = self.generation.finish or FinishReason.STOP
        if self.calls and not self._cut and reason in (FinishReason.STOP, FinishReason.CANCELLED):
            return "tool_calls"
        return FINISH_WORDS[reason]


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments as data: as far as they are complete, and `{}` if they are no JSON."""
    try:
        found = from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a prompt is read, told in a stream before the answer, as llama-server has it."""

    total: int  # tokens of the prompt
    cache: int  # of them found in the cache
    processed: int  # of them there now, those found included
    time_ms: int  # since it began


FinishWord = Literal["stop", "length", "tool_calls"]


class Timings(TypedDict):
    """llama-server's fields, and what came of the drafts: numbers only, as its clients expect."""

    cache_n: int  # prompt tokens that were still there
    prompt_n: int  # prompt tokens that were computed
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int  # tokens drafted
    draft_n_accepted: int
    undrafted_n: int  # passes in which nothing was drafted, though it was allowed


class Extra(TypedDict):
    """What only localspec has to say."""

    seed: int  # repeats the answer
    configuration: str  # kernels and cache of the target's passes
    stats: dict[str, Any]  # `RequestStats`


class TopLogProb(TypedDict):
    id: int
    token: str  # text; others may have the same, as pieces of characters do
    logprob: float
    bytes: list[int]


class TokenLogProbs(TopLogProb):
    """An emitted token and what else was likely."""

    top_logprobs: list[TopLogProb]


class ChatLogProbs(TypedDict):
    content: list[TokenLogProbs]
    refusal: None


class TextLogProbs(TypedDict):
    """The completion API's shape."""

    tokens: list[str]
    token_logprobs: list[float | None]  # None: a first token, before which there is nothing
    top_logprobs: list[dict[str, float] | None] | None
    # by text; where tokens share one, the emitted or else the likeliest has it, and others are `token_id:N`
    text_offset: list[int]


def timings(*choices: RequestStats) -> Timings:
    """Of one choice, or of several as one; their times overlap where they shared passes."""
    prompt_seconds = sum(one.prefill_seconds for one in choices)
    predicted_seconds = sum(one.decode_seconds for one in choices)
    read = sum(one.prompt_tokens - one.reused_tokens for one in choices)
    generated = sum(one.generated for one in choices)
    return {
        "cache_n": sum(one.reused_tokens for one in choices),
        "prompt_n": read,
        "prompt_ms": prompt_seconds * 1e3,
        "prompt_per_token_ms": prompt_seconds * 1e3 / read if read else 0.0,
        "prompt_per_second": read / prompt_seconds if prompt_seconds else 0.0,
        "predicted_n": generated,
        "predicted_ms": predicted_seconds * 1e3,
        "predicted_per_token_ms": predicted_seconds * 1e3 / generated if generated else 0.0,
        "predicted_per_second": generated / predicted_seconds if predicted_seconds else 0.0,
        "draft_n": sum(one.drafted for one in choices),
        "draft_n_accepted": sum(one.accepted for one in choices),
        "undrafted_n": sum(one.undrafted.total() for one in choices),
    }


def extra(engine: Engine, generation: Generation) -> Extra:
    configuration = engine.loaded.configuration
    return {"seed": generation.request.seed, "configuration": configuration, "stats": generation.stats.as_dict()}


# Tokens of a request, in OpenAI's shape.


class PromptDetails(TypedDict):
    cached_tokens: int  # those whose KV was still there


class CompletionDetails(TypedDict):
    accepted_prediction_tokens: int
    # tokens of `prediction` that came true, in their order; how they were drafted does not matter
    rejected_prediction_tokens: int  # the other tokens of `prediction`; they are not counted elsewhere
    reasoning_tokens: int


class TokenUsage(TypedDict):
    """Tokens of a request, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


def usage(generations: Sequence[Generation], prompts: Sequence[int], reasoning: int = 0) -> TokenUsage:
    """Tokens of all choices, those of a prompt after one another; a prompt that several share is counted once.
    `generations`: none if prompts were only read; `reasoning`: tokens of thoughts among those that were generated."""
    each = max(1, len(generations) // len(prompts))
    completion = sum(generation.stats.generated for generation in generations)
    accepted = sum(came_true(generation) for generation in generations)
    predicted = sum(len(generation.request.prediction) for generation in generations)
    return {
        "prompt_tokens": sum(prompts),
        "completion_tokens": completion,
        "total_tokens": sum(prompts) + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.stats.reused_tokens for one in generations[::each])},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
            "reasoning_tokens": min(reasoning, completion),
        },
    }


def reasoning_tokens(thoughts: Sequence[str], model: Model) -> int:
    return sum(len(model.tokenize(thought, special=False, add_bos=False)) for thought in thoughts if thought)


def came_true(generation: Generation) -> int:
    """Tokens of a request's prediction that its answer holds, in their order."""
    return common_length(generation.request.prediction.tolist(), generation.tokens)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common subsequence; bits of one large number stand for places in `one` (Hyyrö 2004)."""
    wanted = set(other)
    places: dict[int, int] = {}
    for place, token in enumerate(one):
        if token in wanted:
            places[token] = places.get(token, 0) | 1 << place
    everything = (1 << len(one)) - 1
    unmatched = everything
    for token in other:
        matches = unmatched & places.get(token, 0)
        unmatched = (unmatched + matches | unmatched - matches) & everything
    return len(one) - unmatched.bit_count()


# Log-probabilities in the two shapes of OpenAI's APIs.


def chat_log_probs(found: Sequence[TokenLogProb], model: Model) -> list[TokenLogProbs]:
    """The chat API's: an object a token, with its bytes."""
    return [
        {
            **_plain(one.token, one.log_prob, model),
            "top_logprobs": [_plain(token, value, model) for token, value in one.top],
        }
        for one in found
    ]


class Offsets:
    """Where tokens begin in a text whose characters may be spread over several of them."""

    def __init__(self, at: int = 0) -> None:
        """`at`: characters of the text before the first token."""
        self.at = at  # characters that are whole by now
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes) -> int:
        """Takes the next token's bytes; the index of the character that the first of them belongs to."""
        first = len(self._decoder.decode(piece[:1]))  # 2 = what came before was the beginning of no character
        start = self.at + max(0, first - 1)
        self.at += first + len(self._decoder.decode(piece[1:]))
        return max(0, start)


def text_log_probs(found: Sequence[TokenLogProb], model: Model, offsets: Offsets, special: bool) -> TextLogProbs:
    """The completion API's: parallel lists. `offsets` are taken on; `special`: control tokens are part of the text."""
    tops = [_by_text(one, model) for one in found]
    return {
        "tokens": [_text(one.token, model) for one in found],
        "token_logprobs": [one.log_prob for one in found],
        "top_logprobs": list(tops) if any(tops) else None,
        "text_offset": [offsets.add(model.piece(one.token, special)) for one in found],
    }


def prompt_log_probs(first: int | None, found: Sequence[TokenLogProb], model: Model, text: str) -> TextLogProbs:
    """Those of an echoed prompt, `text`, in the same shape. `first`: its first token, which has no probability; None =
    that one is not part of what is echoed; `found`: of all others."""
    tokens = [*([] if first is None else [first]), *(one.token for one in found)]
    offsets = Offsets(len(text) - len(model.detokenize(tokens, special=True)))  # a token may add a space of its own
    if first is None:
        return text_log_probs(found, model, offsets, special=True)
    offsets.add(model.piece(first, special=True))
    begun: TextLogProbs = {
        "tokens": [_text(first, model)],
        "token_logprobs": [None],
        "top_logprobs": None,
        "text_offset": [0],
    }
    return joined(begun, text_log_probs(found, model, offsets, special=True))


def joined(one: TextLogProbs, other: TextLogProbs) -> TextLogProbs:
    """Two stretches of a text as one."""
    tops = [top for each in (one, other) for top in each["top_logprobs"] or [None] * len(each["tokens"])]
    return {
        "tokens": one["tokens"] + other["tokens"],
        "token_logprobs": one["token_logprobs"] + other["token_logprobs"],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": one["text_offset"] + other["text_offset"],
    }


def _by_text(one: TokenLogProb, model: Model) -> dict[str, float]:
    """The likely tokens with a name each: the emitted one alone has its text, so that a client may look for it; others
    have theirs unless it is taken, and then their id, as vLLM spells it."""
    found: dict[str, float] = {}
    emitted = _text(one.token, model)
    for token, value in one.top:
        text = _text(token, model)
        taken = text in found or (text == emitted and token != one.token)
        found[f"token_id:{token}" if taken else text] = value
    return found


def _plain(token: int, value: float, model: Model) -> TopLogProb:
    piece = model.piece(token, special=True)
    return {"id": token, "token": piece.decode("utf-8", "replace"), "logprob": value, "bytes": list(piece)}


def _text(token: int, model: Model) -> str:
    return model.piece(token, special=True).decode("utf-8", "replace")


# What both APIs answer with, whole or as one event of a stream.


class Completion(TypedDict):
    """What every answer of both APIs has, besides its choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: NotRequired[TokenUsage]
    timings: NotRequired[Timings]
    localspec: NotRequired[list[Extra]]  # by choice


class TextChoice(TypedDict):
    """One answer, or what is new of it."""

    index: int
    text: str
    logprobs: TextLogProbs | None
    finish_reason: FinishWord | None


class TextCompletion(Completion):
    choices: list[TextChoice]


class Function(TypedDict):
    name: str
    arguments: str  # JSON text; the beginning of one, if the answer was cut within the call


class ToolCalled(TypedDict):
    id: str
    type: Literal["function"]
    function: Function


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCalled]]


class ChatChoice(TypedDict):
    index: int
    message: AnswerMessage
    logprobs: ChatLogProbs | None
    finish_reason: FinishWord


class ChatCompletion(Completion):
    choices: list[ChatChoice]
