"""Figures of answers: what drafts brought, in this chat and in all chats; and an answer again, pass by pass."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Any, ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from localspec.chat.archive.archive import Archive
from localspec.chat.plain_text import one_line
from localspec.engine.stats import RequestStats, kept_comparison, number
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.text.origin_lines import AnswerPass, kind_of, ordered, read_passes
from localspec.tui.widgets.dialogs import copy, errors_said
from localspec.tui.widgets.meter import bar, columns, duration, graph
from localspec.tui.widgets.origin_view import OriginView
from localspec.tui.widgets.registry import bind


class StatsScreen(Page):
    CSS_PATH = "stats.tcss"
    TITLE = "Statistics"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("stats.scope", "a,tab", "scope", "This chat/all", "Count this chat or all chats", show=True),
        bind("stats.copy", "c", "copy", "Copy", "Copy the page as text", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self._figures = AnswerFigures()
        self._positions: Sequence[tuple[int, int, int]] = ()
        self._all = False

    def body(self) -> ComposeResult:
        yield Static("", id="scope", markup=False)
        with VerticalScroll(id="scroll"):
            yield Static("Counting ...", id="page", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        if self._figures.answers:
            self._show()

    def action_scope(self) -> None:
        self._all = not self._all
        self._count()

    def action_copy(self) -> None:
        copy(self.app, stats_page(self._figures, self._positions, 80).plain, "Statistics")

    @work(exclusive=True, group="stats")
    async def _count(self) -> None:
        pane = self.chats.pane
        chat = None if self._all or pane is None else pane.chat_id
        self._all = chat is None
        with errors_said(self, self.query_one("#page", Static).update):
            self._figures, self._positions = await asyncio.to_thread(count, self.session.archive, chat)
            self._show()

    on_mount = _count

    def _show(self) -> None:
        self.query_one("#scope", Static).update("All chats" if self._all else "This chat")
        page = stats_page(self._figures, self._positions, max(30, self.size.width - 4))
        self.query_one("#page", Static).update(page)


def count(archive: Archive, chat: int | None) -> tuple[AnswerFigures, list[tuple[int, int, int]]]:
    """Figures of a chat and acceptance by position from its passes, or of all chats (None): too many passes."""
    answers = [] if chat is None else [message for message in archive.tree(chat) if message.role == "assistant"]
    passes = (read_passes(archive.replay(message.id).passes, lambda token: b"") for message in answers)
    return AnswerFigures.of(archive.stats(chat)), positions(chain.from_iterable(passes))


@dataclass(slots=True)
class AnswerFigures(RequestStats):
    """The counters of many answers, added up. Plain and compared seconds are of answers whose plain time is known.
    Stored stats (`RequestStats.as_dict()`) may be old, partial or an endpoint's: a number that is missing counts as 0,
    and what is no number is ignored."""

    answers: int = 0
    inexact: int = 0  # answers with a pass that was not exact
    plain_answers: int = 0  # answers in which nothing was drafted
    rates: list[float] = field(default_factory=list)  # tokens/s, answer by answer

    @classmethod
    def of(cls, stats: Iterable[Mapping[str, Any]]) -> AnswerFigures:
        found = cls()
        for one in stats:
            found.add(one)
        return found

    def add(self, stats: Mapping[str, Any]) -> None:
        """Counts an answer; one without a token is left out."""
        generated = int(number(stats, "generated_tokens"))
        if generated <= 0:
            return
        self.answers += 1
        self.generated += generated
        for name in ("passes", "draft_passes", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + int(number(stats, name)))
        for name in ("draft_seconds", "verify_seconds", "host_seconds", "prefill_seconds"):
            setattr(self, name, getattr(self, name) + number(stats, name))
        positions = stats.get("accepted_per_position")
        for depth, count in enumerate(positions if isinstance(positions, list) else ()):
            if depth == len(self.accepted_per_position):
                self.accepted_per_position.append(0)
            self.accepted_per_position[depth] += count if isinstance(count, int) else 0
        for name in ("accepted_by_drafter", "drafted_by_drafter"):
            counts = stats.get(name)
            known = counts.items() if isinstance(counts, Mapping) else ()
            getattr(self, name).update({key: count for key, count in known if isinstance(count, int)})
        self.inexact += stats.get("exact") is False
        self.plain_answers += stats.get("drafted") == 0
        if rate := number(stats, "tokens_per_second"):
            self.rates.append(rate)
        plain, spent = kept_comparison(stats)
        self.plain_seconds += plain
        self.compared_seconds += spent

    @property
    def saved_seconds(self) -> float:
        """Against plain decoding, as estimated; below 0 where speculation lost."""
        return self.plain_seconds - self.compared_seconds


def positions(passes: Iterable[AnswerPass]) -> list[tuple[int, int, int]]:
    """(position in the draft, 1 = first; passes whose draft had a guess there; those in which one was accepted); a tree
    counts once for each position that it reaches."""
    drafted, accepted = Counter[int](), Counter[int]()
    for one in passes:
        drafted.update({guess.depth for guess in one.guesses})
        accepted.update({guess.depth for guess in one.guesses if guess.accepted})
    return [(depth, drafted[depth], accepted[depth]) for depth in sorted(drafted)]


_GRAPH_ROWS = 4
_PARTS = (("draft", "drafting"), ("verify", "verifying"), ("host", "bookkeeping"), ("prefill", "reading prompts"))


def stats_page(figures: AnswerFigures, positions: Sequence[tuple[int, int, int]], width: int) -> Content:
    """All sections. `positions`: from stored passes; [] = not known, then the figures tell less."""
    if not figures.answers:
        return Content("No answer yet: there is nothing to count.")
    sections = [_summary(figures), _by_position(figures, positions, width), _by_drafter(figures, width)]
    spent = {name: getattr(figures, f"{part}_seconds") for part, name in _PARTS}
    total = sum(spent.values()) or 1.0
    lines = [
        _bar_line(f"  {name:15}", seconds / total, width - 42, duration(seconds)) for name, seconds in spent.items()
    ]
    sections.append(_section("Where the time went", "", lines))
    if len(figures.rates) > 1:
        rows = graph(figures.rates, max(10, min(width - 12, 100)), _GRAPH_ROWS)
        labels = [f"{max(figures.rates):>7.0f} ", *[" " * 8] * (_GRAPH_ROWS - 2), f"{0:>7} "]
        lines = [Content.assemble((label, "dim"), (row, "$primary")) for label, row in zip(labels, rows, strict=True)]
        explained = f"answer by answer, the newest last, {len(figures.rates):,} in all"
        sections.append(_section("Tokens a second", explained, lines))
    return Content("\n\n").join(section for section in sections if section)


def _section(title: str, explained: str, lines: Sequence[Content]) -> Content:
    head = Content.assemble((title, "bold"), (f"  {explained}" if explained else "", "dim"))
    return Content("\n").join([head, *lines])


def _summary(figures: AnswerFigures) -> Content:
    rows = [
        ("answers", f"{figures.answers:,} with {figures.generated:,} tokens in {figures.passes:,} passes"),
        ("speed", f"{figures.tokens_per_second:.1f} tok/s, {figures.tokens_per_pass:.2f} tokens a pass"),
    ]
    if figures.compared_seconds and not figures.drafted:
        rows.append(("against plain", "plain decoding: nothing was drafted"))
    elif figures.compared_seconds:
        saved = figures.saved_seconds
        word = f"{duration(saved)} saved" if saved >= 0 else f"{duration(-saved)} lost"
        plain = f"(plain decoding: about {duration(figures.plain_seconds)})"
        rows.append(("against plain", f"{figures.estimated_speedup:.2f}x, {word} {plain}"))
    if figures.drafted:
        share = f"{figures.acceptance_rate:.0%}: {figures.accepted:,} of {figures.drafted:,} guesses"
        length = f"{figures.mean_accepted_length:.2f} a pass with a draft, next token included"
        rows += [("acceptance", share), ("accepted length", length)]
    exact = "all" if not figures.inexact else f"{figures.answers - figures.inexact} of {figures.answers}"
    rows.append(("exact", f"{exact} answers"))
    label = max(len(name) for name, _ in rows)
    return Content("\n").join(Content.assemble((f"{name:{label}}  ", "dim"), value) for name, value in rows)


def _by_position(figures: AnswerFigures, positions: Sequence[tuple[int, int, int]], width: int) -> Content | None:
    if not figures.draft_passes or not figures.accepted_per_position:
        return None
    if positions:
        title, explained = "Acceptance by position", "of the guesses made at that position of the draft"
        rows = [(depth, got / made if made else 0.0, f"{got:,} of {made:,}") for depth, made, got in positions]
    else:
        title, explained = "Drafts accepted at least so deep", "share of all passes with a draft"
        counts = enumerate(figures.accepted_per_position, start=1)
        rows = [(depth, count / figures.draft_passes, f"{count:,} drafts") for depth, count in counts]
    lines = [_bar_line(f"{depth:>3}", share, width - 34, said) for depth, share, said in rows]
    return _section(title, explained, lines)


def _by_drafter(figures: AnswerFigures, width: int) -> Content | None:
    kinds = {name: kind_of(name) for name in ordered(figures.drafted_by_drafter)}
    if not kinds:
        return None
    label = max(len(kind.name) for kind in kinds.values())
    lines = []
    for name, kind in kinds.items():
        drafted, accepted = figures.drafted_by_drafter[name], figures.accepted_by_drafter[name]
        rate, said = accepted / drafted if drafted else 0.0, f"{accepted:,} of {drafted:,} guesses"
        lines.append(_bar_line(f"  {kind.name:{label}}", rate, width - 34 - label, said, kind.colour or "$primary"))
    return _section("By drafter", "accepted of drafted", lines)


def _bar_line(label: str, share: float, room: int, said: str, colour: str = "$primary") -> Content:
    """`room`: cells for the bar, of which it takes 6 to 40."""
    return Content.assemble(f"{label}  ", (bar(share, max(6, min(40, room))), colour), f" {share:>4.0%}  ", said)


SPEEDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of a replay: 1 is as fast as it was
_READABLE = 0.4  # seconds a usual pass should last at first
_LONGEST_WAIT = 2.0
_SHORTEST_WAIT = 0.02


def watchable(seconds: float, least: float) -> int:
    """The place of the fastest speed at which so many seconds last at least `least`; else of the slowest."""
    return max((place for place, speed in enumerate(SPEEDS) if seconds / speed >= least), default=0)


class StepsScreen(Page):
    """The answer that was selected in the chat; the last one if none was."""

    CSS_PATH = "steps.tcss"
    TITLE = "Step view"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("steps.next", "right,l,n", "go(1)", "Next", "The next pass", show=True),
        bind("steps.previous", "left,h,p", "go(-1)", "Back", "The pass before", show=True),
        bind("steps.draft", "d", "next_draft", "Next draft", "The next pass that carried a draft", show=True),
        bind("steps.play", "space", "play", "Play", "Go on by itself, or stop", show=True),
        bind("steps.faster", "plus,equals_sign,up", "speed(1)", "Faster", "Replay faster", show=True),
        bind("steps.slower", "minus,down", "speed(-1)", "Slower", "Replay slower", show=True),
        bind("steps.first", "home,g", "jump(0)", "First", "The first pass"),
        bind("steps.last", "end,G", "jump(-1)", "Last", "The last pass"),
    ]

    passes: Sequence[AnswerPass] = ()
    index = 0
    _speed = 0  # its place in `SPEEDS`
    _timer: Timer | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="headline", markup=False)
        with VerticalScroll(id="text", can_focus=False):  # arrow keys step
            yield OriginView(ghosts=True, id="origin")
        with VerticalScroll(id="verdict-scroll", can_focus=False):
            yield Static("", id="verdict", markup=False)
        yield Static("", id="timing", markup=False)
        yield Static("", id="timeline", markup=False)

    @work(group="steps")
    async def on_mount(self) -> None:
        message = None if self.chats.pane is None else self.chats.pane.selected
        tell = self.query_one("#headline", Static).update
        if message is None or message.role != "assistant":
            tell("There is no answer to replay: select one in the chat, or ask something first.")
            return

        def read() -> list[AnswerPass]:
            replay = self.session.archive.replay(message.id)
            return read_passes(replay.passes, lambda token: replay.pieces.get(token, b""), message.content)

        with errors_said(self, tell):
            self.passes = await asyncio.to_thread(read)
            if self.passes:
                self._speed = watchable(median(one.seconds for one in self.passes), _READABLE)
                self._show()
            else:
                tell("No passes are stored with this answer (it came from an endpoint, or was imported).")

    def action_go(self, step: int) -> None:
        self.action_jump(max(0, self.index + step))

    def action_jump(self, index: int) -> None:
        """Goes to a pass, -1 = the last one, as far as there is one."""
        if self.passes:
            self._stop()
            last = len(self.passes) - 1
            self.index = last if index < 0 else min(index, last)
            self._show()

    def action_next_draft(self) -> None:
        later = (index for index in range(self.index + 1, len(self.passes)) if self.passes[index].guesses)
        self.action_jump(next(later, self.index))

    def action_speed(self, step: int) -> None:
        self._speed = max(0, min(len(SPEEDS) - 1, self._speed + step))
        self._show()

    def action_play(self) -> None:
        """Starts or stops going on by itself; at the end it begins again."""
        if self._timer is not None:
            self._stop()
        elif self.passes:
            if self.index == len(self.passes) - 1:
                self.index = 0
            self._tick_later()
        self._show()

    def _tick_later(self) -> None:
        def tick() -> None:
            self._timer = None
            if self.index < len(self.passes) - 1:
                self.index += 1
                self._tick_later()
            self._show()

        seconds = self.passes[self.index].seconds / SPEEDS[self._speed]
        self._timer = self.set_timer(max(_SHORTEST_WAIT, min(_LONGEST_WAIT, seconds)), tick)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _show(self) -> None:
        if not self.passes:
            return
        passes, index, width = self.passes, self.index, max(20, self.size.width - 2)
        self.query_one("#origin", OriginView).reach(passes, index + 1)
        playing = f"  {'▶ ' * (self._timer is not None)}replay at {SPEEDS[self._speed]:g}x"
        self.query_one("#headline", Static).update(headline(passes, index))
        self.query_one("#verdict", Static).update(verdict(passes[index], width - 2))
        self.query_one("#timing", Static).update(Content.assemble(timing(passes, index, width), (playing, "dim")))
        self.query_one("#timeline", Static).update(timeline(passes, index, width))
        self.query_one("#text", VerticalScroll).scroll_end(animate=False)

    def on_origin_view_complete(self, event: OriginView.Complete) -> None:
        self.query_one("#text", VerticalScroll).scroll_end(animate=False)

    on_resize = _show


_FATES = {
    "accepted": ("✓", "bold", "accepted: the target says it, too"),
    "rejected": ("✗", "dim strike", "rejected: the target says something else"),
    "unreached": ("-", "dim", "of no use after a rejected guess"),
}
"""Of guesses: sign, style and words."""


def headline(passes: Sequence[AnswerPass], index: int) -> Content:
    one = passes[index]
    tokens = f"{len(one.emitted)} token{'' if len(one.emitted) == 1 else 's'}"
    who = "plain decoding, nothing drafted"
    if one.guesses:
        who = f"{kind_of(one.drafter).name} drafted {len(one.guesses)}, accepted {one.accepted}"
    said = f"  {who}  width {one.width}  {tokens} in {duration(one.seconds)}"
    return Content.assemble((f"Pass {index + 1} of {len(passes)}", "bold"), said)


def verdict(one: AnswerPass, width: int) -> Content:
    """The guesses of a pass with what became of each, and the target's own token; a line each."""
    lines, fates = list[Content](), list[str]()
    for guess in one.guesses:
        tried = guess.parent < 0 or fates[guess.parent] == "accepted"
        fates.append("accepted" if guess.accepted else "rejected" if tried else "unreached")
        mark, style, words = _FATES[fates[-1]]
        indent = "  " * (guess.depth - 1 if guess.depth <= 12 else 12)
        shown = (_quoted(guess.text), style)
        lines.append(Content.assemble(f"{mark} {guess.depth:>2} {indent}", shown, (f"  {words}", "dim")))
    if not one.emitted or one.emitted[-1].depth:
        lines.append(Content.styled("    the answer ended with an accepted guess", "dim"))
    else:
        meaning = "the target's own token"
        if one.guesses:
            last = max((node for node, guess in enumerate(one.guesses) if guess.accepted), default=-1)
            instead = any(guess.parent == last for guess in one.guesses)
            meaning += ", instead of the rejected guess" if instead else ", on top of the whole draft"
        lines.append(Content.assemble("  → ", (_quoted(one.emitted[-1].text), "bold"), (f"  {meaning}", "dim")))
    return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)


