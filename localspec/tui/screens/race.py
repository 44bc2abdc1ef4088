"""A race of plain decoding against speculation on one prompt: two lanes, a clock each, and whether they say the same.

The heats run one after the other, as two answers at once would share passes of the engine; then both are shown side by
side at the pace each had. A clock adds up what passes took on the engine, so drawing the screen slows neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from statistics import median
from time import monotonic
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from localspec.chat.turn import Message
from localspec.engine.interfaces import fresh_seed
from localspec.remote.answerer import Answer, AnswerEnded, AnswerPart, Question
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.screens.stats import SPEEDS, watchable
from localspec.tui.talk.session import Inbox, Posted
from localspec.tui.text.origin_lines import AnswerPass, PassReader
from localspec.tui.widgets.dialogs import errors_said
from localspec.tui.widgets.meter import bar, duration
from localspec.tui.widgets.origin_view import OriginView
from localspec.tui.widgets.registry import bind


@dataclass(slots=True)
class Lane:
    name: str  # `plain` or `speculative`
    passes: list[AnswerPass] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    exact: bool = True  # no pass of it could have changed the text
    over: bool = False
    _ends: list[float] = field(default_factory=lambda: [0.0])  # when each pass ended, the start before them

    def add(self, passes: Iterable[AnswerPass], tokens: Sequence[int]) -> None:
        for one in passes:
            self.passes.append(one)
            self._ends.append(self.seconds + one.seconds)
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        return self._ends[-1]

    @property
    def count(self) -> int:
        return self.count_at(inf)

    def at(self, seconds: float) -> int:
        return bisect_right(self._ends, seconds) - 1

    def count_at(self, seconds: float) -> int:
        return sum(len(one.emitted) for one in self.passes[: self.at(seconds)])


def likeness(one: Lane, other: Lane) -> str:
    """How far two lanes agree, token by token, in words."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.tokens, other.tokens, strict=False)))
    compared, over = min(len(one.tokens), len(other.tokens)), one.over and other.over
    if common < compared or (over and len(one.tokens) != len(other.tokens)):
        exact = one.exact and other.exact
        why = "" if exact else "; passes were not exact here, so rounding may change the text (--exact strict)"
        return f"✗ they differ from token {common + 1} on{why}"
    if over:
        return f"✓ the same {common} tokens"
    return f"{common} of {compared} tokens compared, all the same" if compared else "nothing yet"


def summary(speedups: Sequence[float]) -> str:
    """All races so far in a line, from plain decoding's time over speculation's in each, prompts not counted."""
    if len(speedups) < 2:
        return f"speedup {speedups[0]:.2f}x, one race; press a for another in the other order" if speedups else ""
    middle, least, most = median(speedups), min(speedups), max(speedups)
    return f"speedup {middle:.2f}x in the middle of {len(speedups)} races, {least:.2f}x to {most:.2f}x"


_NARROW = 32  # columns of a lane; with fewer, its figures do not fit into one line


class LaneView(Vertical):
    """Shows a lane as it is, or as it was at some second."""

    def __init__(self, lane: Lane, doc: str) -> None:
        super().__init__(id=lane.name)
        self.lane = lane
        self._doc = doc
        self._drawn = inf, 0  # what was shown last

    def compose(self) -> ComposeResult:
        yield Static("", classes="clock", markup=False)
        yield Static("", classes="progress", markup=False)
        with VerticalScroll(can_focus=False):
            yield OriginView()

    def on_resize(self) -> None:
        self.show(*self._drawn)

    def restart(self, lane: Lane) -> None:
        self.lane = lane
        self.query_one(OriginView).show([])
        self.show()

    def show(self, seconds: float = inf, of_tokens: int = 0) -> None:
        """Draws the lane as at `seconds` on its clock; `of_tokens`: of the whole answer, 0 = not known."""
        self._drawn = seconds, of_tokens
        lane = self.lane
        done, clock, tokens = lane.at(seconds), min(seconds, lane.seconds), lane.count_at(seconds)
        rate = f"{tokens / clock:.0f} tok/s" if clock and tokens else ""
        flag = " ⚑" if lane.over and done == len(lane.passes) and tokens else ""
        if self.size.width < _NARROW:
            head = Content.assemble((lane.name, "bold"), f"\n{duration(clock)} {tokens} tokens\n{rate}{flag}")
        else:
            numbers = f"\n{duration(clock):>8}  {tokens:>4} tokens  {rate}{flag}"
            head = Content.assemble((lane.name, "bold"), (f"  {self._doc}", "dim"), numbers)
        self.query_one(".clock", Static).update(head)
        share = bar(tokens / of_tokens, max(4, self.size.width)) if of_tokens else ""
        self.query_one(".progress", Static).update(Content.styled(share, "$primary"))
        view = self.query_one(OriginView)
        if done != len(view.passes):
            view.reach(lane.passes, done)
            self.query_one(VerticalScroll).scroll_end(animate=False)


