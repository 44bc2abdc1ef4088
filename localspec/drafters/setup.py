"""What a drafter is told when it is made, and how one of the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from localspec.config import EngineSettings
from localspec.drafters.search.conversations import Conversations
from localspec.engine.interfaces import Drafter
from localspec.methods import ROWS
from localspec.native.indexes import ContextCounts, SuffixIndex
from localspec.types import Tokens


class Corpus(Protocol):
    """Sequences beyond the conversation (`runtime.corpus`)."""

    def borrow(self) -> tuple[SuffixIndex, ContextCounts] | None:
        """All sequences, and counts of the target's own answers, to be looked into until `give_back`; None = not
        now."""
        ...

    def give_back(self) -> None:
        """What was borrowed is not looked into any more."""
        ...

    def used(self, sequence: int) -> None:
        """A guess from that sequence was right."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What a drafter is told when it is made: the only argument of its class."""

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
    """What the user asked for."""
    corpus: Corpus | None = None
    """Past answers that may be searched; None = none."""
    conversations: Conversations = field(default_factory=Conversations)
    """What drafters of text search."""


def made(name: str, setup: Setup) -> Drafter:
    """The drafter of a row of the table that needs no file."""
    drafter: Drafter = code_of(name)(setup)
    return drafter


def code_of(name: str) -> Callable[..., Any]:
    """What a row's `module` names."""
    module, _, function = ROWS[name].module.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"localspec.drafters.{module}"), function)
    return found
