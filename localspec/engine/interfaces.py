"""The contract all parts meet on: read this page first.

A `Drafter` guesses, a `Target` evaluates the guess in one pass, a `Verdict` says which guessed tokens the target would
have said itself, and a `Plan` decides who drafts and how much (`planning` has the plans). The engine sees only these
Protocols, so it runs on fakes as well as on llama.cpp.

A width is the number of rows in a pass. Under exactness only widths whose bits equal those of one row may run, so a
draft that would make a pass inexact is cut, never sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec.errors import UsageError
from localspec.options import Options
from localspec.types import NO_TOKENS, Feed, Float32Array, LogitRows, Noise, Rule, SparseProbs, Tokens


class History:
    """The tokens of one conversation so far: append-only, except for `truncate`.

    `epoch` changes when anything but the end changed, so a cache that saw the same epoch needs to look at new
    tokens only."""

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
        needed = self._length + len(tokens)
        if needed > len(self._buffer):
            grown = np.empty(max(256, 2 * needed), dtype=np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : needed] = tokens
        self._length, self._view = needed, None

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens. Views taken before stay as they were. Raises UsageError: `length` is
        negative or beyond the end."""
        if not 0 <= length <= self._length:
            raise UsageError(f"cannot truncate a history of {self._length} tokens to {length}.")
        if length < self._length:
            self._buffer = self._buffer[:length].copy()
            self._length, self._view = length, None
            self.epoch += 1


class Constraint(Protocol):
    """A grammar, in the state after the answer so far. A *path* is a list of tokens that would follow the answer."""

    @property
    def complete(self) -> bool:
        """Whether the answer is over, since the grammar allows no further token."""

    def fresh(self) -> Constraint:
        """The same grammar in the state before an answer's first token."""

    def fits(self, path: Sequence[int]) -> int:
        """Number of leading tokens of a path that the grammar allows."""

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """bool[n_vocab], the tokens that may follow an allowed path; None if the answer is over after the path. Raises
        KernelError: the grammar has become too complex."""

    def forced(self) -> Tokens:
        """int32[n], the next tokens where the grammar leaves only one text; often empty."""

    def advance(self, token: int) -> None:
        """Moves the state past a token of the answer. Raises KernelError: the grammar does not allow the token."""


class Price:
    """Decides whether a drafter guesses one more level. This one always says yes; `planning.acceptance` has another."""

    __slots__ = ()

    def pays(self, path: Sequence[float], nodes: int) -> bool:
        """Whether to guess one level more after the main chain with these confidences, at least one, and `nodes` nodes,
        siblings included."""
        return True


ANY_PRICE = Price()


def fresh_seed() -> int:
    """A random 64-bit seed; store it with the answer to be able to repeat it."""
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class Request(Options):
    """One answer to generate: the caller's options, with what the engine adds."""

    prompt: Tokens
    """int32[n], n >= 1."""
    _: KW_ONLY
    seed: int = field(default_factory=fresh_seed)
    rule: Rule = Rule.COUPLED
    prediction: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[m]."""
    grammar: Constraint | None = None
    """Compiled (`grammar.matcher.Compiler`)."""

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if len(self.prompt) == 0:
            raise UsageError("The prompt is empty.", "Give it at least one token of text.")

    @classmethod
    def of(cls, options: Options, prompt: Tokens, **added: Any) -> Request:
        """A request of what the caller said, but for what is added, by name."""
        given = {one.name: getattr(options, one.name) for one in fields(Options)}
        return cls(prompt, **{**given, **added})


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A guess that a drafter is asked for, in one slot. It gets the requests of all slots at once, for one batch."""

    slot: int
    history: History
    max_nodes: int
    max_depth: int
    asked: Request
    """The answer that it is for; the same object for all of it."""
    noise: Noise
    price: Price = ANY_PRICE
    """Drafters whose levels cost something ask `Price.pays` after every level."""
    room: int = 2**31
    """Number of tokens that the answer may still get."""
    constraint: Constraint | None = None
    """What the answer's grammar lets it say; guesses it forbids are cut off. None = anything."""
    chain: bool = False
    """Whether the draft must be a chain; drafters that cost nothing obey, even if their own settings ask for trees."""

    @property
    def needs_probs(self) -> bool:
        """The rule is *rejection* or *block*: `Draft.probs` must be given unless the guess is deterministic."""
        return self.asked.rule is not Rule.COUPLED

    def allows(self, name: str) -> bool:
        return self.asked.drafter is None or self.asked.drafter == name

    def limited(self, nodes: int) -> DraftRequest:
        """The same request with `max_nodes` and `max_depth` set to `nodes`; twice as fast as `dataclasses.replace`."""
        rest = (self.asked, self.noise, self.price, self.room, self.constraint, self.chain)
        return DraftRequest(self.slot, self.history, nodes, nodes, *rest)


