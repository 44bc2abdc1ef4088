"""The setup that a drafter is made with, and the conversations and the base class of drafters that search text."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

from localspec.config import EngineSettings
from localspec.engine.interfaces import NEEDS_NOTHING, Draft, Drafter, DraftRequest, History
from localspec.errors import UsageError
from localspec.methods import ROWS
from localspec.native.indexes import ContextCounts, SuffixIndex
from localspec.types import Tokens


@dataclass(slots=True)
class Indexed:
    """A conversation, as far as it was searched."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    counts: ContextCounts = field(default_factory=ContextCounts)
    history: History | None = None
    epoch: int = 0
    length: int = 0
    """Tokens that the index holds of it."""
    counted: int = 0  # tokens that the counts hold of it


class Conversations:
    """By slot, the conversation that drafters search: one index and its counts for all of them."""

    def __init__(self) -> None:
        self._slots = defaultdict[int, Indexed](Indexed)

    def of(self, request: DraftRequest) -> Indexed:
        """The conversation, whose index and counts may be shorter than the history."""
        history, seen = request.history, self._slots[request.slot]
        if seen.history is not history or seen.epoch != history.epoch:
            seen.history, seen.epoch, seen.length, seen.counted = history, history.epoch, 0, 0
        return seen

    def close(self) -> None:
        """Frees the memory; a second call does nothing."""
        for seen in self._slots.values():
            seen.index.close()
            seen.counts.close()
        self._slots.clear()


class FreeDrafter(Drafter):
    """A drafter that costs next to nothing and needs no reading. The next draft reads the history."""

    needs = NEEDS_NOTHING
    free = True

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._guess(request) for request in requests]

    @abstractmethod
    def _guess(self, request: DraftRequest) -> Draft: ...


class SharedTexts(Protocol):
    """Sequences beyond the conversation (`runtime.corpus`)."""

    def borrow(self) -> tuple[SuffixIndex, ContextCounts] | None:
        """All sequences, and counts of the target's own answers, to be looked into until `give_back`; None = not
        now."""

    def give_back(self) -> None:
        """Ends the look into what was borrowed."""

    def used(self, sequence: int) -> None:
        """A guess from that sequence was right."""


MOST_BRANCHES = 8
"""Most guesses after a token, of a tree."""


def check_branches(branches: int) -> None:
    """Raises UsageError: no drafter guesses so many tokens per position."""
    if not 1 <= branches <= MOST_BRANCHES:
        raise UsageError(f"branches is {branches}; it must be between 1 and {MOST_BRANCHES}.")


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a drafter is given when it is made: the only argument of its class."""

    target: Path
    """GGUF file whose text is guessed."""
    n_vocab: int
    """Tokens are 0 to `n_vocab` - 1."""
    n_ctx: int
    """Tokens a conversation can hold."""
    slots: int
    """Conversations at once; `DraftRequest.slot` is 0 to `slots` - 1."""
    max_nodes: int
    """Most nodes of a draft that a request ever asks for."""
    max_leaves: int
    """Most leaves of a draft; 1 = chains only."""
    end_tokens: frozenset[int]
    """Tokens that end an answer."""
    tokenize: Callable[[str], Tokens]
    """Text to int32[n] tokens, without a begin-of-sequence token."""
    piece: Callable[[int], bytes]
    """The bytes a token stands for; control tokens stand for nothing."""
    settings: EngineSettings
    """Settings of the user."""
    corpus: SharedTexts | None = None
    """Past answers that may be searched; None = none."""
    conversations: Conversations = field(default_factory=Conversations)
    """Those that drafters of text search."""


def code_of(name: str) -> Callable[..., Any]:
    """The code that a row's `module` names: of a drafter that needs no file, it makes one of a `Setup`."""
    module, _, function = ROWS[name].module.partition(":")
    found: Callable[..., Any] = attrgetter(function)(import_module(f"localspec.drafters.{module}"))
    return found
