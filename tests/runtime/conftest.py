"""Engines that tests of this folder close behind them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.runtime.engine import Engine


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Engines to close when the test is over."""
    opened: list[Engine] = []
    yield opened
    for engine in opened:
        engine.loaded.context.before_decode = lambda: None  # type: ignore[attr-defined]
        engine.close()
