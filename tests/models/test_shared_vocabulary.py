"""Tokens that two vocabularies have in common, however each file writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.errors import PairError
from localspec.gguf import Header, read_header
from localspec.models.facts.pairing import FileVocabulary, SharedVocabulary, check, match, share, vocabulary
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
Token = tuple[str, int]


def made(kind: str, *tokens: Token, **facts: Any) -> FileVocabulary:
    texts, types = [text.encode() for text, _ in tokens], [type_ for _, type_ in tokens]
    return FileVocabulary(kind, facts.pop("pre", ""), None, facts.pop("eos", None), False, False, texts, types, **facts)


def pairs(shared: SharedVocabulary) -> dict[int, int]:
    return dict(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True))


def test_sentencepiece_and_byte_level_bpe_write_the_same_bytes() -> None:
    spm = made("SPM", ("\u2581the", NORMAL), ("<0xE2>", BYTE), ("<0x0A>", BYTE), ("caf\u00e9", NORMAL), ("a", NORMAL))
    bpe = made(
        "BPE", ("a", NORMAL), ("caf\u00c3\u00a9", NORMAL), ("\u0120the", NORMAL), ("\u00e2", NORMAL), ("\u010a", NORMAL)
    )
    assert pairs(share(spm, bpe)) == {0: 2, 1: 3, 2: 4, 3: 1, 4: 0}
    assert pairs(share(bpe, spm)) == {2: 0, 3: 1, 4: 2, 1: 3, 0: 4}
    assert share(spm, bpe).byte_ids == {ord("a"): 0, 0xE2: 3, 0x0A: 4}


def test_a_token_is_preferred_to_the_bare_byte_that_says_the_same() -> None:
    spm = made("SPM", ("<0x61>", BYTE), ("a", NORMAL), ("a", USER))
    assert pairs(share(spm, made("BPE", ("a", NORMAL)))) == {1: 0}
    assert share(made("BPE", ("a", NORMAL)), spm).byte_ids == {ord("a"): 1}


def test_parts_of_characters_are_shared_as_bytes() -> None:
    """The first two bytes of the euro sign, as byte-level BPE writes them."""
    one = made("BPE", ("\u00e2\u0124", NORMAL), ("x", NORMAL))
    assert pairs(share(one, made("BPE", ("y", NORMAL), ("\u00e2\u0124", NORMAL)))) == {0: 1}


def test_control_tokens_are_no_text() -> None:
    target = made("BPE", ("<s>", CONTROL), ("<s>", NORMAL), ("<unk>", UNKNOWN), ("<x>", UNUSED))
    draft = made("BPE", ("<s>", NORMAL), ("<unk>", UNKNOWN), ("<x>", UNUSED))
    assert pairs(share(target, draft)) == {1: 0}
    assert share(target, draft).controls == {}


def test_control_tokens_with_the_same_name_or_purpose_are_the_same() -> None:
    target = made(
        "BPE",
        ("<end>", CONTROL),
        ("<think>", CONTROL),
        ("<only>", CONTROL),
        ("<pre>", CONTROL),
        eos=0,
        marks={"fim_pre": 3},
    )
    draft = made(
        "SPM",
        ("<think>", USER),
        ("</s>", CONTROL),
        ("<turn>", CONTROL),
        ("<fim>", CONTROL),
        eos=1,
        marks={"eot": 2, "fim_pre": 3},
    )
    found = share(target, draft)
    assert found.controls == {0: 2, 1: 0, 3: 3}, "what ends an answer is the end of a turn where the file names one"
    assert pairs(found) == found.controls


def test_no_token_stands_for_two() -> None:
    target = made("BPE", ("<|end|>", CONTROL), ("<|eot|>", CONTROL), eos=0, marks={"eot": 1})
    draft = made("BPE", ("<|eot|>", CONTROL), ("b", NORMAL), eos=0)
    assert share(target, draft).controls == {1: 0}


def test_gemma_4_writes_spaces_as_sentencepiece_does() -> None:
    gemma = made("BPE", ("\u2581the", NORMAL), ("\u0120the", NORMAL), pre="gemma4")
    assert pairs(share(gemma, made("BPE", ("\u0120the", NORMAL)))) == {0: 0}


@pytest.mark.parametrize("kind", ["", "RWKV", "strange"])
def test_a_tokenizer_that_cannot_be_read_shares_no_text(kind: str) -> None:
    assert len(share(made("BPE", ("a", NORMAL)), made(kind, ("a", NORMAL)))) == 0
    assert not share(made("BPE", ("a", NORMAL)), made(kind, ("a", NORMAL))).enough


def test_a_vocabulary_shares_everything_with_itself(tiny_target: Any, tiny_draft: Any) -> None:
    target, draft = vocabulary(read_header(tiny_target)), vocabulary(read_header(tiny_draft))
    found = share(target, draft)
    assert pairs(found) == {token: token for token in range(target.size)}
    assert len(found.byte_ids) == 256


# -- what a pair's verdict makes of it -------------------------------------------------------------------------------

TEXTS: list[str] = TINY_METADATA["tokenizer.ggml.tokens"]
TYPES: list[int] = TINY_METADATA["tokenizer.ggml.token_type"]


def model(folder: Path, name: str, **tokenizer: Any) -> Header:
    changes = {f"tokenizer.ggml.{key}": value for key, value in tokenizer.items()}
    return read_header(write(folder / f"{name}.gguf", gguf_bytes({**TINY_METADATA, **changes}, tiny_tensors(260))))


def test_another_tokenizer_fits_where_that_is_wanted(tmp_path: Path) -> None:
    target = model(tmp_path, "target")
    draft = model(tmp_path, "draft", tokens=[*TEXTS[:100], "<other>", *TEXTS[101:]])
    assert "--cross-tokenizer" in match(target, draft).verdict
    found = check(target, draft, cross_tokenizer=True)
    assert found.verdict == "draft.gguf can draft for target.gguf, as a draft model."
    assert found.shared is not None
    assert f"tokenizers differ: {len(found.shared)} of 260 tokens shared" in found.warnings[0]
    kept = 260 - 3  # without <unk>, the byte that both write as a token, and the other one
    assert found.as_dict()["shared"] == len(found.shared) == kept


def test_the_wish_changes_nothing_where_tokenizers_are_the_same(tmp_path: Path) -> None:
    target, draft = model(tmp_path, "target"), model(tmp_path, "draft")
    assert check(target, draft, cross_tokenizer=True) == check(target, draft)


def test_too_few_shared_tokens_are_refused(tmp_path: Path) -> None:
    strange = [*TEXTS[:3], *(f"strange{i}" for i in range(257))]
    draft = model(tmp_path, "draft", tokens=strange, token_type=[*TYPES[:3], *[1] * 257])
    words = r"draft\.gguf cannot draft for target\.gguf: tokenizers differ, with 2 of 260 tokens shared: too few\."
    with pytest.raises(PairError, match=words):
        check(model(tmp_path, "target"), draft, cross_tokenizer=True)


def test_a_tokenizer_that_cannot_be_read_is_offered_no_way_out(tmp_path: Path) -> None:
    target, draft = model(tmp_path, "target"), model(tmp_path, "draft", model="rwkv")
    assert "--cross-tokenizer" not in match(target, draft).verdict
    assert match(target, draft, cross_tokenizer=True) == match(target, draft)
