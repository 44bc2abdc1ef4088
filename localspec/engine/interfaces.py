"""The contract all parts meet on: read this page first.

A `Drafter` guesses, a `Target` evaluates the guess in one pass, a `Verdict` says what of it the target would have
said itself. The engine sees only these Protocols, so it runs on fakes as well as on llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from localspec.errors import UsageError
from localspec.types import NO_TOKENS, Feed, Float32Array, LogitRows, Noise, SamplingParams, SparseProbs, Tokens


class History:
    """The tokens of one conversation so far: append-only, except for `truncate`.

    `epoch` changes when anything but the end changed, so a cache that saw the same epoch needs to look at new
    tokens only.
    """

    def __init__(self, tokens: Sequence[int] | Tokens = ()) -> None:
        self._buffer = np.array(tokens, dtype=np.int32)
        self._length = len(self._buffer)
        self._view: Tokens | None = None  # asked for several times a pass
        self.epoch = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Tokens:
        """int32[n] read-only view of all tokens; later appends do not change it."""
        if self._view is None:
            self._view = self._buffer[: self._length]
            self._view.flags.writeable = False
        return self._view

    def append(self, tokens: Sequence[int] | Tokens) -> None:
        """Adds tokens at the end."""
        needed = self._length + len(tokens)
        if needed > len(self._buffer):
            grown = np.empty(max(256, 2 * needed), dtype=np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : needed] = tokens
        self._length, self._view = needed, None

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens. Views taken before stay as they were.

        Raises:
            UsageError: `length` is negative or beyond the end.
        """
        if not 0 <= length <= self._length:
            raise UsageError(f"cannot truncate a history of {self._length} tokens to {length}.")
        if length < self._length:
            self._buffer = self._buffer[:length].copy()
            self._length, self._view = length, None
            self.epoch += 1


class Constraint(Protocol):
    """What a grammar lets an answer say, in the state of the tokens said so far. A *path* is tokens after those."""

    @property
    def complete(self) -> bool:
        """Whether nothing more may be said: the answer is over."""
        ...

    def fresh(self) -> Constraint:
        """The same grammar at the beginning of an answer."""
        ...

    def fits(self, path: Sequence[int]) -> int:
        """How many leading tokens of a path it allows."""
        ...

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """bool[n_vocab], what may follow a path that it allows; None if the answer is over after it.

        Raises:
            KernelError: the grammar has become too complex.
        """
        ...

    def forced(self) -> Tokens:
        """int32[n], what will be said next because the grammar leaves no choice of text; often nothing."""
        ...

    def advance(self, token: int) -> None:
        """A token was said.

        Raises:
            KernelError: it does not allow that token.
        """
        ...


class Price:
    """What the next level of a draft must earn. This one asks for nothing; see `planning.price`."""

    __slots__ = ()

    def pays(self, path: Sequence[float], nodes: int) -> bool:
        """Whether to guess one level more.

        Args:
            path: confidences of the main chain so far, at least one.
            nodes: nodes drawn so far, siblings included.
        """
        return True


