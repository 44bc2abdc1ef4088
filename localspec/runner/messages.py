"""What goes over the pipe, as small frozen types; pickled, as both ends are the same program.

Each frame is a list of messages and {number of an answer: its figures}. An event is the only message that comes with
every pass. It travels as plain tuples: pickle takes 11 us for it, and 36 us for the classes they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import errors
from localspec.config import EngineSettings
from localspec.engine.interfaces import Request
from localspec.engine.request import Event, FinishReason, Origin, PassRecord, TokenLogProb
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError, UsageError
from localspec.grammar.grammar import Grammar
from localspec.grammar.lazy import Lazy, Trigger
from localspec.grammar.matcher import Matcher

# -- to the runner ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A method of the engine is to be called."""

    number: int
    method: str
    arguments: tuple[Any, ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()
    """Arguments by name."""


@dataclass(frozen=True, slots=True)
class Load:
    """The first message: arguments of `Engine.load`."""

    target: Path
    draft: Path | None
    heads: tuple[Path, ...]
    tuned: bool
    settings: dict[str, Any]
    calls: tuple[Call, ...] = ()
    """What is called before anything is asked."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An answer is wanted."""

    number: int
    request: Request
    """Without its grammar and callback."""
    grammar: Grammar | None
    trigger: Trigger | None
    """Where the grammar begins to hold; None = at once."""
    started: float
    """perf_counter(), which is the same clock in all processes."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """An answer or a call is not wanted any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Close:
    """The engine is to be closed; then the runner ends."""


# -- from the runner -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading: what is being done, and the share done."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class NamedHead:
    """What is said of a head."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded."""

    n_ctx: int
    exactness: str
    configuration: str
    heads: tuple[NamedHead, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What changes now and then; sent when it has."""

    settings: EngineSettings
    running: dict[int, int]
    """{slot: number of the answer}."""
    drafters: tuple[str, ...]
    dropped: dict[str, str]
    outdated: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """So many tokens of an answer's prompt are cached."""

    number: int
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a call returned."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """An answer, a call or loading failed: the kind of the error, and its sentences."""

    number: int
    """LOADING = loading."""
    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, number: int, error: BaseException) -> Failed:
        return cls(number, **errors.told(error))

    def error(self) -> LocalspecError:
        """As it was raised there."""
        return errors.heard(self.kind, self.message, self.hint)


LOADING = 0
"""The number that loading fails under; answers and calls count from 1."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the logger `localspec`."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life while nothing else is said."""

    silent: float
    """Seconds since the models last did something, while something is asked of them; else 0."""
    longest: float
    """Seconds of the longest such silence that ended."""


# -- events ----------------------------------------------------------------------------------------------


def event_out(number: int, event: Event, gaps: list[float]) -> tuple[Any, ...]:
    """An event for the pipe; `gaps` are those that the pass added."""
    record = event.record
    return (
        number,
        event.slot,
        event.text,
        event.tokens,
        tuple(map(tuple, event.origins)),
        tuple((one.token, one.log_prob, one.logit, one.top) for one in event.log_probs),
        None if event.finish is None else event.finish.value,
        None if record is None else tuple(record),
        gaps,
    )


def event_in(said: tuple[Any, ...], stats: RequestStats) -> Event:
    """The event again, with the figures of its answer."""
    _, slot, text, tokens, origins, log_probs, finish, record, gaps = said
    stats.gaps += gaps
    return Event(
        slot,
        text,
        tokens,
        tuple(Origin(*one) for one in origins),
        tuple(TokenLogProb(*one) for one in log_probs),
        None if finish is None else FinishReason(finish),
        stats,
        None if record is None else PassRecord(*record),
    )


def grammar_of(request: Request) -> tuple[Grammar | None, Trigger | None]:
    """What a request's grammar was made of.

    Raises:
        UsageError: it is of no kind that can travel.
    """
    constraint = request.grammar
    trigger: Trigger | None = None
    if isinstance(constraint, Lazy):
        trigger, constraint = constraint.trigger, constraint.grammar
    if constraint is None:
        return None, None
    if not isinstance(constraint, Matcher):
        kind = type(constraint).__name__
        raise UsageError(f"A {kind} cannot go to models in another process.", "Give a Grammar.")
    return constraint.grammar, trigger
