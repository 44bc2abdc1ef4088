"""A history in another tokenizer's words: the same text, whatever way it grew, and only its end is read anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.drafters import draft_model
from localspec.drafters.draft_model import TranslatedContext, Translation, Translator, pieces
from localspec.types import Feed
from tests.drafters.made_tokenizers import MadeTokenizer, shared_by
from tests.fakes import FakeDraftContext, HashModel, prompt

EURO = "\u20ac".encode()
TARGET = MadeTokenizer(
    [b"<|bos|>", b"a", b"b ", b" c", EURO[:2], EURO[2:], b"ab", b"\n", b"<|end|>", b"<|user|>", b" "], 0
)
DRAFT = MadeTokenizer(
    [b"bc", b"c", b"<|end|>", b" ", b"a", b"b", b" a", b"\n", EURO, b"<", b"|", b">", b"u", b"s", b"e", b"r", EURO[:1]]
)
SPACED = MadeTokenizer([*DRAFT.pieces, b"<|start|>"], len(DRAFT.pieces), space=True)
SHARED = shared_by(TARGET, DRAFT)
some_tokens = st.lists(st.integers(0, len(TARGET.pieces) - 1), max_size=40)


def translator(target: MadeTokenizer = TARGET, draft: MadeTokenizer = DRAFT) -> Translator:
    return Translator(target, draft, shared_by(target, draft))


def translated(tokens: Sequence[int], by: Translator | None = None) -> list[int]:
    found, left = Translation(by or translator()).of(prompt(*tokens))
    assert left == 0
    return list(found.tolist())


def parts_of(text: bytes, lengths: Sequence[int]) -> list[bytes]:
    """The pieces of a text that comes in parts."""
    found, left = [b""], text
    for length in (*lengths, len(text)):
        found[-1:] = pieces(found[-1], left[:length])
        left = left[length:]
    return found


texts = st.lists(st.sampled_from([b"a", b" ", b"\n", b"word", EURO, EURO[:1], EURO[1:], b"x" * 60, b"\x80" * 9])).map(
    b"".join
)


@given(text=texts, lengths=st.lists(st.integers(0, 70)))
def test_where_a_text_is_cut_does_not_depend_on_how_it_comes(text: bytes, lengths: list[int]) -> None:
    found = parts_of(text, lengths)
    assert found == parts_of(text, [1] * len(text))
    assert b"".join(found) == text
    assert max(map(len, found)) <= 131


def test_long_words_are_cut_between_characters() -> None:
    for piece in parts_of(b"a" + EURO * 200, [])[:-1]:
        piece.decode()


@settings(max_examples=200)
@given(tokens=some_tokens, edits=st.lists(st.tuples(st.integers(0, 40), some_tokens), max_size=5))
def test_a_history_that_grew_and_was_edited_is_read_as_a_new_one(
    tokens: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    slot = Translation(translator())
    for keep, more in [(0, tokens), *edits]:
        tokens = [*tokens[:keep], *more]
        assert slot.of(prompt(*tokens))[0].tolist() == translated(tokens)


def test_a_long_history_is_translated_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [1, 3, 10, 6] * 5
    whole = translated(history)
    monkeypatch.setattr(draft_model, "_TOKENS_A_CALL", 8)
    slot = Translation(translator())
    lefts = [slot.of(prompt(*history))[1] for _ in range(4)]
    assert lefts == [12, 4, 0, 0]
    assert slot.of(prompt(*history))[0].tolist() == whole
    assert slot.of(prompt(*history[:9], *history))[1] == 12, "what is the same is not done again"


def test_what_is_not_translated_yet_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "_TOKENS_A_CALL", 8)
    inner, outer = context()
    history = prompt(*[1, 3] * 20)  # three tokens of the draft model for two
    assert outer.prefill_chunk(0, history, 40) == 40 - 32 - 1
    assert inner.passes == [{0: 11}]
    assert 40 - outer.reusable(0, history, 40) == 24 + (24 - 11), "24 left, 24 for the first 16, of which 11 were read"
    (empty,) = outer.decode([Feed(1, history, 40)])
    assert (empty[0] == -np.inf).all()
    assert len(inner.passes) == 1, "what is translated in part is not guessed behind"
    assert [outer.prefill_chunk(0, history, 40) for _ in range(3)] == [40 - 16 - 1, 40 - 8 - 1, 40 - 1]
    (row,) = outer.decode([Feed(0, history, 40)])
    assert np.isfinite(row[0]).any()


@given(tokens=some_tokens)
def test_the_text_stays_the_same(tokens: list[int]) -> None:
    words = [token for token in tokens if token not in (0, 4, 5, 8, 9)]
    assert DRAFT.read(prompt(*translated(words))) == TARGET.read(prompt(*words))


def test_characters_in_two_tokens_become_one() -> None:
    assert translated([1, 4]) == [4, 16], "of a part, the bytes that have tokens"
    assert translated([1, 4, 5]) == [4, 8]
    assert translated([5, 5]) == []


def test_control_tokens() -> None:
    assert translated([0, 1]) == [4], "the target's beginning is not the draft's"
    assert translated([1, 8, 1]) == [4, 2, 4], "one that both have"
    assert DRAFT.read(prompt(*translated([9, 1]))) == b"<|user|>a", "of others the name is read"


def test_a_first_token_that_no_tokenizer_adds_is_read_as_any_other() -> None:
    """SmolLM2's template begins with its `bos`, which its tokenizer does not add: a draft model learned it so."""
    target, draft = MadeTokenizer(TARGET.pieces, 8), MadeTokenizer(DRAFT.pieces, 2)
    target.add_bos = draft.add_bos = False
    assert translated([8, 1], translator(target, draft)) == [2, 4]
    target.add_bos = True
    assert translated([8, 1], translator(target, draft)) == [4]


