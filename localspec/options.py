"""What a caller wants of one answer: a frozen object that goes from the face to the engine. Light to import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import UsageError
from localspec.sampling import Rule, SamplingParams
from localspec.settings import declared, numbers_of

if TYPE_CHECKING:
    from localspec.types import Tokens
else:
    Tokens = object  # a help text needs no numpy

MOST_SEED = 2**64 - 1
"""Largest seed of our random numbers, which start from 64 bits."""
_Self = TypeVar("_Self", bound="Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one answer is drawn, limited and drafted. What is left out has its default.

    Raises:
        UsageError: a value that cannot be; says which.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are drawn."""
    seed: int | None = declared(None, least=0, most=MOST_SEED, stands_for={-1: None})
    """With *coupled*, equal seeds and settings give equal text; None = a random one."""
    stream: int = declared(0, least=0, most=2**32 - 1)
    """Index of the choice when several are asked for with one seed."""
    rule: Rule | None = None
    """How drafts are verified; None = as the engine was loaded (`EngineSettings.verify_rule`)."""
    drafter: str | None = None
    """The only drafter that may guess for this answer; "none" = plain decoding; None or "auto" = what pays."""
    max_draft_tokens: int | None = declared(None, least=0, most=64)
    """At most so many nodes a draft; 0 = plain decoding; None = what pays."""
    forced: bool = False
    """Whether the plan drafts in every pass, even where drafts do not pay."""
    recall: bool = True
    """Whether drafters may search past answers."""
    remember: bool = True
    """Whether this answer joins them."""
    prediction: str | Tokens | None = None
    """Text or int32[m] tokens that the answer is expected to hold: prompt lookup searches them. Never changes the
    text."""
    grammar: Any = None
    """What the answer must look like: a `Grammar`, or what `Engine.compiled` made of one. The answer ends when it is
    complete, even without an end token. None = any text."""
    max_tokens: int | None = declared(None, least=1, stands_for={-1: None})
    """At most this many new tokens; None = until the model ends or the context is full."""
    min_tokens: int = declared(0, least=0)
    """Number of tokens before which no end token, no `stop_tokens` and no `stop` string ends the answer."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; they are not part of it."""
    stop_tokens: frozenset[int] = frozenset()
    """Tokens that end the answer as the model's own end tokens do, and whose text is no part of it."""
    ignore_end: bool = False
    """Go on after end-of-generation tokens (benchmarks)."""
    preserved: frozenset[int] = frozenset()
    """Control tokens whose text is part of the answer, such as the marks around a tool call; others are left out."""
    top_log_probs: int | None = declared(None, least=0, most=100)
    """None = no log-probabilities; n = those of the emitted tokens and of the n most likely at each position."""
    drawn_log_probs: bool = False
    """Whether these are what tokens were drawn by, after all sampling settings and the grammar; else the raw ones."""
    chat: str | None = None
    """The conversation, whose KV cache is kept on disk (`EngineSettings.chat_cache_gb`); None = it is not kept."""
    on_prefill: Callable[[int, int], None] | None = None
    """Called on the engine's thread as the prompt is read, with (tokens done, tokens in all)."""

    def __post_init__(self) -> None:
        for row in _NUMBERS:
            row.check(getattr(self, row.name))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens}; it must not be more than max_tokens, {self.max_tokens}."
            )
        if not (self.drafter is None or isinstance(self.drafter, str)):
            raise UsageError(f"drafter is {self.drafter!r}; it must be a name, or None to let the plan choose.")
        if isinstance(self.stop, str):
            raise UsageError(f"stop is {self.stop!r}; it must be a list of texts.")
        object.__setattr__(self, "stop", tuple(self.stop))
        if any(not text for text in self.stop):
            raise UsageError("A stop string is empty.", "Remove it.")

    def having(self: _Self, changes: dict[str, Any]) -> _Self:
        """The same with other values, by the names of fields.

        Raises:
            UsageError: there is no such field, or a value that cannot be.
        """
        names = [one.name for one in fields(Options)]
        unknown = next((name for name in changes if name not in names), None)
        if unknown is not None:
            raise UsageError(f"There is no option called {unknown!r}; there are: {', '.join(names)}.")
        return replace(self, **changes) if changes else self


_NUMBERS = numbers_of(Options)
LIMITS = {row.name: row for row in _NUMBERS}
"""The numbers among them, by name: server, chat and command line take their ranges from here."""
