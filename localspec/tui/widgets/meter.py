"""The live meter, one line below the chat that fits any width; and small plots of text, readable without colour."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import NamedTuple

from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.engine.stats import RequestStats
from localspec.remote.answerer import Answer, AnswerEnded, AnswerPart, Facts, Loading, Prefilled
from localspec.tui.talk.session import share_of
from localspec.tui.text.origin_lines import kind_of

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int) -> str:
    """A horizontal bar of `width` cells, filled to a share of 0 to 1; blanks after it."""
    eighths = round(8 * width * min(1.0, max(0.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def columns(values: Sequence[float], highest: float | None = None) -> str:
    """One cell a value; `highest` fills a cell, None = the largest value. 0 is a line at the bottom."""
    top = max(values, default=0.0) if highest is None else highest
    shares = (min(1.0, max(0.0, value / top)) if top > 0 else 0.0 for value in values)
    return "".join(_LEVELS[round(share * (len(_LEVELS) - 1))] for share in shares)


def graph(values: Sequence[float], width: int, height: int) -> list[str]:
    """Columns over several rows, top row first; with more values than cells each cell is a mean of neighbours."""
    edges = [len(values) * cell // width for cell in range(width + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges) if high > low]
    cells = means if len(values) > width else values
    top, rows = max(cells, default=0.0), list[str]()
    for row in reversed(range(height)):
        filled = [(round(8 * height * value / top) if top > 0 else 0) - 8 * row for value in cells]
        rows.append("".join(_LEVELS[min(8, eighths) - 1] if eighths > 0 else " " for eighths in filled))
    return rows


def duration(seconds: float) -> str:
    """Seconds for people: 3.2 ms, 840 ms, 3.2 s, 2 min 05 s, 1 h 02 min."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.00995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def amount(count: float) -> str:
    """Bytes for people: 4.98 GB, 639 MB, 6.2 MB, 12 kB."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    if count >= 1e6:
        return f"{count / 1e6:.{0 if count >= 1e8 else 1}f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} bytes"


_RECENT_PASSES = 12  # passes that "now" means
_LEAST_COMPARED_TOKENS = 100
"""Tokens, in passes whose plain time is known, from which on an answer is compared with plain decoding: the first
passes, which run cold, say little."""
_GAP = "  "
_LAST_IMPORTANT_RANK = 5  # ranks up to this one are spelled out before others come in


class MeterFigure(NamedTuple):
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
    """The figures of an answer in at most `width` cells. `now`: who drafts and the width of passes; None = unknown
    (endpoints). `context`: (tokens in use, tokens there are)."""
    found = list[MeterFigure]()
    if model:
        found.append(_figure(8 if stats.generated else 0, model))
    if stats.generated:
        rate = stats.tokens_per_second
        found.append(_figure(0, f"{rate:.{0 if rate >= 100 else 1}f} tok/s"))
        # Without a draft it is plain decoding, even if estimates say otherwise.
        if stats.drafted and stats.compared >= _LEAST_COMPARED_TOKENS:
            found.append(_figure(1, f"{stats.estimated_speedup:.2f}x plain"))
        if stats.drafted:
            found.append(_figure(3, f"{stats.acceptance_rate:.0%}", "acceptance ", "acc "))
            found.append(_figure(4, f"{stats.mean_accepted_length:.2f}", "accepted length ", "len "))
            shares = [count / stats.draft_passes for count in stats.accepted_per_position[:8]]
            if shares:
                found.append(_figure(7, columns(shares, 1.0), "by position "))
        if now is not None:
            drafter, rows = now
            why = f": {stats.undrafted_reason}" if stats.undrafted_reason else ""
            full = f"{kind_of(drafter).name}, width {rows}" if drafter else f"plain decoding{why}"
            found.append(MeterFigure(5, Content(full), Content(f"{drafter or 'plain'} w{rows}")))
        if not stats.exact:
            found.append(_figure(2, "not exact"))
    if context is not None and context[1]:
        found.append(_figure(6, share_of(*context), "context ", "ctx "))
    return fitted(found, width)


def fitted(segments: list[MeterFigure], width: int) -> Content:
    """Segments in their order, as far as they fit: by rank, in short, the important ones in full, then the rest."""
    ranks = sorted(segments, key=lambda one: one.rank)
    important = [one for one in ranks if one.rank <= _LAST_IMPORTANT_RANK]
    shown: dict[int, Content] = {one.rank: one.short for one in ranks[:1]}

    def widen(rank: int, part: Content) -> None:
        lengths = [one.cell_length for one in (shown | {rank: part}).values()]
        if sum(lengths) + len(_GAP) * (len(lengths) - 1) <= width:
            shown[rank] = part

    for one in important:
        widen(one.rank, one.short)
    for one in important:
        widen(one.rank, one.full)
    if all(one.rank in shown for one in important):
        for one in ranks[len(important) :]:
            widen(one.rank, one.short)
            widen(one.rank, one.full)
    line = Content(_GAP).join(shown[one.rank] for one in segments if one.rank in shown)
    return line.truncate(width, ellipsis=True) if line.cell_length > width else line


def _figure(rank: int, value: str, label: str = "", short: str = "") -> MeterFigure:
    texts = (Content.assemble((words, "dim"), value) if label else Content(value) for words in (label, short))
    return MeterFigure(rank, *texts)


_BAR_CELLS = 10  # width of the bar that shows how much of a prompt has been read
_RECENT_SHARE = 0.5  # how much of what is known of the reading speed comes from the last chunk


@dataclass(slots=True)
class ReadingSpeed:
    """Seconds a token of a prompt takes with the model in use, learned from every chunk; None = not known yet."""

    seconds: float | None = None


@dataclass(slots=True)
class Live:
    """What is known of a chat's last answer."""

    answer: Answer | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    recent: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=_RECENT_PASSES))
    """(drafter, or "" for none; width) of the last passes."""
    clock: Callable[[], float] = monotonic
    _asked: float | None = None  # when it was asked for, in seconds of the clock; None = nothing is waited for
    _done: int = 0
    _total: int = 0  # tokens of the prompt; 0 = it is not being read
    _at: float = 0.0  # when `_done` was reported, in seconds of the clock

    def begin(self, answer: Answer) -> None:
        self.answer, self.stats = answer, RequestStats()
        self.recent.clear()
        self._asked, self._total = self.clock(), 0

    def hear(self, event: AnswerPart | AnswerEnded | Prefilled, speed: ReadingSpeed) -> None:
        if isinstance(event, Prefilled):
            if event.total is not None:
                now = self.clock()
                if event.total == self._total and event.done > self._done:
                    taken, known = (now - self._at) / (event.done - self._done), speed.seconds
                    speed.seconds = taken if known is None else known + _RECENT_SHARE * (taken - known)
                self._done, self._total, self._at = event.done, event.total, now
            return
        if isinstance(event, AnswerPart):
            self.recent.extend((record.drafter if record.guesses else "", record.width) for record in event.records)
        self.stats = event.stats
        self.rest()

    def rest(self) -> None:
        self._asked, self._total = None, 0

    @property
    def usual(self) -> tuple[str, int] | None:
        """The most usual of the last passes, as single ones change too fast to read; of equals the later one."""
        counts = Counter(self.recent)
        most = max(counts.values(), default=0)
        return next((one for one in reversed(self.recent) if counts[one] == most), None)

    def waits(self, speed: ReadingSpeed, others: bool) -> str:
        """What is waited for, in words; "" = nothing. `others`: another chat is being answered."""
        if self._asked is None:
            return ""
        waited = f"{self.clock() - self._asked:.0f} s"
        if self._total and self._done < self._total:
            if speed.seconds is None:
                return f"reading {self._total:,} tokens: {waited}"
            since = self.clock() - self._at  # between two chunks the speed tells how far it must be
            done = min(self._done + since / speed.seconds, self._total - 1)
            left = max(1, round((self._total - done) * speed.seconds))
            return f"reading {self._total:,} tokens {bar(done / self._total, _BAR_CELLS)} about {left} s"
        if not self._total and others:
            return f"waiting for the other chat: {waited}"
        return f"waiting for the first token: {waited}"


