"""Grammar-forced tokens: where a grammar leaves one way to go on (a key of a JSON schema, say), that is the guess.

It costs nothing. The target still has its say: the same text can often be cut into tokens in several ways.
"""

from __future__ import annotations

import numpy as np

from localspec.drafters.setup import FreeDrafter, Setup
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, Needs

_CONFIDENCE = 16.0
"""Confidence of every forced node: that of a match of 16 tokens."""


class GrammarForced(FreeDrafter):
    """Guesses what the request's grammar forces; nothing without one."""

    name = "grammar"
    needs = Needs(constraint=True)

    def __init__(self, setup: Setup | None = None) -> None:
        pass

    def _guess(self, request: DraftRequest) -> Draft:
        limit = min(request.max_nodes, request.max_depth)
        if request.constraint is None or limit < 1:
            return EMPTY_DRAFT
        tokens = request.constraint.forced()[:limit]
        if not len(tokens):
            return EMPTY_DRAFT
        return Draft.chain(tokens, confidence=np.full(len(tokens), _CONFIDENCE, dtype=np.float32), origin=self.name)
