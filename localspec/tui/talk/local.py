"""An engine as an answerer: a thread loads it, a thread reads each generation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from time import monotonic

from localspec.chat.reply import thinking
from localspec.chat.reply.reply import Parser, Part
from localspec.checks import inside
from localspec.engine.request import Event, FinishReason, Origin, PassRecord
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError, RunnerError
from localspec.llama.exact.choice import Progress
from localspec.models.installed.installed import title_of
from localspec.remote.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    Look,
    ModelReady,
    Prefilled,
    Question,
    Sink,
)
from localspec.runtime.any_engine import AnyEngine
from localspec.runtime.asked import Asked
from localspec.runtime.generation import Generation
from localspec.runtime.offered import is_bundled

Load = Callable[[Progress], AnyEngine]
"""Loads an engine and reports progress; called on a thread."""


class LocalAnswerer:
    """Loads and asks an engine; the first question may come before it is loaded."""

    checks_room = False

    def __init__(self, load: Load, name: str, key: str = "") -> None:
        """`key`: what loads it again; "" = unknown."""
        self.name, self._key = name, key
        self.facts: Facts | None = None
        self.engine: AnyEngine | None = None
        """None until it is loaded."""
        self._load = load
        self._closed = False
        self._loaded = threading.Event()
        self._reloading = threading.Lock()
        self._error: LocalspecError | None = None

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._load_and_tell, args=(sink,), name="localspec-load", daemon=True).start()

    def answer(self, question: Question, sink: Sink) -> LocalAnswer:
        answer = LocalAnswer(question.seed)
        arguments = (answer, question, sink)
        threading.Thread(target=self._read, args=arguments, name="localspec-read", daemon=True).start()
        return answer

    def count(self, question: Question) -> int | None:
        if self.engine is None:
            return None
        return len(_asked(self.engine, question).prompt)

    def piece(self, token: int) -> bytes:
        """Asked for tokens of answers only, so that there is a model."""
        assert self.engine is not None
        return self.engine.loaded.model.piece(token)

    def forget_chat(self, chat: str) -> bool:
        if self.engine is None:
            return False
        self.engine.forget_chat(chat)
        return True

    def look(self, context: int) -> Look | None:
        engine = self.engine
        if engine is None:
            return None
        use, parts = engine.inspect(partial(inside.use, context)), engine.inspect(inside.parts)
        files = tuple(path for path in (engine.settings.target, engine.settings.draft) if path is not None)
        return Look([*map(asdict, use)], [*map(asdict, parts)], files, engine.settings.wide, engine.last_words)

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
            self._take(self._load(tell), sink)
        except Cancelled as error:
            self._error = error
        except LocalspecError as error:
            self._error = error
            sink.post_message(LoadFailed(error))
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            self._error = LocalspecError(f"The model could not be loaded: {error!r}.")
            sink.post_message(LoadFailed(self._error))
        finally:
            self._loaded.set()

    def _load_again(self, engine: AnyEngine, sink: Sink) -> None:
        with self._reloading:  # tabs may ask at the same time
            if self.engine is engine:
                engine.close()
                self.engine = None
                self._load_and_tell(sink)

    def _take(self, engine: AnyEngine, sink: Sink) -> None:
        if self._closed:  # while the last step of loading ran
            engine.close()
            return
        try:
            self.facts = _facts(engine, self.name, self._key)
        except LocalspecError:  # the models' process has died since
            engine.close()
            raise
        self.engine = engine
        sink.post_message(ModelReady(self.facts))

    def _read(self, answer: LocalAnswer, question: Question, sink: Sink) -> None:
        """One answer, from asking to its end, on a thread of its own."""
        try:
            self._loaded.wait()
            if self.engine is not None and self.engine.outdated:
                self._load_again(self.engine, sink)
            if self._error is not None or self.engine is None:
                raise self._error or Cancelled("Closed while loading.")
            if question.alone:
                self.engine.forget()
            generation = self._generated(self.engine, answer, question, sink)
            sink.post_message(AnswerEnded(answer, generation.finish or FinishReason.STOP, answer.stats))
        except LocalspecError as error:
            finish = FinishReason.CANCELLED if isinstance(error, Cancelled) else FinishReason.ERROR
            sink.post_message(AnswerEnded(answer, finish, answer.stats, error))
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            failure = LocalspecError(f"The answer failed: {error!r}.", "LOCALSPEC_DEBUG=1 shows more.")
            sink.post_message(AnswerEnded(answer, FinishReason.ERROR, answer.stats, failure))

    def _generated(self, engine: AnyEngine, answer: LocalAnswer, question: Question, sink: Sink) -> Generation:
        """One answer. Should the models' process die meanwhile, the one that is started in its place goes on from the
        text; if there is none, the error is raised.
        """
        while True:
            asked = _asked(engine, question)
            generation = _begun(engine, asked, question, answer, sink)
            answer.begin(generation)
            feed = _Feed(answer, sink, asked.reply)
            try:
                _read_all(generation, answer, feed)
            except RunnerError:
                if engine.outdated or question.alone:
                    raise
                question = feed.rest(question)  # what happened is in the log, which the chat shows
            else:
                return generation


def _read_all(generation: Generation, answer: LocalAnswer, feed: _Feed) -> None:
    """Hands an answer on as it comes, to its end."""
    try:
        for event in generation:
            feed.add(event)
            for another in generation.poll():
                feed.add(another)
            feed.flush()
            # Not awake for each pass: each time it would take the interpreter from the engine's thread.
            answer.cancelled.wait(1 / POSTS_PER_SECOND if generation.finish is None else 0.0)
    finally:
        feed.finish()


class LocalAnswer:
    """Cancels a generation, also one that is still waiting for the model."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.cancelled = threading.Event()
        """Somebody asked for the end."""
        self._generation: Generation | None = None
        self._lock = threading.Lock()

    @property
    def stats(self) -> RequestStats:
        """Figures so far; empty before the engine has taken the question."""
        return RequestStats() if self._generation is None else self._generation.stats

    def begin(self, generation: Generation) -> None:
        """The engine has taken the question."""
        with self._lock:
            self._generation = generation
            self.seed = generation.request.seed
            if self.cancelled.is_set():
                generation.cancel()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled.set()
            if self._generation is not None:
                self._generation.cancel()


