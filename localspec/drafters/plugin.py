"""Drafters that others write: found by `package.module:Class`, or by name among installed packages.

A package offers a drafter as an entry point of the group `localspec.drafters`, called as the drafter calls itself. The
class follows `engine.interfaces.Drafter` and is made with one argument, a `Setup`, each time drafters are put together
(at load, and when they are changed). `packaging/plugin` is a complete example.

Such a drafter is held to the contract: a wrong guess costs time, and so does a drafter that fails. What it raises, and
guesses that no target could be asked about, never reach the loop: the drafter is dropped with one sentence (logged as
a warning of the logger `localspec`), and answers go on without it. Guesses are copied, so that the drafter cannot
change them later, and a conversation that the drafter changed is restored.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

import numpy as np

from localspec.drafters.setup import Setup as Setup
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    NEEDS_NOTHING,
    Draft,
    Drafter,
    DraftRequest,
    History,
    Needs,
    Outcome,
)
from localspec.errors import UsageError
from localspec.methods import NAMES
from localspec.types import SparseProbs, Tokens

_LOG = logging.getLogger("localspec")
_Answer = TypeVar("_Answer")


class _Nonsense(Exception):
    """A guess that is no draft; says why."""


class Custom:
    """A drafter from outside, as `plugin.make` makes it."""

    needs = NEEDS_NOTHING

    def __init__(self, drafter: Drafter, n_vocab: int, max_leaves: int) -> None:
        """`drafter` has all that `Drafter` asks for; guesses are below `n_vocab`, with at most `max_leaves` leaves."""
        self.name, self.free = drafter.name, drafter.free
        self.fault = ""
        """Why the drafter is not asked any more; "" = it is."""
        self._drafter: Drafter | None = drafter
        self._n_vocab, self._max_leaves = n_vocab, max_leaves

    def missing(self, slot: int, history: History) -> int:
        def count(drafter: Drafter) -> int:
            found: Any = drafter.missing(slot, history)
            if not isinstance(found, int | np.integer) or found < 0:
                raise _Nonsense(f"its `missing` is {found!r:.60}, not a number of tokens")
            return int(found)

        return self._ask("missing", [history], count) or 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        def checked(drafter: Drafter) -> list[Draft]:
            drafts: Any = drafter.draft(requests)
            if not isinstance(drafts, Sequence) or len(drafts) != len(requests):
                count = len(drafts) if isinstance(drafts, Sequence) else type(drafts).__name__
                raise _Nonsense(f"it answered {len(requests)} requests with {count} drafts")
            return [self._copied(request, draft) for request, draft in zip(requests, drafts, strict=True)]

        found = self._ask("draft", [request.history for request in requests], checked)
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

    def _copied(self, request: DraftRequest, draft: Any) -> Draft:
        """A checked copy of the drafter's draft, with its name as origin."""
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
        confidence: Any = draft.confidence
        if confidence is not None:
            sound = isinstance(confidence, np.ndarray) and confidence.dtype == np.float32
            if not sound or confidence.shape != tokens.shape:
                raise _Nonsense(f"the confidence of its guess is not float32[{len(tokens)}]")
            if not np.isfinite(confidence).all():
                raise _Nonsense("the confidence of its guess is not a finite number")
            confidence = np.array(confidence, order="C")
        probs: Any = draft.probs if request.needs_probs else None  # None for a guess that was not drawn
        if probs is not None:
            if not isinstance(probs, tuple) or len(probs) != len(tokens):
                raise _Nonsense(f"the probs of its guess are not {len(tokens)} distributions")
            drawn = zip(probs, tokens.tolist(), strict=True)
            probs = tuple(_distribution(one, token, self._n_vocab) for one, token in drawn)
        return Draft(tokens, parents, probs, confidence, self.name)

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


def _tokens(what: str, found: Any) -> Tokens:
    if not isinstance(found, np.ndarray) or found.dtype != np.int32 or found.ndim != 1:
        shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise _Nonsense(f"the {what} of its guess are {shape}, not int32[n]")
    return np.array(found, order="C")


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


