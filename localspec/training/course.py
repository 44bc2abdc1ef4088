"""From a target to its draft model: what it takes, then answers, training and measuring, and a page that shows how it
went. Each goes on where a killed run ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.filesize import decimal

from localspec import paths
from localspec.checks import gain
from localspec.checks import prompts as texts
from localspec.checks.gain import SIDES
from localspec.checks.prompts import MOST_HELD_OUT, Conversation
from localspec.drafters import cut
from localspec.drafters.cut import MOST_DRAFTED, Shape, Weights, cut_layers
from localspec.errors import LocalspecError, ModelError, UsageError, explained
from localspec.gguf import Header, read_header
from localspec.machine import Place, default_threads
from localspec.models.facts.pairing import TRAINED_FOR
from localspec.models.installed.installed import LOCK, NO_DRAFT, work_folder
from localspec.models.memory import fit
from localspec.paths import sha256_of
from localspec.processes import Claim
from localspec.training import answers

ANSWERS_SHARE = 1 / 3  # of the minutes, in which the target writes answers; the rest is for training and measuring
_LEAST_MINUTES = 1  # fewer do not pay for loading the target
_LOADING_SECONDS = 10.0  # of the engines that measure
_PART_GROWTH = 4 / 3  # tokens of the part for each that is chosen: with those that they are merged from
_ADAM_BYTES = 16  # bytes of a weight while it is trained: itself, its gradient, and Adam's two means, in 32 bits each
_STATE_COPIES = 16  # arrays of the hidden size that PyTorch keeps of a token in one layer, until its gradient is known
_FEED_COPIES = 5  # arrays of the feed-forward size, the same
_LOGIT_BYTES = 14  # bytes of one logit: in 16 and 32 bits, its softmax, and the gradients of these
_PROCESS_BYTES = 420e6  # of Python, PyTorch and llama.cpp without a model
_ENGINE_BYTES = 100e6  # of a process that only measures: Python and llama.cpp
_TOKENS_A_SECOND_A_PASS = 2.4  # how much faster `answers.SLOTS` answers come at once than one: SmolLM2 on two cores


@dataclass(frozen=True, slots=True)
class Measuring:
    after: float  # share of training; 1.0 = at its end
    prompts: int
    tokens: int
    seconds: float  # of loading and answering; no prompt is asked after them


LAST_TOKENS = 128  # of an answer, when it is measured at the end
_MEASURED = (
    (0.4, gain.LEAST_PROMPTS, 48, 0.03),
    (0.7, gain.LEAST_PROMPTS, 48, 0.03),
    (1.0, MOST_HELD_OUT, LAST_TOKENS, 0.1),
)
"""When it is measured: `after`, `prompts` and `tokens` of `Measuring`, and the most of the minutes for it. Only the
last one takes more if it has to."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    minutes: float
    parameters: int
    memory_bytes: int  # at its peak
    disk_bytes: int  # at its peak: answers, two checkpoints while one replaces the other, and the result
    result_bytes: int
    tokens: int  # of answers, by estimate
    measuring: tuple[Measuring, ...]

    @property
    def training_seconds(self) -> float:
        """If answers take theirs."""
        return 60.0 * self.minutes - self.answer_seconds - sum(one.seconds for one in self.measuring)

    @property
    def answer_seconds(self) -> float:
        return 60.0 * self.minutes * ANSWERS_SHARE

    def lines(self) -> list[str]:
        rest = self.minutes * (1 - ANSWERS_SHARE)
        return [
            f"{self.minutes * ANSWERS_SHARE:.0f} minutes of answers (about {self.tokens:,} tokens), "
            f"{rest:.0f} of training {self.parameters / 1e6:.1f} M weights and of measuring them",
            f"memory {decimal(self.memory_bytes)}, disk {decimal(self.disk_bytes)}; the draft model has "
            f"{decimal(self.result_bytes)}, the rest stays until `localspec rm` for going on",
        ]


