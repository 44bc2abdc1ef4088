"""Is the text really the target's own? Every prompt plain and speculative, byte for byte, on this machine.

A *fork* is the first token at which the two differ. It is reported with the logits both runs saw: a real bug moves
them a lot, inexact arithmetic by some hundredths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from localspec.chat.turn import Message
from localspec.checks.prompts import Prompt, prompt_tokens
from localspec.engine.request import TokenLogProb
from localspec.methods import COPYING, TABLE
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.types import SamplingParams, Tokens


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to speculate."""

    drafter: str
    max_draft_tokens: int
    branches: int = 1

    def __str__(self) -> str:
        tree = f", tree of {self.branches}" if self.branches > 1 else ""
        return f"{self.drafter} {self.max_draft_tokens}{tree}"


PLAIN = Setting("none", 0)


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a speculative run left the plain one."""

    prompt: str
    setting: Setting
    temperature: float
    turn: int
    position: int
    """Index of the token in the answer."""
    plain_token: int | None
    speculative_token: int | None
    plain_logits: tuple[float, float]
    """What the plain run saw for (its token, the other token)."""
    speculative_logits: tuple[float, float]
    """What the speculative run saw for the same two tokens."""

    @property
    def margin(self) -> float:
        """How far the plain run's token was ahead of the other one there."""
        return self.plain_logits[0] - self.plain_logits[1]

    def __str__(self) -> str:
        return (
            f"fork: prompt {self.prompt}, {self.setting}, temperature {self.temperature:g}, turn {self.turn}, "
            f"token {self.position}: plain {self.plain_token} "
            f"(logits {self.plain_logits[0]:.5f} against {self.plain_logits[1]:.5f}, margin {self.margin:.5f}), "
            f"speculative {self.speculative_token} "
            f"(saw {self.speculative_logits[0]:.5f} against {self.speculative_logits[1]:.5f})"
        )


@dataclass(slots=True)
class Tally:
    """Counts of one setting."""

    runs: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    inexact: int = 0
    """Runs whose stats said `exact: false`."""
    forks: list[Fork] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    by_setting: dict[Setting, Tally] = field(default_factory=dict)
    prompt_tokens: list[int] = field(default_factory=list)
    """Length of every prompt's last turn."""
    too_long: int = 0
    """Prompts that the context does not hold, which were left out."""

    @property
    def runs(self) -> int:
        return sum(tally.runs for tally in self.by_setting.values())

    @property
    def tokens(self) -> int:
        return sum(tally.tokens for tally in self.by_setting.values())

    @property
    def drafted(self) -> int:
        return sum(tally.drafted for tally in self.by_setting.values())

    @property
    def forks(self) -> list[Fork]:
        return [fork for tally in self.by_setting.values() for fork in tally.forks]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [
            {
                "setting": str(setting),
                "runs": tally.runs,
                "tokens": tally.tokens,
                "drafted": tally.drafted,
                "accepted": tally.accepted,
                "inexact_runs": tally.inexact,
                "forks": [str(fork) for fork in tally.forks],
            }
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


@dataclass(slots=True)
class _Answer:
    """One turn's answer."""

    prompt: Tokens
    tokens: list[int]
    text: str
    drafted: int
    accepted: int
    exact: bool


def default_settings(has_draft: bool, trees: bool, heads: Sequence[str] = ()) -> list[Setting]:
    """Every drafter there is, several draft lengths, chain and tree; `heads` are the names of those attached."""
    there = [row for row in TABLE if row.name in (*COPYING, *(("draft",) if has_draft else ()), *heads)]
    settings = [Setting(row.name, length) for row in there for length in row.chains]
    if has_draft or heads:
        settings += [Setting("auto", 4)]
    return settings + [Setting(row.name, row.tree, branches=2) for row in there if trees and row.tree]


def verify(
    engine: Engine,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float] = (0.0, 0.7, 1.0),
    settings: Sequence[Setting] | None = None,
    *,
    max_tokens: int = 64,
    seed: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
) -> Report:
    """Runs every prompt plain and under every setting and compares tokens and text.

    Args:
        engine: loaded with every drafter and draft length that `settings` uses.
        max_tokens: longest answer a turn.
        seed: of the first prompt; each prompt and turn has its own.
        progress: called with (runs done, runs in all, forks so far); may raise to stop.
    """
    if settings is None:
        heads = [head.name for head in engine.loaded.heads]
        trees = engine.settings.branches > 1 and engine.loaded.context.max_leaves > 1  # not with passes of one width
        settings = default_settings(engine.loaded.draft_context is not None, trees, heads)
    report = Report({setting: Tally() for setting in settings})
    total = len(prompts) * len(temperatures) * len(settings)
    for number, prompt in enumerate(prompts):
        for temperature in temperatures:
            options = Options(sampling=SamplingParams(temperature=temperature), max_tokens=max_tokens, past=False)
            run = _Run(engine, prompt, options, seed + 1000 * number)
            plain = run.answers(PLAIN)
            if not plain:
                report.too_long += 1
                break
            for setting in settings:
                tally = report.by_setting[setting]
                _compare(run, setting, plain, run.answers(setting), tally)
                if progress is not None:
                    progress(report.runs, total, len(report.forks))
        if plain:
            report.prompt_tokens.append(len(plain[-1].prompt))
    return report


