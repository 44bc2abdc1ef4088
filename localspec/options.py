"""What a caller wants of one answer: how tokens are drawn and drafts verified. Light to import: help texts need it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import UsageError
from localspec.settings import MOST, check, declared, numbers_of


class Rule(IntEnum):
    """How a draft is verified (docs/exactness.md). The numbers are those of native/localspec.h."""

    COUPLED = 0
    REJECTION = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from a logits row. Order and defaults are llama.cpp's.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
    At temperature 0 only bias, penalties and DRY count."""

    temperature: float = declared(
        0.8, "0 picks the most likely token, of equals the first.", 0, 100, flags=("--temp",), openai=True
    )
    top_k: int = declared(
        40, "Keep this many most likely tokens; 0 keeps all.", 0, MOST, special={0: "all tokens"}, stands_for={-1: 0}
    )
    top_p: float = declared(
        0.95, "Keep the most likely tokens that have this much probability together; 1 keeps all.", 0, 1, openai=True
    )
    min_p: float = declared(0.05, "Drop tokens less likely than this share of the most likely one; 0 keeps all.", 0, 1)
    typical_p: float = declared(
        1.0,
        "Locally typical sampling: keep this much probability, nearest to the entropy first; 1 keeps all.",
        0,
        1,
        flags=("--typical",),
    )
    top_n_sigma: float = declared(
        -1.0,
        "Drop tokens whose logit is more than this many standard deviations below the largest; 0 or less keeps all.",
        -1,
        100,
        flags=("--top-nsigma",),
    )
    xtc_probability: float = declared(
        0.0, "Chance of each token that XTC takes out all likely tokens but the least likely of them; 0 is off.", 0, 1
    )
    xtc_threshold: float = declared(
        0.1, "Probability from which on a token is likely to XTC; above 0.5 XTC is off.", 0, 1
    )
    dynatemp_range: float = declared(
        0.0,
        "The temperature is this much lower where the model is sure, and this much higher where it is not; 0 is off.",
        0,
        100,
    )
    dynatemp_exponent: float = declared(
        1.0,
        "How the temperature goes from the lowest to the highest: entropy, as a share of the largest, to this power.",
        0,
        100,
        flags=("--dynatemp-exp",),
    )
    repeat_penalty: float = declared(
        1.0,
        "Divide (or multiply, if negative) the logit of a token seen lately by this; 1 is off.",
        0.001,  # logits are divided by it, and must not overflow
        100,
        other_names=("repetition_penalty",),
    )
    presence_penalty: float = declared(
        0.0, "Subtract this from the logit of a token seen lately.", -100, 100, openai=True
    )
    frequency_penalty: float = declared(
        0.0, "Subtract this once for every time a token was seen lately.", -100, 100, openai=True
    )
    penalty_last_n: int = declared(
        64,
        'So many last tokens, prompt included, count as "lately"; 0 none, -1 all.',
        -1,
        MOST,
        special={-1: "all", 0: "none"},
        flags=("--repeat-last-n",),
        api_name="repeat_last_n",
    )
    dry_multiplier: float = declared(
        0.0, "DRY's penalty of a token that would go on with a repetition of the allowed length; 0 is off.", 0, 100
    )
    dry_base: float = declared(
        1.75, "DRY's penalty grows by this factor for every token that the repetition is longer.", 1, 100
    )
    dry_allowed_length: int = declared(2, "Repetitions of fewer tokens are free to DRY.", 0, MOST)
    dry_penalty_last_n: int = declared(
        -1,
        "How many last tokens, prompt included, DRY looks for repetitions in; 0 none, -1 all.",
        -1,
        MOST,
        special={-1: "all", 0: "none"},
    )
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that no repetition goes across."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, value added to its logit); -inf bans the token."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.dry_sequence_breakers) > 64 or not all(0 < len(text) <= 40 for text in self.dry_sequence_breakers):
            raise UsageError("dry_sequence_breakers must be at most 64 texts of 1 to 40 characters each.")
        for token, bias in self.logit_bias:
            if token < 0 or bias != bias or bias == math.inf:
                raise UsageError(f"logit_bias has {token}: {bias}; ids start at 0 and values are below infinity.")


if TYPE_CHECKING:
    from numpy import int32
    from numpy.typing import NDArray

    Tokens = NDArray[int32]
else:
    Tokens = object  # a help text needs no numpy

MOST_SEED = 2**64 - 1  # largest seed of our random numbers, which start from 64 bits
_Self = TypeVar("_Self", bound="Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one answer is drawn, limited and drafted. What is left out has its default. Raises UsageError: a value that
    cannot be; says which."""

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
            text = f"min_tokens is {self.min_tokens}; it must not be more than max_tokens, {self.max_tokens}."
            raise UsageError(text)
        if not (self.drafter is None or isinstance(self.drafter, str)):
            raise UsageError(f"drafter is {self.drafter!r}; it must be a name, or None to let the plan choose.")
        if isinstance(self.stop, str):
            raise UsageError(f"stop is {self.stop!r}; it must be a list of texts.")
        object.__setattr__(self, "stop", tuple(self.stop))
        if any(not text for text in self.stop):
            raise UsageError("A stop string is empty.", "Remove it.")

    def having(self: _Self, changes: dict[str, Any]) -> _Self:
        """The same with other values by fields' names. Raises UsageError: no such field, or a value that cannot be."""
        names = [one.name for one in fields(Options)]
        unknown = next((name for name in changes if name not in names), None)
        if unknown is not None:
            raise UsageError(f"There is no option called {unknown!r}; there are: {', '.join(names)}.")
        return replace(self, **changes) if changes else self


_NUMBERS = numbers_of(Options)
LIMITS = {row.name: row for row in _NUMBERS}
"""The numbers among them, by name: server, chat and command line take their ranges from here."""
