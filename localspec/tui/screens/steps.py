"""Step view: an answer again, pass by pass, to see how speculation works."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import StoredMessage
from localspec.chat.plain_text import one_line
from localspec.errors import LocalspecError
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.page import Page
from localspec.tui.text.origin_lines import Guess, Pass, kind_of, read_passes
from localspec.tui.text.plots import bar, columns, duration
from localspec.tui.widgets.origin_view import OriginView
from localspec.tui.widgets.registry import bind

SPEEDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Replay speeds: 1 is as fast as it was."""
_READABLE = 0.4
"""Seconds a usual pass should last at first."""
_LONGEST_WAIT = 2.0
_SHORTEST_WAIT = 0.02


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

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self.passes: list[Pass] = []
        self.index = 0
        self._shown = 0
        """Passes the text view holds."""
        self._speed = 0
        self._timer: Timer | None = None

    def body(self) -> ComposeResult:
        yield Static("", id="headline", markup=False)
        with VerticalScroll(id="text", can_focus=False):  # arrow keys step
            yield OriginView(ghosts=True, id="origin")
        with VerticalScroll(id="verdict-scroll", can_focus=False):
            yield Static("", id="verdict", markup=False)
        yield Static("", id="timing", markup=False)
        yield Static("", id="timeline", markup=False)

    def on_mount(self) -> None:
        pane = self.chats.pane
        message = None if pane is None else pane.selected
        if message is None or message.role != "assistant":
            self._say("There is no answer to replay: select one in the chat, or ask something first.")
            return
        self._read(self.session.archive, message)

    def on_resize(self, event: events.Resize) -> None:
        if self.passes:
            self._show()

    @work(thread=True, exclusive=True, group="steps")
    def _read(self, archive: Archive, message: StoredMessage) -> None:
        try:
            replay = archive.replay(message.id)
            passes = read_passes(replay.passes, lambda token: replay.pieces.get(token, b""), message.content)
        except LocalspecError as error:
            self.app.call_from_thread(self._say, str(error))
            return
        self.app.call_from_thread(self._take, passes)

    def _take(self, passes: list[Pass]) -> None:
        if not passes:
            self._say("No passes are stored with this answer (it came from an endpoint, or was imported).")
            return
        self.passes = passes
        usual = median(one.seconds for one in passes)
        self._speed = max((i for i, speed in enumerate(SPEEDS) if usual / speed >= _READABLE), default=0)
        self._show()

    def _say(self, text: str) -> None:
        self.query_one("#headline", Static).update(Content(text))

    # ---- keys

    def action_go(self, step: int) -> None:
        """So many passes on, or back."""
        self._to(self.index + step)

    def action_jump(self, index: int) -> None:
        """To a pass; -1 = the last."""
        self._to(index if index >= 0 else len(self.passes) - 1)

    def action_next_draft(self) -> None:
        """To the next pass that carried a draft."""
        later = (index for index in range(self.index + 1, len(self.passes)) if self.passes[index].guesses)
        self._to(next(later, self.index))

    def action_speed(self, step: int) -> None:
        """Faster or slower."""
        self._speed = max(0, min(len(SPEEDS) - 1, self._speed + step))
        if self.passes:
            self._show()

    def action_play(self) -> None:
        """Starts or stops going on by itself; at the end it begins again."""
        if self._timer is not None:
            self._stop()
            self._show()
        elif self.passes:
            if self.index == len(self.passes) - 1:
                self._to(0)
            self._tick_later()
            self._show()

    def _tick_later(self) -> None:
        seconds = self.passes[self.index].seconds / SPEEDS[self._speed]
        self._timer = self.set_timer(max(_SHORTEST_WAIT, min(_LONGEST_WAIT, seconds)), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.index < len(self.passes) - 1:
            self.index += 1
            self._tick_later()
        self._show()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _to(self, index: int) -> None:
        if not self.passes:
            return
        self._stop()
        self.index = max(0, min(len(self.passes) - 1, index))
        self._show()

    # ---- looks

    def _show(self) -> None:
        passes, index, width = self.passes, self.index, max(20, self.size.width - 2)
        view = self.query_one("#origin", OriginView)
        if self._shown <= index:
            view.add(passes[self._shown : index + 1])
        else:
            view.show(passes[: index + 1])
        self._shown = index + 1
        playing = f"  {'▶ ' * (self._timer is not None)}replay at {SPEEDS[self._speed]:g}x"
        self.query_one("#headline", Static).update(headline(passes, index))
        self.query_one("#verdict", Static).update(verdict(passes[index], width - 2))
        self.query_one("#timing", Static).update(Content.assemble(timing(passes, index, width), (playing, "dim")))
        self.query_one("#timeline", Static).update(timeline(passes, index, width))
        self.query_one("#text", VerticalScroll).scroll_end(animate=False)

    def on_origin_view_complete(self, event: OriginView.Complete) -> None:
        self.query_one("#text", VerticalScroll).scroll_end(animate=False)


# One pass explained: what was guessed, what the target said to it, and what it took.

_MARKS = {"accepted": "✓", "rejected": "✗", "unreached": "-"}


def headline(passes: Sequence[Pass], index: int) -> Content:
    """Which pass this is, and what it brought, in a line."""
    one = passes[index]
    brought = len(one.emitted)
    tokens = f"{brought} token{'' if brought == 1 else 's'}"
    if one.guesses:
        who = f"{kind_of(one.drafter).name} drafted {len(one.guesses)}, accepted {one.accepted}"
    else:
        who = "plain decoding, nothing drafted"
    return Content.assemble(
        (f"Pass {index + 1} of {len(passes)}", "bold"),
        f"  {who}  width {one.width}  {tokens} in {duration(one.seconds)}",
    )


def verdict(one: Pass, width: int) -> Content:
    """The guesses of a pass with what became of each, and the target's own token; a line each."""
    fates = _fates(one)
    own = one.emitted[-1].text if one.emitted and not one.emitted[-1].depth else None
    lines: list[Content] = []
    for guess, fate in zip(one.guesses, fates, strict=True):
        lines.append(_guess_line(guess, fate))
    if own is None:
        lines.append(Content.styled("    the answer ended with an accepted guess", "dim"))
    else:
        lines.append(Content.assemble("  → ", (_quoted(own), "bold"), (f"  {_meaning(one)}", "dim")))
    return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)


