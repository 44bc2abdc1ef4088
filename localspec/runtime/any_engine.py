"""What faces hold, wherever the models are: an engine makes requests of texts and chats, and answers them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.turn import Message
from localspec.config import EngineSettings
from localspec.engine.interfaces import Constraint, Request, fresh_seed
from localspec.engine.request import TokenLogProb
from localspec.errors import UsageError
from localspec.grammar.grammar import Grammar
from localspec.llama.cache.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.methods import PLAIN
from localspec.options import Options
from localspec.runtime.facts import ModelFacts
from localspec.runtime.generation import Generation
from localspec.types import NO_TOKENS, Float32Array, Prompt, Rule, Tokens

if TYPE_CHECKING:
    from localspec.chat.reply.dialect import Dialect

_Self = TypeVar("_Self", bound="AnyEngine")
_Found = TypeVar("_Found")


class Length(Protocol):
    """Of a context."""

    @property
    def n_ctx(self) -> int:
        """Tokens a slot can hold."""
        ...


class NamedHead(Protocol):
    """What is said of a head."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...


class Facts(Protocol):
    """What every face may ask of loaded models (`runtime.loaded.Loaded` has more)."""

    @property
    def settings(self) -> EngineSettings:
        """In use: with numbers for `auto`."""
        ...

    @property
    def model(self) -> Model:
        """The target's vocabulary; its weights may be elsewhere."""
        ...

    @property
    def context(self) -> Length: ...

    @property
    def exactness(self) -> str:
        """In words: the configuration in use, and whether its passes are exact."""
        ...

    @property
    def configuration(self) -> str:
        """In words: how the target's cache is kept, and whose kernels compute its passes."""
        ...

    @property
    def heads(self) -> Sequence[NamedHead]: ...