def plan(
    header: Header, shape: Shape, layers: int, minutes: float, pass_seconds: float, places: Sequence[Place]
) -> TrainingPlan:
    """What training a draft model of so many layers takes; `pass_seconds` are of a plain pass of the target. The CPU is
    the first of `places`; the memory of the GPUs after it is not planned."""

    def seconds(prompts: int, tokens: int) -> float:
        return _LOADING_SECONDS + gain.tokens(prompts, tokens) * pass_seconds

    needed = max(_LEAST_MINUTES, math.ceil(2 * seconds(gain.LEAST_PROMPTS, LAST_TOKENS) / 60.0))
    if not needed <= minutes < math.inf:  # NaN, too
        raise UsageError(f"--minutes is {minutes:g}; for this target it must be {needed} or more.")
    measuring = list[Measuring]()
    for after, prompts, longest, share in _MEASURED:
        least, most = seconds(gain.LEAST_PROMPTS, longest), share * 60.0 * minutes
        if after == 1.0 or least <= most:
            spent = max(least, min(seconds(prompts, longest), most))
            measuring.append(Measuring(after, prompts, longest, spent))
    part = min(shape.vocabulary, int(MOST_DRAFTED * _PART_GROWTH))
    parameters = layers * shape.layer_parameters + part * shape.hidden
    engine = fit.plan([header], None, fit.FitSettings(context=answers.CONTEXT, slots=answers.SLOTS), places)
    side = fit.plan([header], None, fit.FitSettings(context=gain.CONTEXT), places)
    tokens = int(60.0 * minutes * ANSWERS_SHARE * _TOKENS_A_SECOND_A_PASS / pass_seconds)
    rows = tokens / answers.MOST_TOKENS
    read, guessed = answers.BATCH * answers.LONGEST, answers.BATCH * answers.MOST_TOKENS
    kept = layers * (_STATE_COPIES * shape.hidden + _FEED_COPIES * shape.feed_forward) * 4
    examples = int(tokens * answers.TOP * 12 + rows * answers.LONGEST * 8)
    training = (
        _ADAM_BYTES * parameters + 4 * part * shape.hidden + read * kept + guessed * part * _LOGIT_BYTES + examples
    )
    engines = training + gain.ENGINES * (int(_ENGINE_BYTES) + side.needed(places[0].name))
    piece = tokens * (answers.TOP * 6 + 8)
    result = int(1.07 * (parameters + part * shape.hidden))
    memory = int(_PROCESS_BYTES) + max(engine.needed(places[0].name), engines)
    return TrainingPlan(
        minutes, parameters, memory, piece + 2 * 12 * parameters + 2 * result, result, tokens, tuple(measuring)
    )


def check_free(found: TrainingPlan, free_memory: int, free_disk: int, there: int = 0) -> None:
    """Whether the machine has what it takes, in bytes; 0 = unknown, and `there` is what an earlier run wrote."""
    for what, needed, free, hint in (
        ("memory", found.memory_bytes, free_memory, "A smaller target, fewer --layers or fewer --minutes take less."),
        ("disk", found.disk_bytes - there, free_disk, "Free some, or give fewer --minutes: answers are most of it."),
    ):
        if free and needed > free:
            raise ModelError(f"Training takes {decimal(needed)} of {what}, and {decimal(free)} are free.", hint)


_WIDTH, _HEIGHT, _MARGIN = 640, 220, 44
_COLUMNS = ("minutes", "tokens a pass", "plain", "before", "with it", "texts equal")
_STYLE = """
:root { --text: #1c2024; --line: #d5d9dd; --own: #2f6fdb; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ea; --line: #3a4046; --own: #7aa7ff; --back: #16191c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 46em;
  margin: 2em auto; padding: 0 1em; }
svg { width: 100%; } text { fill: var(--text); font-size: 12px; } .axis { stroke: var(--line); }
.line { fill: none; stroke: var(--own); stroke-width: 2; } table { border-collapse: collapse; }
td, th { padding: .2em .8em .2em 0; text-align: right; }
"""


