"""Which settings are fastest for this pair, machine and workload? Measured, never guessed, and kept only if sure.

Every aspect (threads, kernels, cache, n-grams, draft length) is searched in turn, starting from the best so far: the
best so far and a challenger answer the same prompts, taking turns, in processes of their own; a challenger that is
surely faster becomes the best so far. The best of many is partly luck, so the settings found are
measured once more against the defaults, on prompts that were not searched with, and that is the figure reported. If its
interval does not lie above 1, the defaults stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from localspec.chat.turn import Message
from localspec.checks.apart import Apart
from localspec.checks.challenger import ASPECTS, Challenger, challengers
from localspec.checks.interval import Ratio, ratio
from localspec.checks.prompts import Prompt, prompt_tokens
from localspec.errors import LocalspecError
from localspec.gguf.split import read_parts
from localspec.llama.library import lib
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams

# The same prompts answered under chosen settings, and how long that took: what tuning compares.


class Question(NamedTuple):
    """What is asked."""

    messages: tuple[Message, ...]
    options: Options


class Timing(NamedTuple):
    """How an answer went."""

    seconds: float
    """Of the whole answer, its prompt included."""
    tokens: int
    exact: bool
    """No pass could have changed the text."""
    passes: int = 0
    text: str = ""

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(1, self.tokens)


class Answering:
    """An engine under some settings; made in a process of its own (`apart`)."""

    def __init__(
        self,
        target: Path,
        draft: Path | str | None,
        settings: Mapping[str, Any],
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """Loads, without what tuning stored; raises as `Engine.load`."""
        self._engine = Engine.load(target, draft, progress=progress, tuned=False, **settings)

    def answer(self, question: Question) -> Timing:
        """Answers once, as if nothing had been answered before."""
        engine = self._engine
        prompt = prompt_tokens(engine, question.messages)
        engine.forget()
        start = perf_counter()
        generation = engine.generate(prompt, question.options)
        text = generation.text()
        seconds, stats = perf_counter() - start, generation.stats
        return Timing(seconds, stats.generated, stats.exact, stats.passes, text)

    def about(self) -> dict[str, Any]:
        """What it runs with: configuration in words, exactness, threads, wide kernels, a GPU, drafting or not."""
        loaded = self._engine.loaded
        return {
            "configuration": loaded.configuration,
            "exact": loaded.context.exact_widths is not None,
            "threads": loaded.context.threads,
            "wide": loaded.model.kernels == "wide",
            "gpu": loaded.model.gpu_layers != 0,
            "drafts": bool(self._engine.drafters),
        }

    def close(self) -> None:
        self._engine.close()


def questions(prompts: list[Prompt], sampling: SamplingParams, seed: int, max_tokens: int) -> list[Question]:
    """The first user turn of each prompt, with a seed of its own."""
    found = []
    for number, prompt in enumerate(prompts):
        end = next((i for i, message in enumerate(prompt.messages) if message.role != "system"), None)
        if end is not None:
            options = Options(sampling=sampling, seed=seed + number, max_tokens=max_tokens, past=False)
            found.append(Question(prompt.messages[: end + 1], options))
    return found


Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1); may raise to stop."""


class Side(Protocol):
    """An engine under some settings (`apart.Apart` around `Answering`)."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of `Answering`."""
        ...

    def close(self) -> None: ...


OpenSide = Callable[[Mapping[str, Any], Progress], Side]
_ROUNDS_TO_LOSE = 2
"""A challenger that is surely slower after so many rounds is not measured on."""


@dataclass(slots=True)
class Trial:
    """A challenger and how it went."""

    challenger: Challenger
    gain: Ratio | None = None
    """Speed over the best before it, 1 = equal; None = it could not be measured."""
    taken: bool = False
    why: str = ""


@dataclass(slots=True)
class TuneReport:
    """What was tried and found."""

    trials: list[Trial] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the defaults; empty = the defaults are best, as far as can be told."""
    gain: Ratio | None = None
    """Speed over the defaults on other prompts; None = nothing was found, or it was not measured."""
    finished: bool = False
    """Every aspect was tried, within the time."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """What the defaults run with (`Answering.about`)."""

    @property
    def sure(self) -> bool:
        """Whether what was found is faster beyond noise."""
        return bool(self.settings) and self.gain is not None and self.gain.over != "" and self.gain.low > 1.0


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What to try, and how long."""

    aspects: tuple[str, ...] = ASPECTS
    rounds: int = 4
    """Times each prompt is answered by each side of a comparison."""
    minutes: float = 15.0
    """When this time is used up, no further challenger is tried; the last check may take longer."""
    margin: float = 0.01
    """What a challenger must be sure to gain, as a share: settings are not changed for nothing."""


def tune(
    target: Path,
    draft: Path | None,
    base: Mapping[str, Any],
    search: Sequence[Question],
    check: Sequence[Question],
    plan: TunePlan | None = None,
    progress: Progress | None = None,
    report: TuneReport | None = None,
    open_side: OpenSide | None = None,
) -> TuneReport:
    """Searches, then checks what was found.

    Args:
        target: a GGUF file.
        draft: its draft model, if any.
        base: fields of `EngineSettings` that are given; they are not tuned.
        search: asked while searching.
        check: asked in the last comparison with the defaults.
        plan: what to try.
        progress: see `Progress`.
        report: filled in as results come, so that an interrupted run has some.
        open_side: makes an engine with these settings; None = `Answering` in a process of its own.

    Raises:
        LocalspecError: the defaults cannot be loaded or do not answer.
    """
    if open_side is None:

        def open_side(settings: Mapping[str, Any], say: Progress) -> Side:
            return Apart(Answering, target, draft, settings, progress=say)

    both = 2 if _fit_twice(target, draft) else 1
    tuner = _Tuner(dict(base), plan or TunePlan(), open_side, both, progress, report or TuneReport())
    return tuner.run(search, check)


