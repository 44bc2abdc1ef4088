"""Sides answer the same prompts in turns: what `verify`, `tune`, `train` and `bench` stand on.

A *side* is an engine under some settings, or another program's server: a callable that answers. Rounds are the
outermost loop, so that an interruption leaves something of everything, and the sides answer a prompt one after the
other, each of them first as often as the others: a machine that drifts hits all alike. All have the same seeds, so
that exact sides say the same; `fork` finds where they do not, and `gain` how much faster one of them is, and how sure
that is.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, product, zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import NormalDist, fmean, variance
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Literal, NamedTuple

from localspec.chat.turn import Message
from localspec.checks.prompts import BenchPrompt, prompt_tokens
from localspec.engine.slot import TokenLogProb
from localspec.errors import ContextOverflowError, LocalspecError, UsageError
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.runtime.kept.corpus import Corpus, CorpusFile
from localspec.types import SamplingParams

Progress = Callable[[str, int, int], None]
"""(what is being done, answers to prompts done, such answers in all); may raise to stop."""
Loading = Callable[[str, float], None]  # (what is being done, share done from 0 to 1); may raise to stop


class AskedTurn(NamedTuple):
    messages: tuple[Message, ...]
    """The conversation, a user's or tool's message last; empty where the prompt is raw text."""
    options: Options
    text: str = ""

    def having(self, **changes: Any) -> AskedTurn:
        return self._replace(options=self.options.having(changes))


@dataclass(slots=True)
class TimedAnswer:
    """What a side gave back for one turn, and when. Seconds are since it was asked."""

    text: str
    tokens: int
    wall_seconds: float  # until the end was known
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, tokens) of each piece that came; empty only if no token came, or none was timed."""
    prefill_seconds: float = 0.0  # the target's reading of the prompt, a part of `wall_seconds`; 0 = unknown
    exact: bool | None = None  # whether no pass could have changed the text, as far as the side says
    stats: dict[str, Any] = field(default_factory=dict)
    """Counters under the names of `RequestStats.as_dict`, as far as the side has them."""
    ids: list[int] = field(default_factory=list)  # the tokens themselves, where they are known
    log_probs: list[TokenLogProb] = field(default_factory=list)  # of its tokens, where they were asked for

    @property
    def ttft_seconds(self) -> float:
        """Time to first token."""
        return self.arrivals[0][0] if self.arrivals else self.wall_seconds

    @property
    def decode_seconds(self) -> float:
        """Everything but the target's prefill; where that is unknown, by the pace after the first arrival."""
        if self.prefill_seconds or len(self.arrivals) < 2:
            return self.wall_seconds - self.prefill_seconds
        first, last = self.arrivals[0], self.arrivals[-1]
        behind = sum(tokens for _, tokens in self.arrivals[1:])
        return (last[0] - first[0]) / behind * self.tokens if behind else self.wall_seconds

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals: what a reader waits for (ITL)."""
        times = [seconds for seconds, _ in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]


def ask(engine: Engine, turn: AskedTurn) -> TimedAnswer:
    """One answer of an engine, whose caches stay as they are; cancelled if the caller is interrupted. Raises
    UsageError, ContextOverflowError: the chat template refuses the messages, or they are too long."""
    prompt = prompt_tokens(engine, turn.messages) if turn.messages else engine.tokenize(turn.text)
    start, text, answer = perf_counter(), list[str](), TimedAnswer("", 0, 0.0)
    generation = engine.generate(prompt, turn.options)
    try:
        for event in generation:
            if event.tokens:
                answer.arrivals.append((perf_counter() - start, len(event.tokens)))
            text.append(event.text)
            answer.log_probs += event.log_probs
    except BaseException:
        generation.cancel()
        generation.text()
        raise
    stats = generation.stats
    answer.text, answer.wall_seconds, answer.ids = "".join(text), perf_counter() - start, generation.tokens
    answer.tokens, answer.prefill_seconds, answer.exact = stats.generated, stats.prefill_seconds, stats.exact
    answer.stats = stats.as_dict()
    return answer


class TrialCorpus(Corpus):
    """An empty corpus that an engine uses until it is closed, and that leaves nothing on disk.

    Drafters must be made anew after it came and after it went (`Engine.configure`).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._before = engine, engine.loaded.corpus
        self._folder = TemporaryDirectory(prefix="localspec-trial-")
        file = CorpusFile(Path(self._folder.name) / "answers.sqlite", int(engine.settings.corpus_mb * 1e6))
        super().__init__(file, engine.loaded.model.n_vocab)
        self._use(self)

    def _use(self, corpus: Corpus | None) -> None:
        def change() -> None:
            self._engine.loaded.corpus = corpus

        self._engine.on_engine_thread(change)

    def close(self) -> None:
        if self._engine.loaded.corpus is self:
            self._use(self._before)
        super().close()
        self._folder.cleanup()


