"""What a header says about a tokenizer, with llama.cpp's defaults, and which tokens of two say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from localspec.gguf import Header
from localspec.types import Tokens

KINDS = {
    "llama": "SPM", "gpt2": "BPE", "gemma4": "BPE", "hybriddna": "BPE", "whitespace": "BPE", "bert": "WPM",
    "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2",
}  # fmt: skip
"""`tokenizer.ggml.model` -> the kind of tokenizer llama.cpp makes of it."""

_BOS_EOS = {"SPM": (1, 2), "BPE": (11, 11), "WPM": (101, None), "UGM": (None, 1), "PLaMo-2": (1, 2)}
_ADDS = {"SPM": (True, False), "WPM": (True, False), "UGM": (False, True)}
_PRE_ADDS_BOS = frozenset((
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken",
    "chameleon",
))  # fmt: skip
_MARKS = ("eot", "fim_pre", "fim_suf", "fim_mid")
_PRE_WITHOUT_BOS = frozenset(("chatglm-bpe", "glm4", "glm5"))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts that decide whether two models speak of the same tokens."""

    kind: str
    """"SPM", "BPE", ...; "" = the file has no tokenizer."""
    pre: str
    """Pre-tokenizer; "" = not stated."""
    bos: int | None
    eos: int | None
    add_bos: bool
    """Whether a text starts with `bos`."""
    add_eos: bool
    """Whether a text ends with `eos`."""
    tokens: Sequence[bytes] = field(repr=False)
    """Text of every token, by id."""
    types: Sequence[int] = field(default=(), repr=False)
    """llama.cpp's type of every token; may be empty, and in a damaged file of another length than `tokens`."""
    merges: bytes = field(default=b"", repr=False)
    """BPE merges, as the file writes them."""
    merge_count: int = 0
    marks: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Control tokens the file names by purpose: eot (end of a turn), fim_pre, fim_suf, fim_mid (around a gap)."""

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    def text(self, token: int | None) -> str:
        """A token's text; "" for None."""
        return "" if token is None else self.tokens[token].decode("utf-8", "replace")


def doubt_of(header: Header) -> str:
    """What a file does not say about its tokenizer and llama.cpp guesses, in a sentence; "" = nothing."""
    if KINDS.get(header.text("tokenizer.ggml.model")) != "BPE" or vocabulary(header).pre:
        return ""
    guessed = "The file does not say how its tokenizer splits text (tokenizer.ggml.pre), so llama.cpp guesses"
    return f"{guessed}: answers may be worse. Newer conversions say it."


def vocabulary(header: Header) -> Vocabulary:
    """The tokenizer of a file."""
    model, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")
    kind, tokens = KINDS.get(model, model), header.token_bytes
    bos, eos = _BOS_EOS.get(kind, (None, None)) if model != "gemma4" else (None, None)
    if kind == "BPE" and pre in _PRE_WITHOUT_BOS:
        bos = None
    add_bos, add_eos = _ADDS.get(kind, (kind == "BPE" and pre in _PRE_ADDS_BOS, False))
    add_bos = _stated(header, "add_bos_token", add_bos)
    return Vocabulary(
        kind=kind,
        pre="gemma4" if model == "gemma4" else pre,
        bos=_special(header, "bos_token_id", bos, len(tokens)),
        eos=_special(header, "eos_token_id", eos, len(tokens)),
        add_bos=add_bos or model == "gemma4" or (kind == "BPE" and pre == "gemma4"),
        add_eos=_stated(header, "add_eos_token", add_eos),
        tokens=tokens,
        types=header.token_types,
        merges=header.raw("tokenizer.ggml.merges"),
        merge_count=header.count("tokenizer.ggml.merges"),
        marks={
            name: token
            for name in _MARKS
            if (token := _special(header, f"{name}_token_id", None, len(tokens))) is not None
        },
    )


def _stated(header: Header, key: str, default: bool) -> bool:
    value = header.flag(f"tokenizer.ggml.{key}")
    return default if value is None else value


def _special(header: Header, key: str, default: int | None, size: int) -> int | None:
    """The id in the file; one beyond the vocabulary is ignored, as llama.cpp does."""
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
        return value
    return default if default is not None and default < size else None


# Which tokens of two vocabularies say the same: all that a draft model with another tokenizer may guess.
#
# Text tokens are the same where they add the same bytes to a text, however each file writes them; control tokens where
# they have the same name or the same purpose (the end of an answer, the marks around a gap).

LEAST_SHARED = 0.1
"""Share of the smaller vocabulary that both must have; with less (the 256 bytes, say) next to nothing is guessed."""
READABLE = frozenset(("BPE", "SPM", "UGM", "WPM"))
"""Kinds of tokenizers whose tokens `piece` can read."""
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_SPACE = "\u2581".encode()
Ids: TypeAlias = dict[bytes, int]


