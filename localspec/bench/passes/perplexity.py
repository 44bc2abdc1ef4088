"""How well a model predicts a text, in passes as verification runs them: logits, losses, perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.chat.prompt.template import ChatTemplate
from localspec.checks.prompts import load_prompts
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Float64Array, Tokens


def held_out(model: Model) -> str:
    """The shipped prompts with their right answers, as conversations of the model's template, or plainly."""
    template = ChatTemplate(model.chat_template, "", "")
    texts = []
    for prompt in load_prompts():
        if len(prompt.messages) != 1:
            continue
        asked = template.render(prompt.messages) if template.exists else prompt.messages[0].content + "\n"
        texts.append(asked + prompt.answer + model.text_of(model.eot if model.eot is not None else model.eos))
    return "\n".join(texts)


def windows(model: Model, text: str, count: int, size: int) -> Iterator[Tokens]:
    """int32[size] pieces of the text, `count` tokens in all, each after the begin-of-sequence token."""
    tokens = model.tokenize(text, special=True, add_bos=False)[:count]
    first = [] if model.bos is None or not model.add_bos else [model.bos]
    for start in range(0, len(tokens) - 1, size):
        yield np.concatenate([np.array(first, dtype=np.int32), tokens[start : start + size]]).astype(np.int32)


def scored(
    model: Model, pieces: Sequence[Tokens], width: int, settings: ContextSettings
) -> Iterator[tuple[int, Float32Array]]:
    """(token, float32[n_vocab] logits it was to be predicted from) for every token but the first of each piece.

    Each piece runs in an empty context, in passes of `width` rows. A row is valid until the next one is asked for.
    """
    longest = max(len(piece) for piece in pieces)
    context = Context(model, replace(settings, n_ctx=max(8, longest + width), max_rows=width, grid=max(16, width)))
    try:
        for piece in pieces:
            context.forget(0)
            for start in range(0, len(piece) - 1, width):
                draft = piece[start + 1 : start + width]
                parents = np.arange(-1, len(draft) - 1, dtype=np.int32)
                rows = context.decode([Feed(0, piece[: start + 1], 1, draft, parents)])[0]
                for index, token in enumerate(piece[start + 1 : start + 1 + width]):
                    yield int(token), rows[index]
    finally:
        context.close()


def losses(model: Model, pieces: Sequence[Tokens], width: int, settings: ContextSettings) -> Float64Array:
    """float64[n], minus log-probability of every token but the first of each piece, in nats."""
    found: list[float] = []
    for token, row in scored(model, pieces, width, settings):
        logits = row.astype(np.float64)
        top = logits.max()
        found.append(top + math.log(np.exp(logits - top).sum()) - logits[token])
    return np.array(found)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of a model on a text."""

    value: float
    error: float
    """Standard error."""
    tokens: int

    @classmethod
    def of(cls, losses: Float64Array) -> Perplexity:
        value = math.exp(losses.mean())
        return cls(value, float(value * losses.std() / math.sqrt(len(losses))), len(losses))
