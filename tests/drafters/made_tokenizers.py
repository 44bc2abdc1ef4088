"""Small tokenizers that know their own pieces, for pairs whose vocabularies differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.drafters.draft_model import DraftModel, TranslatedContext, Translator
from localspec.models.facts.pairing import SharedVocabulary
from localspec.types import Tokens
from tests.fakes import FakeDraftContext, LogitsOf


class MadeTokenizer:
    """Always takes the longest piece; what no piece says is left out. With `space` it reads a space before every text.

    A piece that begins with "<|" is a control token.
    """

    def __init__(self, pieces: Sequence[bytes], bos: int | None = None, space: bool = False) -> None:
        self.pieces, self.bos, self.add_bos, self._space = list(pieces), bos, bos is not None, space
        self._by_text = {piece: token for token, piece in enumerate(self.pieces) if not piece.startswith(b"<|")}

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        left, found = (b" " if self._space else b"") + text.encode(), list[int]()
        while left:
            length = max((n for n in range(1, len(left) + 1) if left[:n] in self._by_text), default=0)
            found += [self._by_text[left[:length]]] if length else []
            left = left[max(1, length) :]
        return np.array(found, dtype=np.int32)

    def piece(self, token: int, special: bool = False) -> bytes:
        piece = self.pieces[token]
        return b"" if piece.startswith(b"<|") and not special else piece

    def read(self, tokens: Tokens) -> bytes:
        """The text of tokens."""
        return b"".join(self.piece(token) for token in tokens.tolist())


def shared_by(target: MadeTokenizer, draft: MadeTokenizer) -> SharedVocabulary:
    """Equal pieces of the two."""
    same = {token: draft.pieces.index(piece) for token, piece in enumerate(target.pieces) if piece in draft.pieces}
    controls = {token: other for token, other in same.items() if target.pieces[token].startswith(b"<|")}
    single = {piece[0]: token for token, piece in enumerate(draft.pieces) if len(piece) == 1}
    ids = [np.array(list(some), dtype=np.int32) for some in (same, same.values())]
    return SharedVocabulary(len(target.pieces), len(draft.pieces), ids[0], ids[1], controls, single)


def foreign_draft_model(
    logits: LogitsOf,
    target: MadeTokenizer,
    draft: MadeTokenizer,
    *,
    n_ctx: int = 256,
    end: frozenset[int] = frozenset(),
    branches: int = 1,
) -> DraftModel:
    """A draft model that speaks of tokens of `draft`, for a target that speaks of those of `target`."""
    shared = shared_by(target, draft)
    context = TranslatedContext(FakeDraftContext(logits, n_ctx), Translator(target, draft, shared), shared)
    return DraftModel(context, end, branches)
