"""`TextStream` against the naive answer: decode everything so far after every token and look for a stop string."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.engine.slot import TextStream


def naive(pieces: Sequence[bytes], stop: tuple[str, ...]) -> tuple[str, int]:
    """The text, and how many pieces it took."""
    for count in range(1, len(pieces) + 1):
        text = _decoded(b"".join(pieces[:count]), final=False)
        found = [text.index(one) for one in stop if one in text]
        if found:
            return text[: min(found)], count
    text = _decoded(b"".join(pieces), final=True)
    found = [text.index(one) for one in stop if one in text]
    return text[: min(found)] if found else text, len(pieces)


def _decoded(data: bytes, final: bool) -> str:
    """UTF-8 without a character whose rest may still come."""
    for cut in range(0 if final else min(3, len(data)), -1, -1):
        end = data[len(data) - cut :]
        if cut and not _may_go_on(end):
            continue
        return data[: len(data) - cut].decode("utf-8", "replace")
    raise AssertionError


def _may_go_on(end: bytes) -> bool:
    """Whether these bytes are the beginning of a longer character."""
    for tail in (b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xbf", b"\xbf\xbf", b"\xbf\xbf\xbf", b"\x90\x80\x80"):
        try:
            if len((end + tail).decode("utf-8")) == 1:
                return True
        except UnicodeDecodeError:
            continue
    return False


def streamed(pieces: Sequence[bytes], stop: tuple[str, ...]) -> tuple[list[str], int]:
    stream, shown = TextStream(stop), []
    for count, piece in enumerate(pieces, start=1):
        shown.append(stream.push(piece))
        if stream.stopped:
            return [*shown, stream.finish()], count
    return [*shown, stream.finish()], len(pieces)


def cut_anywhere(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


few_letters = st.text("aé€😀b\n", max_size=12)
stops = st.lists(st.text("aé€😀b\n", min_size=1, max_size=4), max_size=3).map(tuple)


@settings(max_examples=400)
@given(text=few_letters, stop=stops, cuts=st.lists(st.integers(0, 40), max_size=12))
@example(text="aab", stop=("ab",), cuts=[1, 2])
@example(text="aaab", stop=("aab",), cuts=[1, 2, 3])
@example(text="ab", stop=("abb",), cuts=[1])
def test_stop_anywhere_in_text_cut_anywhere(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    pieces = cut_anywhere(text.encode(), cuts)
    shown, used = streamed(pieces, stop)
    assert ("".join(shown), used) == naive(pieces, stop)


@settings(max_examples=300)
@given(
    pieces=st.lists(
        st.binary(max_size=3) | st.sampled_from([b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"a"]), max_size=8
    ),
    stop=st.sampled_from([(), ("a",), ("€",), ("�",), ("a€", "€a")]),
)
def test_bytes_that_are_no_text(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    shown, used = streamed(pieces, stop)
    assert ("".join(shown), used) == naive(pieces, stop)


@given(text=few_letters, stop=stops, cuts=st.lists(st.integers(0, 40), max_size=12))
def test_what_was_shown_is_never_taken_back(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    """Whatever comes next: what is shown holds no stop string, and begins the naive answer."""
    pieces = cut_anywhere(text.encode(), cuts)
    stream, shown = TextStream(stop), ""
    for count, piece in enumerate(pieces, start=1):
        shown += stream.push(piece)
        assert not any(one in shown for one in stop)
        assert naive(pieces[:count], stop)[0].startswith(shown)
        if stream.stopped:
            break


def test_text_is_held_back_only_while_it_may_begin_a_stop_string() -> None:
    stream = TextStream(("END", "STOP"))
    assert [stream.push(piece) for piece in (b"a", b"E", b"N", b"x", b"S", b"STO")] == ["a", "", "", "ENx", "", "S"]
    assert stream.finish() == "STO"
    assert not stream.stopped


def test_characters_come_whole() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "a€😀".encode()] == ["a", "", "", "€", "", "", "", "😀"]


@pytest.mark.parametrize(("piece", "text"), [(b"\xff", "�"), (b"\xe2\x82", ""), (b"\xe2a", "�a")])
def test_broken_bytes(piece: bytes, text: str) -> None:
    assert TextStream().push(piece) == text


def test_an_unfinished_character_at_the_end_is_marked() -> None:
    stream = TextStream()
    assert stream.push(b"\xe2\x82") + stream.finish() == "�"


def test_nothing_comes_behind_a_stop_string() -> None:
    stream = TextStream(("b",))
    assert stream.push(b"abc") == "a"
    assert stream.stopped
    assert stream.finish() == ""