def page(name: str, losses: Sequence[tuple[float, float]], measured: Sequence[dict[str, Any]]) -> str:
    """HTML of a draft model: losses are (seconds of training, loss), and `measured` is that of `State`."""
    rows = ""
    for one in measured:
        speeds = (f"{one['speeds'][side]:.0f}" for side in SIDES)
        equal = f"{one['equal']} of {one['prompts']}"
        cells = (f"{one['seconds'] / 60:.0f}", f"{one['tokens_a_pass']:.2f}", *speeds, equal)
        rows += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    head = "".join(f"<th>{word}</th>" for word in _COLUMNS)
    points = [(seconds / 60.0, loss) for seconds, loss in losses if math.isfinite(loss)]
    chart = "<p>Too few steps for a line.</p>"
    if len(points) > 1:
        low, high = min(loss for _, loss in points), max(loss for _, loss in points)
        last, bottom = points[-1][0], _HEIGHT - _MARGIN
        wide, tall = (_WIDTH - 2 * _MARGIN) / last, (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
        line = " ".join(f"{_MARGIN + wide * x:.1f},{_MARGIN + tall * (high - y):.1f}" for x, y in points)
        chart = (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss over minutes">'
            f'<path class="axis" d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none"/>'
            f'<polyline class="line" points="{line}"/>'
            f'<text x="4" y="{_MARGIN + 4}">{high:.2f}</text><text x="4" y="{bottom}">{low:.2f}</text>'
            f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 18}" text-anchor="end">{last:.0f} minutes</text></svg>'
        )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(name)}</h1><h2>Loss</h2>{chart}"
        f"<h2>Measured on held-out prompts, tokens a second</h2><table><tr>{head}</tr>{rows}</table></html>\n"
    )


_LEAST_SHARE = 0.2  # of the minutes, in which it trains however long answers took
PROMPTS = "prompts.json"


class Reports(NamedTuple):
    phase: Callable[..., None]  # (phase, share done, detail): "answers", "training" or "measuring"; may raise to stop
    fact: Callable[[str], None]


