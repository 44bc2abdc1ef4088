"""What a draft model brings, and which settings are fastest for a pair, a machine and a workload: measured through the
real engine, in turns, and kept only if sure.

Of settings, every aspect (threads, kernels, cache, n-grams, draft length) is searched in turn, starting from the best
so far: the best so far and a challenger answer the same prompts, taking turns, in processes of their own; a challenger
that is surely faster becomes the best so far. The best of many is partly luck, so the settings found are measured once
more against the defaults, on prompts that were not searched with, and that is the figure reported. If its interval does
not lie above 1, the defaults stay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec.chat.turn import Message
from localspec.checks import ASPECTS, compare
from localspec.checks.compare import Answering, Apart, Heat, Loading, Ratio, Side, Task
from localspec.checks.prompts import BenchPrompt
from localspec.errors import LocalspecError
from localspec.gguf import read_parts
from localspec.llama.exact import wide
from localspec.machine import allowed, available_bytes, default_threads
from localspec.models.installed.installed import NO_DRAFT
from localspec.options import Options
from localspec.types import SamplingParams

CHAIN = 6  # guesses of a draft whose tokens a pass are told; the plan chooses shorter ones where these do not pay
SIDES = ("plain", "before", "after")
"""Without drafting; with what drafted before; with the trained draft model as well. Defaults in all else."""
CONTEXT = 2048  # tokens of each engine's context
_CHAINS = "chains"  # a further side, which is not timed: what the trained draft model guesses, whether it pays or not
ENGINES = 2  # that are loaded at once: two sides share one
LEAST_PROMPTS = 4  # Held-out prompts that are asked, whatever time it takes
_WARM_UP = 2  # questions that are asked first and not counted: until then no side knows what its passes cost

_GREEDY = SamplingParams(temperature=0.0)


def tokens(prompts: int, longest: int) -> int:
    """Tokens of all sides at most, chains included, for so many prompts that count, in answers of `longest` tokens."""
    return (prompts + _WARM_UP) * (len(SIDES) + 1) * longest


@dataclass(frozen=True, slots=True)
class DraftGain:
    tokens_a_pass: float  # of chains of `CHAIN` guesses at temperature 0, whether they pay or not
    speeds: dict[str, float]
    gain: Ratio | None  # speed with the draft model over what there was before it
    equal: int  # prompts whose texts were the same on all sides
    prompts: int

    @property
    def worth_it(self) -> bool:
        """Whether it is surely faster than what there was before."""
        return self.gain is not None and self.gain.low > 1.0

    @property
    def ratios(self) -> tuple[float, float]:
        """Speeds over plain decoding: before, and with the draft model."""
        return self.speeds["before"] / self.speeds["plain"], self.speeds["after"] / self.speeds["plain"]

    @property
    def words(self) -> str:
        before, after = self.ratios
        return f"{after:.2f}x plain decoding, {before:.2f}x before, {self.tokens_a_pass:.2f} tokens a pass"

    @property
    def sentence(self) -> str:
        before, after = self.ratios
        figures = f"answers ran at {self.words}"
        if self.worth_it:
            return f"Worth it: {figures}."
        why = "that is no more than chance" if after > before else "what drafted before is faster here"
        return f"Not worth it: {figures}; {why}."

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"gain": self.gain and [self.gain.value, self.gain.low, self.gain.high]}


def measure(
    target: Path,
    draft: Path,
    before: Path | None,
    prompts: Sequence[tuple[Message, ...]],
    max_tokens: int,
    progress: Callable[[str, float], None],
    seconds: float = math.inf,
) -> DraftGain:
    """Asks all sides in turns held-out prompts; `before` is the draft model that the target had before `draft`.

    After so many `seconds`, once there are `LEAST_PROMPTS` answers, no further prompt is asked. `progress` is called
    with (what is being done, share done) and may raise to stop. Errors of loading and answering are raised; that of a
    prompt, if none could be answered.
    """
    asked = []
    for number in range(-_WARM_UP, len(prompts)):  # at temperature 0 and at the default one, in turn
        sampling = _GREEDY if number % 2 == 0 else SamplingParams()
        options = Options(sampling=sampling, seed=abs(number), max_tokens=max_tokens, recall=False, remember=False)
        asked.append(Task(BenchPrompt(str(number), prompts[number % len(prompts)]), options))
    heats, refused, began = list[Heat](), None, time.perf_counter()
    with ExitStack() as stack:
        settings = {"context": CONTEXT}
        old = stack.enter_context(closing(Apart(Answering, target, before or NO_DRAFT, settings, progress=progress)))
        new = stack.enter_context(closing(Apart(Answering, target, draft, settings, progress=progress)))

        def tell(what: str, done: int, total: int) -> None:
            spent, most = time.perf_counter() - began, total * (LEAST_PROMPTS + _WARM_UP + 1) / len(asked)
            progress("measuring", max(done / total, min(spent / seconds, done / most)))

        def side(name: str, engine: Apart, **options: Any) -> Side:
            return Side(name, lambda turn: engine.call("answer", turn.having(**options)))

        sides = [
            side("plain", old, drafter="none"),
            side("before", old),
            side("after", new),
            side(_CHAINS, new, sampling=_GREEDY, drafter="draft", max_draft_tokens=CHAIN, forced=True),
        ]
        for heat in compare.compare(sides, asked, progress=tell):
            if heat.refused is not None:
                refused = heat.refused  # like the prompts that the target could not answer for training
            elif heat.number >= _WARM_UP:
                heats.append(heat)
            if len(heats) >= LEAST_PROMPTS and time.perf_counter() - began > seconds:
                break
    if not heats and refused is not None:
        raise refused
    runs = {side: [heat.runs[side] for heat in heats] for side in (*SIDES, _CHAINS)}
    counts = {side: sum(run.tokens for run in several) for side, several in runs.items()}
    texts = [{tuple(answer.text for answer in heat.runs[side].answers) for side in SIDES} for heat in heats]
    return DraftGain(
        counts[_CHAINS] / max(1, sum(answer.stats["passes"] for run in runs[_CHAINS] for answer in run.answers)),
        {side: counts[side] / sum(run.wall_seconds for run in runs[side]) for side in SIDES},
        compare.gain(heats, "after", "before", lambda run: run.wall_seconds),
        sum(len(same) == 1 for same in texts),
        len(heats),
    )


@dataclass(slots=True)
class Trial:
    """A challenger, and what became of it."""

    aspect: str
    words: str
    changes: dict[str, Any]
    gain: Ratio | None = None  # speed over the best before it, 1 = equal; None = it could not be measured
    taken: bool = False
    why: str = ""


def challengers(aspect: str, base: Mapping[str, Any], running: Mapping[str, Any]) -> list[Trial]:
    """What is to be tried of an aspect that `base` leaves open; `running` is `Answering.about` of the best so far."""
    found: list[dict[str, Any]] = []
    drafts = bool(running["drafts"])
    if aspect == "threads":
        usual = default_threads()
        found = [{"threads": count} for count in sorted({1, usual // 2, usual - 1, len(allowed())} - {0, usual})]
    elif aspect == "kernels" and base.get("gpu_layers") in (None, 0, "auto") and not running.get("gpu"):
        names = ["repacked", "plain"] if not base.get("wide", True) or not wide.available() else []
        names = names or ["wide", "repacked", "plain"]
        found = [{"kernels": name} for name in names if base.get("cache", "auto") in ("auto", "f16") or name != "wide"]
    elif aspect == "cache" and not running["wide"]:
        found = [{"cache": name} for name in ("f16", "bf16", "q8_0", "unfused")]
    elif aspect == "ngram" and drafts:
        found = [{"min_ngram": low, "max_ngram": high} for low, high in ((1, 4), (3, 6), (4, 10))]
    elif aspect == "length" and drafts and base.get("max_draft_tokens") is None and base.get("slots", 1) == 1:
        found = [{"draft_cap": length} for length in (3, 15)]
    return [
        Trial(aspect, ", ".join(f"{name} {value}" for name, value in changes.items()), changes)
        for changes in found
        if not set(changes) & set(base)
    ]


def questions(prompts: Sequence[BenchPrompt], temperature: float, max_tokens: int) -> list[Task]:
    return compare.tasks(
        [replace(prompt, messages=prompt.questions[0]) for prompt in prompts], (temperature,), max_tokens
    )


Open = Callable[[Mapping[str, Any], Loading], Any]  # makes an engine under some settings, as `Apart` has it
_ROUNDS_TO_LOSE = 2  # a challenger that is surely slower after so many rounds is not measured on


@dataclass(slots=True)
class TuneReport:
    trials: list[Trial] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the defaults; empty = the defaults are best, as far as can be told."""
    gain: Ratio | None = None
    """Speed over the defaults on other prompts; None = nothing was found, or it was not measured."""
    finished: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)  # what the defaults run with (`Answering.about`)

    @property
    def sure(self) -> bool:
        return bool(self.settings) and self.gain is not None and self.gain.over != "" and self.gain.low > 1.0