@dataclass(frozen=True, slots=True)
class _Run:
    """One prompt at one temperature; `answers` holds the conversation under a setting."""

    engine: Engine
    prompt: Prompt
    options: Options
    """But for the seed."""
    seed: int
    """Of the first turn."""

    def answers(self, setting: Setting) -> list[_Answer]:
        """Every turn's answer, the model's own answers being the history of the next turn."""
        self._configure(setting)
        answers: list[_Answer] = []
        history: list[Message] = []
        for message in self.prompt.messages:
            history.append(message)
            if message.role == "system":
                continue
            tokens = prompt_tokens(self.engine, history)
            if len(tokens) + 2 > self.engine.loaded.context.n_ctx:
                break  # this conversation has outgrown the context, in every setting alike
            answers.append(self._answer(tokens, len(answers)))
            history.append(Message("assistant", answers[-1].text))
        return answers

    def _configure(self, setting: Setting) -> None:
        """Nothing that an earlier setting made is recycled under this one."""
        engine = self.engine
        engine.configure(drafter=setting.drafter, max_draft_tokens=setting.max_draft_tokens, branches=setting.branches)
        engine.on_engine_thread(engine.loaded.successors.clear)

    def _answer(self, tokens: Tokens, turn: int) -> _Answer:
        generation = self._ask(tokens, turn)
        text = generation.text()
        stats = generation.stats
        return _Answer(tokens, generation.tokens, text, stats.drafted, stats.accepted, stats.exact)

    def log_probs(self, setting: Setting, tokens: Tokens, turn: int) -> list[TokenLogProb]:
        """The same answer again, with log-probabilities."""
        self._configure(setting)
        return [found for event in self._ask(tokens, turn, top_log_probs=40) for found in event.log_probs]

    def _ask(self, tokens: Tokens, turn: int, **options: Any) -> Generation:
        return self.engine.generate(tokens, self.options, seed=self.seed + turn, **options)


def _compare(run: _Run, setting: Setting, plain: list[_Answer], speculative: list[_Answer], tally: Tally) -> None:
    tally.runs += 1
    for turn, (expected, found) in enumerate(zip_longest(plain, speculative)):
        assert expected is not None  # both hold the same conversation until a fork
        assert found is not None
        tally.tokens += len(found.tokens)
        tally.drafted += found.drafted
        tally.accepted += found.accepted
        tally.inexact += not found.exact
        if found.tokens != expected.tokens or found.text != expected.text:
            tally.forks.append(_diagnose(run, setting, turn, expected, found))
            return  # later turns have different prompts


def _diagnose(run: _Run, setting: Setting, turn: int, expected: _Answer, found: _Answer) -> Fork:
    pairs = zip_longest(expected.tokens, found.tokens)
    position, (ours, theirs) = next(
        ((index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]), (0, (None, None))
    )
    plain = _logits(run.log_probs(PLAIN, expected.prompt, turn), position, (ours, theirs))
    speculative = _logits(run.log_probs(setting, expected.prompt, turn), position, (ours, theirs))
    temperature = run.options.sampling.temperature
    return Fork(run.prompt.name, setting, temperature, turn, position, ours, theirs, plain, speculative)


def _logits(answer: list[TokenLogProb], position: int, tokens: tuple[int | None, ...]) -> tuple[float, float]:
    """The logits of two tokens at a position of an answer; NaN where they were not among the best."""
    if position >= len(answer):
        return float("nan"), float("nan")
    here = answer[position]
    known = dict(here.top) | {here.token: here.log_prob}
    shift = here.logit - here.log_prob
    first, second = (known.get(-1 if token is None else token, float("nan")) + shift for token in tokens)
    return first, second