@dataclass(slots=True)
class State:
    target: str  # sha256 of the target's file
    prompts: str  # sha256 of all prompts
    layers: int
    minutes: float = 0.0  # asked for by the last run
    answer_seconds: float = 0.0
    chosen: int = 0  # answers by which the tokens that are drafted were chosen, when training began
    measured: list[dict[str, Any]] = field(default_factory=list)  # {"seconds": of training, ...}: `DraftGain.as_dict`

    @classmethod
    def read(cls, file: Path) -> State | None:
        """What is there; None if nothing is, or nothing that can be read."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        with explained(f"{file} cannot be written"):
            paths.write_whole(file, json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True, slots=True)
class Course:
    target: Path
    name: str
    texts: str
    learned: Sequence[Conversation]
    held_out: Sequence[Conversation]
    shape: Shape
    plan: TrainingPlan
    layers: int
    before: Path | None

    @property
    def folder(self) -> Path:
        return work_folder(self.name)

    @property
    def result(self) -> Path:
        return self.folder / f"{self.name}.gguf"

    @property
    def chart(self) -> Path:
        return self.folder / f"{self.name}.html"

    def run(self, tell: Reports, fresh: bool = False) -> gain.DraftGain:
        """Does what is left to do, or all anew; a folder of another target or other texts is a UsageError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            claim = Claim(self.folder / LOCK)
        except TimeoutError:
            raise UsageError(f"{self.name} is being trained by another process.", "Wait for it, or end it.") from None
        except OSError as error:
            raise LocalspecError(f"{self.folder} cannot be written: {error.strerror}.") from None
        try:
            for file in self.folder.iterdir():  # what killed runs left half written, or all that earlier runs did
                if file.name != LOCK and (fresh or file.name.startswith(".") or file.suffix == ".new"):
                    file.unlink()
            state = self._state()
            self._answer(state, tell)
            header, found = read_header(self.target), list(answers.read(self.folder))
            if not found:
                raise LocalspecError(f"{self.target.name} answered none of the prompts.")
            return self._train(state, header, found, tell)
        finally:
            claim.release()

    @property
    def _file(self) -> Path:
        return self.folder / "course.json"

    def _state(self) -> State:
        told = json.dumps([[[one.role, one.content] for one in prompt] for prompt in (*self.learned, *self.held_out)])
        wanted = State(sha256_of(self.target), sha256(told.encode("utf-8", "replace")).hexdigest(), self.layers)
        state = State.read(self._file) or wanted
        for name, words in (("target", "another target"), ("prompts", "other texts"), ("layers", "other --layers")):
            if getattr(state, name) != getattr(wanted, name):
                text = f"{self.name} is being trained with {words}."
                raise UsageError(text, "Give another --out, or --fresh to begin anew.")
        if self.plan.minutes < state.minutes:
            text = f"--minutes is {self.plan.minutes:g}; {self.name} was begun with {state.minutes:g}."
            raise UsageError(text, "Give as many or more, which go on with it, or --fresh to begin anew.")
        state.minutes = self.plan.minutes
        state.write(self._file)
        file = self.folder / PROMPTS
        with explained(f"{file} cannot be written"):
            texts.write(file, self.texts, self.learned, self.held_out)
        return state

    def _answer(self, state: State, tell: Reports) -> None:
        from localspec.runtime.engine import Engine

        left = self.plan.answer_seconds - state.answer_seconds
        if left <= 0:
            return
        spent = state.answer_seconds

        def progress(tokens: int, seconds: float) -> None:
            rate = tokens / seconds if seconds else 0.0
            share = (spent + seconds) / self.plan.answer_seconds
            tell.phase("answers", share, f"{tokens:,} tokens, {rate:.0f} a second")

        def kept(seconds: float) -> None:
            state.answer_seconds = spent + seconds
            state.write(self._file)

        tell.phase("answers", spent / self.plan.answer_seconds, "loading the target")
        drafts = self.before or NO_DRAFT
        with Engine.load(self.target, drafts, slots=answers.SLOTS, context=answers.CONTEXT) as engine:
            answers.write(engine, self.learned, self.folder, left, progress, kept)

    def _train(
        self, state: State, header: Header, found: Sequence[answers.TeacherAnswer], tell: Reports
    ) -> gain.DraftGain:
        import torch

        from localspec.training import learning

        torch.set_num_threads(default_threads())
        torch.manual_seed(1)
        state.chosen = state.chosen or len(found)
        state.write(self._file)
        kept = cut.choose(header, learning.weight_of(found[: state.chosen], self.shape.vocabulary))
        examples = [one for answer in found if (one := learning.example(answer, kept)) is not None]
        tokens = sum(len(one.tokens) - one.prompt for one in found)
        tell.fact(f"{len(found):,} answers, {tokens:,} tokens; {len(kept.ids):,} of the target's tokens are drafted")
        model = learning.StudentModel(self.shape, Weights(header), kept, cut_layers(self.shape.layers, self.layers))
        late = state.answer_seconds - self.plan.answer_seconds
        seconds = max(self.plan.training_seconds - late, _LEAST_SHARE * 60.0 * self.plan.minutes)
        training = learning.Training(
            model.to(learning.best_device()), examples, self.folder / "checkpoint.pt", max(seconds, 1.0)
        )
        facts: dict[str, str | int] = {TRAINED_FOR: state.target, cut.TEXTS: self.texts, cut.TOKENS: tokens}

        def stepped(progress: learning.TrainingProgress) -> None:
            share = progress.seconds / seconds
            tell.phase("training", share, f"step {progress.step:,}, loss {progress.loss:.3f}")

        for measuring in self.plan.measuring:
            last = measuring.after == 1.0
            if training.progress.seconds >= measuring.after * seconds and not last:
                continue
            training.run(measuring.after * seconds, stepped)
            cut.export(self.result, header, kept, *model.arrays(), name=self.name, facts=facts)
            asked = self.held_out[: measuring.prompts]
            result = gain.measure(
                self.target, self.result, self.before, asked, measuring.tokens, tell.phase, measuring.seconds
            )
            state.measured.append({"seconds": training.progress.seconds, **result.as_dict()})
            state.write(self._file)
            with explained(f"{self.chart} cannot be written"):
                paths.write_whole(self.chart, page(self.name, training.progress.losses, state.measured))
            if not last:
                tell.fact(f"after {training.progress.seconds / 60:.0f} minutes of training: {result.words}")
        return result