_IN_ROW = np.arange(-1, 64, dtype=np.int32)
_IN_ROW.flags.writeable = False
"""Parents of a chain's nodes, at hand for the lengths that drafts have."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess. A chain is the tree without forks; empty is legal."""

    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n], one token per node."""
    parents: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n], index of each node's parent; -1 = the last history token. Parents come before children; siblings are
    distinct tokens in trial order."""
    probs: tuple[SparseProbs, ...] | None = None
    """Per node, the exact distribution from which its token was drawn, earlier siblings excluded; None = no token was
    drawn at random."""
    confidence: Float32Array | None = None
    """float32[n], any monotone score of each node; never used as a probability by verification."""
    origin: str = ""
    """Name of the drafter that made the draft, for statistics and display."""

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
        count = len(array)
        parents = _IN_ROW[:count] if count <= len(_IN_ROW) else np.arange(-1, count - 1, dtype=np.int32)
        return Draft(array, parents, probs, confidence, origin)

    def truncated(self, nodes: int) -> Draft:
        """The first `nodes` nodes; legal because parents come before children."""
        if nodes >= len(self.tokens):
            return self
        probs = None if self.probs is None else self.probs[:nodes]
        confidence = None if self.confidence is None else self.confidence[:nodes]
        return Draft(self.tokens[:nodes], self.parents[:nodes], probs, confidence, self.origin)


EMPTY_DRAFT = Draft()
HIGHEST_PROBABILITY = 0.999
"""Highest confidence that counts as a probability: from 1 on a confidence is the length of a match."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which nodes of a draft the target accepts, and the token after them."""

    accepted: Tokens
    """int32[a], node indices along the accepted path."""
    next_token: int
    """The target's own token after the accepted nodes: a correction or a bonus."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The states that a drafter taps from the target, and what it cannot guess without."""

    hidden_layers: tuple[int, ...] = ()
    """Layers of the target whose hidden states the drafter reads."""
    constraint: bool = False
    """Whether the drafter guesses only for requests with a grammar; others need not ask it."""


NEEDS_NOTHING = Needs()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A slot after a pass: its draft, the verdict and the new history; sent to every drafter."""

    slot: int
    history: History
    """The history after the pass: accepted tokens and next token are appended."""
    draft: Draft
    verdict: Verdict
    rows: LogitRows
    """Row 0 follows the old last token, row 1 + i follows node i; valid during the call only."""


class Drafter(Protocol):
    """Guesses what the target will say. A wrong guess costs time, never correctness.

    Its state is a cache of `History`: it must answer for any history it is handed, also after others, so
    edit, regenerate and branch need no protocol of their own. One that guesses all levels of a draft in one pass, so
    that one level costs as much as all, says so: its `one_pass` is true. One that can say in little time whether
    its guess would be worth a look has `matched(request)`: the length of the match that its guess would follow."""

    name: str
    needs: Needs
    free: bool
    """Whether drafts cost next to nothing: such a drafter is always asked, and scored even if its draft is not sent."""

    def missing(self, slot: int, history: History) -> int:
        """Number of tokens that the drafter must read before it guesses, the last one included; 0 = reading is free."""
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order; at most `max_nodes` nodes and `max_depth` deep."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Tells the drafter what the target said in a pass."""
        return

    def close(self) -> None:
        """Frees memory and files of the drafter; a second call does nothing."""
        return


class Vocabulary(Protocol):
    """The target's vocabulary, as far as the loop asks it."""

    end_tokens: frozenset[int]
    """Tokens that end a turn."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a token stands for; empty for control tokens unless `special`."""


