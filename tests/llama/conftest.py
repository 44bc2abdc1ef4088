"""A loaded model for the tests of the layer over llama.cpp, and words for its contexts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Float32Array, Tokens

MakeContext = Callable[..., Context]


@pytest.fixture(scope="session")
def model(tiny_target: Path) -> Iterator[Model]:
    """The bundled target."""
    with Model.load(tiny_target) as loaded:
        yield loaded


@pytest.fixture
def make(model: Model) -> Iterator[MakeContext]:
    """Makes contexts that are exact on every CPU kind known (BF16 values), and closes them."""
    made: list[Context] = []

    def make_context(**settings: Any) -> Context:
        settings = {"n_ctx": 1024, "type_v": "bf16", "threads": 1, **settings}
        made.append(Context(model, ContextSettings(**settings)))
        return made[-1]

    yield make_context
    for context in made:
        context.close()


@pytest.fixture(scope="session")
def text(model: Model) -> Tokens:
    """int32[1100] ordinary tokens, different every few hundred."""
    return np.random.default_rng(7).integers(64, model.n_vocab - 64, 1100).astype(np.int32)


def chain(count: int) -> Tokens:
    """Parents of a chain."""
    return np.arange(-1, count - 1, dtype=np.int32)


def same_bits(left: Float32Array, right: Float32Array) -> bool:
    """Whether two rows are equal bit for bit."""
    return left.tobytes() == right.tobytes()
