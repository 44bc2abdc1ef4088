"""The engine of this process as an answerer: a thread loads it, a thread reads each generation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from localspec.engine.request import Event, FinishReason, Origin, PassRecord
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError
from localspec.llama.survey import Progress
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.tui.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Prefilled,
    Question,
    Sink,
)
from localspec.tui.thinking import CLOSES, OPENS, ThinkingSplit
from localspec.types import Tokens

Load = Callable[[Progress], Engine]
"""Loads an engine and reports progress; called on a thread."""


class LocalAnswerer:
    """Loads and asks an `Engine`; the first question may come before it is loaded."""

    def __init__(self, load: Load, name: str) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.engine: Engine | None = None
        """None until it is loaded."""
        self._load = load
        self._closed = False
        self._loaded = threading.Event()
        self._error: LocalspecError | None = None

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._load_and_tell, args=(sink,), name="localspec-load", daemon=True).start()

    def answer(self, question: Question, sink: Sink) -> LocalAnswer:
        answer = LocalAnswer(question.seed)
        arguments = (answer, question, sink)
        threading.Thread(target=self._read, args=arguments, name="localspec-read", daemon=True).start()
        return answer

    def count(self, question: Question) -> int | None:
        return None if self.engine is None else len(_prompt(self.engine, question))

    def piece(self, token: int) -> bytes:
        """Asked for tokens of answers only, so that there is a model."""
        assert self.engine is not None
        return self.engine.loaded.model.piece(token)

    def close(self) -> None:
        self._closed = True
        if self.engine is not None:
            self.engine.close()

    def _load_and_tell(self, sink: Sink) -> None:
        last = 0.0

        def tell(what: str, share: float) -> None:
            nonlocal last
            if self._closed:
                raise Cancelled("Closed while loading.")
            if monotonic() - last >= 1 / POSTS_PER_SECOND:
                last = monotonic()
                sink.post_message(Loading(what, share))

        try:
            engine = self._load(tell)
        except Cancelled as error:
            self._error = error
        except LocalspecError as error:
            self._error = error
            sink.post_message(LoadFailed(error))
        except Exception as error:  # noqa: BLE001 - the worker's edge: whoever waits must hear of it
            self._error = LocalspecError(f"The model could not be loaded: {error!r}.")
            sink.post_message(LoadFailed(self._error))
        else:
            self._take(engine, sink)
        finally:
            self._loaded.set()

    def _take(self, engine: Engine, sink: Sink) -> None:
        if self._closed:  # while the last step of loading ran
            engine.close()
            return
        self.engine = engine
        self.facts = _facts(engine, self.name)
        sink.post_message(ModelReady(self.facts))

    def _read(self, answer: LocalAnswer, question: Question, sink: Sink) -> None:
        """One answer, from asking to its end, on a thread of its own."""
        stats = RequestStats()
        try:
            self._loaded.wait()
            if self._error is not None or self.engine is None:
                raise self._error or Cancelled("Closed while loading.")
            generation = _ask(self.engine, question, answer, sink)
            stats = generation.stats
            answer.begin(generation)
            feed = _Feed(answer, sink, ThinkingSplit(inside=_thinks_already(self.engine, question)))
            for event in generation:
                stats = event.stats
                feed.add(event)
            feed.finish()
            sink.post_message(AnswerEnded(answer, generation.finish or FinishReason.STOP, stats))
        except LocalspecError as error:
            finish = FinishReason.CANCELLED if isinstance(error, Cancelled) else FinishReason.ERROR
            sink.post_message(AnswerEnded(answer, finish, stats, error))
        except Exception as error:  # noqa: BLE001 - the worker's edge: whoever waits must hear of it
            failure = LocalspecError(f"The answer failed: {error!r}.", "LOCALSPEC_DEBUG=1 shows more.")
            sink.post_message(AnswerEnded(answer, FinishReason.ERROR, stats, failure))


class LocalAnswer:
    """Cancels a generation, also one that is still waiting for the model."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._generation: Generation | None = None
        self._cancelled = False
        self._lock = threading.Lock()

    def begin(self, generation: Generation) -> None:
        """The engine has taken the question."""
        with self._lock:
            self._generation = generation
            self.seed = generation.request.seed
            if self._cancelled:
                generation.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._generation is not None:
                self._generation.cancel()


class _Feed:
    """Joins events until a post is due: a pass later at most, since every pass asks."""

    def __init__(self, answer: LocalAnswer, sink: Sink, split: ThinkingSplit) -> None:
        self._answer, self._sink, self._split = answer, sink, split
        self._posted = 0.0
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self._records: list[PassRecord] = []
        self._stats = RequestStats()

    def add(self, event: Event) -> None:
        self._push(self._split.push(event.text))
        self._tokens += event.tokens
        self._origins += event.origins
        if event.record is not None:
            self._records.append(event.record)
        self._stats = event.stats
        if monotonic() - self._posted >= 1 / POSTS_PER_SECOND:
            self.flush()

    def finish(self) -> None:
        """Posts what is left."""
        self._push(self._split.finish())
        self.flush()

    def _push(self, split: tuple[str, str]) -> None:
        self._text.append(split[0])
        self._thinking.append(split[1])

    def flush(self) -> None:
        """Posts what has come since the last time, if anything has."""
        if not (self._tokens or any(self._text) or any(self._thinking)):
            return
        self._posted = monotonic()
        self._sink.post_message(
            AnswerPart(
                self._answer,
                "".join(self._text),
                tuple(self._tokens),
                tuple(self._origins),
                tuple(self._records),
                self._stats,
                "".join(self._thinking),
            )
        )
        for waiting in (self._text, self._thinking, self._tokens, self._origins, self._records):
            waiting.clear()


def _ask(engine: Engine, question: Question, answer: LocalAnswer, sink: Sink) -> Generation:
    return engine.generate(
        _prompt(engine, question),
        sampling=question.sampling,
        seed=question.seed,
        max_tokens=question.max_tokens,
        stop=question.stop,
        drafter=question.drafter,
        max_draft_tokens=question.max_draft_tokens,
        chat=question.chat,
        on_prefill=lambda done, total: _tell_prefill(sink, answer, done, total),
    )


def _tell_prefill(sink: Sink, answer: LocalAnswer, done: int, total: int) -> None:
    sink.post_message(Prefilled(answer, done, total))


def _variables(question: Question) -> dict[str, Any]:
    return {} if question.thinking is None else {"enable_thinking": question.thinking}


def _thinks_already(engine: Engine, question: Question) -> bool:
    """Whether the answer begins inside a thinking block that the template, or what is continued, has opened."""
    prompt = engine.template.render(question.messages, **_variables(question)) + question.prefix
    return prompt.rfind(OPENS) > prompt.rfind(CLOSES) and (bool(question.prefix) or prompt.rstrip().endswith(OPENS))


def _prompt(engine: Engine, question: Question) -> Tokens:
    """The conversation by the model's template, and behind it what the answer already says."""
    tokens = engine.chat_tokens(question.messages, **_variables(question))
    if not question.prefix:
        return tokens
    said = engine.loaded.model.tokenize(question.prefix, special=False, add_bos=False)
    return np.concatenate([tokens, said])


def _facts(engine: Engine, name: str) -> Facts:
    loaded = engine.loaded
    template = loaded.model.chat_template or ""
    draft = loaded.settings.draft
    return Facts(
        name=name,
        context=engine.loaded.context.n_ctx,
        draft=None if draft is None else draft.stem,
        configuration=loaded.configuration,
        can_think="enable_thinking" in template,
    )