_REST_SECONDS = 0.1  # between two drawings while an answer streams: numbers that change faster cannot be read
TOOLTIP = """tok/s: tokens a second, prompt not counted
x plain: plain decoding's time over the time taken; estimated from the passes of this answer in which nothing was
  drafted
acceptance: accepted guesses of all drafted
accepted length: mean accepted length of a pass with a draft, next token included
by position: how often drafts were accepted to the 1st, 2nd, ... position
width: rows of a pass"""


class Meter(Static):
    """The screen reports what is loaded, and which chat is in front."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="status")
        self.tooltip = TOOLTIP
        self._told: tuple[str, tuple[int, int] | None, str, Live] = "", None, "", Live()
        """The model, how full the context is, what is shown in place of figures, and the chat in front."""
        self._drawn = 0.0

    def tell(
        self, facts: Facts | None, loading: Loading | None, use: tuple[int, int] | None, live: Live, note: str = ""
    ) -> None:
        """What is loaded, how full the context is, the chat in front, and what the screen says in place of figures."""
        model = self._told[0]
        if facts is not None:
            model = plain_text(facts.name if facts.draft is None else f"{facts.name} + {facts.draft}")
        elif not note:
            share = f" {loading.share:.0%}" if loading else ""
            note = f"{loading.what if loading else 'Loading'}{share} · you can write meanwhile"
        if (told := (model, use, note, live)) != self._told:
            self._told = told
            self.draw()

    def draw(self, *, now: bool = True) -> None:
        """Shows the figures; `now`: even if they were just shown."""
        if not now and monotonic() - self._drawn < _REST_SECONDS:
            return
        self._drawn, width, (model, use, note, live) = monotonic(), self.size.width, self._told
        line = Content(plain_text(note)) if note else meter_line(live.stats, live.usual, width, use, model)
        self.update(line.truncate(width, ellipsis=True) if width else line, layout=False)

    def on_resize(self) -> None:
        self.draw()
