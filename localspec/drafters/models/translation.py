"""A draft model with another tokenizer, seen from the target's side: histories and rows in the target's tokens.

The draft model reads the same text in its own tokens. Text is cut where tokenizers cut it anyway, before the space of a
word, and every piece is tokenised by itself. Where the cuts are depends on the text before them alone, so a longer
history keeps all tokens of the shorter one but those of its last, unfinished piece, and what is read is a function of
the history.

Token-level intersection (TLI: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies"): its logits for tokens that both vocabularies have stand at the target's
ids, all others are -inf. So a token drawn from a row comes from the restricted distribution, and every rule of
verification is as exact as with a draft model that shares the tokenizer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from localspec.drafters.models.draft_model import DraftContext
from localspec.llama.library.batch import common_prefix
from localspec.models.facts.pairing import SharedVocabulary
from localspec.types import NO_TOKENS, Feed, Float32Array, LogitRows, Tokens

_PIECE_START = re.compile(rb"(?<=\S)(?= )")
_LONGEST_PIECE = 128
"""Most bytes of a piece without a cut: it ends at the first character after them."""
_CONTINUATION_BYTES = frozenset(range(0x80, 0xC0))
"""Continuation bytes of UTF-8: a character has three of them at most."""
_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")
_CACHED_PIECES = 1 << 14
_TOKENS_A_CALL = 1024
"""Most tokens of a history that are translated in one call: some 10 ms, for which all slots wait."""


class Tokenizer(Protocol):
    """A model's own tokenizer (`llama.model.Model`)."""

    bos: int | None
    add_bos: bool

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        """int32[n]."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token adds to a text, with `special` the names of control tokens, too."""


class Translator:
    """Translates the tokens of a target into those of a draft model."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, shared: SharedVocabulary) -> None:
        self.beginning = [draft.bos] if draft.add_bos and draft.bos is not None else []
        """Tokens with which every text of the draft model starts."""
        own = target.add_bos or draft.add_bos
        self.dropped = target.bos if own else None
        """The token of the target that is dropped where a text begins: its tokenizer put it there, or the draft model
        has its own beginning."""
        self.controls: Mapping[int, int] = shared.controls
        """{control token of the target: the same one of the draft model}; of others the draft model reads the names."""
        self.text = functools.lru_cache(maxsize=_CACHED_PIECES)(functools.partial(target.piece, special=True))
        self.encode = functools.lru_cache(maxsize=_CACHED_PIECES)(self._encode)
        """(piece, whether a text starts with it) -> the draft model's tokens for it."""
        self._draft, self._byte_ids = draft, shared.byte_ids
        self._target_adds_space = _adds_space(target)
        self._after_line = self._tokens("\n") if _adds_space(draft) else []

    def _encode(self, piece: bytes, starts: bool) -> list[int]:
        if starts and self._target_adds_space and piece.startswith(b" "):
            piece = piece[1:]  # put there by the target's tokenizer; the draft's has its own habits
        found: list[int] = []
        for part in _NOT_UTF8.split(piece.decode("utf-8", "surrogateescape")):
            if _NOT_UTF8.match(part):  # a byte that has no token is left out
                raw = part.encode("utf-8", "surrogateescape")
                found += [self._byte_ids[byte] for byte in raw if byte in self._byte_ids]
            elif part:
                inside = self._after_line if found or not starts else []
                tokens = self._tokens("\n" + part) if inside else []
                # Inside a text: without the space that some tokenizers put before all they read.
                found += tokens[len(inside) :] if inside and tokens[: len(inside)] == inside else self._tokens(part)
        return found

    def _tokens(self, part: str) -> list[int]:
        found: list[int] = self._draft.tokenize(part, special=False, add_bos=False).tolist()
        return found


def _adds_space(tokenizer: Tokenizer) -> bool:
    """Whether it puts a space before every text, as SentencePiece does."""
    tokens = tokenizer.tokenize("a", special=False, add_bos=False).tolist()
    return b"".join(tokenizer.piece(token) for token in tokens).startswith(b" ")


