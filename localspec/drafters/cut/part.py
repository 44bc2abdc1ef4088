"""A part of a target's vocabulary: the tokens that its answers use, and every token that they are merged from.

Most of a small draft model's work would be its output matrix, and answers use few of its rows (FR-Spec, Zhao et al.
2025, arXiv 2502.14856). The part is closed: byte-pair merges that make a token of the part make tokens of the part
only. So the part's own merges write a text as the target's do, wherever its tokens are in the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from localspec.errors import ModelError
from localspec.gguf import Header
from localspec.types import Float32Array, Tokens

MOST_DRAFTED = 6144
"""Tokens that are chosen by how much answers use them: 99.5 % of all that SmolLM2 said of maths and code. With those
that they are merged from they are some 8,200."""
_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE = 1, 2, 4, 6
"""llama.cpp's types of tokens."""
_ONE_LETTER = 256
"""Tokens of a BPE vocabulary that are one letter: one for each byte."""

Merge = Callable[[str, str], float | None]
"""How early two pieces become one, smaller first; None = never."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of a target that its draft model has, too."""

    ids: Tokens
    """int32[n], ascending: the target's ids. The draft model's id of a token is its place here."""
    merges: tuple[str, ...]
    """Byte-pair merges between them, best first; () where scores decide."""
    places: Tokens
    """int32[tokens of the target]: the place of a token in `ids`; -1 = not in the part."""
    pieces: Callable[[int], list[int]]
    """Places of the tokens of the part that write the text of a token of the target."""


def choose(header: Header, weight: Float32Array, size: int = MOST_DRAFTED) -> Part:
    """The part of a target's vocabulary for its draft model.

    Args:
        header: of the target.
        weight: float32[tokens of the target]: how much its answers use each token.
        size: tokens to choose by weight.

    Raises:
        ModelError: its tokenizer is none whose merges are known here.
    """
    kind, texts, types = check_tokenizer(header), header.tokens, header.token_types
    ids = {text: token for token, text in reversed(list(enumerate(texts)))}
    merge = _by_rank(header.merges) if kind == "gpt2" else _by_score(ids, header.array("tokenizer.ggml.scores"))
    used = [int(token) for token in np.argsort(-weight, kind="stable")[:size] if weight[token] > 0.0]
    kept = {*used, *_always(header, texts, types)}
    for token in used:
        if not types or types[token] == _NORMAL:
            _, made = _merged(texts[token], merge)
            kept |= {ids[text] for text in (*made, *texts[token]) if text in ids}
    order = np.array(sorted(kept), dtype=np.int32)
    places = np.full(len(texts), -1, dtype=np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    names = {texts[token] for token in kept}
    left = tuple(one for one in header.merges if {one.replace(" ", "", 1), *one.split(" ", 1)} <= names)
    inner = (
        _by_rank(left)
        if kind == "gpt2"
        else _by_score({n: ids[n] for n in names}, header.array("tokenizer.ggml.scores"))
    )

    def pieces(token: int) -> list[int]:
        if places[token] >= 0:
            return [int(places[token])]
        parts, _ = _merged(texts[token], inner)
        found = [int(places[ids[part]]) for part in parts if part in ids and places[ids[part]] >= 0]
        return found or [int(places[order[0]])]

    return Part(order, left, places, pieces)


def check_tokenizer(header: Header) -> str:
    """The kind of a target's tokenizer.

    Raises:
        ModelError: it is none whose merges are known here.
    """
    kind = header.text("tokenizer.ggml.model")
    fault = "" if kind in ("gpt2", "llama") else f"its tokenizer is {kind or 'not stated'}"
    if kind == "llama" and len(header.array("tokenizer.ggml.scores")) != len(header.tokens):
        fault = "its tokens have no scores"
    if fault:
        raise ModelError(
            f"No draft model can be cut from {header.path.name}: {fault}.",
            "Tokenizers of the kinds gpt2 (BPE) and llama (SentencePiece) can be cut.",
        )
    return kind


def _always(header: Header, texts: list[str], types: list[int]) -> Iterable[int]:
    """Tokens that no part can do without: single letters, bytes, and those that the header names by purpose."""
    for key, value in header.metadata.items():
        named = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if named and isinstance(value, int) and 0 <= value < len(texts):
            yield value
    for token, text in enumerate(texts):
        kind = types[token] if types else _NORMAL
        if kind in (_BYTE, _UNKNOWN) or (kind == _NORMAL and len(text) == 1 and ord(text) < 2 * _ONE_LETTER):
            yield token


def _by_rank(merges: Iterable[str]) -> Merge:
    ranks: dict[tuple[str, str], float] = {}
    for rank, merge in enumerate(merges):
        first, _, second = merge.partition(" ")
        ranks.setdefault((first, second), rank)
    return lambda first, second: ranks.get((first, second))


def _by_score(ids: dict[str, int], scores: list[float]) -> Merge:
    def early(first: str, second: str) -> float | None:
        token = ids.get(first + second)
        return None if token is None else -scores[token]

    return early


def _merged(text: str, merge: Merge) -> tuple[list[str], set[str]]:
    """The pieces a text ends as, and every piece that was made on the way."""
    parts, made = list(text), set()
    while len(parts) > 1:
        ranks = [(merge(*pair), place) for place, pair in enumerate(pairwise(parts))]
        _, place = min(((rank, place) for rank, place in ranks if rank is not None), default=(0.0, -1))
        if place < 0:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        made.add(parts[place])
    return parts, made
