"""The answer of a chat as the meter tells it: waiting, reading the prompt, writing, or over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from localspec.engine.stats import RequestStats
from localspec.tui.talk.answerer import Answer, AnswerEnded, AnswerPart, Prefilled
from localspec.tui.text.meter_line import Now
from localspec.tui.text.plots import bar

_BAR_CELLS = 10
"""Width of the bar that shows how much of a prompt has been read."""
_RECENT_SHARE = 0.5
"""How much of what is known of the reading speed comes from the last chunk."""


@dataclass(slots=True)
class ReadingSpeed:
    """Seconds a token of a prompt takes with the model in use, learned from every chunk; None = not known yet."""

    seconds: float | None = None

    def learn(self, tokens: int, seconds: float) -> None:
        """Takes in a chunk of `tokens` that took `seconds`."""
        taken = seconds / tokens
        self.seconds = taken if self.seconds is None else self.seconds + _RECENT_SHARE * (taken - self.seconds)


@dataclass(slots=True)
class Live:
    """What is known of a chat's last answer."""

    answer: Answer | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    now: Now = field(default_factory=Now)
    clock: Callable[[], float] = monotonic
    _asked: float | None = None
    """When it was asked for, in seconds of the clock; None = nothing is waited for."""
    _done: int = 0
    _total: int = 0
    """Tokens of the prompt; 0 = it is not being read."""
    _at: float = 0.0
    """When `_done` was reported, in seconds of the clock."""

    def begin(self, answer: Answer) -> None:
        """An answer was asked for."""
        self.answer, self.stats, self.now = answer, RequestStats(), Now()
        self._asked, self._total = self.clock(), 0

    def hear(self, event: AnswerPart | AnswerEnded | Prefilled, speed: ReadingSpeed) -> None:
        """Takes in what came of the answer."""
        if isinstance(event, Prefilled):
            if event.total is not None:
                self._read(event.done, event.total, speed)
            return
        if isinstance(event, AnswerPart):
            self.now.add(event.records)
        self.stats = event.stats
        self.rest()

    def rest(self) -> None:
        """Nothing is waited for any more."""
        self._asked, self._total = None, 0

    def _read(self, done: int, total: int, speed: ReadingSpeed) -> None:
        now = self.clock()
        if total == self._total and done > self._done:
            speed.learn(done - self._done, now - self._at)
        self._done, self._total, self._at = done, total, now

    def waits(self, speed: ReadingSpeed, others: bool) -> str:
        """What is waited for, in words; "" = nothing. `others`: another chat is being answered."""
        if self._asked is None:
            return ""
        waited = f"{self.clock() - self._asked:.0f} s"
        if self._total and self._done < self._total:
            return self._reading(speed, waited)
        if not self._total and others:
            return f"waiting for the other chat: {waited}"
        return f"waiting for the first token: {waited}"

    def _reading(self, speed: ReadingSpeed, waited: str) -> str:
        """Between two chunks the speed tells how far it must be."""
        if speed.seconds is None:
            return f"reading {self._total:,} tokens: {waited}"
        since = self.clock() - self._at
        done = min(self._done + since / speed.seconds, self._total - 1)
        left = max(1, round((self._total - done) * speed.seconds))
        return f"reading {self._total:,} tokens {bar(done / self._total, _BAR_CELLS)} about {left} s"
