"""What only an engine knows of an answer, in JSON that goes beside its text to another localspec of the same version.

Tokens with their origins, passes, the bytes of each token at its first use, and the figures so far, of which the gaps
come one by one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeAlias

from localspec.chat.archive.passes import Recorder
from localspec.engine.interfaces import Undrafted
from localspec.engine.slot import Event, FinishReason, Origin, PassRecord
from localspec.engine.stats import RequestStats

Figures: TypeAlias = Sequence[Any]
"""The figures of an answer but its gaps, in the order of `figures_out`."""
_COUNTERS = ("accepted_histogram", "accepted_by_drafter", "drafted_by_drafter", "undrafted")
_LISTS = ("accepted_per_position", "gaps")
_PLAIN = tuple(one.name for one in fields(RequestStats) if one.name not in (*_COUNTERS, *_LISTS))
_plain = attrgetter(*_PLAIN)


@dataclass(frozen=True, slots=True)
class Steps:
    """What some passes brought."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    """Same length."""
    records: tuple[PassRecord, ...]
    finish: FinishReason | None
    """Set by the last pass of an answer."""
    progress: tuple[int, int] | None
    """(tokens of the prompt that are cached, those to be cached before the first pass); None = as it was."""


class Teller:
    """Puts the steps of one answer into JSON."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """`piece`: bytes of a token."""
        self._recorder = Recorder(piece)
        self._gaps = 0  # those that were told
        self._progress: tuple[int, int] | None = None

    def told(
        self, events: Sequence[Event], stats: RequestStats, progress: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """What has come since the last time, the figures by now, and how far the prompt is read (`Steps.progress`)."""
        for event in events:
            if event.record is not None:
                self._recorder.add(event.record)
        records, pieces = self._recorder.fresh()
        self._recorder.forget(len(records), pieces)
        gaps = stats.gaps[self._gaps :]
        self._gaps += len(gaps)
        finish = events[-1].finish if events else None
        news, self._progress = progress if progress != self._progress else None, progress
        return {
            "tokens": [token for event in events for token in event.tokens],
            "origins": [origin for event in events for origin in event.origins],
            "records": records,
            "pieces": {token: b64encode(piece).decode() for token, piece in pieces.items()},
            "figures": figures_out(stats),
            "gaps": gaps,
            "finish": None if finish is None else finish.value,
            "progress": news,
        }


class Hearer:
    """Reads the steps of one answer again."""

    def __init__(self) -> None:
        self.stats = RequestStats()
        """Figures so far; one object for the whole answer."""
        self.pieces: dict[int, bytes] = {}
        """Bytes of the tokens so far, guesses included."""

    def take(self, told: Mapping[str, Any]) -> Steps:
        """What is new."""
        figures_in(self.stats, told["figures"])
        self.stats.gaps += told["gaps"]
        self.pieces.update({int(token): b64decode(piece) for token, piece in told["pieces"].items()})
        finish, progress = told["finish"], told["progress"]
        return Steps(
            tuple(told["tokens"]),
            tuple(Origin(*one) for one in told["origins"]),
            tuple(_record(one) for one in told["records"]),
            None if finish is None else FinishReason(finish),
            None if progress is None else (progress[0], progress[1]),
        )


def figures_out(stats: RequestStats) -> Figures:
    """A copy of an answer's figures: they change with the next pass."""
    return (
        _plain(stats),
        tuple(stats.accepted_per_position),
        dict(stats.accepted_histogram),
        dict(stats.accepted_by_drafter),
        dict(stats.drafted_by_drafter),
        {reason.name: passes for reason, passes in dict(stats.undrafted).items()},
    )


def figures_in(stats: RequestStats, figures: Figures) -> None:
    """Brings an answer's figures up to date."""
    plain, positions, histogram, accepted, drafted, undrafted = figures
    for name, value in zip(_PLAIN, plain, strict=True):
        setattr(stats, name, value)
    stats.accepted_per_position = list(positions)
    stats.accepted_histogram = Counter({int(depth): passes for depth, passes in histogram.items()})
    stats.accepted_by_drafter, stats.drafted_by_drafter = Counter(accepted), Counter(drafted)
    stats.undrafted = Counter({Undrafted[reason]: passes for reason, passes in undrafted.items()})


def _record(told: Sequence[Any]) -> PassRecord:
    values: list[Any] = [tuple(one) if isinstance(one, list) else one for one in told]
    return PassRecord(*values)
