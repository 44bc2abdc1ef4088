"""Somebody else's drafter, held to the contract: a wrong guess costs time, and so does a drafter that fails.

What it raises, and guesses that no target could be asked about, never reach the loop: the drafter is dropped with one
sentence (logged as a warning of the logger `localspec`), and answers go on without it. Guesses are copied, so that
the drafter cannot change them later, and a conversation that the drafter changed is restored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    NEEDS_NOTHING,
    Draft,
    Drafter,
    DraftRequest,
    History,
    Outcome,
)
from localspec.types import Float32Array, SparseProbs, Tokens

_LOG = logging.getLogger("localspec")
_Answer = TypeVar("_Answer")


class _Nonsense(Exception):
    """A guess that is no draft; says why."""


class Custom:
    """A drafter from outside, as `plugin.make` makes it."""

    needs = NEEDS_NOTHING

    def __init__(self, drafter: Drafter, n_vocab: int, max_leaves: int) -> None:
        """
        Args:
            drafter: has all that `Drafter` asks for.
            n_vocab: guesses are below this.
            max_leaves: most leaves of a draft; 1 = chains only.
        """
        self.name, self.free = drafter.name, drafter.free
        self.fault = ""
        """Why the drafter is not asked any more; "" = it is."""
        self._drafter: Drafter | None = drafter
        self._n_vocab, self._max_leaves = n_vocab, max_leaves

    def missing(self, slot: int, history: History) -> int:
        found = self._ask("missing", [history], lambda drafter: _count(drafter.missing(slot, history)))
        return found or 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        histories = [request.history for request in requests]
        found = self._ask("draft", histories, lambda drafter: self._sound(requests, drafter.draft(requests)))
        return [EMPTY_DRAFT] * len(requests) if found is None else found

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._ask("observe", [outcome.history for outcome in outcomes], lambda drafter: drafter.observe(outcomes))

    def close(self) -> None:
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            try:
                drafter.close()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it is not ours; it is said, and we go on
                self._complain(f"it raised {error!r:.200} in `close`", error)

    def _ask(self, method: str, histories: Sequence[History], call: Callable[[Drafter], _Answer]) -> _Answer | None:
        """The answer of a method; None if the drafter failed, now or before."""
        if self._drafter is None:
            return None
        before = [(history, history.tokens, history.epoch) for history in histories]
        fault, answer = "", None
        cause: BaseException | None = None
        try:
            answer = call(self._drafter)
        except _Nonsense as error:
            fault = str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is not ours; it is said, and we go on
            fault, cause = f"it raised {error!r:.200} in `{method}`", error
        for history, tokens, epoch in before:
            if len(history) != len(tokens) or history.epoch != epoch:
                history.truncate(0)
                history.append(tokens)
                fault = fault or f"it changed the conversation in `{method}`"
        if fault:
            self.fault = fault
            self._complain(fault, cause)
            self.close()
            return None
        return answer

    def _complain(self, fault: str, cause: BaseException | None) -> None:
        shown = cause if os.environ.get("LOCALSPEC_DEBUG") else None
        _LOG.warning("The drafter %s is not used any more: %s.", self.name, fault, exc_info=shown)

    # -- whether a guess is one -----------------------------------------------------------------------------------

    def _sound(self, requests: Sequence[DraftRequest], drafts: Any) -> list[Draft]:
        """Checked copies of the drafter's drafts, with its name as origin.

        Raises:
            _Nonsense: one is no draft.
        """
        if not isinstance(drafts, Sequence) or len(drafts) != len(requests):
            count = len(drafts) if isinstance(drafts, Sequence) else type(drafts).__name__
            raise _Nonsense(f"it answered {len(requests)} requests with {count} drafts")
        return [self._copied(request, draft) for request, draft in zip(requests, drafts, strict=True)]

    def _copied(self, request: DraftRequest, draft: Any) -> Draft:
        if not isinstance(draft, Draft):
            raise _Nonsense(f"it guessed {draft!r:.60}, which is no Draft")
        tokens, parents = _tokens("tokens", draft.tokens), _tokens("parents", draft.parents)
        if not len(tokens) and not len(parents):
            return EMPTY_DRAFT
        if len(tokens) > request.max_nodes:
            raise _Nonsense(f"it guessed {len(tokens)} tokens where {max(0, request.max_nodes)} were asked for")
        if not 0 <= tokens.min() <= tokens.max() < self._n_vocab:
            wrong = tokens[(tokens < 0) | (tokens >= self._n_vocab)][0]
            raise _Nonsense(f"it guessed token {wrong}, and the vocabulary has {self._n_vocab}")
        self._check_tree(tokens.tolist(), parents.tolist(), request.max_depth)
        probs = _probs(draft.probs, tokens, self._n_vocab) if request.needs_probs else None
        return Draft(tokens, parents, probs, _confidence(draft.confidence, len(tokens)), self.name)

    def _check_tree(self, tokens: list[int], parents: list[int], deepest: int) -> None:
        if len(parents) != len(tokens):
            raise _Nonsense(f"it guessed {len(tokens)} tokens with {len(parents)} parents")
        depth: list[int] = []
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise _Nonsense(f"it guessed a tree whose node {node} has the parent {parent}")
            depth.append(1 + (depth[parent] if parent >= 0 else 0))
        if max(depth) > deepest:
            raise _Nonsense(f"it guessed {max(depth)} deep where {deepest} were asked for")
        if len(set(zip(parents, tokens, strict=True))) < len(tokens):
            raise _Nonsense("it guessed the same token twice after one token")
        leaves = len(tokens) - len(set(parents) - {-1})
        if leaves > self._max_leaves:
            raise _Nonsense(f"it guessed a tree of {leaves} leaves where {self._max_leaves} fit")


def _count(found: Any) -> int:
    if not isinstance(found, int | np.integer) or found < 0:
        raise _Nonsense(f"its `missing` is {found!r:.60}, not a number of tokens")
    return int(found)


def _tokens(what: str, found: Any) -> Tokens:
    if not isinstance(found, np.ndarray) or found.dtype != np.int32 or found.ndim != 1:
        shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise _Nonsense(f"the {what} of its guess are {shape}, not int32[n]")
    return np.array(found, order="C")


def _confidence(found: Any, nodes: int) -> Float32Array | None:
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.dtype != np.float32 or found.shape != (nodes,):
        raise _Nonsense(f"the confidence of its guess is not float32[{nodes}]")
    if not np.isfinite(found).all():
        raise _Nonsense("the confidence of its guess is not a finite number")
    return np.array(found, order="C")


def _probs(found: Any, tokens: Tokens, n_vocab: int) -> tuple[SparseProbs, ...] | None:
    """The distributions its tokens were drawn from; None for a guess that was not drawn."""
    if found is None:
        return None
    if not isinstance(found, tuple) or len(found) != len(tokens):
        raise _Nonsense(f"the probs of its guess are not {len(tokens)} distributions")
    return tuple(_distribution(one, int(token), n_vocab) for one, token in zip(found, tokens, strict=True))


def _distribution(found: Any, token: int, n_vocab: int) -> SparseProbs:
    if not isinstance(found, SparseProbs):
        raise _Nonsense(f"a distribution of its guess is {found!r:.60}, not SparseProbs")
    tokens, probs = _tokens("probs", found.tokens), np.array(found.probs, dtype=np.float64)
    sound = (
        probs.shape == tokens.shape != (0,)
        and bool((probs > 0).all())
        and abs(float(probs.sum()) - 1.0) < 1e-6
        and len(set(tokens.tolist())) == len(tokens)
        and 0 <= tokens.min() <= tokens.max() < n_vocab
        and token in tokens
    )
    if not sound:
        raise _Nonsense(f"the distribution that token {token} was drawn from is none, or does not have it")
    return SparseProbs(tokens, probs)