def test_a_tokenizer_that_puts_a_space_before_texts_does_so_only_there() -> None:
    by = translator(TARGET, SPACED)
    start = SPACED.bos
    assert translated([1, 3, 1], by) == [start, 6, 3, 1, 4], "a ca"
    assert translated([1, 8, 1], by) == [start, 6, 2, 6], "and behind a control token"
    other = MadeTokenizer([*TARGET.pieces, b" a"], 0, space=True)
    assert translated([11, 3], translator(other, SPACED)) == [start, 6, 3, 1], "the target's space is not the text's"
    assert translated([11, 3], translator(other, DRAFT)) == [4, 3, 1]


def context(n_ctx: int = 64, draft: MadeTokenizer = DRAFT) -> tuple[FakeDraftContext, TranslatedContext]:
    inner, shared = FakeDraftContext(HashModel(len(draft.pieces)), n_ctx), shared_by(TARGET, draft)
    return inner, TranslatedContext(inner, Translator(TARGET, draft, shared), shared)


def test_only_the_end_is_read_anew() -> None:
    inner, outer = context()
    history = [1, 3] * 8
    outer.decode([Feed(0, prompt(*history), 16)])
    assert inner.passes.pop() == {0: 24}
    outer.decode([Feed(0, prompt(*history, 10), 16)])
    assert inner.passes.pop() == {0: 1}
    outer.decode([Feed(0, prompt(*history, 10, 6), 16)])  # " ab" is not " " and "ab" here
    assert inner.passes.pop() == {0: 2}
    assert outer.reusable(0, prompt(*history, 10, 6, 6), 16) == 19 - 2


def test_rows_hold_what_both_have_at_the_targets_ids() -> None:
    inner, outer = context()
    (rows,) = outer.decode([Feed(0, prompt(1, 3), 2)])
    theirs = inner.logits(prompt(*translated([1, 3])))
    for token, piece in enumerate(TARGET.pieces):
        expected = theirs[DRAFT.pieces.index(piece)] if piece in DRAFT.pieces else -np.inf
        assert rows[0][token] == expected, piece


@pytest.mark.parametrize("tokens", [[0], [5], [3] * 33], ids=["nothing to read", "no characters", "no room"])
def test_what_the_draft_model_cannot_read_gets_an_empty_row(tokens: list[int]) -> None:
    inner, outer = context()
    history = prompt(*tokens)
    assert outer.reusable(0, history, len(tokens)) == outer.prefill_chunk(0, history, len(tokens)) == len(tokens) - 1
    good = outer.decode([Feed(1, prompt(1, 3), 2)])[0][0].copy()
    empty, other = outer.decode([Feed(0, history, len(tokens)), Feed(1, prompt(1, 3), 2)])
    assert (empty[0] == -np.inf).all()
    assert (other[0] == good).all()
    assert (outer.decode([Feed(0, prompt(1, 3), 2)])[0][0] == good).all(), "and the next one a whole row"
    assert inner.passes[-2:] == [{1: 1}, {0: 3}]


def test_shared_ids_are_the_equal_pieces() -> None:
    assert {TARGET.pieces[token] for token in SHARED.target_ids.tolist()} == {b"a", b"\n", b"<|end|>", b" "}