def _quoted(text: str) -> str:
    return f"“{one_line(text)}”" if text else "(no text)"


def timing(passes: Sequence[AnswerPass], index: int, width: int) -> Content:
    one, usual = passes[index], median(known.seconds for known in passes)
    slowest = max(known.seconds for known in passes) or 1.0
    cells = max(8, min(30, width - 46))
    each = duration(one.seconds / max(1, len(one.emitted)))
    rows = (("this pass  ", one.seconds, f", {each} a token"), ("usual pass ", usual, ""))
    return Content("\n").join(
        Content.assemble((label, "dim"), (bar(seconds / slowest, cells), "$primary"), f" {duration(seconds)}{more}")
        for label, seconds, more in rows
    )


def timeline(passes: Sequence[AnswerPass], index: int, width: int) -> Content:
    """Tokens each pass brought, a column a pass, around the present one, which is marked beneath."""
    room = max(1, width)
    first = max(0, min(index - room // 2, len(passes) - room))
    shown = passes[first : first + room]
    most = max(len(one.emitted) for one in passes)
    plot = columns([len(one.emitted) for one in shown], float(most))
    marker = " " * (index - first) + "▲"
    caption = f"{len(passes)} passes, up to {most} tokens each; so far {so_far(passes, index)}"
    return Content.assemble((plot, "$primary"), "\n", (marker, "bold"), "\n", (caption[:room], "dim"))


def so_far(passes: Sequence[AnswerPass], index: int) -> str:
    tokens = sum(len(one.emitted) for one in passes[: index + 1])
    seconds = sum(one.seconds for one in passes[: index + 1])
    rate = f", {tokens / seconds:.0f} tok/s" if seconds else ""
    return f"{tokens} token{'' if tokens == 1 else 's'} in {duration(seconds)}{rate}"
