"""The bundled target, as heads on its final states need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.drafters.heads.final_state import TAP
from localspec.gguf import Header, read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model


@pytest.fixture(scope="module")
def header(tiny_target: Path) -> Header:
    """What its file states."""
    return read_header(tiny_target)


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> Iterator[Context]:
    """A context that keeps the final states of what it decodes."""
    settings = ContextSettings(n_ctx=256, threads=1, max_leaves=8, max_rows=16)
    with Model.load(tiny_target) as model:
        context = Context(model, settings, tap=TAP)
        yield context
        context.close()