ENTRY_POINT_GROUP = "localspec.drafters"
_NAME_FORM = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED_NAMES = {*NAMES, "cascade", "prediction"}
_ATTRIBUTE_TYPES: dict[str, type] = {"name": str, "needs": Needs, "free": bool}
_METHOD_ARGUMENTS = {"missing": 2, "draft": 1, "observe": 1, "close": 0}
"""{name of a method: number of its arguments}."""


def installed() -> list[str]:
    """Names of the drafters that installed packages offer; nothing of theirs is imported."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINT_GROUP)})


def check_name(name: str) -> None:
    """Imports what a name (`methods.NAMES`, an installed drafter, `package.module:Class`) stands for, so that a mistake
    is found before minutes are spent on loading."""
    if name not in NAMES:
        _find(name)


def make(name: str, setup: Setup) -> Custom:
    """The drafter that the name of an installed one, or `package.module:Class`, stands for, held to the contract.
    Raises UsageError: there is no such drafter, or it cannot be made or used; says why."""
    kind = _find(name)
    try:
        drafter: Any = kind(setup)
    except (Exception, SystemExit) as error:
        raise UsageError(f"The drafter {name} cannot be made: {_said(error)}.") from error
    for fact, wanted in _ATTRIBUTE_TYPES.items():
        value = getattr(drafter, fact, None)
        if not isinstance(value, wanted):
            raise UsageError(f"The drafter {name} is none: its `{fact}` is {value!r:.60}, not a {wanted.__name__}.")
    for method, count in _METHOD_ARGUMENTS.items():
        found = getattr(drafter, method, None)
        if not callable(found):
            raise UsageError(f"The drafter {name} is none: it has no method `{method}`.")
        try:
            inspect.signature(found).bind(*[None] * count)
        except TypeError:
            arguments = "no argument" if count == 0 else f"{count} argument{'s' if count > 1 else ''}"
            raise UsageError(f"The drafter {name} is none: its method `{method}` does not take {arguments}.") from None
        except ValueError:  # written in C without a signature
            pass
    own = drafter.name
    if not _NAME_FORM.fullmatch(own):
        raise UsageError(
            f"The drafter {name} calls itself {own!r}.",
            "A name is up to 32 lower-case letters, digits, - and _, a letter first.",
        )
    if own in _RESERVED_NAMES:
        raise UsageError(f"The drafter {name} calls itself {own!r}, which is one of localspec's own names.")
    if drafter.needs.hidden_layers:
        raise UsageError(f"The drafter {name} needs hidden states, which drafters from outside do not get yet.")
    if ":" not in name and own != name:
        raise UsageError(f"The drafter {name} calls itself {own!r}; its entry point must have that name.")
    return Custom(drafter, setup.n_vocab, setup.max_leaves)


def _find(name: str) -> Callable[[Setup], Drafter]:
    """The class; imports its module."""
    place = name
    if ":" not in name:
        if name in _RESERVED_NAMES:
            raise UsageError(f"A package offers a drafter called {name!r}, which is one of localspec's own names.")
        places = sorted({point.value for point in entry_points(group=ENTRY_POINT_GROUP, name=name)})
        if not places:
            known = ", ".join([*NAMES, *installed()])
            raise UsageError(
                f"There is no drafter called {name!r}; there are: {known}.", "Or give package.module:Class."
            )
        if len(places) > 1:
            raise UsageError(f"Installed packages offer {len(places)} drafters called {name!r}: {', '.join(places)}.")
        place = places[0]
    module, _, attribute = place.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise UsageError(f"The drafter is {place!r}; it must look like package.module:Class.")
    try:
        found: Any = import_module(module)
    except (Exception, SystemExit) as error:
        gone = error.name if isinstance(error, ModuleNotFoundError) else None
        if gone is None or not f"{module}.".startswith(f"{gone}."):
            raise UsageError(f"The drafter {name} cannot be imported: {_said(error)}.") from error
        raise UsageError(
            f"The drafter {name} is not there: Python finds no module {gone}.",
            "Install it, or put its folder on PYTHONPATH.",
        ) from None
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise UsageError(f"The drafter {name} is not there: the module {module} has no {attribute}.")
    if not callable(found):
        raise UsageError(f"The drafter {name} is no class: {attribute} is {found!r:.60}.")
    return found  # type: ignore[no-any-return]


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