@dataclass(frozen=True, slots=True)
class TunePlan:
    aspects: tuple[str, ...] = ASPECTS
    rounds: int = 4  # times each prompt is answered by each side of a comparison
    minutes: float = 15.0  # when this time is used up, no further challenger is tried; the last check may take longer
    margin: float = 0.01  # what a challenger must be sure to gain, as a share: settings are not changed for nothing


def tune(
    target: Path,
    draft: Path | None,
    base: Mapping[str, Any],
    search: Sequence[Task],
    check: Sequence[Task],
    plan: TunePlan | None = None,
    progress: Loading | None = None,
    report: TuneReport | None = None,
    open_side: Open | None = None,
) -> TuneReport:
    """Asks `search` while it looks for faster settings, then `check` of what was found and of the defaults.

    `base` are fields of `EngineSettings` that are given and so not tuned. A `report` is filled in as results come, so
    that an interrupted run has some. `open_side` makes an engine; None = `Answering` in a process of its own.
    """
    open_side = open_side or (lambda settings, say: Apart(Answering, target, draft, settings, progress=say))
    parts = [part.path for path in (target, draft) if path is not None for part in read_parts(path)]
    free, size = available_bytes(), sum(part.stat().st_size for part in parts)
    both = free is None or 3.5 * size < free  # side by side, one of them comparing two copies of the target as it loads
    plan, report = plan or TunePlan(), report or TuneReport()
    end = time.monotonic() + 60.0 * plan.minutes
    tuner = _Tuner(base, plan, open_side, 2 if both else 1, progress, report, end)
    try:
        report.defaults = tuner.engine({}, ()).call("about")
        tuner.search(search)
        if report.settings:
            tuner.share = 0.9
            report.gain = tuner.compared(report.settings, {}, check, early=False)
    finally:
        for one in tuner.open.values():
            one.close()
    return report