ANY_PRICE = Price()


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One per active slot; a drafter sees all slots at once, so a draft model decodes them in one batch."""

    slot: int
    history: History
    max_nodes: int
    max_depth: int
    sampling: SamplingParams
    noise: Noise
    price: Price = ANY_PRICE
    """Asked after every level, by drafters whose levels cost something."""
    room: int = 2**31
    """Tokens the request may still bring."""
    drafter: str | None = None
    """Name of the only drafter that may guess here; None = any. Code that asks drafters keeps to it (`allows`)."""
    prediction: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[m], tokens the answer is expected to hold; the same array for the whole request."""
    constraint: Constraint | None = None
    """What a grammar lets the answer say; guesses it forbids are cut off. None = anything."""
    chain: bool = False
    """No tree: drafters that cost nothing keep to it, whatever their own settings say."""
    needs_probs: bool = False
    """The rule is *rejection* or *block*: `Draft.probs` must be given unless the guess is deterministic."""
    past: bool = True
    """Past answers, of other requests, may be searched."""
    forced: bool = False
    """Whoever may guess drafts in every pass, paying or not."""

    def allows(self, name: str) -> bool:
        """Whether the drafter of that name may guess here."""
        return self.drafter is None or self.drafter == name

    def limited(self, nodes: int) -> DraftRequest:
        """The same for a chain or tree of so many nodes: what `dataclasses.replace` makes, in half the time."""
        return DraftRequest(
            self.slot,
            self.history,
            nodes,
            nodes,
            self.sampling,
            self.noise,
            self.price,
            self.room,
            self.drafter,
            self.prediction,
            self.constraint,
            self.chain,
            self.needs_probs,
            self.past,
            self.forced,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess. A chain is the tree without forks; empty is legal."""

    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n]."""
    parents: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n]; -1 = the last history token; parents before children, siblings (distinct) in trial order."""
    probs: tuple[SparseProbs, ...] | None = None
    """Per node, the exact distribution its token was drawn from (given that its earlier siblings were not it);
    None = a deterministic guess."""
    confidence: Float32Array | None = None
    """float32[n], any monotone score; never used as probabilities."""
    origin: str = ""
    """Name of the drafter that made it, for statistics and display."""
    origins: tuple[str, ...] = ()
    """Per node, who guessed it, where several did (one went on after another's); empty = `origin` guessed all."""
    past: bool = False
    """It was found in past answers. What a pass saves by it says nothing of a prompt that was never answered."""

    def origin_of(self, node: int) -> str:
        """Who guessed a node."""
        return self.origins[node] if self.origins else self.origin

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def chain(
        tokens: Sequence[int] | Tokens,
        probs: tuple[SparseProbs, ...] | None = None,
        confidence: Float32Array | None = None,
        origin: str = "",
    ) -> Draft:
        """The draft in which every token follows the one before."""
        array = np.asarray(tokens, dtype=np.int32)
        return Draft(array, np.arange(-1, len(array) - 1, dtype=np.int32), probs, confidence, origin)

    def truncated(self, nodes: int) -> Draft:
        """The first `nodes` nodes; legal because parents come before children."""
        if nodes >= len(self.tokens):
            return self
        probs = None if self.probs is None else self.probs[:nodes]
        confidence = None if self.confidence is None else self.confidence[:nodes]
        tokens, parents = self.tokens[:nodes], self.parents[:nodes]
        return Draft(tokens, parents, probs, confidence, self.origin, self.origins[:nodes], self.past)


EMPTY_DRAFT = Draft()
SURE = 0.999
"""Highest confidence that is a probability: from 1 on it counts as the length of a match."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says to a draft."""

    accepted: Tokens
    """int32[a], node indices along the accepted path."""
    next_token: int
    """The target's own token after them: a correction or a bonus."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter taps from the target besides tokens, and what it cannot guess without."""

    hidden_layers: tuple[int, ...] = ()
    constraint: bool = False
    """It guesses nothing for a request without a grammar, and need not be asked."""


NEEDS_NOTHING = Needs()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a draft; sent for every active slot after every pass."""

    slot: int
    history: History
    """Already grown by the accepted tokens and the next token."""
    draft: Draft
    verdict: Verdict
    rows: LogitRows
    """Row 0 follows the old last token, row 1 + i follows node i; valid during the call only."""


class Drafter(Protocol):
    """Guesses what the target will say. A wrong guess costs time, never correctness.

    Its state is a cache of `History`: it must answer for any history it is handed, whatever it saw before, so
    edit, regenerate and branch need no protocol of their own.
    """

    name: str
    needs: Needs
    free: bool
    """Asking costs next to nothing, so it is always asked, and scored whether its draft is sent or not."""

    def missing(self, slot: int, history: History) -> int:
        """Tokens it would have to read before it can guess, the last one included; 0 if it reads for nothing."""
        ...

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order; at most `max_nodes` nodes and `max_depth` deep."""
        ...

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """What the target said."""
        ...

    def close(self) -> None:
        """Frees what it holds; a second call does nothing."""
        ...


@runtime_checkable
class OnePass(Protocol):
    """A drafter that may guess all levels of a draft in one pass: the first costs what a whole draft does."""

    one_pass: bool
    """Whether it does."""


class Vocabulary(Protocol):
    """What the loop must know of the target's vocabulary."""

    end_tokens: frozenset[int]
    """Tokens that end a turn."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token stands for; empty for control tokens unless `special`."""
        ...


class Target(Protocol):
    """The model whose text is emitted, and a cache that knows its own tokens (`llama.context.Context`)."""

    n_ctx: int
    """Tokens a slot can hold."""
    n_vocab: int
    grid: int
    """Most tokens of a prefill chunk."""
    exact_widths: frozenset[int] | None
    """Rows per pass whose bits equal those of one row; None when unknown, which means inexact."""

    def prefill_chunk(
        self, slot: int, tokens: Tokens, prompt_length: int, cancel: Callable[[], bool] | None = None
    ) -> int:
        """One pass towards a cache of all tokens but the last; how many are cached then.

        Raises:
            Cancelled: `cancel`, asked while it runs, said so; chunks that are done stay cached.
        """
        ...

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass over the last token and the draft of every feed; rows per feed: last token, then each node."""
        ...

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """How many leading tokens are cached and of use."""
        ...

    def copy_prefix(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Takes over what another slot has cached of a history, where that pays; how many tokens are cached then."""
        ...

    def pending(self, slot: int, tokens: Tokens) -> int:
        """Rows the next pass must spend on this history besides drafts: 1, or more when the end is not cached."""
        ...

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        """Widths of the passes llama.cpp really runs for so many rows per slot."""
        ...

    def longest_draft(self, length: int) -> int:
        """Most nodes of a draft after a history of so many tokens, whatever room there is."""
        ...

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drops what the slot's cache holds beyond its first `keep` tokens."""
        ...