class _Tuner:
    def __init__(
        self,
        base: dict[str, Any],
        plan: TunePlan,
        open_side: OpenSide,
        most_open: int,
        progress: Progress | None,
        report: TuneReport,
    ) -> None:
        self._base, self._plan, self._open_side, self._report = base, plan, open_side, report
        self._progress, self._share = progress, 0.0
        self._end = time.monotonic() + 60.0 * plan.minutes
        self._open: dict[str, Side] = {}
        self._most_open = most_open

    def run(self, search: Sequence[Question], check: Sequence[Question]) -> TuneReport:
        report = self._report
        try:
            report.defaults = self._engine({}, ()).call("about")
            self._search(search)
            if report.settings:
                self._share = 0.9
                report.gain = self._compared(report.settings, {}, check, early=False)
        finally:
            for one in self._open.values():
                one.close()
        return report

    def _search(self, questions: Sequence[Question]) -> None:
        report, aspects = self._report, [aspect for aspect in ASPECTS if aspect in self._plan.aspects]
        for number, aspect in enumerate(aspects):
            found = challengers(aspect, self._base, self._running())
            for index, challenger in enumerate(found):
                if time.monotonic() > self._end:
                    return
                self._share = 0.9 * (number + index / len(found)) / len(aspects)
                trial = Trial(challenger)
                report.trials.append(trial)
                self._try(trial, questions)
        report.finished = True

    def _try(self, trial: Trial, questions: Sequence[Question]) -> None:
        report = self._report
        changed = {**report.settings, **trial.challenger.changes}
        self._say(f"trying {trial.challenger.words}")
        try:
            about = self._engine(changed, (report.settings,)).call("about")
        except LocalspecError as error:
            trial.why = str(error)
            return
        if report.defaults["exact"] and not about["exact"]:
            trial.why = "not exact here, which the defaults are"
            return
        if (
            trial.challenger.aspect in ("kernels", "cache")
            and about["configuration"] == self._running()["configuration"]
        ):
            trial.why = "what runs already"
            return
        trial.gain = self._compared(changed, report.settings, questions, early=True)
        if trial.gain.over and trial.gain.low > 1.0 + self._plan.margin:
            report.settings, trial.taken = changed, True
        else:
            trial.why = "slower" if trial.gain.over and trial.gain.high < 1.0 else "no gain beyond noise"

    def _running(self) -> dict[str, Any]:
        about: dict[str, Any] = self._engine(self._report.settings, ()).call("about")
        return about

    def _compared(
        self, one: Mapping[str, Any], other: Mapping[str, Any], questions: Sequence[Question], *, early: bool
    ) -> Ratio:
        """How much faster `one` is, in pairs of answers; whose turn is first changes from pair to pair."""
        times: dict[str, list[list[float]]] = {_name(side): [[] for _ in questions] for side in (one, other)}
        block = 1 if self._most_open > 1 else len(questions)
        found: Ratio | None = None
        for turn in range(self._plan.rounds):
            for start in range(0, len(questions), block):
                sides = (one, other) if (turn + start) % 2 == 0 else (other, one)
                for side in sides:
                    engine = self._engine(side, sides)
                    if turn == 0 and start == 0:
                        engine.call("answer", questions[0])  # the first answer pays for graphs and what is learned
                    for index in range(start, min(start + block, len(questions))):
                        timing = engine.call("answer", questions[index])
                        times[_name(side)][index].append(timing.seconds_per_token)
                self._say(f"round {turn + 1} of {self._plan.rounds}")
            first, second = times[_name(one)], times[_name(other)]
            found = ratio([list(zip(b, a, strict=True)) for a, b in zip(first, second, strict=True)])
            assert found is not None
            if early and turn + 1 >= _ROUNDS_TO_LOSE and found.over == "rounds" and found.high < 1.0:
                break
        assert found is not None
        return found

    def _engine(self, settings: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> Side:
        """The engine with these settings; others than `wanted` are closed to make room."""
        name = _name(settings)
        if name not in self._open:
            keep = {_name(one) for one in wanted} | {name}
            for other in sorted(self._open, key=lambda known: known in keep):
                if other not in keep or len(self._open) >= self._most_open:
                    self._open.pop(other).close()
            self._open[name] = self._open_side({**self._base, **settings}, self._loading)
        return self._open[name]

    def _loading(self, what: str, share: float) -> None:
        self._say(what)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            last = self._report.trials[-1].challenger.words if self._report.trials else "defaults"
            self._progress(f"{'checking' if self._share >= 0.9 else last}: {what}", self._share)


def _name(settings: Mapping[str, Any]) -> str:
    return repr(sorted(settings.items()))


def _fit_twice(target: Path, draft: Path | None) -> bool:
    """Whether two engines fit into memory side by side, one of them comparing two copies of the target as it loads."""
    free, size = lib.available_bytes(), 0
    for path in (target, draft):
        if path is not None:
            size += sum(part.path.stat().st_size for part in read_parts(path))
    return free is None or 3.5 * size < free
