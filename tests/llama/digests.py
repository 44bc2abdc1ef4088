"""Digests of the logits of passes, to compare contexts, threads and processes bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.types import Feed
from tests.llama.conftest import chain

SETTINGS = ContextSettings(n_ctx=1024, threads=2)


def digests(context: Context, steps: int = 6, start: int = 500) -> list[str]:
    """One per pass of 1 to 5 rows, behind `start` tokens and more, from an empty cache."""
    return list(passes(context, steps, start))


def passes(context: Context, steps: int = 6, start: int = 500) -> Iterator[str]:
    """The same, pass by pass."""
    tokens = np.random.default_rng(3).integers(64, context.n_vocab - 64, start + 6 * steps).astype(np.int32)
    context.forget(0)
    for step in range(steps):
        width = 1 + step % 5
        end = start + 5 * step
        draft = tokens[end : end + width - 1]
        rows = context.decode([Feed(0, tokens[:end], start, draft, chain(len(draft)))])[0]
        yield hashlib.sha256(b"".join(rows[i].tobytes() for i in range(width))).hexdigest()