PLAIN, SPECULATIVE = "plain", "speculative"
MOST_TOKENS = 200
_WATCHABLE_SECONDS = 3.0  # seconds the slower lane should take to be seen
_FRAMES_A_SECOND = 30
_PROMPT = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo."
HELP = (
    "Enter starts. The engine computes one pass at a time, so two answers at once would share passes and neither "
    "clock would mean anything. Each lane runs alone, one after the other, same prompt, seed and settings. A clock "
    "counts what the passes took on the engine, reading the prompt left out. Then both are shown again side by side, "
    "at one pace."
)
KNEW = "Both heats knew the prompt alone: no past answers, no cache."  # said beside each result


class RaceScreen(Page):
    CSS_PATH = "race.tcss"
    TITLE = "Race"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("race.again", "a", "again", "Other order", "Race again, with the other lane first", show=True),
        bind("race.replay", "r", "replay", "Replay", "Show both lanes side by side again", show=True),
        bind("race.faster", "plus,equals_sign", "pace(1)", "Faster", "Show the replay faster", show=True),
        bind("race.slower", "minus", "pace(-1)", "Slower", "Show the replay slower", show=True),
        bind("race.prompt", "p", "prompt", "Prompt", "Change the prompt", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self.speedups: list[float] = []  # of the races on this prompt; 0 = unknown
        self.lanes = {name: Lane(name) for name in (PLAIN, SPECULATIVE)}
        self._question: Question | None = None
        self._order = (PLAIN, SPECULATIVE)
        self._waiting: list[str] = []  # lanes that have not run; their first is under way, "" = warming up
        self._answer: Answer | None = None
        self._reader: PassReader | None = None
        self._started = 0.0
        self._pace = len(SPEEDS) - 1

    def body(self) -> ComposeResult:
        pane = self.chats.pane
        said = [] if pane is None else [message.content for message in pane.path if message.role == "user"]
        prompt = said[-1].replace("\n", " ") if said else _PROMPT
        yield Input(prompt, placeholder="A prompt for both; Enter starts", id="prompt")
        yield Static(HELP, id="note", markup=False)
        with Horizontal(id="lanes"):
            yield LaneView(self.lanes[PLAIN], "one token a pass")
            yield LaneView(self.lanes[SPECULATIVE], "one or more a pass")
        yield Static("", id="result", markup=False)

    def on_mount(self) -> None:
        self._note = self.query_one("#note", Static).update
        self._replay = self.set_interval(1 / _FRAMES_A_SECOND, self._frame, pause=True)

    def on_unmount(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A new prompt: its races are counted anew."""
        event.stop()
        if self._answer is None and event.value.strip():
            with errors_said(self, self._note):
                self._question = self._make_question(event.value)
                self.speedups, self._order = [], (PLAIN, SPECULATIVE)
                event.input.action_home()  # its beginning is seen
                self.set_focus(None)  # from here on letters are keys
                self._begin()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of a race are not offered while its prompt is written."""
        return not (isinstance(self.focused, Input) and action in ("again", "replay", "pace", "prompt"))

    def action_prompt(self) -> None:
        self.query_one("#prompt").focus()

    def action_again(self) -> None:
        if self._question is not None and self._answer is None:
            self._order = (self._order[1], self._order[0])
            self._begin()

    def action_replay(self) -> None:
        if self._answer is None and all(lane.over for lane in self.lanes.values()):
            self._started = monotonic()
            self._replay.resume()

    def action_pace(self, step: int) -> None:
        self._pace = max(0, min(len(SPEEDS) - 1, self._pace + step))
        self.action_replay()

    def _begin(self) -> None:
        facts = self.session.facts
        if facts is None:
            self._note("The model is still being loaded.")
            return
        if facts.remote:
            self._note("An endpoint cannot be told to decode plain; a race needs a model on this machine.")
            return
        if any(pane.answer is not None for pane in self.chats.panes):
            self._note("An answer is being written in a chat, and would share the engine; stop it or wait for its end.")
            return
        self._replay.pause()
        for name in (PLAIN, SPECULATIVE):
            self.lanes[name] = Lane(name)
            self.query_one(f"#{name}", LaneView).restart(self.lanes[name])
        self.query_one("#result", Static).update("")
        self._waiting = ["", *self._order]
        self._ask()

    def _ask(self) -> None:
        """Begins the first heat that waits."""
        asked, name = self._question, self._waiting[0]
        assert asked is not None
        number = 1 + len(self._order) - len(self._waiting)
        self._note(f"Heat {number} of 2: {name} decoding, alone on the engine" if name else "Warming up ...")
        self._reader = PassReader(self.session.piece)
        drafter, tokens = asked.drafter if name == SPECULATIVE else "none", asked.max_tokens or MOST_TOKENS
        asked = replace(asked, drafter=drafter, max_tokens=tokens if name else 1)
        self._answer = self.session.answerer.answer(asked, Inbox(self))

    def on_posted(self, event: Posted) -> None:
        event.stop()
        told = event.told
        if isinstance(told, AnswerEnded) and told.answer is self._answer:
            self._ended(told)
        elif isinstance(told, AnswerPart) and told.answer is self._answer and self._waiting[0] and self._reader:
            lane = self.lanes[self._waiting[0]]
            lane.add(self._reader.read_all(told.records, len(told.tokens)), told.tokens)
            self.query_one(f"#{lane.name}", LaneView).show()
            self._compare()

    def _ended(self, message: AnswerEnded) -> None:
        self._answer = None
        if message.error is not None:
            self._note(str(message.error))
            return
        if name := self._waiting.pop(0):
            lane = self.lanes[name]
            lane.over, lane.exact = True, message.stats.exact
            self.query_one(f"#{name}", LaneView).show()
        if self._waiting:
            self._ask()
            return
        plain, other = self.lanes[PLAIN], self.lanes[SPECULATIVE]
        self.speedups.append(plain.seconds / other.seconds if other.seconds else 0.0)
        self._pace = watchable(max(plain.seconds, other.seconds), _WATCHABLE_SECONDS)
        self._compare()
        self.action_replay()

    def _frame(self) -> None:
        seconds = (monotonic() - self._started) * SPEEDS[self._pace]
        tokens = max(lane.count for lane in self.lanes.values())
        first = max(self.lanes.values(), key=lambda one: (one.count_at(seconds), -one.seconds))
        for view in self.query(LaneView):
            view.show(seconds, tokens)
            view.set_class(view.lane is first and first.at(seconds) > 0, "ahead")
        pace = "as fast as it was" if SPEEDS[self._pace] == 1.0 else f"{SPEEDS[self._pace]:g} of the real pace"
        self._note(f"Side by side, {pace}: {duration(seconds)} on the clock")
        if all(seconds >= lane.seconds for lane in self.lanes.values()):
            self._replay.pause()
            self._note(f"Both lanes are done ({pace}). {self._order[0].capitalize()} ran first. {KNEW}")

    def _compare(self) -> None:
        same = likeness(self.lanes[PLAIN], self.lanes[SPECULATIVE])
        self.query_one("#result", Static).update("\n".join(part for part in (same, summary(self.speedups)) if part))

    def _make_question(self, prompt: str) -> Question:
        """The chat's settings, a system message if it has one, and this prompt alone."""
        pane = self.chats.pane
        asked = Question([]) if pane is None else pane.question()
        system = [message for message in asked.messages if message.role == "system"]
        return replace(
            asked,
            messages=[*system, Message("user", prompt)],
            prefix="",
            max_tokens=min(asked.max_tokens or MOST_TOKENS, MOST_TOKENS),
            seed=fresh_seed() if asked.seed is None else asked.seed,
            drafter=None if asked.drafter == "none" else asked.drafter,
            max_draft_tokens=asked.max_draft_tokens or None,
            chat=None,
            alone=True,
        )
