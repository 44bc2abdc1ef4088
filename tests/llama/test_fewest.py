"""How few tokens a text can have: never more than it has, and more than enough where it is far too long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.llama.model import Model
from localspec.llama.special_tokens import FewestTokens

PARTS = ["<|end|>", "<|user|>", "<tool_call>", "<|", "|>", "x", " word", "\n", "ü", "\ud800"]


@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from(PARTS)), most=st.integers(0, 8), special=st.booleans())
def test_no_text_has_fewer(model: Model, parts: list[str], most: int, special: bool) -> None:
    text = "".join(parts)
    assert model.fewest_tokens(text, most, special=special) <= len(model.tokenize(text, special=special, add_bos=False))


def test_long_texts_and_special_tokens_are_told(model: Model) -> None:
    longest = max(len(model.piece(token, special=True)) for token in range(model.n_vocab))
    assert model.fewest_tokens("x" * (100 * longest), 20, special=False) > 20
    marks = "<|end|>x" * 30
    assert model.fewest_tokens(marks, 29, special=True) == 30
    assert model.fewest_tokens(marks, 30, special=True) <= 30


@pytest.mark.parametrize(
    ("text", "special", "fewest"),
    [
        ("<a><b>" * 3, True, 3),
        ("<b><a>" * 3, True, 4),
        ("<b><a>" * 3, False, 3),
        ("<<a>a>" * 3, True, 3),
        ("", True, 0),
    ],
)
def test_special_tokens_are_found_as_llama_cpp_finds_them(text: str, special: bool, fewest: int) -> None:
    """Longer ones first, and none across the place of another."""
    known = FewestTokens([b"<a>", b"<b>", b"<a><b>", b"x" * 100], [b"<a>", b"<a><b>", b""], [b"<b>"])
    assert known(text, 5, special=special) == fewest
