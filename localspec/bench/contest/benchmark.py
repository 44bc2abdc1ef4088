"""The benchmark: every contender answers every prompt, taking turns, round after round.

Rounds are the outermost loop, so that an interruption leaves something of every cell, and the contenders of a prompt
follow one another, each of them first as often as the others: a machine that drifts hits all alike. Before a
conversation every cache is forgotten; within it contenders reuse what they have. Finished runs are in the session's
file at once, and those that are there already are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from localspec.bench.contest.contenders import pair_facts
from localspec.bench.contest.run import Answer, Contender, Remembering, Run, RunKey, Session, Turn, digest
from localspec.bench.contest.workloads import Prompt, Workloads
from localspec.chat.turn import Message
from localspec.checks.prompts import text_for_completion
from localspec.errors import ContextOverflowError, UsageError
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams

Progress = Callable[[str, int, int], None]
"""(what is being done, runs done, runs in all)."""
_WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What all contenders are asked alike."""

    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    tokens: int = 64
    """Longest answer a turn."""
    rounds: int = 3
    seed: int = 1
    """Of the first prompt; each prompt and turn has its own."""

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise UsageError("No temperature is given; give at least one.")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        if not 1 <= self.tokens <= 1 << 20:
            raise UsageError(f"tokens is {self.tokens}; it must be between 1 and {1 << 20}.")
        if not 1 <= self.rounds <= 1000:
            raise UsageError(f"rounds is {self.rounds}; it must be between 1 and 1000.")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed is {self.seed}; it must be between 0 and 2^63 - 1.")


class Planned(NamedTuple):
    """A run that belongs to a benchmark."""

    key: RunKey
    contender: Contender
    prompt: Prompt


class Benchmark:
    """Workloads, settings and contenders put together: a list of runs to be done."""

    def __init__(
        self, engine: Engine, contenders: Sequence[Contender], workloads: Workloads, settings: BenchSettings
    ) -> None:
        """
        Args:
            engine: renders the prompts; contenders of ours answer with it.
            contenders: names must differ.
            workloads: see `load_workloads`.
            settings: what all are asked alike.
        """
        self.engine, self.contenders = engine, tuple(contenders)
        self.workloads, self.settings = workloads, settings
        self.runs = list(self._runs())
        """All of them, in the order they are done."""

    @property
    def name(self) -> str:
        """Of a file that fits these runs and no others."""
        return f"{self.engine.loaded.settings.target.stem}-{digest([asdict(planned.key) for planned in self.runs])}"

    def left(self, session: Session) -> list[Planned]:
        """Runs the session does not have yet."""
        return [planned for planned in self.runs if planned.key not in session.runs]

    def found(self, session: Session) -> list[Run]:
        """Runs of this benchmark that the session has."""
        return [session.runs[planned.key] for planned in self.runs if planned.key in session.runs]

    def measure(self, session: Session, progress: Progress | None = None) -> None:
        """Does what is left.

        Raises:
            ContextOverflowError: a prompt does not fit the context.
            LocalspecError: a contender could not answer.
            KeyboardInterrupt: passed on; what was finished is in the session.
        """
        left, total = self.left(session), len(self.runs)
        done = total - len(left)
        warm: set[str] = set()
        for planned in left:
            key = planned.key
            if progress is not None:
                progress(f"round {key.round + 1}: {key.workload}, {key.temperature:g}, {key.contender}", done, total)
            if key.contender not in warm:
                warm.add(key.contender)
                self._converse(planned, min(_WARM_TOKENS, self.settings.tokens))
            session.add(self._converse(planned, self.settings.tokens))
            done += 1
        if progress is not None:
            progress("done", done, total)

    def _runs(self) -> Iterator[Planned]:
        settings, pair = self.settings, digest(pair_facts(self.engine))
        asked = {"tokens": settings.tokens, "seed": settings.seed}
        facts = {one.name: digest([dict(one.facts), asked]) for one in self.contenders}
        prompts = [(one, digest(one.to_json())) for several in self.workloads.values() for one in several]
        for turn in range(settings.rounds):
            for place, temperature in enumerate(settings.temperatures):
                for prompt, content in prompts:
                    first = (turn + place + prompt.index) % len(self.contenders)
                    for one in self.contenders[first:] + self.contenders[:first]:
                        where = (prompt.workload, prompt.index, content, temperature, turn)
                        yield Planned(RunKey(pair, facts[one.name], one.name, *where), one, prompt)

    def _converse(self, planned: Planned, tokens: int) -> Run:
        """One run: the whole conversation, the contender's own answers being its history."""
        contender, answers, prompt_tokens = planned.contender, list[Answer](), 0
        history: list[Message] = []
        contender.begin()
        if planned.prompt.apart and isinstance(contender, Remembering):
            contender.remember()
        said = 0
        for messages in planned.prompt.questions:
            if planned.prompt.apart:
                history.clear()
                answers.clear()
            history += messages
            said += len(messages)
            turn = self._turn(planned, history, tokens, said)
            if len(turn.tokens) + 2 > self.engine.loaded.context.n_ctx:
                if answers:
                    break  # what it said itself has outgrown the context
                raise self._too_long(planned, len(turn.tokens))
            prompt_tokens = len(turn.tokens)
            answers.append(contender.answer(turn))
            history.append(Message("assistant", answers[-1].text))
            said += 1
        return Run(planned.key, answers, prompt_tokens)

    def _turn(self, planned: Planned, history: Sequence[Message], tokens: int, said: int) -> Turn:
        """`said`: messages so far, those of conversations that are over, too."""
        prompt, engine = planned.prompt, self.engine
        options = Options(
            sampling=SamplingParams(temperature=planned.key.temperature),
            seed=self.settings.seed + 1000 * prompt.index + said,
            max_tokens=tokens,
            ignore_end=prompt.ignore_end,
        )
        text = prompt.text
        if history and engine.template.exists:
            text, ids = engine.template.render(history), engine.chat_tokens(history)
        else:
            text = text or text_for_completion(history)
            ids = engine.tokenize(text)
        return Turn(tuple(history), text, ids, options)

    def _too_long(self, planned: Planned, tokens: int) -> ContextOverflowError:
        key, n_ctx = planned.key, self.engine.loaded.context.n_ctx
        return ContextOverflowError(
            f"Prompt {key.prompt} of the workload {key.workload} has {tokens} tokens and the context holds {n_ctx}.",
            "Give a larger --context, or leave the workload out with --workloads.",
        )