class Target(Protocol):
    """The model whose text is emitted, and a cache that knows its own tokens (`llama.context.Context`)."""

    n_ctx: int
    """Tokens a slot can hold."""
    n_vocab: int
    grid: int
    """Most tokens that one `prefill_chunk` reads."""
    exact_widths: frozenset[int] | None
    """Rows per pass whose bits equal those of one row; None when unknown, which means inexact."""
    any_cut: bool
    """Whether the bits of the cache do not depend on how a prompt is cut into passes."""

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        """Reads one chunk towards a cache of all tokens but the last, `prompt_length` of them prompt: at most `most`
        tokens, wherever the grid is; None = to the next line of the grid. Returns the number of cached tokens. Raises
        Cancelled: `cancel`, asked while it runs, said so; chunks that are done stay cached."""

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass over the last token and the draft of every feed; rows per feed: last token, then each node."""

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens whose cache can be used."""

    def copy_prefix(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Copies the cache of another slot for these tokens, if that pays; returns the number of cached tokens."""

    def pending(self, slot: int, tokens: Tokens) -> int:
        """Number of rows of the next pass besides drafts: 1, or more if several last tokens are not cached."""

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        """Widths of the passes that llama.cpp runs for `rows`, {slot: number of rows}."""

    def longest_draft(self, length: int) -> int:
        """Most nodes of a draft after `length` tokens; the free room of the context is not considered."""

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drops what the slot's cache holds beyond its first `keep` tokens."""


@dataclass(slots=True)
class Proposal:
    """The drafts that a plan sends in the coming pass; `learn` gets the proposal back after the pass."""

    drafts: list[Draft]
    """One draft per request; every pass with these drafts has an allowed width."""


class Undrafted(Enum):
    """Why nothing was drafted in a pass, in words for people; `row` is the cost of a further row in plain passes."""

    UNTIMED = "a plain pass is timed first"
    NOTHING = "no copy found"
    UNLIKELY = "guesses are too often wrong"
    PRICE = "a row costs {row:.2f} of a plain pass here"
    LOST = "allowance used up until some guesses are right"


@dataclass(frozen=True, slots=True)
class Curve:
    """Costs of passes beside each other by what a plan knows, for the length of one pass."""

    plain: float
    """Seconds in which plain decoding brings each slot one token, the machine's pace left out: of the unit alone it
    says nothing."""
    row: Sequence[float]
    """Seconds by width, the pace included."""
    pace: float
    width: int
    """Rows of the pass; 0 = there may have been several passes."""

    def over_plain(self, width: int) -> float:
        """Seconds of a pass of this width over those of a plain one."""
        return self.row[width] / (self.pace * self.plain)


@dataclass(frozen=True, slots=True)
class Review:
    """A plan's report of a pass that is over."""

    plain_seconds: float = 0.0
    """Seconds that plain decoding takes for each token of a slot, as the plan believes: fast passes at once, slow ones
    hardly; 0 = unknown: no plain pass has run yet."""
    plain: bool = False
    """Whether the pass had the rows of plain decoding, and no draft among them."""
    guarded: bool = False
    """Whether a setting or a request forced a draft that was not worth its time."""
    undrafted: Undrafted | None = None
    """Why no draft was sent; None = one was, or no drafter may guess."""
    row: float = 0.0
    """Cost of a further row of the pass, in plain passes; 0 = unknown."""
    curve: Curve | None = None
    """Costs of passes beside each other; None = nothing is known of it."""


NO_REVIEW = Review()


class Plan(Protocol):
    """Decides who drafts, how many nodes, and what of the drafts is sent."""

    @property
    def drafters(self) -> Sequence[Drafter]:
        """All drafters, in the order in which the plan asks them."""

    @property
    def dropped(self) -> Mapping[str, str]:
        """{name of a drafter that is not asked any more: why}."""

    def draft(self, target: Target, requests: Sequence[DraftRequest], pending: Sequence[int]) -> Proposal:
        """The drafts to send in the coming pass, of one request per slot that shares it; `max_nodes` is what the
        request itself allows. `pending`: rows each slot must decode anyway, at least 1. The target says which widths
        are exact."""

    def learn(self, proposal: Proposal, outcomes: Sequence[Outcome], seconds: float) -> Review:
        """Learns from a proposal's outcomes, in a pass of `seconds` without drafting; drafters observe them here."""

    def read(self, rows: int, length: int, seconds: float) -> None:
        """Learns from a pass of `seconds` that read `rows` tokens of a prompt alone, after `length` cached tokens."""

    def drop(self, name: str, reason: str) -> None:
        """Closes the drafter of that name and never asks this drafter again."""
