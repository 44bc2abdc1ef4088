"""Is the text really the target's own? Every prompt plain and speculative, byte for byte, on this machine.

A *fork* is the first token at which the two differ. It is reported with the logits both runs saw: a real bug moves
them a lot, inexact arithmetic by some hundredths.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from localspec.checks import compare
from localspec.checks.compare import AskedTurn, Heat, Progress, Side
from localspec.checks.prompts import BenchPrompt
from localspec.errors import ContextOverflowError
from localspec.methods import COPYING, TABLE
from localspec.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class DraftSetting:
    drafter: str
    max_draft_tokens: int
    branches: int = 1

    def __str__(self) -> str:
        tree = f", tree of {self.branches}" if self.branches > 1 else ""
        return f"{self.drafter} {self.max_draft_tokens}{tree}"


PLAIN = DraftSetting("none", 0)


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a speculative run left the plain one."""

    prompt: str
    setting: DraftSetting
    temperature: float
    turn: int
    position: int
    plain_token: int | None
    speculative_token: int | None
    plain_logits: tuple[float, float]  # what the plain run saw for (its token, the other token)
    speculative_logits: tuple[float, float]  # what the speculative run saw for the same two tokens

    def __str__(self) -> str:
        margin = self.plain_logits[0] - self.plain_logits[1]
        return (
            f"fork: prompt {self.prompt}, {self.setting}, temperature {self.temperature:g}, turn {self.turn}, "
            f"token {self.position}: plain {self.plain_token} "
            f"(logits {self.plain_logits[0]:.5f} against {self.plain_logits[1]:.5f}, margin {margin:.5f}), "
            f"speculative {self.speculative_token} "
            f"(saw {self.speculative_logits[0]:.5f} against {self.speculative_logits[1]:.5f})"
        )


@dataclass(slots=True)
class Tally:
    runs: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    inexact: int = 0  # runs whose stats said `exact: false`
    forks: list[Fork] = field(default_factory=list)


@dataclass(slots=True)
class Report(Tally):
    """Of all settings together."""

    by_setting: dict[DraftSetting, Tally] = field(default_factory=dict)
    prompt_tokens: list[int] = field(default_factory=list)  # length of every prompt's last turn
    too_long: int = 0  # prompts that the context does not hold, which were left out

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"setting": str(setting)}
            | {name: getattr(tally, name) for name in ("runs", "tokens", "drafted", "accepted")}
            | {"inexact_runs": tally.inexact, "forks": [str(fork) for fork in tally.forks]}
            for setting, tally in self.by_setting.items()
        ]
        long_prompts = sum(600 <= length <= 2000 for length in self.prompt_tokens)
        return {
            "runs": self.runs,
            "prompts_too_long": self.too_long,
            "tokens": self.tokens,
            "forks": len(self.forks),
            "prompts": len(self.prompt_tokens),
            "prompts_of_600_to_2000_tokens": long_prompts,
            "settings": rows,
        }


def default_settings(has_draft: bool, trees: bool, heads: Sequence[str] = ()) -> list[DraftSetting]:
    """Every drafter there is, several draft lengths, chain and tree; `heads` are the names of those attached."""
    there = [row for row in TABLE if row.name in (*COPYING, *(("draft",) if has_draft else ()), *heads)]
    settings = [DraftSetting(row.name, length) for row in there for length in row.chains]
    if has_draft or heads:
        settings += [DraftSetting("auto", 4)]
    return settings + [DraftSetting(row.name, row.tree, branches=2) for row in there if trees and row.tree]


def verify(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    settings: Sequence[DraftSetting] | None = None,
    *,
    max_tokens: int = 64,
    seed: int = 1,
    progress: Progress | None = None,
    report: Report | None = None,
) -> Report:
    """Runs every prompt plain and under every setting and compares tokens and text.

    Drafters search the plain answers to earlier prompts, and no other past answers. The engine is loaded with every
    drafter and draft length that `settings` uses; a `report` is filled in as results come, so that an interrupted run
    has some. From `seed` each prompt and turn has a seed of its own.
    """
    if settings is None:
        heads = [head.name for head in engine.loaded.heads]
        trees = engine.settings.branches > 1 and engine.loaded.context.max_leaves > 1  # not with passes of one width
        settings = default_settings(engine.loaded.draft_context is not None, trees, heads)
    report = report or Report()
    report.by_setting.update({setting: Tally() for setting in settings})

    def configured(setting: DraftSetting, _: BenchPrompt) -> None:
        engine.configure(drafter=setting.drafter, max_draft_tokens=setting.max_draft_tokens, branches=setting.branches)

    sides = {
        setting: Side(str(setting), partial(compare.ask, engine), partial(configured, setting))
        for setting in (PLAIN, *settings)
    }
    asked = compare.tasks(prompts, temperatures, max_tokens, seed, recall=True)

    def tell(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(f"Verifying, {len(report.forks)} forks", done, total)

    with closing(compare.TrialCorpus(engine)) as corpus:
        for heat in compare.compare(list(sides.values()), asked, progress=tell):
            first = heat.number % len(temperatures) == 0
            if isinstance(heat.refused, ContextOverflowError):
                report.too_long += first
            elif heat.refused is not None:
                raise heat.refused
            else:
                _count(heat, sides, report)
                if first:
                    report.prompt_tokens.append(heat.runs[str(PLAIN)].answers[-1].stats["prompt_tokens"])
                for answer in heat.runs[str(PLAIN)].answers:
                    corpus.keep(np.array(answer.ids, dtype=np.int32))
                corpus.settle()
    return report


def _count(heat: Heat, sides: dict[DraftSetting, Side], report: Report) -> None:
    plain = heat.runs[str(PLAIN)]
    for setting, tally in report.by_setting.items():
        found, forked = heat.runs[str(setting)], compare.fork(plain, heat.runs[str(setting)])
        answers = found.answers if forked is None else found.answers[: forked[0] + 1]  # later prompts differ
        for one in (tally, report):
            one.runs += 1
            one.tokens += sum(len(answer.ids) for answer in answers)
            one.drafted += sum(answer.stats["drafted"] for answer in answers)
            one.accepted += sum(answer.stats["accepted"] for answer in answers)
            one.inexact += sum(not answer.exact for answer in answers)
        if forked is not None:
            turn, position = forked
            ids = zip_longest(plain.answers[turn].ids, found.answers[turn].ids)
            both = next(islice(ids, position, None), (None, None))
            seen = [_logits(heat, sides[side], plain.turns[turn], position, both) for side in (PLAIN, setting)]
            temperature = heat.task.options.sampling.temperature
            fork = Fork(heat.task.prompt.name, setting, temperature, turn, position, *both, *seen)
            tally.forks.append(fork)
            report.forks.append(fork)


def _logits(
    heat: Heat, side: Side, turn: AskedTurn, position: int, tokens: tuple[int | None, ...]
) -> tuple[float, float]:
    """The logits of two tokens at a position of the same answer given again; NaN where they were not among the best."""
    side.begin(heat.task.prompt)
    answer = side.answer(turn.having(top_log_probs=40)).log_probs
    if position >= len(answer):
        return float("nan"), float("nan")
    here = answer[position]
    known = dict(here.top) | {here.token: here.log_prob}
    shift = here.logit - here.log_prob
    first, second = (known.get(-1 if token is None else token, float("nan")) + shift for token in tokens)
    return first, second