def _guess_line(guess: Guess, fate: str) -> Content:
    words = {
        "accepted": "accepted: the target says it, too",
        "rejected": "rejected: the target says something else",
        "unreached": "of no use after a rejected guess",
    }
    indent = "  " * (guess.depth - 1) if guess.depth <= 12 else "  " * 12
    text = _quoted(guess.text)
    style = "bold" if fate == "accepted" else "dim strike" if fate == "rejected" else "dim"
    return Content.assemble(f"{_MARKS[fate]} {guess.depth:>2} {indent}", (text, style), (f"  {words[fate]}", "dim"))


def _fates(one: Pass) -> list[str]:
    """`accepted`, `rejected` (tried and refused) or `unreached`, node by node."""
    fates: list[str] = []
    for guess in one.guesses:
        reached = guess.parent < 0 or fates[guess.parent] == "accepted"
        fates.append("accepted" if guess.accepted else "rejected" if reached else "unreached")
    return fates


def _meaning(one: Pass) -> str:
    if not one.guesses:
        return "the target's own token"
    last = max((node for node, guess in enumerate(one.guesses) if guess.accepted), default=-1)
    if not any(guess.parent == last for guess in one.guesses):
        return "the target's own token, on top of the whole draft"
    return "the target's own token, instead of the rejected guess"


def _quoted(text: str) -> str:
    return f"“{one_line(text)}”" if text else "(no text)"


def timing(passes: Sequence[Pass], index: int, width: int) -> Content:
    """How long this pass took beside the usual one, and what it cost a token."""
    one, usual = passes[index], median(known.seconds for known in passes)
    slowest = max(known.seconds for known in passes) or 1.0
    cells = max(8, min(30, width - 46))
    each = duration(one.seconds / max(1, len(one.emitted)))
    return Content.assemble(
        ("this pass  ", "dim"),
        (bar(one.seconds / slowest, cells), "$primary"),
        f" {duration(one.seconds)}, {each} a token\n",
        ("usual pass ", "dim"),
        (bar(usual / slowest, cells), "$primary"),
        f" {duration(usual)}",
    )


def timeline(passes: Sequence[Pass], index: int, width: int) -> Content:
    """Tokens each pass brought, a column a pass, around the present one, which is marked beneath."""
    room = max(1, width)
    first = max(0, min(index - room // 2, len(passes) - room))
    shown = passes[first : first + room]
    most = max(len(one.emitted) for one in passes)
    plot = columns([len(one.emitted) for one in shown], float(most))
    marker = " " * (index - first) + "▲"
    caption = f"{len(passes)} passes, up to {most} tokens each; so far {so_far(passes, index)}"
    return Content.assemble((plot, "$primary"), "\n", (marker, "bold"), "\n", (caption[:room], "dim"))


def so_far(passes: Sequence[Pass], index: int) -> str:
    """Tokens, time and rate up to and with this pass."""
    tokens = sum(len(one.emitted) for one in passes[: index + 1])
    seconds = sum(one.seconds for one in passes[: index + 1])
    rate = f", {tokens / seconds:.0f} tok/s" if seconds else ""
    return f"{tokens} token{'' if tokens == 1 else 's'} in {duration(seconds)}{rate}"
