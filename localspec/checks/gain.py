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
from localspec.checks.apart import Apart
from localspec.checks.interval import Ratio, ratio
from localspec.checks.tune import Answering, Question, Timing
from localspec.errors import ContextOverflowError, UsageError
from localspec.models.installed.installed import NO_DRAFT
from localspec.options import Options
from localspec.types import SamplingParams

CHAIN = 6
"""Guesses of a draft whose tokens a pass are told; the plan chooses shorter ones where these do not pay."""
SIDES = ("plain", "before", "after")
"""Without drafting; with what drafted before; with the trained draft model as well. Defaults in all else."""
CONTEXT = 2048
"""Tokens of each engine's context."""
ENGINES = 2
"""That are loaded at once: two sides share one."""
LEAST_PROMPTS = 4
"""Held-out prompts that are asked, whatever time it takes."""
_WARM_UP = 2
"""Questions that are asked first and not counted: until then no side knows what its passes cost."""


def tokens(prompts: int, longest: int) -> int:
    """Tokens that all sides together write at most for so many prompts.

    Args:
        prompts: those that count.
        longest: tokens of an answer.
    """
    return ((prompts + _WARM_UP) * len(SIDES) + prompts) * longest


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
        target: the model.
        draft: its new draft model.
        before: the draft model it had before; None = none.
        prompts: held-out ones.
        max_tokens: of an answer.
        progress: called with (what is being done, share done); may raise to stop.
        seconds: after which no further prompt is asked, once there are `LEAST_PROMPTS` answers.

    Raises:
        LocalspecError: a model cannot be loaded or does not answer.
        UsageError, ContextOverflowError: the target's chat template refuses every prompt, or none fits its context.
    """
    replies: dict[str, list[Timing]] = {side: [] for side in SIDES}
    chains: list[Timing] = []
    steps = len(prompts) + _WARM_UP
    refused, began = None, perf_counter()
    with ExitStack() as stack:
        settings = {"context": CONTEXT}
        old = stack.enter_context(Apart(Answering, target, before or NO_DRAFT, settings, progress=progress))
        new = stack.enter_context(Apart(Answering, target, draft, settings, progress=progress))
        sides = {"plain": old, "before": old, "after": new}
        for step in range(steps):
            spent = perf_counter() - began
            if len(chains) >= LEAST_PROMPTS and spent > seconds:
                break
            progress("measuring", max(step / steps, min(spent / seconds, step / (LEAST_PROMPTS + _WARM_UP + 1))))
            number = step - _WARM_UP
            order = [SIDES[(step + turn) % len(SIDES)] for turn in range(len(SIDES))]
            try:
                said = {
                    side: sides[side].call("answer", _question(side, prompts, number, max_tokens)) for side in order
                }
            except (UsageError, ContextOverflowError) as error:
                refused = error  # like the prompts that the target could not answer for training
                continue
            if number >= 0:
                for side in SIDES:
                    replies[side].append(said[side])
                chains.append(new.call("answer", _question("chains", prompts, number, max_tokens)))
    if not chains and refused is not None:
        raise refused
    return _measured(replies, chains)


def _measured(replies: dict[str, list[Timing]], chains: Sequence[Timing]) -> Measured:
    pairs = [
        [(one.seconds_per_token, other.seconds_per_token)]
        for one, other in zip(replies["before"], replies["after"], strict=True)
    ]
    return Measured(
        _tokens(chains) / max(1, sum(one.passes for one in chains)),
        {side: _tokens(found) / sum(one.seconds for one in found) for side, found in replies.items()},
        ratio(pairs),
        sum(len({one.text for one in same}) == 1 for same in zip(*replies.values(), strict=True)),
        len(chains),
    )


_GREEDY = SamplingParams(temperature=0.0)


def _question(side: str, prompts: Sequence[tuple[Message, ...]], number: int, max_tokens: int) -> Question:
    sampling = _GREEDY if number % 2 == 0 or side == "chains" else SamplingParams()
    options = Options(sampling=sampling, seed=abs(number), max_tokens=max_tokens, past=False)
    given: dict[str, dict[str, Any]] = {
        "plain": {"drafter": "none"},
        "chains": {"drafter": "draft", "max_draft_tokens": CHAIN, "forced": True},
    }
    return Question(prompts[number % len(prompts)], options.having(given.get(side, {})))


def _tokens(replies: Sequence[Timing]) -> int:
    return sum(one.tokens for one in replies)
