"""Our own sides of a benchmark: one engine that answers plain, as it comes, and with drafts of fixed lengths.

All share the models, their caches and the process, so what differs is the drafting. Plain decoding and localspec as it
comes are requests to the same loop: what the plan has learned stays with it, as in a program that keeps running. Fixed
lengths need the engine configured anew, after which the plan starts from what it remembers, as a program does that has
just started. What they learn is kept apart from it: forced drafts are no experience of the plan's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from localspec import __version__
from localspec.checks.compare import Answer, TrialCorpus, Turn, ask
from localspec.checks.prompts import Prompt
from localspec.drafters import plugin
from localspec.drafters.heads import loading as heads
from localspec.errors import UsageError
from localspec.llama.exact.identity import cpu_name
from localspec.llama.model import file_sha256
from localspec.methods import COPYING, HEADS
from localspec.runtime.engine import Engine

PADDED = "localspec.padded"
"""Key of a GGUF file under which a padded model says so, in words that must stand beside every number it gives."""
BASELINE, PRODUCT = "plain", "localspec"
"""Names of the sides that all others are compared with: plain decoding, and localspec without any flag."""


class EngineSide:
    """The engine under one setting."""

    def __init__(self, engine: Engine, name: str, drafter: str = "auto", length: int | None = None) -> None:
        """
        Args:
            engine: loaded with `max_draft_tokens=None` and every drafter that sides name; it has what its own plan
                has learned.
            name: of the side.
            drafter: who guesses.
            length: drafts of so many tokens in every pass; None = what pays, 0 = plain decoding.
        """
        self.name, self._engine, self._drafter = name, engine, drafter
        self._plain, self._length = length == 0, length or None
        self._own = self._learned = engine.loaded.knowledge.acceptance
        if length or drafter != "auto":
            self._learned = copy.deepcopy(self._own)

    def begin(self, prompt: Prompt) -> None:
        """A conversation begins: nothing of an earlier one is reused."""
        engine = self._engine
        self._forget_answers()
        if prompt.apart and not self._plain:
            TrialCorpus(engine)
            self._configure()  # drafters are made anew
        elif (engine.settings.drafter, engine.settings.max_draft_tokens) != (self._drafter, self._length):
            self._configure()
        engine.forget()

    def answer(self, turn: Turn) -> Answer:
        """Answers; cancelled if the caller is interrupted."""
        corpus = self._engine.loaded.corpus
        if isinstance(corpus, TrialCorpus):
            corpus.settle()  # a user does not ask again within milliseconds
        drafter, apart = "none" if self._plain else None, isinstance(corpus, TrialCorpus)
        return ask(self._engine, turn.having(drafter=drafter, recall=apart, remember=apart))

    def close(self) -> None:
        """The engine is its maker's, and remembers what its own plan learned."""
        self._forget_answers()
        self._engine.loaded.knowledge.acceptance = self._own

    def _configure(self) -> None:
        """Plans that are made from now on use what this side has learned."""
        self._engine.loaded.knowledge.acceptance = self._learned
        self._engine.configure(drafter=self._drafter, max_draft_tokens=self._length)

    def _forget_answers(self) -> None:
        corpus = self._engine.loaded.corpus
        if isinstance(corpus, TrialCorpus):
            corpus.close()
            self._configure()


def engine_sides(engine: Engine, drafters: Sequence[str] = (), lengths: Sequence[int] = ()) -> list[EngineSide]:
    """Plain decoding, localspec as it comes, and each drafter with each length.

    Raises:
        UsageError: a draft model or head is asked for and there is none.
    """
    found = [EngineSide(engine, BASELINE, length=0), EngineSide(engine, PRODUCT)]
    for drafter in drafters:
        if drafter == "draft" and engine.loaded.draft_context is None:
            raise UsageError("The drafter `draft` needs a draft model.", "Give one with --draft FILE, or a pair.")
        if drafter in HEADS and drafter not in engine.loaded.trained:
            raise heads.missing(drafter)
        found += [EngineSide(engine, f"{drafter} {length}", drafter, length) for length in lengths]
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
