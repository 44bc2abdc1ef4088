"""Which published models there are to test with (packaging/real_models.py), and one of them as a running server."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localspec.runtime.engine import Engine
from tests.packaging.scripts import imported
from tests.real.bare import Bare
from tests.server.live import Live

with imported(".", "real_models") as _found:
    real_models: Any = _found["real_models"]

DEFAULT = "smollm2"
"""Fetched where it is not there; the others are taken where they are."""
ALL, INSTRUCT = ("smollm2", "gemma3", "qwen"), ("smollm2", "qwen")


@dataclass(frozen=True)
class Real:
    """A published model, served under `strict`, and the same file in llama.cpp alone."""

    name: str
    path: Path
    engine: Engine
    live: Live
    bare: Bare


def on(names: Sequence[str]) -> pytest.MarkDecorator:
    """Runs a test on each of these models, as far as they are there."""
    return pytest.mark.parametrize("real", [pytest.param(name, marks=_skipped(name)) for name in names], indirect=True)


def _skipped(name: str) -> list[pytest.MarkDecorator]:
    path = real_models.folder() / real_models.MODELS[name].file
    if name == DEFAULT or path.exists():
        return []
    reason = f"{path.name} is not in {path.parent}; packaging/real_models.py {name} puts it there"
    return [pytest.mark.skip(reason=reason)]


def file_of(name: str) -> Path:
    """The checked file; the test is skipped where it cannot be had."""
    found = _fetched(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _fetched(name: str) -> Path | str:
    """The file, or why it cannot be had; asked once, since an index that does not answer is waited for."""
    try:
        path: Path = real_models.fetch(name)
    except real_models.Unreached as reason:
        return str(reason)
    return path
