"""What a header says about a tokenizer, with llama.cpp's defaults where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.gguf import Header

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


def vocabulary(header: Header) -> Vocabulary:
    """The tokenizer of a file.

    Raises:
        ModelFileError: the file has changed since its header was read.
    """
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
