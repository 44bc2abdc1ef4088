"""What answers look like: timings, statistics, log-probabilities. Fields that are not set are not sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

from pydantic import BaseModel

from localspec import __version__
from localspec.engine.stats import RequestStats
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation

_SUMMED = (
    "prompt_tokens",
    "reused_tokens",
    "generated",
    "drafted",
    "accepted",
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "host_seconds",
)
FinishWord = Literal["stop", "length", "tool_calls"]


class Timings(BaseModel):
    """llama-server's fields, and what came of the drafts."""

    cache_n: int
    """Prompt tokens that were still there."""
    prompt_n: int
    """Prompt tokens that were computed."""
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    """Tokens drafted."""
    draft_n_accepted: int
    accepted_per_position: list[int]
    """[d] = how often a draft was accepted at least d + 1 deep."""
    undrafted_n: int
    """Passes in which nothing was drafted, though it was allowed."""
    undrafted_reason: str
    """Why not in most of them; "" = there are none."""
    exact: bool
    """The text is byte for byte what plain decoding gives."""


class Extra(BaseModel):
    """What only localspec has to say."""

    seed: int
    """Repeats the answer."""
    configuration: str
    """Kernels and cache of the target's passes."""
    stats: dict[str, Any]
    """`RequestStats`."""


class TopLogProb(BaseModel):
    """A likely token."""

    id: int
    token: str
    """Text; others may have the same, as pieces of characters do."""
    logprob: float
    bytes: list[int]


class TokenLogProbs(TopLogProb):
    """An emitted token and what else was likely."""

    top_logprobs: list[TopLogProb]


class ChatLogProbs(BaseModel):
    """Of the content's tokens."""

    content: list[TokenLogProbs]
    refusal: None = None


class TextLogProbs(BaseModel):
    """The completion API's shape."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """None: a first token, before which there is nothing."""
    top_logprobs: list[dict[str, float] | None] | None
    """By text; where tokens share one, the emitted or else the likeliest has it, and others are `token_id:N`."""
    text_offset: list[int]


def timings(stats: RequestStats) -> Timings:
    """Of one choice."""
    read = stats.prompt_tokens - stats.reused_tokens
    prompt_ms, predicted_ms = stats.prefill_seconds * 1e3, stats.decode_seconds * 1e3
    return Timings(
        cache_n=stats.reused_tokens,
        prompt_n=read,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=prompt_ms / read if read else 0.0,
        prompt_per_second=read / stats.prefill_seconds if stats.prefill_seconds else 0.0,
        predicted_n=stats.generated,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=predicted_ms / stats.generated if stats.generated else 0.0,
        predicted_per_second=stats.tokens_per_second,
        draft_n=stats.drafted,
        draft_n_accepted=stats.accepted,
        accepted_per_position=list(stats.accepted_per_position),
        undrafted_n=stats.undrafted.total(),
        undrafted_reason=stats.undrafted_reason,
        exact=stats.exact,
    )


def summed(each: Sequence[RequestStats]) -> RequestStats:
    """The stats of several choices as one; their times overlap where they shared passes."""
    total = RequestStats()
    for stats in each:
        for name in _SUMMED:
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        pairs = zip_longest(total.accepted_per_position, stats.accepted_per_position, fillvalue=0)
        total.accepted_per_position = [one + other for one, other in pairs]
        total.undrafted += stats.undrafted
        total.row_cost = max(total.row_cost, stats.row_cost)
        total.exact = total.exact and stats.exact
    return total


def extra(engine: Engine, generation: Generation) -> Extra:
    """Of one choice."""
    configuration = engine.loaded.configuration
    return Extra(seed=generation.request.seed, configuration=configuration, stats=generation.stats.as_dict())


def fingerprint(engine: Engine) -> str:
    """Changes with whatever may change a text at equal seed: our version, and how the passes are computed."""
    return f"localspec-{__version__}-{engine.loaded.configuration}".replace(" ", "_")
