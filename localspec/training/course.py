"""From a target to its draft model: answers, training, measuring; each goes on where a killed run ended.

A page that shows how training went: the loss, and what measuring found. One file, without a script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from localspec import paths
from localspec.checks import gain
from localspec.checks import prompts as texts
from localspec.checks.gain import SIDES
from localspec.checks.prompts import Conversation
from localspec.claim import Claim
from localspec.drafters import cut
from localspec.drafters.cut import Shape, Weights, cut_layers
from localspec.errors import LocalspecError, UsageError
from localspec.gguf import Header, read_header
from localspec.machine import default_threads
from localspec.models.facts.pairing import TRAINED_FOR
from localspec.models.installed.adopt import LOCK, work_folder
from localspec.models.installed.installed import NO_DRAFT
from localspec.paths import sha256_of
from localspec.training import answers
from localspec.training.plan import Plan

if TYPE_CHECKING:
    from localspec.training.learning import Training


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
    """HTML.

    Args:
        name: of the draft model.
        losses: (seconds of training, loss).
        measured: see `course.State`.
    """
    rows = "".join(_row(one) for one in measured)
    head = "".join(f"<th>{word}</th>" for word in _COLUMNS)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title><style>{_STYLE}</style>'
        f"<h1>{escape(name)}</h1><h2>Loss</h2>{_chart(losses)}"
        f"<h2>Measured on held-out prompts, tokens a second</h2><table><tr>{head}</tr>{rows}</table></html>\n"
    )


def _row(one: dict[str, Any]) -> str:
    speeds = one["speeds"]
    cells: Iterable[str] = (
        f"{one['seconds'] / 60:.0f}",
        f"{one['tokens_a_pass']:.2f}",
        *(f"{speeds[side]:.0f}" for side in SIDES),
        f"{one['equal']} of {one['prompts']}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _chart(losses: Sequence[tuple[float, float]]) -> str:
    """The loss as a line over minutes."""
    points = [(seconds / 60.0, loss) for seconds, loss in losses if math.isfinite(loss)]
    if len(points) < 2:
        return "<p>Too few steps for a line.</p>"
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    last, span = points[-1][0], (high - low) or 1.0

    def at(minutes: float, loss: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * minutes / last
        return f"{x:.1f},{_MARGIN + (_HEIGHT - 2 * _MARGIN) * (high - loss) / span:.1f}"

    line, bottom = " ".join(at(*point) for point in points), _HEIGHT - _MARGIN
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="loss over minutes">'
        f'<path class="axis" d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none"/>'
        f'<polyline class="line" points="{line}"/>'
        f'<text x="4" y="{_MARGIN + 4}">{high:.2f}</text><text x="4" y="{bottom}">{low:.2f}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 18}" text-anchor="end">{last:.0f} minutes</text></svg>'
    )


_LEAST_SHARE = 0.2
"""Of the minutes, in which it trains however long answers took."""
PROMPTS = "prompts.json"
"""The file of what the target is asked."""


class Teller(Protocol):
    """Hears what a course says while it runs."""

    def phase(self, what: str, share: float, detail: str = "") -> None:
        """How far a phase is: "answers", "training", "measuring"; may raise to stop."""
        ...

    def fact(self, sentence: str) -> None:
        """One sentence that stays."""
        ...


@dataclass(slots=True)
class State:
    """What a course has done, as `course.json` keeps it."""

    target: str
    """sha256 of the target's file."""
    prompts: str
    """sha256 of all prompts."""
    layers: int
    minutes: float = 0.0
    """Asked for by the last run."""
    answer_seconds: float = 0.0
    """Spent on answers, over all runs."""
    chosen: int = 0
    """Answers by which the tokens that are drafted were chosen, when training began."""
    measured: list[dict[str, Any]] = field(default_factory=list)
    """[{"seconds": of training, ...}]: see `gain.Measured.as_dict`."""

    @classmethod
    def read(cls, file: Path) -> State | None:
        """What is there; None if nothing is, or nothing that can be read."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, file: Path) -> None:
        """Whole or not at all.

        Raises:
            LocalspecError: the disk is full or read-only.
        """
        try:
            paths.write_whole(file, json.dumps(asdict(self)) + "\n")
        except OSError as error:
            raise LocalspecError(f"{file} cannot be written: {error.strerror}.") from None


@dataclass(frozen=True, slots=True)
class Course:
    """One draft model in the making."""

    target: Path
    name: str
    """Of the draft model."""
    texts: str
    """What it learns from, in words."""
    learned: Sequence[Conversation]
    held_out: Sequence[Conversation]
    shape: Shape
    plan: Plan
    layers: int
    before: Path | None
    """What drafted for the target before."""

    @property
    def folder(self) -> Path:
        """Of answers, checkpoint and result."""
        return work_folder(self.name)

    @property
    def result(self) -> Path:
        """The trained file."""
        return self.folder / f"{self.name}.gguf"

    @property
    def chart(self) -> Path:
        """A page that shows how training went."""
        return self.folder / f"{self.name}.html"

    def run(self, tell: Teller, fresh: bool = False) -> gain.Measured:
        """Does what is left to do.

        Args:
            tell: hears how far it is.
            fresh: begin anew, without what earlier runs did.

        Raises:
            UsageError: the folder holds a course of another target or other texts.
            LocalspecError: the disk is full, or a model does not answer.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            claim = Claim(self.folder / LOCK)
        except TimeoutError:
            raise UsageError(f"{self.name} is being trained by another process.", "Wait for it, or end it.") from None
        except OSError as error:
            raise LocalspecError(f"{self.folder} cannot be written: {error.strerror}.") from None
        try:
            self._clear(fresh)
            return self._go_on(tell)
        finally:
            claim.release()

    def _go_on(self, tell: Teller) -> gain.Measured:
        state = self._state()
        self._answer(state, tell)
        header, found = read_header(self.target), list(answers.read(self.folder))
        if not found:
            raise LocalspecError(f"{self.target.name} answered none of the prompts.")
        return self._train(state, header, found, tell)

    def _clear(self, fresh: bool) -> None:
        """Removes what killed runs left half written, or all that earlier runs did."""
        for file in self.folder.iterdir():
            if file.name != LOCK and (fresh or file.name.startswith(".") or file.suffix == ".new"):
                file.unlink()

    @property
    def _file(self) -> Path:
        return self.folder / "course.json"

    def _state(self) -> State:
        told = json.dumps([[[one.role, one.content] for one in prompt] for prompt in (*self.learned, *self.held_out)])
        wanted = State(sha256_of(self.target), sha256(told.encode("utf-8", "replace")).hexdigest(), self.layers)
        state = State.read(self._file) or wanted
        for name, words in (("target", "another target"), ("prompts", "other texts"), ("layers", "other --layers")):
            if getattr(state, name) != getattr(wanted, name):
                raise UsageError(
                    f"{self.name} is being trained with {words}.", "Give another --out, or --fresh to begin anew."
                )
        if self.plan.minutes < state.minutes:
            raise UsageError(
                f"--minutes is {self.plan.minutes:g}; {self.name} was begun with {state.minutes:g}.",
                "Give as many or more, which go on with it, or --fresh to begin anew.",
            )
        state.minutes = self.plan.minutes
        state.write(self._file)
        try:
            texts.write(self.folder / PROMPTS, self.texts, self.learned, self.held_out)
        except OSError as error:
            raise LocalspecError(f"{self.folder / PROMPTS} cannot be written: {error.strerror}.") from None
        return state

    def _answer(self, state: State, tell: Teller) -> None:
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

    def _train(self, state: State, header: Header, found: Sequence[answers.Answer], tell: Teller) -> gain.Measured:
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
        model = learning.DraftModel(self.shape, Weights(header), kept, cut_layers(self.shape.layers, self.layers))
        late = state.answer_seconds - self.plan.answer_seconds
        seconds = max(self.plan.training_seconds - late, _LEAST_SHARE * 60.0 * self.plan.minutes)
        training = learning.Training(
            model.to(learning.best_device()), examples, self.folder / "checkpoint.pt", max(seconds, 1.0)
        )
        facts: dict[str, str | int] = {TRAINED_FOR: state.target, cut.TEXTS: self.texts, cut.TOKENS: tokens}

        def written() -> None:
            cut.export(self.result, header, kept, *model.arrays(), name=self.name, facts=facts)

        for measuring in self.plan.measuring:
            last = measuring.after == 1.0
            if training.progress.seconds >= measuring.after * seconds and not last:
                continue
            self._learn(training, measuring.after * seconds, seconds, tell)
            written()
            asked = self.held_out[: measuring.prompts]
            result = gain.measure(
                self.target, self.result, self.before, asked, measuring.tokens, tell.phase, measuring.seconds
            )
            state.measured.append({"seconds": training.progress.seconds, **result.as_dict()})
            state.write(self._file)
            self._draw(training, state)
            if not last:
                tell.fact(f"after {training.progress.seconds / 60:.0f} minutes of training: {result.words}")
        return result

    @staticmethod
    def _learn(training: Training, until: float, whole: float, tell: Teller) -> None:
        def told(progress: Any) -> None:
            tell.phase("training", progress.seconds / whole, f"step {progress.step:,}, loss {progress.loss:.3f}")

        training.run(until, told)

    def _draw(self, training: Training, state: State) -> None:

        try:
            paths.write_whole(self.chart, page(self.name, training.progress.losses, state.measured))
        except OSError as error:
            raise LocalspecError(f"{self.chart} cannot be written: {error.strerror}.") from None
