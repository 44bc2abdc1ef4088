"""Our own contenders: one engine that answers plain, as it comes, and with drafts of fixed lengths.

All share the models, their caches and the process, so what differs is the drafting. Plain decoding and localspec as it
comes are requests to the same loop: what the plan has learned stays with it, as in a program that keeps running. Fixed
lengths need the engine configured anew, after which the plan starts from what it remembers, as a program does that has
just started. What they learn and lose is kept apart from it: forced drafts are no experience, and no debt, of the
plan's.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from localspec import __version__
from localspec.bench.contest.run import BASELINE, PRODUCT, Answer, Contender, Pass, Turn
from localspec.bench.models.shapes import PADDED
from localspec.drafters import plugin
from localspec.drafters.heads import loading as heads
from localspec.errors import UsageError
from localspec.llama.exact.identity import cpu_name
from localspec.llama.model import file_sha256
from localspec.methods import COPYING, HEADS
from localspec.planning.acceptance import Table
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.kept.corpus import Corpus, CorpusFile


@dataclass(slots=True)
class Experience:
    """What a plan learns from its drafts."""

    acceptance: defaultdict[str, Table]

    @classmethod
    def of(cls, engine: Engine) -> Experience:
        """The engine's own."""
        return cls(engine.loaded.knowledge.acceptance)

    def apart(self) -> Experience:
        """The same to begin with, and its own from then on."""
        return Experience(copy.deepcopy(self.acceptance))

    def lend(self, engine: Engine) -> None:
        """Makes it the engine's; plans that are made from now on use it."""
        engine.loaded.knowledge.acceptance = self.acceptance


class TrialCorpus(Corpus):
    """An empty corpus for one conversation, which leaves nothing on disk."""

    def __init__(self, engine: Engine) -> None:
        self._folder = TemporaryDirectory(prefix="localspec-bench-")
        self.before = engine.loaded.corpus
        """What the engine goes on with afterwards."""
        file = CorpusFile(Path(self._folder.name) / "answers.sqlite", int(engine.settings.corpus_mb * 1e6))
        super().__init__(file, engine.loaded.model.n_vocab)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class EngineContender:
    """The engine under one setting."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        drafter: str = "auto",
        length: int | None = None,
        own: Experience | None = None,
    ) -> None:
        """
        Args:
            engine: loaded with `max_draft_tokens=None` and every drafter that contenders name.
            name: see `Contender`.
            drafter: who guesses.
            length: drafts of so many tokens in every pass; None = what pays, 0 = plain decoding.
            own: what the engine's own plan has learned; None = what it has now.
        """
        self.name = name
        self._own = own or Experience.of(engine)
        self._experience = self._own.apart() if length or drafter != "auto" else self._own
        self.facts: Mapping[str, Any] = engine_facts(engine)
        self._engine, self._drafter = engine, drafter
        self._plain = length == 0
        self._length = length or None

    def begin(self) -> None:
        engine = self._engine
        self._forget_answers()
        if (engine.settings.drafter, engine.settings.max_draft_tokens) != (self._drafter, self._length):
            self._experience.lend(engine)
            engine.configure(drafter=self._drafter, max_draft_tokens=self._length)
        engine.forget()

    def _forget_answers(self) -> None:
        if isinstance(self._engine.loaded.corpus, TrialCorpus):
            self._use_corpus(self._engine.loaded.corpus.before)

    def remember(self) -> None:
        if not self._plain:
            self._use_corpus(TrialCorpus(self._engine))

    def _use_corpus(self, corpus: Corpus | None) -> None:
        """Searches and fills this one from now on."""
        engine, old = self._engine, self._engine.loaded.corpus

        def change() -> None:
            engine.loaded.corpus = corpus

        engine.on_engine_thread(change)
        self._experience.lend(engine)
        engine.configure(drafter=self._drafter, max_draft_tokens=self._length)  # drafters are made anew
        if isinstance(old, TrialCorpus):
            old.close()

    def answer(self, turn: Turn) -> Answer:
        corpus = self._engine.loaded.corpus
        if isinstance(corpus, TrialCorpus):
            corpus.settle()  # a user does not ask again within milliseconds
        start = perf_counter()
        generation = self._engine.generate(
            turn.tokens,
            turn.options,
            drafter="none" if self._plain else None,
            past=isinstance(corpus, TrialCorpus),
        )
        try:
            answer = _collect(generation, start)
        except BaseException:
            generation.cancel()
            generation.text()
            raise
        answer.costs = _costs(self._engine, len(turn.tokens) + answer.tokens // 2)
        return answer

    def close(self) -> None:
        """The engine is its maker's, and remembers what its own plan learned."""
        self._forget_answers()
        self._own.lend(self._engine)


