"""Records of passes as people read them: text, verdicts, ends, and disk joined with what is heard live."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.slot import PassRecord
from localspec.tui.text.origin_lines import PassReader, cut_to, joined, read_passes

PIECES = {1: b"Maria", 2: b" sold", 3: b" bought", 4: "é".encode()[:1], 5: "é".encode()[1:], 6: b"", 7: b"\n\n"}


def piece(token: int) -> bytes:
    return PIECES.get(token, b"?")


def record(guesses: tuple[int, ...], accepted: tuple[int, ...], own: int, drafter: str = "draft") -> PassRecord:
    """A chain."""
    parents = tuple(range(-1, len(guesses) - 1))
    return PassRecord(drafter if guesses else "", guesses, parents, accepted, own, 1 + len(guesses), 0.01)


def test_a_pass_tells_what_was_accepted_and_what_not() -> None:
    one = PassReader(piece).read(record((1, 2, 3), (0,), 3))
    assert [(token.text, token.drafter, token.depth) for token in one.emitted] == [
        ("Maria", "draft", 1),
        (" bought", "", 0),
    ]
    assert [guess.text for guess in one.guesses if not guess.accepted] == [" sold", " bought"]
    assert [guess.depth for guess in one.guesses] == [1, 2, 3]
    assert (one.accepted, one.width, one.text) == (1, 4, "Maria bought")


def test_depth_follows_the_path_in_a_tree() -> None:
    tree = PassRecord("draft", (1, 2, 3, 2), (-1, -1, 1, 2), (1, 2), 1, 5, 0.01)
    one = PassReader(piece).read(tree)
    assert [guess.depth for guess in one.guesses] == [1, 1, 2, 3]
    assert [token.depth for token in one.emitted] == [1, 2, 0]
    assert [guess.accepted for guess in one.guesses] == [False, True, True, False]


def test_a_character_cut_between_tokens_belongs_to_the_one_that_completes_it() -> None:
    passes = read_passes([record((), (), 4), record((), (), 5)], piece)
    assert [one.text for one in passes] == ["", "é"]


def test_what_a_stop_cut_off_is_left_out() -> None:
    reader = PassReader(piece)
    (one,) = reader.read_all([record((1, 2, 3), (0, 1, 2), 1)], 2)
    assert one.text == "Maria sold"
    first, second = PassReader(piece).read_all([record((1,), (0,), 2), record((3, 1), (0, 1), 2)], 3)
    assert (first.text, second.text) == ("Maria sold", " bought")
    assert PassReader(piece).read(record((), (), -1)).emitted == ()


def test_passes_end_where_the_text_does() -> None:
    passes = read_passes([record((1, 2), (0, 1), 3)], piece, "Maria so")
    assert "".join(one.text for one in passes) == "Maria so"
    assert [token.text for token in passes[0].emitted] == ["Maria", " so", ""]


def test_thinking_before_the_text_stays() -> None:
    passes = read_passes([record((1, 7), (0, 1), 3)], piece, " bou")
    assert "".join(one.text for one in passes) == "Maria\n\n bou"


def test_a_text_that_was_changed_cuts_nothing() -> None:
    passes = read_passes([record((1, 2), (0, 1), 3)], piece)
    assert list(cut_to(passes, "something else")) == passes
    assert list(cut_to(passes, "")) == passes


records = st.lists(st.integers(0, 3).map(lambda n: record((n, n + 1), (0,), n)), max_size=12)


@given(records, st.data())
def test_disk_and_live_join_to_the_whole(whole: list[PassRecord], data: st.DataObject) -> None:
    distinct = [one._replace(next_token=index) for index, one in enumerate(whole)]
    stored = data.draw(st.integers(0, len(distinct)))
    start = data.draw(st.integers(0, stored))
    on_disk = [one._replace(seconds=0.010001) for one in distinct[:stored]]
    found = joined(on_disk, distinct[start:])
    assert [one.next_token for one in found] == list(range(len(distinct)))
