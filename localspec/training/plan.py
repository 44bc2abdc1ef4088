"""What training takes, before it starts: memory, disk and minutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.filesize import decimal

from localspec.checks import gain
from localspec.checks.prompts import MOST_HELD_OUT
from localspec.drafters.cut import MOST_DRAFTED, Shape
from localspec.errors import ModelError, UsageError
from localspec.gguf import Header
from localspec.machine import Place
from localspec.models.memory import fit
from localspec.training import answers

ANSWERS_SHARE = 1 / 3
"""Of the minutes, in which the target writes answers; the rest is for training and measuring."""
_LEAST_MINUTES = 1
"""Fewer do not pay for loading the target."""
_LOADING_SECONDS = 10.0
"""Of the engines that measure."""
BATCH = 8
"""Answers of a step."""
LONGEST = 384
"""Tokens of an answer that are read, with the end of its prompt."""
_PART_GROWTH = 4 / 3
"""Tokens of the part for each that is chosen: with those that they are merged from."""
_ADAM_BYTES = 16
"""Bytes of a weight while it is trained: itself, its gradient, and Adam's two means, in 32 bits each."""
_STATE_COPIES = 16
"""Arrays of the hidden size that PyTorch keeps of a token in one layer, until its gradient is known."""
_FEED_COPIES = 5
"""Arrays of the feed-forward size, the same."""
_LOGIT_BYTES = 14
"""Bytes of one logit: in 16 and 32 bits, its softmax, and the gradients of these."""
_PROCESS_BYTES = 420e6
"""Of Python, PyTorch and llama.cpp without a model."""
_ENGINE_BYTES = 100e6
"""Of a process that only measures: Python and llama.cpp."""
_TOKENS_A_SECOND_A_PASS = 2.4
"""How much faster `answers.SLOTS` answers are written at once than one, measured on SmolLM2 on two cores."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """One time at which the draft model is measured."""

    after: float
    """Share of training; 1.0 = at its end."""
    prompts: int
    """Held-out ones, at most."""
    tokens: int
    """Of an answer."""
    seconds: float
    """Of loading and answering; no prompt is asked after them."""


LAST_TOKENS = 128
"""Of an answer, when it is measured at the end."""
_MEASURED = (
    (0.4, gain.LEAST_PROMPTS, 48, 0.03),
    (0.7, gain.LEAST_PROMPTS, 48, 0.03),
    (1.0, MOST_HELD_OUT, LAST_TOKENS, 0.1),
)
"""When it is measured: `after`, `prompts` and `tokens` of `Measuring`, and the most of the minutes for it. Only the
last one takes more if it has to."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What training takes."""

    minutes: float
    parameters: int
    """Weights that are trained."""
    memory_bytes: int
    """At its peak."""
    disk_bytes: int
    """At its peak: answers, two checkpoints while one replaces the other, and the result."""
    result_bytes: int
    tokens: int
    """Of answers, by estimate."""
    measuring: tuple[Measuring, ...]

    @property
    def training_seconds(self) -> float:
        """Seconds of training, if answers take theirs."""
        return 60.0 * self.minutes - self.answer_seconds - sum(one.seconds for one in self.measuring)

    @property
    def answer_seconds(self) -> float:
        """Seconds of writing answers."""
        return 60.0 * self.minutes * ANSWERS_SHARE

    def lines(self) -> list[str]:
        """For people."""
        rest = self.minutes * (1 - ANSWERS_SHARE)
        return [
            f"{self.minutes * ANSWERS_SHARE:.0f} minutes of answers (about {self.tokens:,} tokens), "
            f"{rest:.0f} of training {self.parameters / 1e6:.1f} M weights and of measuring them",
            f"memory {decimal(self.memory_bytes)}, disk {decimal(self.disk_bytes)}; the draft model has "
            f"{decimal(self.result_bytes)}, the rest stays until `localspec rm` for going on",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def plan(
    header: Header, shape: Shape, layers: int, minutes: float, pass_seconds: float, places: Sequence[Place]
) -> Plan:
    """What training a draft model of so many layers takes.

    Args:
        header, shape: of the target.
        layers: of the draft model.
        minutes: in all.
        pass_seconds: of a plain pass of the target.
        places: the CPU first, then the GPUs, whose memory is not planned.
    """
    measuring = _measuring(minutes, pass_seconds)
    part = min(shape.vocabulary, int(MOST_DRAFTED * _PART_GROWTH))
    parameters = layers * shape.layer_parameters + part * shape.hidden
    engine = fit.plan([header], None, fit.FitSettings(context=answers.CONTEXT, slots=answers.SLOTS), places)
    side = fit.plan([header], None, fit.FitSettings(context=gain.CONTEXT), places)
    tokens = int(60.0 * minutes * ANSWERS_SHARE * _TOKENS_A_SECOND_A_PASS / pass_seconds)
    rows = tokens / answers.MOST_TOKENS
    read, guessed = BATCH * LONGEST, BATCH * answers.MOST_TOKENS
    kept = layers * (_STATE_COPIES * shape.hidden + _FEED_COPIES * shape.feed_forward) * 4
    examples = int(tokens * answers.TOP * 12 + rows * LONGEST * 8)
    training = (
        _ADAM_BYTES * parameters + 4 * part * shape.hidden + read * kept + guessed * part * _LOGIT_BYTES + examples
    )
    engines = training + gain.ENGINES * (int(_ENGINE_BYTES) + side.needed(places[0].name))
    piece = tokens * (answers.TOP * 6 + 8)
    result = int(1.07 * (parameters + part * shape.hidden))
    memory = int(_PROCESS_BYTES) + max(engine.needed(places[0].name), engines)
    return Plan(minutes, parameters, memory, piece + 2 * 12 * parameters + 2 * result, result, tokens, measuring)


def _measuring(minutes: float, pass_seconds: float) -> tuple[Measuring, ...]:
    def seconds(prompts: int, tokens: int) -> float:
        return _LOADING_SECONDS + gain.tokens(prompts, tokens) * pass_seconds

    needed = max(_LEAST_MINUTES, math.ceil(2 * seconds(gain.LEAST_PROMPTS, LAST_TOKENS) / 60.0))
    if not needed <= minutes < math.inf:  # NaN, too
        raise UsageError(f"--minutes is {minutes:g}; for this target it must be {needed} or more.")
    found = []
    for after, prompts, tokens, share in _MEASURED:
        least, most = seconds(gain.LEAST_PROMPTS, tokens), share * 60.0 * minutes
        if after == 1.0 or least <= most:
            found.append(Measuring(after, prompts, tokens, max(least, min(seconds(prompts, tokens), most))))
    return tuple(found)


def check(found: Plan, free_memory: int, free_disk: int, there: int = 0) -> None:
    """Whether the machine has what it takes; 0 = unknown.

    Args:
        found: what it takes.
        free_memory, free_disk: bytes.
        there: bytes on the disk that an earlier run wrote.

    Raises:
        ModelError: there is too little memory or disk.
    """
    for what, needed, free in (
        ("memory", found.memory_bytes, free_memory),
        ("disk", found.disk_bytes - there, free_disk),
    ):
        if free and needed > free:
            raise ModelError(
                f"Training takes {decimal(needed)} of {what}, and {decimal(free)} are free.",
                "A smaller target, fewer --layers or fewer --minutes take less."
                if what == "memory"
                else "Free some, or give fewer --minutes: answers are most of it.",
            )