class Answering:
    """An engine under some settings; made in a process of its own (`Apart`)."""

    def __init__(
        self, target: Path, draft: Path | str | None, settings: Mapping[str, Any], progress: Loading | None = None
    ) -> None:
        """Loads, without what tuning stored; raises as `Engine.load`."""
        self._engine = Engine.load(target, draft, progress=progress, tuned=False, **settings)
        self.close = self._engine.close

    def answer(self, turn: AskedTurn) -> TimedAnswer:
        """Answers once, as if nothing had been answered before."""
        self._engine.forget()
        return ask(self._engine, turn)

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


_GOODBYE_SECONDS = 20.0


class Apart:
    """Makes an object in a new process and calls its methods there. Not thread-safe.

    For comparing engines: two in one process slow each other. OpenMP keeps a pool of threads for every thread that has
    computed; with more of them than CPUs they no longer wait awake for each other, see `runtime.loading.load_apart`. In
    processes of their own only the one that works is awake.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, progress: Loading | None = None) -> None:
        """Calls `make`, of a module, there with plain `arguments` and `progress=`; its errors are raised here."""
        context = multiprocessing.get_context("spawn")  # a fork would inherit loaded libraries and their threads
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_apart, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._received(progress)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise self._gone() from None
        return self._received(None)

    def close(self) -> None:
        """Ends the process; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(_GOODBYE_SECONDS if self._process.exitcode is None else 0)
        if self._process.exitcode is None:
            self._process.terminate()
            self._process.join()

    def _received(self, progress: Loading | None) -> Any:
        while True:
            try:
                kind, content = self._pipe.recv()
            except (EOFError, OSError):
                raise self._gone() from None
            if kind == "error":
                raise content
            if kind == "result":
                return content
            if progress is not None:
                progress(*content)

    def _gone(self) -> LocalspecError:
        self._process.join(1.0)
        code = self._process.exitcode
        killed = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return LocalspecError(f"A measuring process ended unexpectedly ({killed}).", "Was there too little memory?")


