"""What callers hold of models in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.chat.prompt.template import ChatTemplate
from localspec.config import EngineSettings
from localspec.drafters.heads.loading import apart
from localspec.engine.interfaces import Constraint
from localspec.engine.request import TokenLogProb
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler
from localspec.llama.cache.hidden import HiddenStates
from localspec.llama.exact.choice import Progress
from localspec.llama.model import Model
from localspec.models.installed.installed import find, find_one
from localspec.runner.link import Link
from localspec.runner.messages import Load, NamedHead, Ready, State
from localspec.runtime.any_engine import AnyEngine
from localspec.runtime.generation import Generation
from localspec.types import Float32Array, Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

_Found = TypeVar("_Found")
SILENCE_SECONDS = 60.0
"""Seconds without a sign of life after which a process counts as hung; `Link` adds to it."""


@dataclass(frozen=True, slots=True)
class Length:
    """Of a context."""

    n_ctx: int


class Told:
    """What the process said of its models (`any_engine.Facts`), and their vocabulary, which is here."""

    def __init__(self, link: Link, model: Model, ready: Ready) -> None:
        self._link = link
        self.model = model
        self.context = Length(ready.n_ctx)
        self.exactness = ready.exactness
        self.configuration = ready.configuration
        self.heads: tuple[NamedHead, ...] = ready.heads

    @property
    def state(self) -> State:
        """The last one."""
        assert self._link.state is not None
        return self._link.state

    @property
    def settings(self) -> EngineSettings:
        return self.state.settings


class EngineApart(AnyEngine):
    """An engine whose models are in a process of their own, which may die: those who wait hear of it in a
    `RunnerError`, and a new process is started once by itself. Thread-safe; a context manager.

    >>> with EngineApart.load() as engine:  # the bundled pair
    ...     for event in engine.chat([Message("user", "Hi")]):
    ...         print(event.text, end="")
    """

    loaded: Told

    def __init__(self, link: Link, loaded: Told) -> None:
        """See `load`."""
        self._link, self.loaded = link, loaded
        self.template = ChatTemplate.of(loaded.model)
        self._compiler = Compiler(loaded.model)
        self._at_close = ExitStack()

    @classmethod
    def load(
        cls,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        heads: Sequence[str | Path] = (),
        progress: Progress | None = None,
        tuned: bool = True,
        patience: float = SILENCE_SECONDS,
        **settings: Any,
    ) -> EngineApart:
        """Loads a pair as `Engine.load` does, in a process of its own.

        Args:
            target, draft, heads, progress, tuned, settings: as of `Engine.load`.
            patience: seconds without a sign of life, after which the process is ended.

        Raises:
            RunnerError: the process ended while it loaded.
            ModelFileError, PairError, UsageError: as `Engine.load`.
        """
        target_path, pair_draft = find(target)
        draft_path = pair_draft if draft is None else find_one(draft)
        draft_path, head_paths = apart(draft_path, [find_one(head) for head in heads])
        EngineSettings(target=target_path, draft=draft_path, heads=head_paths, **settings)  # before a process starts
        link = Link(Load(target_path, draft_path, head_paths, tuned, settings), patience)
        ready = link.wait(progress)
        try:
            # After the process has read the file: one that llama.cpp ends the process over does not come so far.
            model = Model.load(target_path, kernels="plain", weights=False)
            return cls(link, Told(link, model, ready))
        except BaseException:
            link.close(at_once=True)
            raise

    def begin(self, generation: Generation) -> None:
        self._link.begin(generation)

    def compiled(self, grammar: Grammar) -> Constraint:
        return self._compiler.compile(grammar)

    def embed(self, tokens: Tokens, cancel: Callable[[], bool] | None = None) -> Float32Array:
        self.check_tokens(tokens)
        found: Float32Array = self._link.call("embed", tokens, cancel=cancel)
        return found

    def score(self, tokens: Tokens, top: int = 0, cancel: Callable[[], bool] | None = None) -> list[TokenLogProb]:
        self.check_tokens(tokens)
        found: list[TokenLogProb] = self._link.call("score", tokens, top, cancel=cancel)
        return found

    def hidden_states(
        self, tokens: Tokens, layers: Sequence[int] = (), cancel: Callable[[], bool] | None = None
    ) -> HiddenStates:
        self.check_tokens(tokens)
        found: HiddenStates = self._link.call("hidden_states", tokens, tuple(layers), cancel=cancel)
        return found

    def forget_chat(self, chat: str) -> None:
        self._link.call("forget_chat", chat)

    def forget(self) -> None:
        self._link.call("forget")

    def configure(self, **changes: Any) -> None:
        self._link.call("configure", **changes)

    def work_when_idle(self) -> None:
        self._link.call("work_when_idle")

    def inspect(self, look: Callable[[Engine], _Found]) -> _Found:
        found: _Found = self._link.call("inspect", look)
        return found

    @property
    def drafters(self) -> tuple[str, ...]:
        return self.loaded.state.drafters

    @property
    def dropped(self) -> dict[str, str]:
        return dict(self.loaded.state.dropped)

    @property
    def running(self) -> dict[int, Generation]:
        return self._link.running

    @property
    def outdated(self) -> str:
        fault = self._link.fault
        return self.loaded.state.outdated if fault is None else fault.message

    @property
    def pid(self) -> int:
        """Of the process that has the models; 0 = there is none now."""
        return self._link.pid

    @property
    def last_words(self) -> tuple[str, ...]:
        """What llama.cpp wrote before the process that died last died."""
        return self._link.last_words

    def at_close(self, call: Callable[[], None]) -> None:
        self._at_close.callback(call)

    def close(self) -> None:
        if self._link.close():
            self._compiler.close()
            self.loaded.model.close()
            self._at_close.close()
