"""What the chat and the completion API answer with, tokens counted and log-probabilities spelled. Fields that have
nothing to say are left out."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import NotRequired, TypedDict

from localspec.engine.slot import TokenLogProb
from localspec.engine.stats import RequestStats
from localspec.llama.model import Model
from localspec.runtime.generation import Generation

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


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
    """Of the content's tokens."""

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
    """Of one choice."""
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
    """How long a prompt is."""

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
        self.at = at
        """Characters that are whole by now."""
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
    """Those of an echoed prompt, in the same shape.

    Args:
        first: its first token, which has no probability; None = that one is not part of what is echoed.
        found: of all others.
        text: what is echoed.
    """
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
    """All of an answer in a conversation."""

    choices: list[ChatChoice]
