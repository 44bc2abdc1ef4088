"""Prompts as tokens: cut where llama.cpp cuts, and no spelling across a break is a special token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.llama.model import Model
from localspec.llama.special_tokens import PromptTokenizer, SpecialToken, Spellings
from localspec.types import Prompt, Tokens
from tests.chat.marked_file import CONTROL, USER_DEFINED, write_marked

PARTS = ["<|end|>", "<|user|>", "<tool_call>", "<|", "|>", "x", " word", "\n", "ü", "\ud800", "<", "<|end", "  "]


@pytest.fixture(scope="module")
def defined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model with a user-defined token, and one in which a text begins with a space."""
    path = write_marked(tmp_path_factory.mktemp("defined") / "defined.gguf", "{{ x }}", ["<t>", "<|s|>"], USER_DEFINED)
    with Model.load(path) as loaded:
        yield loaded


@settings(max_examples=150)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=12), at=st.integers(0, 40))
def test_a_cut_prompt_has_the_tokens_of_the_whole(model: Model, parts: list[str], at: int) -> None:
    """What is before and after a broken spelling is read as llama.cpp reads it."""
    text = "".join(parts)
    whole = model.tokenize(text, special=True, add_bos=False)
    assert model.tokenize_prompt(Prompt(text), add_bos=False).tolist() == whole.tolist()
    start = f"{text}\n<|assistant|>"
    broken = model.tokenize_prompt(Prompt(f"{start}<|end|>", (len(start) + 1,)), add_bos=False)
    expected = [
        model.tokenize(start, special=True, add_bos=False),
        model.tokenize("<|end|>", special=False, add_bos=False),
    ]
    assert broken.tolist() == np.concatenate(expected).tolist()
    prompt = Prompt(f"<|end|><|user|>{text}", (1,))
    tokens = model.tokenize_prompt(prompt, add_bos=False)
    expected = [
        model.tokenize("<|end|>", special=False, add_bos=False),
        model.tokenize(prompt.text[7:], special=True, add_bos=False),
    ]
    assert tokens.tolist() == np.concatenate(expected).tolist()


def test_the_begin_of_sequence_token_comes_first(model: Model) -> None:
    tokens = model.tokenize_prompt(Prompt("<|end|>", (3,)), add_bos=True)
    assert tokens[0] == model.bos
    assert model.detokenize(tokens[1:].tolist()) == "<|end|>", "letters"
    assert model.tokenize_prompt(Prompt(""), add_bos=False).tolist() == []


def test_user_defined_tokens_are_broken_too(defined: Model) -> None:
    """llama.cpp finds them in every text."""
    letters = [3 + byte for byte in b"<t>"]
    token = int(defined.tokenize("<t>", special=False, add_bos=False)[0])
    assert token == 260
    for text, breaks, expected in (
        ("<t>", (1,), letters),
        ("<t><t>", (1,), [*letters, token]),
        ("<t><t>", (4,), [token, *letters]),
        ("<t></s><t>", (1, 8), [*letters, 2, *letters]),
        ("a<t>b", (), [3 + 97, token, 3 + 98]),
        ("a<t>b", (1,), [3 + 97, token, 3 + 98]),
    ):
        assert defined.tokenize_prompt(Prompt(text, breaks), add_bos=False).tolist() == expected, text


@pytest.mark.parametrize("control", [True, False])
def test_no_space_comes_into_a_broken_mark(control: bool) -> None:
    """A tokenizer of Llama 2's kind puts a space before every piece of text."""

    def tokenize(text: str, *, special: bool) -> Tokens:
        return np.array([ord(" "), *map(ord, text)] if text else [], dtype=np.int32)

    specials = [SpecialToken("<t>", 1000, control), SpecialToken("</s>", 1001, control=True)]
    prompts = PromptTokenizer(specials, tokenize, has_lead=True)
    told = [
        chr(token) if token < 1000 else f"({token})" for token in prompts.tokens(Prompt("a <t>b</s>c", (3,))).tolist()
    ]
    assert "".join(told) == " a <t>b(1001) c"


def test_white_space_around_some_tokens_is_left_out() -> None:
    """As llama.cpp does for those that say so."""

    def tokenize(text: str, *, special: bool) -> Tokens:
        return np.array(list(map(ord, text)), dtype=np.int32)

    specials = [
        SpecialToken("<l>", 1000, control=True, strips_left=True),
        SpecialToken("<r>", 1001, control=True, strips_right=True),
        SpecialToken("<x>", 1002, control=True),
    ]
    prompts = PromptTokenizer(specials, tokenize, has_lead=False)
    tokens = prompts.tokens(Prompt("<x> <l> a \n<r> \n b <r> <l> ", (1,))).tolist()
    told = "".join(chr(token) if token < 1000 else f"({token})" for token in tokens)
    assert told == "<x>(1000) a \n(1001)b (1001)(1000) "


def test_a_mark_that_words_make_is_cut() -> None:
    """A tokenizer may know the whole word."""

    def tokenize(text: str, *, special: bool) -> Tokens:
        return np.array([1000] if text == "[PAD]" else list(map(ord, text)), dtype=np.int32)

    prompts = PromptTokenizer([SpecialToken("[PAD]", 1000, control=True)], tokenize, has_lead=False)
    assert prompts.tokens(Prompt("[PAD]", (1,))).tolist() == list(map(ord, "[PAD]"))


def test_spellings_are_found_even_where_they_share_characters() -> None:
    assert list(Spellings(["aa", "ab", "", "b"]).places("aaab")) == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert list(Spellings([]).places("aaab")) == []


def test_special_tokens_of_a_vocabulary(model: Model, tmp_path: Path) -> None:
    texts = {special.text: special.control for special in model.special_tokens}
    assert texts["<|end|>"]
    assert all(model.text_of(special.token) == special.text for special in model.special_tokens)
    path = write_marked(tmp_path / "harmony.gguf", "{{ x }}", ["<|start|>", "<|im_end|>"], CONTROL)
    with Model.load(path) as harmony:
        kinds = {special.text: special.control for special in harmony.special_tokens}
    assert kinds == {"<unk>": True, "<s>": True, "</s>": True, "<|start|>": False, "<|im_end|>": True}, (
        "llama.cpp's own"
    )
