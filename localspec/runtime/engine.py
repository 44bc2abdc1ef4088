"""The engine of this process: hands requests to the thread that owns the models.

Whole texts (for vectors, log-probabilities, hidden states) are read in a cache of their own, a pass at a time between
the passes of answers, so that no answer is disturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from localspec.chat.prompt.prompt import MOST_TOKENS, continued
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.reply.reply import AnswerParser, ReplyParser
from localspec.chat.reply.tool import Tool
from localspec.chat.turn import Message
from localspec.config import EngineSettings
from localspec.drafters.heads.head import apart
from localspec.engine.interfaces import Constraint, Request, fresh_seed
from localspec.engine.slot import TokenLogProb
from localspec.errors import Cancelled, ContextOverflowError, LocalspecError, UsageError
from localspec.grammar.grammar import LARGE, Grammar
from localspec.grammar.matcher import Compiler
from localspec.llama.cache.context import Context
from localspec.llama.exact.choice import Progress
from localspec.llama.library import lib
from localspec.llama.library.settings import FINAL, NO_TAP, ContextSettings, Tap, check_tap
from localspec.llama.model import Model
from localspec.methods import HEADS, PLAIN
from localspec.native import kernels
from localspec.options import Options
from localspec.runtime.generation import Generation
from localspec.runtime.kept import corpus
from localspec.runtime.kept import tuning as tunings
from localspec.runtime.loaded import Loaded, ModelFacts
from localspec.runtime.loading import check_drafter, leaves, load_apart, make_loop
from localspec.runtime.worker import Worker
from localspec.types import NO_TOKENS, Feed, Float32Array, Float64Array, LogitRows, Prompt, Rule, Tokens

if TYPE_CHECKING:
    from localspec.chat.reply.dialect import Dialect

_Result = TypeVar("_Result")

_PASS_TOKENS = 128
"""Tokens of a pass. llama.cpp keeps logits of every row: 80 MB for a vocabulary of 150,000."""
_ROWS_A_PASS = 64  # tokens of a pass that scores; llama.cpp keeps logits of them all: 40 MB for a vocabulary of 150,000
_CACHE_STEP = 512  # a context holds a multiple of this number of tokens
_NONE, _MEAN, _FIRST, _LAST, _RANK = range(5)  # llama.cpp's numbers of how states are pooled


class _TextReader:
    """Reads one text at a time. Its cache is made for the first one, and again for longer ones or another tap."""

    def __init__(self, model: Model, longest: int, settings: ContextSettings) -> None:
        """`model` stays open as long as this; `longest`: tokens of a text; `settings` of the cache, but for its
        length."""
        self._model, self._longest, self._settings = model, longest, settings
        self._context: Context | None = None
        self._tap = NO_TAP

    def _check_length(self, tokens: Tokens, hint: str = "") -> None:
        """Raises ContextOverflowError: the text is too long."""
        if len(tokens) > self._longest:
            said = f"The text has {len(tokens)} tokens and the context holds {self._longest}."
            raise ContextOverflowError(said, hint)

    def _cache_for(self, wanted: int, tap: Tap = NO_TAP) -> Context:
        """An empty cache that holds so many tokens."""
        context = self._context
        if context is None or context.n_ctx < wanted or self._tap != tap:
            self.close()
            settings = replace(self._settings, n_ctx=-(-wanted // _CACHE_STEP) * _CACHE_STEP)
            self._context = context = Context(self._model, settings, tap=tap, keep_states=False)
            self._tap = tap
        context.forget(0)
        return context

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()


def _passes(context: Context, tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Reads a text as a prompt; yields after each pass from which token to which it went."""
    history = np.append(tokens, tokens[-1])  # a cache is filled up to the last token, which is left for decoding
    done = 0
    while done < len(tokens):
        start, done = done, context.prefill_chunk(0, history, len(history))
        yield start, done


