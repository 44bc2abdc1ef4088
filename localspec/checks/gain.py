"""What a draft model brings: held-out prompts through the real engine, with it and without it, in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec.chat.turn import Message
from localspec.checks.compare import Answering, Apart, Heat, Ratio, Run, Side, Task, compare
from localspec.checks.compare import gain as ratio
from localspec.checks.prompts import Prompt
from localspec.models.installed.installed import NO_DRAFT
from localspec.options import Options
from localspec.types import SamplingParams

CHAIN = 6
"""Guesses of a draft whose tokens a pass are told; the plan chooses shorter ones where these do not pay."""
SIDES = ("plain", "before", "after")
"""Without drafting; with what drafted before; with the trained draft model as well. Defaults in all else."""
CONTEXT = 2048
"""Tokens of each engine's context."""
_CHAINS = "chains"
"""A further side, which is not timed: what the trained draft model guesses, whether it pays or not."""
ENGINES = 2
"""That are loaded at once: two sides share one."""
LEAST_PROMPTS = 4
"""Held-out prompts that are asked, whatever time it takes."""
_WARM_UP = 2
"""Questions that are asked first and not counted: until then no side knows what its passes cost."""


def tokens(prompts: int, longest: int) -> int:
    """Tokens that all sides together write at most, chains included, for so many prompts that count, in answers of
    `longest` tokens.
    """
    return (prompts + _WARM_UP) * (len(SIDES) + 1) * longest


@dataclass(frozen=True, slots=True)
class Measured:
    """How the sides answered the same prompts."""

    tokens_a_pass: float
    """Of chains of `CHAIN` guesses at temperature 0, whether they pay or not."""
    speeds: dict[str, float]
    """Tokens a second of each side."""
    gain: Ratio | None
    """Speed with the draft model over what there was before it."""
    equal: int
    """Prompts whose texts were the same on all sides."""
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
        """What was found."""
        before, after = self.ratios
        return f"{after:.2f}x plain decoding, {before:.2f}x before, {self.tokens_a_pass:.2f} tokens a pass"

    @property
    def sentence(self) -> str:
        """Whether it is worth it."""
        before, after = self.ratios
        told = f"answers ran at {self.words}"
        if self.worth_it:
            return f"Worth it: {told}."
        why = "that is no more than chance" if after > before else "what drafted before is faster here"
        return f"Not worth it: {told}; {why}."

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        gain = None if self.gain is None else [self.gain.value, self.gain.low, self.gain.high]
        return {
            "tokens_a_pass": self.tokens_a_pass,
            "speeds": self.speeds,
            "gain": gain,
            "equal": self.equal,
            "prompts": self.prompts,
        }


def measure(
    target: Path,
    draft: Path,
    before: Path | None,
    prompts: Sequence[tuple[Message, ...]],
    max_tokens: int,
    progress: Callable[[str, float], None],
    seconds: float = math.inf,
) -> Measured:
    """Asks all sides in turns, at temperatures 0 and the default one.

    Args:
        before: the draft model that the target had before `draft`.
        prompts: held-out ones.
        progress: called with (what is being done, share done); may raise to stop.
        seconds: after which no further prompt is asked, once there are `LEAST_PROMPTS` answers.

    Raises:
        LocalspecError: a model cannot be loaded or does not answer.
        UsageError, ContextOverflowError: the target's chat template refuses every prompt, or none fits its context.
    """
    asked = []
    for number in range(-_WARM_UP, len(prompts)):  # at temperature 0 and at the default one, in turn
        sampling = _GREEDY if number % 2 == 0 else SamplingParams()
        options = Options(sampling=sampling, seed=abs(number), max_tokens=max_tokens, recall=False, remember=False)
        asked.append(Task(Prompt(str(number), prompts[number % len(prompts)]), options))
    heats, refused, began = list[Heat](), None, perf_counter()
    with ExitStack() as stack:
        settings = {"context": CONTEXT}
        old = stack.enter_context(Apart(Answering, target, before or NO_DRAFT, settings, progress=progress))
        new = stack.enter_context(Apart(Answering, target, draft, settings, progress=progress))

        def tell(what: str, done: int, total: int) -> None:
            spent, most = perf_counter() - began, total * (LEAST_PROMPTS + _WARM_UP + 1) / len(asked)
            progress("measuring", max(done / total, min(spent / seconds, done / most)))

        sides = [
            _side("plain", old, drafter="none"),
            _side("before", old),
            _side("after", new),
            _side(_CHAINS, new, sampling=_GREEDY, drafter="draft", max_draft_tokens=CHAIN, forced=True),
        ]
        for heat in compare(sides, asked, progress=tell):
            if heat.refused is not None:
                refused = heat.refused  # like the prompts that the target could not answer for training
            elif heat.number >= _WARM_UP:
                heats.append(heat)
            if len(heats) >= LEAST_PROMPTS and perf_counter() - began > seconds:
                break
    if not heats and refused is not None:
        raise refused
    return _measured(heats)


_GREEDY = SamplingParams(temperature=0.0)


def _side(name: str, engine: Apart, **options: Any) -> Side:
    return Side(name, lambda turn: engine.call("answer", turn.having(**options)))


def _measured(heats: Sequence[Heat]) -> Measured:
    runs = {side: [heat.runs[side] for heat in heats] for side in (*SIDES, _CHAINS)}
    texts = [{tuple(answer.text for answer in heat.runs[side].answers) for side in SIDES} for heat in heats]
    return Measured(
        _tokens(runs[_CHAINS]) / max(1, sum(answer.stats["passes"] for run in runs[_CHAINS] for answer in run.answers)),
        {side: _tokens(runs[side]) / sum(run.wall_seconds for run in runs[side]) for side in SIDES},
        ratio(heats, "after", "before", lambda run: run.wall_seconds),
        sum(len(same) == 1 for same in texts),
        len(heats),
    )


def _tokens(runs: Sequence[Run]) -> int:
    return sum(run.tokens for run in runs)