def _serve_apart(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The other process: the one that asks decides when it ends and handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(what: str, share: float) -> None:
        pipe.send(("progress", (what, share)))

    def send_error(error: BaseException) -> None:
        own = isinstance(error, LocalspecError)
        with contextlib.suppress(OSError):
            pipe.send(("error", error if own else LocalspecError(f"A measuring process failed: {error!r}.")))

    try:
        made = make(*arguments, progress=report)
    except BaseException as error:  # noqa: BLE001 - handed to the other side, which raises it
        send_error(error)
        return
    pipe.send(("result", None))
    with contextlib.closing(made), contextlib.suppress(EOFError, OSError):
        while (asked := pipe.recv()) is not None:
            method, given = asked
            try:
                pipe.send(("result", getattr(made, method)(*given)))
            except Exception as error:  # noqa: BLE001 - the same
                send_error(error)


@dataclass(frozen=True, slots=True)
class Side:
    name: str  # unique in a comparison
    answer: Callable[[AskedTurn], TimedAnswer]
    """Later turns of a conversation may reuse the earlier ones. An error other than of its prompt ends all."""
    begin: Callable[[BenchPrompt], None] = lambda prompt: None


class Task(NamedTuple):
    """What all sides are asked alike."""

    prompt: BenchPrompt
    options: Options  # but for the seed, which is the first turn's; every further turn has one of its own


def tasks(
    prompts: Sequence[BenchPrompt], temperatures: Sequence[float], max_tokens: int, seed: int = 1, recall: bool = False
) -> list[Task]:
    """Every prompt at every temperature; each prompt has a seed of its own. `recall`: past answers are searched."""
    found, shared = list[Task](), Options(max_tokens=max_tokens, recall=recall, remember=False)
    for prompt, temperature in product(prompts, temperatures):
        own = {"seed": seed + 1000 * prompt.index, "ignore_end": prompt.ignore_end}
        found.append(Task(prompt, shared.having({"sampling": SamplingParams(temperature=temperature), **own})))
    return found


@dataclass(slots=True)
class Run:
    """A conversation answered by a side."""

    turns: list[AskedTurn] = field(default_factory=list)
    answers: list[TimedAnswer] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def decode_seconds(self) -> float:
        return sum(answer.decode_seconds for answer in self.answers)

    @property
    def wall_seconds(self) -> float:
        return sum(answer.wall_seconds for answer in self.answers)


@dataclass(slots=True)
class Heat:
    """A task in one round, answered by all sides."""

    task: Task
    number: int
    round: int
    runs: dict[str, Run] = field(default_factory=dict)  # by side; empty where the prompt could not be answered
    refused: LocalspecError | None = None
    """Why it could not: it is longer than the context, or nothing that this model can be asked."""


def compare(
    sides: Sequence[Side],
    tasks: Sequence[Task],
    rounds: int = 1,
    *,
    block: int = 1,
    warm: int = 0,
    progress: Progress | None = None,
) -> Iterator[Heat]:
    """Heats as they are finished: everything `rounds` times, where a side answers `block` tasks before it is another's
    turn, and first an answer of `warm` tokens that does not count; 0 = none.
    """
    done, total, cold = 0, rounds * len(tasks) * len(sides), {side.name for side in sides if warm}
    groups = groupby(tasks, key=lambda task: id(task.prompt))
    places = [number + at for number, (_, several) in enumerate(groups) for at, _ in enumerate(several)]
    for turn in range(rounds):
        for start in range(0, len(tasks), block):
            heats = [Heat(task, start + at, turn) for at, task in enumerate(tasks[start : start + block])]
            first = (turn + places[start]) % len(sides)  # another one at the next prompt, and at another temperature
            for side in (*sides[first:], *sides[:first]):
                for heat in heats:
                    if progress is not None:
                        prompt, warmth = heat.task.prompt, heat.task.options.sampling.temperature
                        what = f"round {turn + 1}: {prompt.workload} {prompt.name}, {warmth:g}, {side.name}"
                        progress(what, done, total)
                    try:
                        if side.name in cold and heat.refused is None:
                            cold.remove(side.name)
                            _converse(side, heat.task, min(warm, heat.task.options.max_tokens or warm))
                        if heat.refused is None:
                            heat.runs[side.name] = _converse(side, heat.task)
                    except (ContextOverflowError, UsageError) as error:
                        heat.refused, heat.runs = error, {}
                    done += 1
            yield from heats


def _converse(side: Side, task: Task, tokens: int | None = None) -> Run:
    """The whole conversation, as far as the context holds it; if not even one turn, a ContextOverflowError."""
    prompt, options, run, history = task.prompt, task.options, Run(), list[Message]()
    side.begin(prompt)
    for number, messages in enumerate(prompt.questions):
        if prompt.apart:  # only the last answer counts
            history, run = [], Run()
        history += messages
        changes = {"seed": (options.seed or 0) + number, "max_tokens": tokens or options.max_tokens}
        turn = AskedTurn(tuple(history), options.having(changes), prompt.text)
        try:
            answer = side.answer(turn)
        except ContextOverflowError:
            if not run.answers:
                raise
            break  # what it said itself has outgrown the context
        run.turns.append(turn)
        run.answers.append(answer)
        history.append(Message("assistant", answer.text))
    return run


def fork(one: Run, other: Run) -> tuple[int, int] | None:
    """(turn, index of the token) where two sides first said different things; None = they said the same."""
    for turn, (ours, theirs) in enumerate(zip_longest(one.answers, other.answers)):
        if ours is None or theirs is None:
            return turn, 0
        pairs = zip_longest(ours.ids, theirs.ids) if ours.ids and theirs.ids else ()
        place = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
        if place is not None or ours.text != theirs.text:
            return turn, place or 0
    return None


def gain(
    heats: Sequence[Heat], one: str, over: str, seconds: Callable[[Run], float] = lambda run: run.decode_seconds
) -> Ratio | None:
    """Speed of a side over another's: time a token on the same prompts and rounds, by the `seconds` that count."""
    by_task: dict[int, list[tuple[Run, Run]]] = {}
    for heat in heats:
        slow, fast = heat.runs.get(over), heat.runs.get(one)
        if slow and fast and slow.tokens and fast.tokens:
            by_task.setdefault(heat.number, []).append((slow, fast))
    pairs = []
    for several in by_task.values():
        tokens = fmean(slow.tokens for slow, _ in several)
        pairs.append([(tokens * seconds(a) / a.tokens, tokens * seconds(b) / b.tokens) for a, b in several])
    return ratio(pairs)


# How sure a ratio of two times is: measured in pairs, with Student's t.
#
# The ratio is that of the sums over all prompts, A / B. To first order its relative error is the sum of
#
#     z = a / A - b / B
#
# over all pairs (a, b), so the spread of z says how far the ratio may be off. Several rounds: z varies within a prompt
# from round to round, and the prompts are what they are: the interval speaks of these prompts on this machine. One
# round: z varies between prompts, whose content differs; the interval is wider and speaks of prompts like these.


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two total times and its 95 % interval."""

    value: float
    low: float
    high: float
    over: Literal["rounds", "prompts", ""]
    """What the interval was taken over; "" = there is none (one prompt, one round)."""
    smallest: float  # of the prompts' own ratios, ...
    largest: float

    @property
    def half_width(self) -> float:
        """Of the interval, as a share of the value."""
        return (self.high - self.low) / 2.0 / self.value if self.over else math.inf


def ratio(pairs: Sequence[Sequence[tuple[float, float]]]) -> Ratio | None:
    """Sum of the first times over sum of the second ones; None without any pair. `pairs`: seconds of both sides, by
    prompt and round."""
    pairs = [one for one in pairs if one]
    if not pairs:
        return None
    means = [(fmean(a for a, _ in one), fmean(b for _, b in one)) for one in pairs]
    first, second = sum(a for a, _ in means), sum(b for _, b in means)
    value, own = first / second, [a / b for a, b in means]
    smallest, largest = min(own), max(own)
    freedom, spread = sum(len(one) - 1 for one in pairs), 0.0
    over: Literal["rounds", "prompts", ""] = ""
    if all(len(one) > 1 for one in pairs):
        within = sum(variance([a / first - b / second for a, b in one]) / len(one) for one in pairs)
        over, spread = "rounds", t_quantile(freedom) * math.sqrt(within)
    elif len(means) > 1:
        between = len(means) * variance([a / first - b / second for a, b in means])
        over, spread = "prompts", t_quantile(len(means) - 1) * math.sqrt(between)
    return Ratio(value, value * math.exp(-spread), value * math.exp(spread), over, smallest, largest)


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t: exact for 1 and 2 degrees of freedom, to three digits beyond."""
    if freedom <= 2:
        return {1: 12.7062, 2: 4.3027}.get(freedom, math.inf)
    z, n = NormalDist().inv_cdf(0.975), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