class Embedder(_TextReader):
    """Texts as vectors: the model's final states, pooled."""

    def __init__(self, model: Model, longest: int, threads: int) -> None:
        super().__init__(model, longest, ContextSettings(grid=_PASS_TOKENS, max_rows=_PASS_TOKENS, threads=threads))
        self._width = int(lib.api().llama_model_n_embd_out(model.handle))

    def embed(self, tokens: Tokens) -> Iterator[Float32Array | None]:
        """See `Engine.embed`. Each step is a pass; all but the last yield None."""
        if not len(tokens):
            raise UsageError("There is nothing to embed.", "Give it at least one token of text.")
        self._check_length(tokens, "Embed it in parts.")
        pooling = self._model.header.number("pooling_type")
        if pooling == _RANK:
            raise UsageError(f"{self._model.path.name} ranks texts; it does not embed them.")
        context = self._cache_for(len(tokens) + 1, Tap(final="all"))
        assert context.outputs is not None
        total: Float64Array = np.zeros(self._width)
        for start, done in _passes(context, tokens):
            states = context.outputs.rows(FINAL, done - start)
            if pooling not in (_FIRST, _LAST):
                total += states.sum(axis=0, dtype=np.float64) / len(tokens)
            elif pooling == _LAST or not start:
                total[:] = states[-1 if pooling == _LAST else 0]
            yield None if done < len(tokens) else total.astype(np.float32)


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states of a text of n tokens."""

    layers: dict[int, Float32Array]
    """{layer: float32[n, n_embd]}, inputs of the layer: the residual stream before the layer's norm. Inputs of layer 0
    are the token embeddings; those of layer i are the outputs of layer i - 1."""
    final: Float32Array  # float32[n, n_embd], after the final norm: what the output matrix turns into logits


def check_layers(model: Model, layers: Sequence[int]) -> tuple[int, ...]:
    count = int(lib.api().llama_model_n_layer(model.handle))
    return check_tap(model.header, count, Tap(tuple(layers))).layers


class HiddenReader(_TextReader):
    """Hidden states, with the kernels, cache formats and passes of the context that answers."""

    def __init__(self, like: Context) -> None:
        rollback = like.settings.rollback if like.most_nodes else 0  # with snapshots passes are built differently
        settings = replace(like.settings, n_slots=1, max_leaves=1, rollback=rollback, reuse="all", grid_prefill=True)
        super().__init__(like.model, like.n_ctx, settings)

    def read(self, tokens: Tokens, layers: Sequence[int]) -> Iterator[HiddenStates | None]:
        """See `Engine.hidden_states`. Each step is a pass; all but the last yield None."""
        if not len(tokens):
            raise UsageError("There is nothing to read.", "Give it at least one token of text.")
        self._check_length(tokens, "Read it in parts.")
        tap = Tap(check_layers(self._model, layers), "all")
        context = self._cache_for(len(tokens) + 1, tap)
        assert context.outputs is not None
        parts: dict[int, list[Float32Array]] = {what: [] for what in tap.everything}
        for start, done in _passes(context, tokens):
            for what, found in parts.items():
                found.append(context.outputs.rows(what, done - start).copy())
            if done < len(tokens):
                yield None
        final = np.concatenate(parts.pop(FINAL))
        yield HiddenStates({layer: np.concatenate(found) for layer, found in parts.items()}, final)


class Scorer(_TextReader):
    """How likely each token of a given text is, by a context like the one that answers."""

    def __init__(self, like: Context) -> None:
        rows = _ROWS_A_PASS
        settings = replace(like.settings, n_slots=1, max_leaves=1, max_rows=rows, grid=rows, reuse="all")
        super().__init__(like.model, like.n_ctx, settings)

    def score(self, tokens: Tokens, top: int) -> Iterator[list[TokenLogProb] | None]:
        """See `Engine.score`. Each step is a pass; all but the last yield None."""
        self._check_length(tokens)
        context, found = self._cache_for(len(tokens)), list[TokenLogProb]()
        last, rows_a_pass = len(tokens) - 1, _ROWS_A_PASS if context.can_trim else 1
        for start in range(0, last, rows_a_pass):
            end = min(start + rows_a_pass, last)
            known = tokens[start + 1 : end]  # given, as a draft is: so that a pass has logits of every row
            parents = np.arange(-1, len(known) - 1, dtype=np.int32)
            (rows,) = context.decode([Feed(0, tokens[: start + 1], start + 1, known, parents)])
            found += [_scored(rows, row, int(tokens[start + 1 + row]), top) for row in range(end - start)]
            if end < last:
                yield None
        yield found


def _scored(rows: LogitRows, row: int, token: int, top: int) -> TokenLogProb:
    value = float(kernels.log_probs(rows, row, [token])[0])
    likely: tuple[tuple[int, float], ...] = ()
    if top:
        ids, values = kernels.top_log_probs(rows, row, top)
        likely = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogProb(token, value, float(rows[row][token]), likely)


class Readings:
    """The readers of one engine. Thread-safe: one text is read at a time, callers wait for each other."""

    def __init__(self, loaded: Loaded, run: Callable[[Callable[[], Any]], Any]) -> None:
        """`run` runs a function on the thread that owns the models."""
        self._loaded, self._run = loaded, run
        self._one = threading.Lock()
        self._like: Context | None = None  # whose model reads

    def read(
        self, passes: Callable[[Readings], Iterator[_Result | None]], cancel: Callable[[], bool] | None
    ) -> _Result:
        """What the last pass brings of `passes`, which begins to read with one of the readers; `cancel` is asked
        between passes. Raises Cancelled: it said so."""
        with self._one:
            like = self._loaded.context
            if self._like is not like:  # none has read yet, or the models have moved to another device
                self.close()
                self._like, self.embedder = like, Embedder(like.model, like.n_ctx, like.threads)
                self.scorer, self.hidden = Scorer(like), HiddenReader(like)
            steps = passes(self)
            while True:
                if cancel is not None and cancel():
                    raise Cancelled("Stopped while reading a text.")
                found: _Result | None = self._run(lambda: next(steps))
                if found is not None:
                    return found

    def close(self) -> None:
        """Frees the caches; no text is being read."""
        for reader in () if self._like is None else (self.embedder, self.scorer, self.hidden):
            reader.close()


class Engine(Worker, AbstractContextManager["Engine"]):
    """Text from a target that a drafter speeds up. Thread-safe but for what says that it is for the engine's thread;
    a context manager.

    >>> with Engine.load() as engine:  # the bundled pair
    ...     for event in engine.chat([Message("user", "Hi")]):
    ...         print(event.text, end="")
    """

    def __init__(self, loaded: Loaded) -> None:
        self.template = ChatTemplate.of(loaded.model)
        self._compiler = Compiler(loaded.model)
        self._readings = Readings(loaded, self.on_engine_thread)
        self.at_close = ExitStack()  # closed once the models are freed
        super().__init__(loaded, make_loop(loaded, loaded.settings))
        # A thread's first step is slow (graphs, pages of a file), so no answer waits for it. A drafter that cannot
        # compute is dropped here; the first answer finds out if the target cannot.
        try:
            self.forget()
        except (LocalspecError, MemoryError):
            pass
        except BaseException:
            self._end()
            raise

    @classmethod
    def load(
        cls,
        target: str | Path | None = None,
        draft: str | Path | None = None,
        *,
        heads: Sequence[str | Path] = (),
        progress: Progress | None = None,
        tuned: bool = True,
        **settings: Any,
    ) -> Engine:
        """Loads a pair by name, or a target file with or without a draft file; nothing = the bundled pair.

        Args:
            target: name of a pair or model that is installed, or a GGUF file.
            draft: name or GGUF file of the draft model; overrides the pair's. One that is a head counts as one.
                "none" = no draft model, whatever goes with the target.
            heads: names, files or folders of heads trained for the target.
            progress: called with (what is being done, share done from 0 to 1); may raise to give up.
            tuned: take what `localspec tune` stored for this pair, where `settings` do not say otherwise.
            settings: fields of `EngineSettings`.

        Raises:
            ModelFileError: a file is missing, damaged or of the wrong kind.
            PairError: target and draft do not share a tokenizer, or a head is for another target.
            UsageError: a setting has an impossible value.
        """
        from localspec.models.installed.installed import NO_DRAFT, find, find_one

        target_path, pair_draft = find(target)
        draft_path = None if draft == NO_DRAFT else pair_draft if draft is None else find_one(draft)
        draft_path, head_paths = apart(draft_path, [find_one(head) for head in heads])
        tuning = tunings.read(target_path, draft_path) if tuned else None
        if tuning is not None:
            settings = tuning.applied(settings)
        wanted = EngineSettings(target=target_path, draft=draft_path, heads=head_paths, **settings)
        check_drafter(wanted)
        loaded = load_apart(wanted, progress)
        try:
            return cls(loaded)
        except BaseException:
            loaded.close()
            raise

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
        """The tokens of what `template.prompt` gave, which may have the begin-of-sequence token already, or of a text
        of such a kind, in which all marks count."""
        prompt = Prompt(prompt) if isinstance(prompt, str) else prompt
        model = self.loaded.model
        bos = model.text_of(model.bos)
        has_bos = bool(bos) and prompt.text.startswith(bos)
        return model.tokenize_prompt(prompt, add_bos=model.add_bos and not has_bos)

    def chat_tokens(self, messages: Sequence[Message], *, beginning: str = "", **variables: Any) -> Tokens:
        """The prompt for a conversation as tokens; see `ChatTemplate.prompt`."""
        return self.prompt_tokens(self.template.prompt(messages, beginning=beginning, **variables))

    def chat(self, messages: Sequence[Message], options: Options | None = None, **changes: Any) -> Generation:
        return self.generate(self.chat_tokens(messages), options, **changes)

    def generate(self, prompt: str | Tokens, options: Options | None = None, **changes: Any) -> Generation:
        """Continues a text, which begins as the model wants it, or int32[n] tokens as they are.

        Args:
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
        """Queues a request. Raises UsageError: a token that the vocabulary lacks, a drafter that is not loaded, or the
        rule *block* with a drafter of trees."""
        self.check_tokens(request.prompt)
        self.check_tokens(request.prediction)
        if request.drafter not in (None, PLAIN, *self.drafters):
            names = ", ".join((*self.drafters, PLAIN))
            raise UsageError(f"There is no drafter called {request.drafter!r} here; there are: {names}.")
        if request.rule is Rule.BLOCK and self.settings.branches > 1:
            raise UsageError(f"The rule block verifies chains only, and branches is {self.settings.branches}.")
        generation = Generation(replace(request, sampling=self.loaded.model.sampling(request.sampling)))
        self._queue(self._waiting, generation)
        return generation

    def check_tokens(self, tokens: Tokens) -> None:
        """Raises UsageError for a token that the vocabulary lacks."""
        outside = tokens[(tokens < 0) | (tokens >= self.loaded.model.n_vocab)]
        if len(outside):
            raise UsageError(f"Token {outside[0]} is not in the vocabulary of {self.loaded.model.n_vocab} tokens.")

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts.of(self.loaded, self.template)

    def forget_chat(self, chat: str) -> None:
        """Deletes the KV cache kept for a conversation that was deleted, and what the corpus has of its answers. Raises
        LocalspecError: the engine is closed, or a corpus it does not use cannot be written (of its own it warns)."""

        def forget() -> None:
            for generation in (*self._waiting, *self._running.values()):
                if generation.request.chat == chat:
                    generation.kept = False
            if self.chats is not None:
                self.chats.forget(chat)
            if self.loaded.corpus is not None:
                self.loaded.corpus.forget(chat)

        self.on_engine_thread(forget)
        if self.loaded.corpus is None:  # else it does so itself
            corpus.erase(chat)

    def forget(self) -> None:
        """Drops the caches of all free slots: the next answer begins as a fresh program's does,
        but for past answers (`recall` of `generate`) and what the plan has learned."""
        self.on_engine_thread(self._begin_anew)

    def embed(self, tokens: Tokens, cancel: Callable[[], bool] | None = None) -> Float32Array:
        """float32[n_embd], a text as a vector, not normalised: pooled as the file says, else the mean over its tokens.

        Args:
            tokens: int32[n], as `tokenize` makes them.
            cancel: asked between passes; says whether the caller wants no more.

        Raises:
            UsageError: no tokens, one that the vocabulary lacks, or a model that ranks texts.
            ContextOverflowError, Cancelled: too many tokens, or `cancel` said so.
        """
        self.check_tokens(tokens)
        return self._readings.read(lambda it: it.embedder.embed(np.asarray(tokens, dtype=np.int32)), cancel)

    def score(self, tokens: Tokens, top: int = 0, cancel: Callable[[], bool] | None = None) -> list[TokenLogProb]:
        """How likely each token of int32[n] is after those before it, and the `top` most likely ones at each position;
        nothing is said of the first one. `cancel` and errors as for `embed`."""
        self.check_tokens(tokens)
        return self._readings.read(lambda it: it.scorer.score(np.asarray(tokens, dtype=np.int32), top), cancel)

    def hidden_states(
        self, tokens: Tokens, layers: Sequence[int] = (), cancel: Callable[[], bool] | None = None
    ) -> HiddenStates:
        """What goes into `layers` (counted from 0), and what comes out of the final norm, for every token of a text.
        llama.cpp keeps logits of a pass meanwhile: 300 MB for a vocabulary of 150,000.

        `cancel` and errors as for `embed`; UsageError also for a layer that is not there, or an architecture whose
        layers llama.cpp does not show.
        """
        self.check_tokens(tokens)
        return self._readings.read(lambda it: it.hidden.read(tokens, layers), cancel)

    def compiled(self, grammar: Grammar) -> Constraint:
        """A grammar for this model's vocabulary, which `generate` takes in its place without compiling anything. Raises
        UsageError: the grammar has a mistake, or is too large."""
        return self._compiler.constraint(grammar)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters in use, any of which a request may ask for."""
        return tuple(one.name for one in self.loop.plan.drafters)

    def configure(self, **changes: Any) -> None:
        """Changes drafter settings between requests: drafter, max_draft_tokens, branches, min_ngram, max_ngram. Raises
        UsageError: a request is running, or the setting is fixed at load."""
        allowed = {"drafter", "max_draft_tokens", "branches", "min_ngram", "max_ngram"}
        fixed = sorted(set(changes) - allowed)
        if fixed:
            raise UsageError(f"{fixed[0]} is fixed when the models are loaded; load them again to change it.")
        settings = replace(self.settings, **changes)
        check_drafter(settings)
        if settings.drafter in HEADS and settings.drafter not in self.loaded.trained:
            raise UsageError(f"`{settings.drafter}` is not loaded; load the models with drafter={settings.drafter}.")
        context = self.loaded.context.settings
        if leaves(settings) > context.max_leaves:
            raise UsageError(f"These models were loaded for chains; load them with branches={settings.branches}.")
        longest = settings.longest_draft
        if context.n_slots * (1 + longest) > context.max_rows:
            few = f"These models were loaded for {context.max_rows} rows a pass, too few for drafts of {longest}"
            raise UsageError(f"{few}; load them with max_draft_tokens={longest}.")

        def change() -> None:
            if self.busy:
                raise UsageError("The drafter cannot be changed while a request is running.")
            loop = make_loop(self.loaded, settings)
            self._close_drafters()
            self.loop, self.loaded.settings = loop, settings

        self.on_engine_thread(change)

    def close(self) -> None:
        """Cancels what runs, ends the thread and frees the models; a second call does nothing."""
        if not self._end():
            return
        self._compiler.close()
        self._readings.close()
        self._close_drafters()
        self.loaded.save_knowledge()
        self.loaded.close()
        self.at_close.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class WantedAnswer:
    """Without a chat template the text goes on, for a limited number of tokens."""

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        reasoning: str = "",
        prefix: str = "",
        thought_out: bool = False,
        raw: bool = False,
        tools: Sequence[Tool] = (),
    ) -> None:
        """
        Args:
            thinking: whether the model thinks before it answers, where its chat template can switch that.
            reasoning, prefix: what it has thought, and what the answer says, already.
            thought_out: the thinking ends where it is, and the answer begins.
            raw: the text is wanted as the model says it, its marks included; not where there are tools.
            tools: what may be called.

        Raises:
            UsageError: there are tools, and no chat template.
        """
        completes, raw = not engine.template.exists, raw and not tools
        if tools and completes:
            raise UsageError(f"{engine.loaded.model.path.name} has no chat template, so it cannot be told of tools.")
        turn = engine.dialect.turn(messages, tools)
        wanted: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        if completes:
            prompt = engine.tokenize(continued(turn.messages))
        else:
            prompt = engine.chat_tokens(turn.messages, **turn.variables, **wanted)
        self.prompt, reply = turn.resume(prompt, reasoning, prefix, thought_out)
        self.reply: AnswerParser = ReplyParser() if raw else reply  # reads what the model says
        self.preserved = frozenset[int]() if raw else turn.preserved  # control tokens that `reply` must see
        self.most = MOST_TOKENS if completes else None
        """Tokens of an answer if a request sets no limit; None = as many as there is room for."""
        thinks_on = bool(reasoning) and not (prefix or thought_out)
        self._engine, self._turn = engine, None if thinks_on else turn

    def grammar(self) -> Constraint | None:
        """What calls must follow; None = the answer is free. It is where it goes on within a thought, where the tools
        cannot be held to, and where what they are held to is large: that would have to be tried first, for seconds."""
        try:
            grammar = None if self._turn is None else self._turn.grammar(self.prompt)
            return None if grammar is None or len(grammar.source) > LARGE else self._engine.compiled(grammar)
        except UsageError:
            return None