def _collect(generation: Generation, start: float) -> Answer:
    text: list[str] = []
    arrivals: list[tuple[float, int]] = []
    passes: list[Pass] = []
    for event in generation:
        if event.tokens:
            arrivals.append((perf_counter() - start, len(event.tokens)))
        text.append(event.text)
        if event.record is not None:
            record = event.record
            passes.append(Pass(record.drafter, len(record.guesses), len(record.accepted), record.seconds))
    wall = perf_counter() - start
    stats = generation.stats
    return Answer(
        "".join(text),
        stats.generated,
        wall,
        arrivals,
        prefill_seconds=stats.prefill_seconds,
        finish=generation.finish.value if generation.finish else "",
        exact=stats.exact,
        stats=stats.as_dict(),
        passes=passes,
    )


def _costs(engine: Engine, length: int) -> dict[str, Any]:
    """What passes cost at that length, by the engine's measurement; empty where nothing is known."""
    knowledge, allowed = engine.loaded.knowledge, engine.loaded.context.exact_widths
    if not knowledge.costs.known or engine.settings.branches > 1:
        return {}  # of trees the log does not say which guess was right where
    row, _ = knowledge.costs.rows(length)
    passes = [0.0 if allowed is not None and width not in allowed else row[width] for width in range(len(row))]
    levels = {name: costs.level(1) for name, costs in knowledge.draft_costs.items()}
    return {"passes": passes, "levels": levels}


def engine_contenders(engine: Engine, drafters: Sequence[str] = (), lengths: Sequence[int] = ()) -> list[Contender]:
    """Plain decoding, localspec as it comes, and each drafter with each length.

    Raises:
        UsageError: a draft model or head is asked for and there is none, or a length is impossible.
    """
    own = Experience.of(engine)
    found: list[Contender] = [
        EngineContender(engine, BASELINE, length=0, own=own),
        EngineContender(engine, PRODUCT, own=own),
    ]
    for drafter in drafters:
        if drafter == "draft" and engine.loaded.draft_context is None:
            raise UsageError("The drafter `draft` needs a draft model.", "Give one with --draft FILE, or a pair.")
        if drafter in HEADS and drafter not in engine.loaded.trained:
            raise heads.missing(drafter)
        found += [EngineContender(engine, f"{drafter} {length}", drafter, length, own) for length in lengths]
    return found


def possible_drafters(engine: Engine) -> list[str]:
    """The drafters that can run by themselves with what is loaded; those of installed packages too, if sound."""
    own = [*engine.loaded.trained, *COPYING]
    return own + [name for name in plugin.installed() if name not in engine.dropped]


def pair_facts(engine: Engine) -> dict[str, Any]:
    """Which files answer."""
    settings = engine.loaded.settings
    files = {"target": settings.target, "draft": settings.draft}
    found: dict[str, Any] = {
        kind: None if path is None else {"name": path.name, "sha256": file_sha256(path)} for kind, path in files.items()
    }
    if engine.loaded.heads:
        found["heads"] = [
            {"name": head.path.name, "method": head.name, "files": heads.identity(head)[1:]}
            for head in engine.loaded.heads
        ]
    return found


def engine_facts(engine: Engine) -> dict[str, Any]:
    """What our runs depend on besides the files and the turn."""
    settings = asdict(engine.loaded.settings)
    for name in ("target", "draft", "heads", "drafter", "max_draft_tokens"):
        del settings[name]
    return {
        **{
            name: value if value is None or isinstance(value, int | str) else str(value)
            for name, value in settings.items()
        },
        "localspec": __version__,
        "configuration": engine.loaded.configuration,
        "threads": engine.loaded.context.threads,
    }


def machine_facts(engine: Engine) -> dict[str, Any]:
    """What ran it, for people."""
    return {
        "processor": cpu_name(),
        "threads": engine.loaded.context.threads,
        "exactness": engine.loaded.exactness,
        "localspec": __version__,
    }


def labels(engine: Engine) -> list[str]:
    """What must stand beside every number of padded models."""
    found = []
    for kind, model in (("target", engine.loaded.model), ("draft", engine.loaded.draft_model)):
        words = "" if model is None else model.header.text(PADDED)
        if words:
            found.append(f"The {kind} is a padded one: {words}.")
    return found