class Translation:
    """The history of one slot, translated as it grows."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._history = NO_TOKENS
        first = translator.beginning
        self._states: list[tuple[int, bytes, bool]] = [(len(first), b"", True)]
        """One state before each token of the history and one after the last: number of final tokens of the draft model,
        the unfinished piece, and whether a text starts with this piece."""
        self._buffer = np.array([*first, *[0] * 256], dtype=np.int32)
        self._length = len(first)

    def of(self, history: Tokens) -> tuple[Tokens, int]:
        """The draft's tokens for int32[n] of the target, as far as one call goes: int32[m], a view that is valid until
        the next call, and how many of the n are left for the next calls."""
        same = common_prefix(self._history, history)
        part = history[: same + _TOKENS_A_CALL]
        if same == len(part) == len(self._history):
            return self._buffer[: self._length], len(history) - len(part)
        translator, states = self._translator, self._states
        del states[same + 1 :]
        count, piece, starts = states[same]
        for token in part[same:].tolist():
            control = translator.controls.get(token)
            if len(states) == 1 and token == translator.dropped:
                pass
            elif control is not None:
                count = self._put(count, [*translator.encode(piece, starts), control])
                piece, starts = b"", True
            else:
                *done, piece = pieces(piece, translator.text(token))
                for one in done:
                    count = self._put(count, translator.encode(one, starts))
                    starts = False
            states.append((count, piece, starts))
        self._history = part.copy()
        self._length = self._put(count, translator.encode(piece, starts))
        return self._buffer[: self._length], len(history) - len(part)

    def _put(self, start: int, tokens: list[int]) -> int:
        """Writes tokens from a place on; returns where they end."""
        end = start + len(tokens)
        if end > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.zeros(end, dtype=np.int32)])
        self._buffer[start:end] = tokens
        return end


def pieces(unfinished: bytes, more: bytes) -> list[bytes]:
    """Cuts a text that goes on by `more`, where there was nothing to cut yet; the last piece is unfinished."""
    text, start, found = unfinished + more, 0, list[bytes]()
    cuts = [match.start() for match in _PIECE_START.finditer(text, max(1, len(unfinished)))]
    for cut in (*cuts, len(text)):
        # One byte more than can belong to a last character is waited for, so that it does not matter how a text comes.
        while cut - start > _LONGEST_PIECE + 3:
            end = start + _LONGEST_PIECE
            while end < start + _LONGEST_PIECE + 3 and text[end] in _CONTINUATION_BYTES:
                end += 1
            found.append(text[start:end])
            start = end
        found.append(text[start:cut])
        start = cut
    return found


class TranslatedContext:
    """A `DraftContext` in the target's tokens over one in the draft model's."""

    def __init__(self, context: DraftContext, translator: Translator, shared: SharedVocabulary) -> None:
        """`context`: the draft model's cache; the caller frees it."""
        self.n_ctx = 2**31 - 1
        """No limit in tokens of the target: where the draft model's context is full, rows are empty."""
        self.n_vocab, self.n_paths = shared.target_size, 1
        self._context = context
        self._translator = translator
        # Half the time of int32 places: 0.2 ms for 105,000 of them.
        self._target_ids, self._draft_ids = shared.target_ids.astype(np.intp), shared.draft_ids.astype(np.intp)
        self._translations: dict[int, Translation] = {}
        self._matrix: Float32Array = np.empty((0, self.n_vocab), dtype=np.float32)

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass; a row of nothing but -inf where the draft model cannot read the history, or not yet."""
        if len(feeds) > len(self._matrix):
            self._matrix = np.full((len(feeds), self.n_vocab), -np.inf, dtype=np.float32)
        matrix = self._matrix[: len(feeds)]
        read: dict[int, Feed] = {}
        for index, feed in enumerate(feeds):
            tokens, left = self._translated(feed.slot, feed.tokens)
            if not left and self._fits(tokens):
                read[index] = replace(feed, tokens=tokens, prompt_length=len(tokens))
            else:
                matrix[index] = -np.inf
        rows = self._context.decode(list(read.values())) if read else []
        for index, found in zip(read, rows, strict=True):
            row = matrix[index]
            row[self._target_ids] = found[0].take(self._draft_ids)
        return [LogitRows.from_matrix(matrix[index : index + 1]) for index in range(len(feeds))]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One pass towards a cache of all tokens but the last; as for `reusable`, tokens left are the draft's."""
        translated, left = self._translated(slot, tokens)
        if not self._fits(translated):
            return len(tokens) - 1
        done = self._context.prefill_chunk(slot, translated, len(translated))
        return max(0, len(tokens) - left - (len(translated) - done))

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """How many leading tokens are cached, so that those after them are as many as the draft model must read (of
        those not translated yet, as many as they are); all but the last where it cannot read the history."""
        translated, left = self._translated(slot, tokens)
        if not self._fits(translated):
            return len(tokens) - 1
        missing = len(translated) - self._context.reusable(slot, translated, len(translated))
        return max(0, len(tokens) - left - missing)

    def _translated(self, slot: int, tokens: Tokens) -> tuple[Tokens, int]:
        if slot not in self._translations:
            self._translations[slot] = Translation(self._translator)
        return self._translations[slot].of(tokens)

    def _fits(self, translated: Tokens) -> bool:
        """Whether there is something to read, and room for it."""
        return 1 <= len(translated) <= self._context.n_ctx
