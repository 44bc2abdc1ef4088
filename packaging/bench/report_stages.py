"""The stages of the report: which contenders answer which workloads, in which order, beside whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bare_loop import BareLoop
from far_engine import FarContender, FarEngine
from peer_server import NAMES, NGRAMS, SETTINGS, PeerServer, start_all

from localspec import Engine
from localspec.bench.benchmark import Benchmark, BenchSettings
from localspec.bench.contenders import EngineContender, Experience, engine_contenders
from localspec.bench.run import Contender
from localspec.bench.workloads import Workloads, load_workloads
from localspec.checks.apart import Apart

BARE, BARE_UNFUSED = "llama.cpp", "llama.cpp unfused"
OFF_PLAIN, OFF, USELESS = "plain, wide off", "localspec, wide off", "localspec, useless draft"
SHORT = ("maths", "code-edit", "json", "copy", "chat")
TWICE = ("code-twice", "rewrite", "again")
N_CTX = 2048
FIXED_LENGTHS = (2, 4, 7)

Say = Callable[[str], None]


def alone(drafter: str) -> str:
    """The contender that has no other drafter."""
    return f"{drafter} alone"


@dataclass(frozen=True)
class Stage:
    """A table of the report."""

    name: str
    about: str
    workloads: tuple[str, ...]
    seed: int
    """Stages differ in it, so that each has runs of its own, taken side by side."""
    servers: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    wide_off: bool = False
    useless: bool = False
    lengths: tuple[int, ...] = ()
    """Fixed draft lengths of every drafter."""
    alone: tuple[str, ...] = ()
    """Drafters that answer each by itself, as long as pays."""
    reuse: bool = False
    """Long prompts: the others may keep the prompt they have just read (what is timed is after it)."""
    prompts: int = 2
    """Of each workload; more rounds make intervals narrower, more prompts the statement broader."""


STAGES = (
    Stage("main", "short context", (*SHORT, "random"), 1, NAMES, (BARE,)),
    Stage(
        "long",
        "2,000 tokens of context",
        ("long-code", "long-chat"),
        2,
        NAMES,
        (BARE, BARE_UNFUSED),
        reuse=True,
        prompts=1,
    ),
    Stage(
        "useless",
        "a draft model of random weights, and text from random words",
        ("chat", "random"),
        3,
        bare=(BARE,),
        useless=True,
    ),
    Stage("hindsight", "fixed draft lengths beside the plan's choice", SHORT, 4, lengths=FIXED_LENGTHS),
    Stage(
        "drafters",
        "every drafter alone beside all of them",
        (*SHORT, "multi-turn", "random", *TWICE),
        6,
        alone=("draft", "lookup", "recycling", "suffix"),
    ),
    Stage("corpus", "answers to what was asked before in another conversation", TWICE, 7, ("server none", *NGRAMS)),
    Stage(
        "wide-off",
        "without localspec's kernels, for the record",
        SHORT,
        5,
        ("server none", "server draft 3", "server ngram"),
        (BARE,),
        wide_off=True,
    ),
)
BY_NAME = {stage.name: stage for stage in STAGES}


@dataclass
class Files:
    """The models of a pair and the programs beside us."""

    quant: str
    target: Path
    draft: Path
    useless: Path
    llama_server: Path | None
    logs: Path
    perplexities: list[str] = field(default_factory=list)
    """Of both files beside those of the small models, in words."""


class Visit:
    """A pair with everything its stages need loaded: one process each, all asleep but the one that is asked."""

    def __init__(self, files: Files, engine: Engine, stack: ExitStack, say: Say) -> None:
        self.files, self.engine = files, engine
        self._stack, self._say, self._own = stack, say, Experience.of(engine)
        stack.callback(self._own.lend, engine)  # what its own plan has learned is what is kept
        self._held: dict[str, Any] = {}
        self.processes: dict[str, int] = {}
        """Name -> process id of everyone beside us."""

    def contenders(self, stage: Stage) -> list[Contender]:
        """Ours first; those that need loading are loaded now."""
        self._own.lend(self.engine)  # the last stage may have ended with another's
        found = engine_contenders(self.engine)
        if stage.lengths:
            found = engine_contenders(self.engine, ["draft", "lookup"], stage.lengths)
        found += [EngineContender(self.engine, alone(name), name) for name in stage.alone]
        found += [self._bare(name, stage.reuse) for name in stage.bare]
        if stage.servers and self.files.llama_server is not None:
            found += self._servers(stage)
        if stage.wide_off:
            far = self._far("wide off", self.files.draft, {"wide": False})
            found += [FarContender(OFF_PLAIN, far, True), FarContender(OFF, far, False)]
        if stage.useless:
            found.append(FarContender(USELESS, self._far("useless draft", self.files.useless, {}), False))
        return found

    def keep_servers(self) -> None:
        """Ends the processes that other stages mostly do not need."""
        for name in [name for name, held in self._held.items() if not isinstance(held, PeerServer)]:
            self._held.pop(name).close()
            del self.processes[name]

    def _servers(self, stage: Stage) -> list[Contender]:
        missing = [name for name in stage.servers if name not in self._held]
        if missing:
            assert self.files.llama_server is not None
            self._say(f"starting llama-server: {', '.join(missing)}")
            model = self.engine.loaded.model
            begin = model.text_of(model.bos) if model.add_bos else ""
            started = start_all(
                self.files.llama_server,
                missing,
                self.files.target,
                self.files.draft,
                N_CTX,
                self.engine.loaded.context.threads,
                self.files.logs,
                begin,
            )
            for server in started:
                self._hold(server.name, server, server.process.pid)
        found: list[Contender] = []
        for name in stage.servers:
            server: PeerServer = self._held[name]
            endpoint = server.endpoint(stage.reuse)
            self._stack.enter_context(closing(endpoint))
            endpoint.facts = {  # not its port, which is another one at every start
                "program": "llama-server",
                "options": list(SETTINGS[name]),
                "n_ctx": N_CTX,
                "threads": self.engine.loaded.context.threads,
                "prompt": endpoint.facts["prompt"],
                "reuse": stage.reuse,
            }
            found.append(endpoint)
        return found

    def _bare(self, name: str, reuse: bool) -> Contender:
        key = f"{name}{' (keeps prompts)' if reuse else ''}"
        if key not in self._held:
            self._say(f"loading {key}")
            threads = self.engine.loaded.context.threads
            apart = Apart(BareLoop, self.files.target, N_CTX, threads, name == BARE, reuse)
            self._hold(key, apart, apart.pid)
        return FarContender(name, self._held[key])

    def _far(self, key: str, draft: Path, settings: dict[str, Any]) -> Apart:
        if key not in self._held:
            self._say(f"loading localspec, {key}")
            apart = Apart(FarEngine, self.files.target, draft, {"context": N_CTX, **settings})
            self._hold(key, apart, apart.pid)
        found: Apart = self._held[key]
        return found

    def _hold(self, name: str, held: Any, pid: int) -> None:
        self._held[name] = held
        self.processes[name] = pid
        self._stack.callback(held.close)


@contextmanager
def visit(files: Files, say: Say) -> Iterator[Visit]:
    """Loads our engine without any flag; everything is closed at the end."""
    say(f"loading localspec, {files.quant}")
    with ExitStack() as stack:
        engine = stack.enter_context(Engine.load(files.target, files.draft, tuned=False, context=N_CTX))
        yield Visit(files, engine, stack, say)


def benchmarks(
    stage: Stage,
    visiting: Visit,
    temperatures: Sequence[float],
    tokens: int,
    rounds: int,
    prompts: int,
    only: Sequence[str] = (),
) -> list[Benchmark]:
    """What the stage measures: one benchmark, or with long prompts one a workload, so that a prompt is read once.
    `prompts`: at most so many of each workload."""
    contenders = visiting.contenders(stage)
    names = [name for name in stage.workloads if not only or name in only]
    if not names:
        return []
    workloads = load_workloads(names, limit=min(stage.prompts, prompts))
    settings = BenchSettings(tuple(temperatures), tokens, rounds, stage.seed)
    parts: list[Workloads] = [{name: workloads[name]} for name in names] if stage.reuse else [workloads]
    return [Benchmark(visiting.engine, contenders, part, settings) for part in parts]
