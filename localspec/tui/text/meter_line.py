"""The live meter as one line that fits any width: what matters most stays longest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from textual.content import Content

from localspec.tui.text.kinds import kind_of
from localspec.tui.text.plots import columns

if TYPE_CHECKING:
    from localspec.engine.request import PassRecord
    from localspec.engine.stats import RequestStats

_RECENT = 12
"""Passes that "now" means."""
_COMPARED = 100
"""Tokens, in passes whose plain time is known, from which on an answer is compared with plain decoding: the first
passes, which run cold, say little."""
_GAP = "  "
_IMPORTANT = 5
"""Ranks up to this one are spelled out before others come in."""


@dataclass(slots=True)
class Now:
    """Who drafts and how wide passes are: the most usual of the last ones, as single passes change too fast to read."""

    recent: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, records: Iterable[PassRecord]) -> None:
        """Takes in passes, in order."""
        self.recent.extend((record.drafter if record.guesses else "", record.width) for record in records)

    @property
    def usual(self) -> tuple[str, int] | None:
        """(drafter, or "" for none; width); of equals the later one; None before the first pass."""
        if not self.recent:
            return None
        counts = Counter(self.recent)
        most = max(counts.values())
        return next(one for one in reversed(self.recent) if counts[one] == most)


class Segment(NamedTuple):
    """One figure: what it says in full, and in short. Low ranks stay longest."""

    rank: int
    full: Content
    short: Content


def meter_line(
    stats: RequestStats,
    now: tuple[str, int] | None,
    width: int,
    context: tuple[int, int] | None = None,
    model: str = "",
) -> Content:
    """The figures of an answer in at most `width` cells.

    Args:
        stats: of the answer, live or over; without a token there are no figures.
        now: who drafts and the width of passes; None = unknown (endpoints).
        width: cells there are.
        context: (tokens in use, tokens there are); None = unknown.
        model: its name, shown where there is room.
    """
    segments = _speed(stats, now) if stats.generated else []
    if context is not None and context[1]:
        share = f"{context[0] / context[1]:.0%}"
        segments.append(
            Segment(6, Content.assemble(("context ", "dim"), share), Content.assemble(("ctx ", "dim"), share))
        )
    if model:
        segments.insert(0, _plain(8 if stats.generated else 0, model))
    return fitted(segments, width)


def fitted(segments: list[Segment], width: int) -> Content:
    """Segments in their order, as far as they fit: by rank, in short, the important ones in full, then the rest."""
    ranks = sorted(segments, key=lambda one: one.rank)
    shown: dict[int, Content] = {one.rank: one.short for one in ranks[:1]}
    steps = [(one.rank, one.short) for one in ranks if one.rank <= _IMPORTANT]
    steps += [(one.rank, one.full) for one in ranks if one.rank <= _IMPORTANT]
    steps += [(one.rank, part) for one in ranks if one.rank > _IMPORTANT for part in (one.short, one.full)]
    important = {one.rank for one in ranks if one.rank <= _IMPORTANT}
    for rank, part in steps:
        if rank > _IMPORTANT and not important <= set(shown):
            break
        wider = shown | {rank: part}
        if _length(wider.values()) <= width:
            shown = wider
    line = Content(_GAP).join(shown[one.rank] for one in segments if one.rank in shown)
    return line.truncate(width, ellipsis=True) if line.cell_length > width else line


def _length(parts: Iterable[Content]) -> int:
    lengths = [part.cell_length for part in parts]
    return sum(lengths) + len(_GAP) * (len(lengths) - 1)


def _speed(stats: RequestStats, now: tuple[str, int] | None) -> list[Segment]:
    found = [_plain(0, f"{_number(stats.tokens_per_second)} tok/s")]
    if stats.drafted and stats.compared >= _COMPARED:  # without a draft it is plain decoding, whatever estimates say
        found.append(_plain(1, f"{stats.estimated_speedup:.2f}x plain"))
    if stats.drafted:
        found.append(_labelled(3, "acceptance ", "acc ", f"{stats.acceptance_rate:.0%}"))
        found.append(_labelled(4, "accepted length ", "len ", f"{stats.mean_accepted_length:.2f}"))
        shares = [count / stats.draft_passes for count in stats.accepted_per_position[:8]]
        if shares:
            found.append(_labelled(7, "by position ", "", columns(shares, 1.0)))
    if now is not None:
        drafter, rows = now
        full = f"{kind_of(drafter).name}, width {rows}" if drafter else "plain decoding"
        if not drafter and stats.undrafted_reason:
            full += f": {stats.undrafted_reason}"
        found.append(Segment(5, Content(full), Content(f"{drafter or 'plain'} w{rows}")))
    if not stats.exact:
        found.append(_plain(2, "not exact"))
    return found


def _plain(rank: int, text: str) -> Segment:
    return Segment(rank, Content(text), Content(text))


def _labelled(rank: int, label: str, short: str, value: str) -> Segment:
    return Segment(rank, Content.assemble((label, "dim"), value), Content.assemble((short, "dim"), value))


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