class AnyEngine(ABC):
    """Text from a target that a drafter speeds up. Thread-safe; a context manager."""

    loaded: Facts
    template: ChatTemplate

    @cached_property
    def dialect(self) -> Dialect:
        """How this model is told of tools, and how it writes calls and thoughts."""
        from localspec.chat.reply.dialect import Dialect

        return Dialect(self.loaded.model)

    @property
    def settings(self) -> EngineSettings:
        """What is in use: with numbers for `auto`, and as `configure` changed it."""
        return self.loaded.settings

    def tokenize(self, text: str, *, special: bool = True) -> Tokens:
        """Text to tokens, with the begin-of-sequence token where the model wants one."""
        return self.loaded.model.tokenize(text, special=special, add_bos=self.loaded.model.add_bos)

    def chat_text(self, messages: Sequence[Message], *, beginning: str = "", **variables: Any) -> str:
        """The text of a conversation's prompt, to look at; see `ChatTemplate.render`."""
        return self.template.render(messages, beginning=beginning, **variables)

    def prompt_tokens(self, prompt: Prompt | str) -> Tokens:
        """The tokens of what `template.prompt` gave, or of a text of such a kind, in which all marks count.

        The template may have put the begin-of-sequence token there already.
        """
        prompt = Prompt(prompt) if isinstance(prompt, str) else prompt
        model = self.loaded.model
        bos = model.text_of(model.bos)
        has_bos = bool(bos) and prompt.text.startswith(bos)
        return model.tokenize_prompt(prompt, add_bos=model.add_bos and not has_bos)

    def chat_tokens(self, messages: Sequence[Message], *, beginning: str = "", **variables: Any) -> Tokens:
        """The prompt for a conversation as tokens; see `ChatTemplate.prompt`."""
        return self.prompt_tokens(self.template.prompt(messages, beginning=beginning, **variables))

    def chat(self, messages: Sequence[Message], options: Options | None = None, **changes: Any) -> Generation:
        """Answers a conversation; options as in `generate`."""
        return self.generate(self.chat_tokens(messages), options, **changes)

    def generate(self, prompt: str | Tokens, options: Options | None = None, **changes: Any) -> Generation:
        """Continues a text or tokens.

        Args:
            prompt: text, which begins as the model wants it, or int32[n] tokens as they are.
            options: how; None = the defaults.
            changes: options by name, which count more than those of `options`.

        Raises:
            UsageError: an empty prompt or an impossible option. Later errors come out of the generation.
        """
        return self.submit(self.request(prompt, (options or Options()).having(changes)))

    def request(self, prompt: str | Tokens, options: Options) -> Request:
        """What a caller wants, in the tokens of this model, with what was left to the engine."""
        wanted, drafter, grammar = options.prediction, options.drafter, options.grammar
        if isinstance(wanted, str):
            wanted = self.loaded.model.tokenize(wanted, special=False, add_bos=False)
        return Request.of(
            options,
            self.tokenize(prompt) if isinstance(prompt, str) else np.asarray(prompt, dtype=np.int32),
            seed=fresh_seed() if options.seed is None else options.seed,
            rule=self.settings.verify_rule if options.rule is None else options.rule,
            drafter=None if drafter == "auto" else drafter,
            prediction=NO_TOKENS if wanted is None else np.asarray(wanted, dtype=np.int32),
            grammar=self.compiled(grammar) if isinstance(grammar, Grammar) else grammar,
        )

    def submit(self, request: Request) -> Generation:
        """Queues a request.

        Raises:
            UsageError: a token that the vocabulary lacks, a drafter that is not loaded, or the rule *block* with a
                drafter of trees.
        """
        self.check_tokens(request.prompt)
        self.check_tokens(request.prediction)
        if request.drafter not in (None, PLAIN, *self.drafters):
            names = ", ".join((*self.drafters, PLAIN))
            raise UsageError(f"There is no drafter called {request.drafter!r} here; there are: {names}.")
        if request.rule is Rule.BLOCK and self.settings.branches > 1:
            raise UsageError(f"The rule block verifies chains only, and branches is {self.settings.branches}.")
        generation = Generation(replace(request, sampling=self.loaded.model.sampling(request.sampling)))
        self.begin(generation)
        return generation

    def check_tokens(self, tokens: Tokens) -> None:
        """
        Raises:
            UsageError: a token that the vocabulary lacks.
        """
        outside = tokens[(tokens < 0) | (tokens >= self.loaded.model.n_vocab)]
        if len(outside):
            raise UsageError(f"Token {outside[0]} is not in the vocabulary of {self.loaded.model.n_vocab} tokens.")

    @property
    def facts(self) -> ModelFacts:
        """What lists tell of its models."""
        return ModelFacts.of(self)

    # -- where the models are -----------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, generation: Generation) -> None:
        """Queues an answer; `submit` has checked its request."""

    @abstractmethod
    def compiled(self, grammar: Grammar) -> Constraint:
        """A grammar for this model's vocabulary, which `generate` takes in its place without compiling anything.

        Raises:
            UsageError: the grammar has a mistake, or is too large.
        """

    @property
    @abstractmethod
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters in use, any of which a request may ask for."""

    @property
    @abstractmethod
    def dropped(self) -> dict[str, str]:
        """Drafters that cannot be used, or not any more, and why: {name: reason}."""

    @property
    @abstractmethod
    def running(self) -> dict[int, Generation]:
        """What is being answered now, by slot."""

    @property
    @abstractmethod
    def outdated(self) -> str:
        """Why the models should be closed and loaded again; "" = they need not."""

    @abstractmethod
    def embed(self, tokens: Tokens, cancel: Callable[[], bool] | None = None) -> Float32Array:
        """A text as a vector."""

    @abstractmethod
    def score(self, tokens: Tokens, top: int = 0, cancel: Callable[[], bool] | None = None) -> list[TokenLogProb]:
        """How likely each token of a text is after those before it."""

    @abstractmethod
    def hidden_states(
        self, tokens: Tokens, layers: Sequence[int] = (), cancel: Callable[[], bool] | None = None
    ) -> HiddenStates:
        """What goes into layers, and what comes out of the final norm, for every token of a text."""

    @abstractmethod
    def forget_chat(self, chat: str) -> None:
        """Deletes the KV cache kept for a conversation that was deleted, and what the corpus has of its answers."""

    @abstractmethod
    def forget(self) -> None:
        """Drops the caches of all free slots."""

    @abstractmethod
    def configure(self, **changes: Any) -> None:
        """Changes drafter settings between requests."""

    @abstractmethod
    def work_when_idle(self) -> None:
        """Lets it find out in idle time what is not known of this machine and model; for programs that stay."""

    @property
    def last_words(self) -> tuple[str, ...]:
        """What the process wrote that had these models before, and died; nothing if there was none."""
        return ()

    @abstractmethod
    def inspect(self, look: Callable[[Any], _Found]) -> _Found:
        """What `look` finds when it is called with the `Engine` of the process that has the models.

        It is a function of a module, or a partial of one, and it changes nothing. What it returns can be pickled.
        """

    @abstractmethod
    def at_close(self, call: Callable[[], None]) -> None:
        """Has something called once the models are freed."""

    @abstractmethod
    def close(self) -> None:
        """Cancels what runs and frees the models; a second call does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