@dataclass
class _Tuner:
    base: Mapping[str, Any]
    plan: TunePlan
    open_side: Open
    most_open: int
    progress: Loading | None
    report: TuneReport
    end: float
    share: float = 0.0
    open: dict[str, Any] = field(default_factory=dict)

    def search(self, questions: Sequence[Task]) -> None:
        report, aspects = self.report, [aspect for aspect in ASPECTS if aspect in self.plan.aspects]
        for number, aspect in enumerate(aspects):
            found = challengers(aspect, self.base, self.engine(report.settings, ()).call("about"))
            for index, trial in enumerate(found):
                if time.monotonic() > self.end:
                    return
                self.share = 0.9 * (number + index / len(found)) / len(aspects)
                report.trials.append(trial)
                self._try(trial, questions)
        report.finished = True

    def _try(self, trial: Trial, questions: Sequence[Task]) -> None:
        report = self.report
        changed = {**report.settings, **trial.changes}
        self._say(f"trying {trial.words}")
        try:
            about = self.engine(changed, (report.settings,)).call("about")
        except LocalspecError as error:
            trial.why = str(error)
            return
        if report.defaults["exact"] and not about["exact"]:
            trial.why = "not exact here, which the defaults are"
            return
        if trial.aspect in ("kernels", "cache"):
            before = self.engine(report.settings, (changed,)).call("about")["configuration"]
            if about["configuration"] == before:
                trial.why = "what runs already"
                return
        trial.gain = self.compared(changed, report.settings, questions, early=True)
        if trial.gain.over and trial.gain.low > 1.0 + self.plan.margin:
            report.settings, trial.taken = changed, True
        else:
            trial.why = "slower" if trial.gain.over and trial.gain.high < 1.0 else "no gain beyond noise"

    def compared(
        self, one: Mapping[str, Any], other: Mapping[str, Any], asked: Sequence[Task], *, early: bool
    ) -> Ratio:
        """How much faster `one` is: time of whole answers, their prompts included."""
        rounds, heats = self.plan.rounds, list[compare.Heat]()

        def side(settings: Mapping[str, Any]) -> Side:
            return Side(_name(settings), lambda turn: self.engine(settings, (one, other)).call("answer", turn))

        def say(what: str, done: int, total: int) -> None:
            self._say(f"round {1 + done * rounds // total} of {rounds}")

        def gain() -> Ratio:
            found = compare.gain(heats, _name(one), _name(other), lambda run: run.wall_seconds)
            assert found is not None
            return found

        block, warm = 1 if self.most_open > 1 else len(asked), asked[0].options.max_tokens or 0
        for heat in compare.compare([side(one), side(other)], asked, rounds, block=block, warm=warm, progress=say):
            if heat.refused is not None:
                raise heat.refused
            heats.append(heat)
            if early and heat.number + 1 == len(asked) and heat.round + 1 >= _ROUNDS_TO_LOSE and gain().high < 1.0:
                break
        return gain()

    def engine(self, settings: Mapping[str, Any], wanted: Sequence[Mapping[str, Any]]) -> Any:
        """The engine with these settings; others than `wanted` are closed to make room."""
        name = _name(settings)
        if name not in self.open:
            keep = {_name(one) for one in wanted} | {name}
            for other in sorted(self.open, key=lambda known: known in keep):
                if other not in keep or len(self.open) >= self.most_open:
                    self.open.pop(other).close()
            self.open[name] = self.open_side({**self.base, **settings}, lambda what, share: self._say(what))
        return self.open[name]

    def _say(self, what: str) -> None:
        if self.progress is not None:
            last = self.report.trials[-1].words if self.report.trials else "defaults"
            self.progress(f"{'checking' if self.share >= 0.9 else last}: {what}", self.share)


def _name(settings: Mapping[str, Any]) -> str:
    return repr(sorted(settings.items()))