@dataclass(frozen=True, slots=True, eq=False)
class SharedVocabulary:
    """The tokens a target and a draft model have in common, one to one."""

    target_size: int
    draft_size: int
    target_ids: Tokens
    """int32[n], ascending."""
    draft_ids: Tokens
    """int32[n], the draft's ids of the same tokens."""
    controls: Mapping[int, int]
    """Those among them that are no text: the target's id -> the draft's."""
    byte_ids: Mapping[int, int]
    """Byte -> the draft's token of that byte alone, as far as it has one."""
    foreign: int = 0
    """Texts of the draft's tokens that no token of the target has."""

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def enough(self) -> bool:
        """Whether guesses over these tokens alone are worth making."""
        return len(self) >= max(1.0, LEAST_SHARED * min(self.target_size, self.draft_size))


def share(target: Vocabulary, draft: Vocabulary) -> SharedVocabulary:
    """Compares two vocabularies token by token; of several tokens with the same bytes the first that is no bare byte
    counts, which is the one that models say. Each must have as many types as tokens, or none."""
    ours, theirs = _texts(target), _texts(draft)
    same = {token: theirs[text] for text, token in ours.items() if text in theirs}
    foreign = len(theirs) - len(same)
    controls = _controls(target, draft, same)
    same |= controls
    order = sorted(same)
    return SharedVocabulary(
        target.size,
        draft.size,
        np.array(order, dtype=np.int32),
        np.array([same[token] for token in order], dtype=np.int32),
        controls,
        {text[0]: token for text, token in theirs.items() if len(text) == 1},
        foreign,
    )


def _controls(target: Vocabulary, draft: Vocabulary, same: Mapping[int, int]) -> dict[int, int]:
    """Tokens that at least one of the two reads as control tokens and that mean the same."""
    found: dict[int, int] = {}
    taken = set(same.values())
    theirs, purposes = _names(draft), _purposes(draft)
    pairs = [(token, theirs[name]) for name, token in _names(target).items() if name in theirs]
    for purpose, token in _purposes(target).items():
        if purpose in purposes:
            pairs.append((token, purposes[purpose]))
    for ours, other in pairs:
        if ours not in same and ours not in found and other not in taken:
            found[ours] = other
            taken.add(other)
    return found


def _purposes(found: Vocabulary) -> dict[str, int]:
    """What control tokens are for. A file that names no end of a turn ends it with `eos`."""
    purposes = dict(found.marks)
    if found.eos is not None:
        purposes = {"eot": found.eos, **purposes, "eos": found.eos}
    return purposes


def _names(found: Vocabulary) -> Ids:
    """Control tokens, and those a file's author added, by name."""
    names: Ids = {}
    for wanted in (_CONTROL, _USER_DEFINED):
        for token, kind in enumerate(found.types):
            if kind == wanted:
                names.setdefault(found.tokens[token], token)
    return names


def _texts(found: Vocabulary) -> Ids:
    """Text tokens by the bytes they add."""
    texts: Ids = {}
    bare: Ids = {}
    for token, (kind, text) in enumerate(_pieces(found)):
        if text:
            (bare if kind == _BYTE else texts).setdefault(text, token)
    return bare | texts


def _pieces(found: Vocabulary) -> Iterator[tuple[int, bytes]]:
    """(type, bytes) of every token; b"" for what is no text."""
    if found.kind not in READABLE:
        return
    letters = _LETTERS if found.kind == "BPE" and found.pre != "gemma4" else None
    types = found.types if len(found.types) == found.size else [_NORMAL] * found.size
    for kind, text in zip(types, found.tokens, strict=True):
        if kind == _NORMAL:
            yield kind, text.replace(_SPACE, b" ") if letters is None else _decoded(text, letters)
        elif kind == _USER_DEFINED:
            yield kind, text
        elif kind == _BYTE:
            yield kind, bytes.fromhex(text[3:5].decode("ascii", "replace")) if _is_byte(text) else b""
        else:
            yield kind, b""


def _is_byte(text: bytes) -> bool:
    return len(text) == 6 and text[:3] == b"<0x" and all(chr(byte) in "0123456789abcdefABCDEF" for byte in text[3:5])


def _decoded(text: bytes, letters: Mapping[str, int]) -> bytes:
    """The bytes that byte-level BPE writes as letters; b"" for a text that uses others."""
    try:
        return bytes([letters[letter] for letter in text.decode()])
    except (KeyError, UnicodeDecodeError):
        return b""


def _byte_letters() -> dict[str, int]:
    """GPT-2's way to write bytes: visible Latin-1 as it is, all others as the letters from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_LETTERS = _byte_letters()
