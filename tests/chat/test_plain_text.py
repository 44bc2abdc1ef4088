"""Nothing a model says can do anything to a terminal but print."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.plain_text import PlainText, plain_text

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
hostile = st.text(
    st.one_of(
        st.sampled_from("\x1b\x1b\x9b\x9d\x90\x07\x9c\\[]PX^_?;0123456789mHJKABab \r\n\t\x00\x08\x7f\u2028" + BIDI),
        st.characters(),
    )
)


@given(hostile)
def test_what_comes_out_is_harmless(text: str) -> None:
    out = plain_text(text)
    assert all(character in "\n\t" or unicodedata.category(character) not in ("Cc", "Zl", "Zp") for character in out)
    assert not set(out) & set(BIDI)
    assert plain_text(out) == out


@given(hostile, st.data())
def test_pieces_give_what_the_whole_gives(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    stream = PlainText()
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(stream.push(piece) for piece in pieces) == plain_text(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cf"], include_characters="\n\t")))
def test_honest_text_is_not_touched(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1;2|data\x1b\\after", "after"),
        ("a\x9b2Jb", "ab"),
        ("a\x1b(Bb\x1b7c", "abc"),
        ("50%\rdone\r\nnext", "50%\ndone\nnext"),
        ("\x1b]52;c;Zm9v\nstill here", "\nstill here"),
        ("\x1b[\x1b[2Jx", "x"),
        ("x\x1b", "x"),
        ("abc\u202edcb", "abcdcb"),
        ("שלום \u200fעולם 👩‍👩‍👧 é", "שלום \u200fעולם 👩‍👩‍👧 é"),
    ],
)
def test_sequences_go_as_a_whole(text: str, shown: str) -> None:
    assert plain_text(text) == shown


def test_a_sequence_without_an_end_does_not_swallow_everything() -> None:
    assert plain_text("\x1b]" + "x" * 10_000).count("x") > 5000
