"""Tokens of a request, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from localspec.llama.model import Model
from localspec.runtime.generation import Generation


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Those whose KV was still there."""


class CompletionDetails(BaseModel):
    """Of the generated tokens."""

    accepted_prediction_tokens: int
    """Tokens of `prediction` that came true, in their order; how they were drafted does not matter."""
    rejected_prediction_tokens: int
    """The other tokens of `prediction`. They are not counted elsewhere."""
    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens of a request, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage(generations: Sequence[Generation], prompts: Sequence[int], reasoning: int = 0) -> Usage:
    """Tokens of all choices; a prompt that several choices share is counted once.

    Args:
        generations: all choices, those of a prompt after one another; none if prompts were only read.
        prompts: tokens of each prompt.
        reasoning: tokens of thoughts among those that were generated.
    """
    each = max(1, len(generations) // len(prompts))
    completion = sum(generation.stats.generated for generation in generations)
    accepted = sum(came_true(generation) for generation in generations)
    predicted = sum(len(generation.request.prediction) for generation in generations)
    return Usage(
        prompt_tokens=sum(prompts),
        completion_tokens=completion,
        total_tokens=sum(prompts) + completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(generation.stats.reused_tokens for generation in generations[::each])
        ),
        completion_tokens_details=CompletionDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=predicted - accepted,
            reasoning_tokens=min(reasoning, completion),
        ),
    )


def reasoning_tokens(thoughts: Sequence[str], model: Model) -> int:
    """How many tokens thoughts are."""
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
