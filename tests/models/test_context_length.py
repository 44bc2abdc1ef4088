"""The context by default: long where memory allows it, the same at every start."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models.facts.shape import (
    FALLBACK_LENGTH,
    LEAST_DEFAULT,
    LONGEST_DEFAULT,
    LayerShape,
    ModelShape,
    default_context,
    is_small,
)

GIB = 1 << 30


def shape(layers: int, weights: int, cache: int, trained: int = 131_072) -> ModelShape:
    """Sizes in bytes of all weights; `cache` in elements of a layer and token, keys and values alike."""
    each = LayerShape(weights=weights // layers, key=cache, value=cache)
    return ModelShape("x", "llama", (each,) * layers, 2048, 32000, 0, 0, False, False, trained, False)


SMALL = shape(22, GIB, 256)
"""1 B: 22 KiB a token."""
EIGHT = shape(32, 5 * GIB, 1024)
"""8 B: 128 KiB a token."""
OLD = shape(32, 4 * GIB, 4096)
"""7 B without grouped queries: 512 KiB a token."""


@pytest.mark.parametrize(
    ("target", "total", "expected"),
    [
        (SMALL, 24 * GIB, LONGEST_DEFAULT),
        (EIGHT, 64 * GIB, LONGEST_DEFAULT),
        (EIGHT, 16 * GIB, 16_384),
        (OLD, 16 * GIB, LEAST_DEFAULT),
        (OLD, 6 * GIB, FALLBACK_LENGTH),
        (replace(SMALL, train_context=2048), 24 * GIB, 2048),
        (replace(SMALL, train_context=0), 24 * GIB, LEAST_DEFAULT),
        (SMALL, 0, LONGEST_DEFAULT),
    ],
    ids=[
        "1 B",
        "8 B, 64 GiB",
        "8 B, 16 GiB",
        "least",
        "does not fit",
        "trained for less",
        "not stated",
        "unknown memory",
    ],
)
def test_the_context_by_default(target: ModelShape, total: int, expected: int) -> None:
    assert default_context(target, total_bytes=total) == expected


def test_a_draft_and_further_slots_take_their_part() -> None:
    alone = default_context(EIGHT, total_bytes=16 * GIB)
    assert default_context(EIGHT, SMALL, total_bytes=16 * GIB) < alone
    assert default_context(EIGHT, slots=2, total_bytes=16 * GIB) == alone // 2
    assert default_context(EIGHT, total_bytes=16 * GIB, element=1.0) == 2 * alone


@given(
    layers=st.integers(1, 100), cache=st.integers(0, 8192), total=st.integers(0, 2**40), trained=st.integers(0, 2**20)
)
def test_it_is_never_longer_than_what_the_model_was_trained_for(
    layers: int, cache: int, total: int, trained: int
) -> None:
    found = default_context(shape(layers, GIB, cache, trained), total_bytes=total)
    assert 0 < found <= min(LONGEST_DEFAULT, trained or LEAST_DEFAULT)


@pytest.mark.parametrize(
    ("target", "total", "small"),
    [(SMALL, 16 * GIB, True), (SMALL, 8 * GIB, False), (EIGHT, 64 * GIB, True), (EIGHT, 63 * GIB, False)],
)
def test_two_caches_are_small_where_a_second_one_shortens_no_context(
    target: ModelShape, total: int, small: bool
) -> None:
    n_ctx = default_context(target, total_bytes=total)
    assert is_small(n_ctx, target, None, 2, total) == small
    assert (default_context(target, slots=2, total_bytes=total) == n_ctx) == small


def test_where_the_memory_is_not_known_no_cache_is_small() -> None:
    assert not is_small(LEAST_DEFAULT, SMALL, EIGHT, 1, 0)