class _Feed:
    """Joins events into posts."""

    def __init__(self, answer: LocalAnswer, sink: Sink, reply: Parser) -> None:
        self._answer, self._sink, self._reply = answer, sink, reply
        self._said: list[str] = []
        """As the model says it, thinking and marks included."""
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self._records: list[PassRecord] = []
        self._stats = RequestStats()
        self._text = self._thoughts = ""
        self._count = 0

    def add(self, event: Event) -> None:
        self._said.append(event.text)
        self._tokens += event.tokens
        self._origins += event.origins
        if event.record is not None:
            self._records.append(event.record)
        self._count += len(event.tokens)
        self._stats = event.stats

    def finish(self) -> None:
        """Posts what is left, at the end of the answer."""
        self.flush()
        self._post(self._reply.finish())

    def rest(self, question: Question) -> Question:
        """What is left to ask after all that was posted."""
        most = question.max_tokens
        return replace(
            question,
            prefix=question.prefix + self._text,
            reasoning=question.reasoning + self._thoughts,
            max_tokens=None if most is None else max(1, most - self._count),
        )

    def flush(self) -> None:
        """Posts what has come since the last time, if anything has."""
        said, self._said = "".join(self._said), []
        self._post(self._reply.push(said))

    def _post(self, parts: list[Part]) -> None:
        text, thoughts = thinking.apart(parts)
        self._text += text
        self._thoughts += thoughts
        if not (self._tokens or text or thoughts):
            return
        self._sink.post_message(
            AnswerPart(
                self._answer,
                text,
                tuple(self._tokens),
                tuple(self._origins),
                tuple(self._records),
                self._stats,
                thoughts,
            )
        )
        for waiting in (self._tokens, self._origins, self._records):
            waiting.clear()


def _asked(engine: AnyEngine, question: Question) -> Asked:
    """Raises: LocalspecError, as `Asked` does."""
    return Asked(
        engine,
        question.messages,
        thinking=question.thinking,
        reasoning=question.reasoning,
        prefix=question.prefix,
        thought_out=question.thought_out,
    )


def _begun(engine: AnyEngine, asked: Asked, question: Question, answer: LocalAnswer, sink: Sink) -> Generation:
    apart = question.alone or question.private
    return engine.generate(
        asked.prompt,
        sampling=question.sampling,
        seed=question.seed,
        max_tokens=question.max_tokens or asked.most,
        stop=question.stop,
        drafter=question.drafter,
        max_draft_tokens=question.max_draft_tokens,
        preserved=asked.preserved,
        chat=question.chat,
        recall=not apart,
        remember=not apart,
        on_prefill=lambda done, total: sink.post_message(Prefilled(answer, done, total)),
    )


def _facts(engine: AnyEngine, name: str, key: str) -> Facts:
    loaded = engine.loaded
    bundled = is_bundled(loaded.settings.target)
    template = loaded.model.chat_template or ""
    draft = next((path for path in (loaded.settings.draft, *loaded.settings.heads) if path is not None), None)
    return Facts(
        name=name if bundled else title_of(loaded.settings.target, named=key),
        key=key,
        target=loaded.settings.target,
        context=engine.loaded.context.n_ctx,
        draft=None if draft is None else draft.stem,
        configuration=loaded.configuration,
        can_think="enable_thinking" in template,
        completes=not engine.template.exists,
        bundled=bundled,
        layers=engine.inspect(inside.layers),
    )
