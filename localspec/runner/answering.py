"""A host of models as an answerer: a thread starts it, a thread reads each answer over its socket."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from localspec.engine.interfaces import fresh_seed
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError, RunnerError
from localspec.models.installed.installed import title_of
from localspec.models.installed.processes import announce
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
    Taken,
)
from localspec.remote.steps import Hearer
from localspec.runner.host import Host, Use
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.offered import is_bundled

if TYPE_CHECKING:
    from localspec.remote.asking import Asking, Call

_LAST_FIGURES_SECONDS = 0.5
"""For the end of an answer that was cancelled; then its connection is cut."""


class ChildAnswerer:
    """Starts and asks a host; the first question may come before the model is loaded."""

    checks_room = True

    def __init__(self, make: Callable[[], Host], name: str, key: str = "", *, command: str = "") -> None:
        """
        Args:
            make: makes the host, on a thread; it begins to load then, or when it is waited for.
            name: until it is known.
            key: what loads it again; "" = unknown.
            command: as which other programs are told of the models, until they are closed; "" = they are not.
        """
        self.name, self._key = name, key
        self.facts: Facts | None = None
        self.child: Host | None = None
        """None = it is about to start, or there is an error."""
        self._make, self._command = make, command
        self._at_close = ExitStack()
        self._closed = False
        self._loaded, self._reloading = threading.Event(), threading.Lock()
        self._error: LocalspecError | None = None
        self._pieces: dict[int, bytes] = {}

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._load_and_tell, args=(sink,), name="localspec-load", daemon=True).start()

    def answer(self, question: Question, sink: Sink) -> ChildAnswer:
        if question.seed is None:
            question = replace(question, seed=fresh_seed())
        answer = ChildAnswer(question, sink, self._pieces)
        threading.Thread(target=self._read, args=(answer,), name="localspec-read", daemon=True).start()
        return answer

    def count(self, question: Question) -> int | None:
        if self.child is None or not self.child.facts:
            return None
        return int(_told(self.child, "POST", "count", own_body(question, ""))["tokens"])

    def piece(self, token: int) -> bytes:
        """Of tokens of answers only."""
        return self._pieces.get(token, b"")

    def forget_chat(self, chat: str) -> bool:
        if self.child is None or not self.child.facts:
            return False
        _told(self.child, "POST", "forget", {"chat": chat})
        return True

    def look(self, context: int) -> Look | None:
        child = self.child
        if child is None or child.facts is None:
            return None
        found, facts = _told(child, "GET", f"doctor?context={context}"), child.facts
        files = tuple(Path(path) for path in (facts.target, facts.draft) if path is not None)
        return Look(found["use"], found["parts"], files, facts.wide, child.last_words)

    def close(self) -> None:
        self._closed = True
        if (child := self.child) is not None:
            child.close(at_once=not child.facts)
        self._at_close.close()

    def _load_and_tell(self, sink: Sink) -> None:
        last = 0.0

        def tell(what: str, share: float) -> None:
            nonlocal last
            if monotonic() - last >= 1 / POSTS_PER_SECOND:
                last = monotonic()
                sink.post_message(Loading(what, share))

        try:
            child = self.child = self._make()
            if self._closed:  # before there was anything to close
                child.close(at_once=True)
            child.wait(tell)
            assert child.facts is not None
            self.facts = _facts(child.facts, self.name, self._key)
            self._announce(child.facts)
            sink.post_message(ModelReady(self.facts))
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            if self.child is not None:
                self.child.close(at_once=True)
            self.child = None
            self._error = _failure("The model could not be loaded", error)
            if self._closed:
                self._error = Cancelled("Closed while loading.")
            else:
                sink.post_message(LoadFailed(self._error))
        finally:
            self._loaded.set()

    def _announce(self, facts: ModelFacts) -> None:
        if self._command:
            draft = None if facts.draft is None else Path(facts.draft)
            self._at_close.callback(announce(self._command, Path(facts.target), draft, facts.context))
        if self._closed:  # meanwhile
            self._at_close.close()

    @property
    def _is_lost(self) -> bool:
        """What was loaded must be loaded again."""
        if self.child is not None:
            return bool(self.child.outdated)
        return self.facts is not None and isinstance(self._error, RunnerError)  # it died while it was loaded again

    def _serving(self) -> Host:
        if self.child is None:
            raise self._error or Cancelled("Closed while loading.")
        return self.child

    def _read(self, answer: ChildAnswer) -> None:
        """One answer, from asking to its end, on a thread of its own."""
        sink, error = answer.sink, None
        try:
            self._loaded.wait()
            with self._reloading:  # tabs may ask at the same time
                if self._is_lost:
                    if self.child is not None:
                        self.child.close()
                    self._at_close.close()
                    self._load_and_tell(sink)
            finish = self._finished(self._serving(), answer)
        except Exception as failure:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            error = _failure("The answer failed", failure)
            finish = FinishReason.CANCELLED if isinstance(error, Cancelled) else FinishReason.ERROR
        answer.over.set()
        sink.post_message(AnswerEnded(answer, finish, answer.stats, error))

    def _finished(self, child: Host, answer: ChildAnswer) -> FinishReason:
        """Reads an answer; should the process die meanwhile, the next one goes on from the text. If there is none, the
        error is raised.
        """
        while True:
            try:
                with child.use() as use:
                    return answer.read(use)
            except RunnerError:
                if child.outdated or answer.question.alone or answer.question.raw:  # marks cannot be gone on from
                    raise  # else what happened is in the log, which the chat shows


def _failure(what: str, error: Exception) -> LocalspecError:
    """An error as it is, or an unforeseen one in a sentence."""
    if isinstance(error, LocalspecError):
        return error
    return LocalspecError(f"{what}: {error!r}.", "LOCALSPEC_DEBUG=1 shows more.")


class ChildAnswer:
    """One answer under way, also one that still waits for the model."""

    def __init__(self, question: Question, sink: Sink, pieces: dict[int, bytes]) -> None:
        """`pieces`: takes the bytes of its tokens."""
        self.question, self.sink = question, sink
        self.seed = question.seed
        self.stats = RequestStats()
        """Figures so far; of the last process that it needed."""
        self.over = threading.Event()
        self._pieces = pieces
        self._text = self._thoughts = ""
        self._count, self._taken = 0, False
        self._lock = threading.Lock()
        self._cancelled = False
        self._asked: tuple[Asking, Call, str] | None = None

    def cancel(self) -> None:
        with self._lock:
            asked, done, self._cancelled = self._asked, self._cancelled, True
        if asked is not None and not done and not self.over.is_set():
            threading.Thread(target=self._cancel, args=asked, name="localspec-cancel", daemon=True).start()

    def _cancel(self, asking: Asking, call: Call, number: str) -> None:
        """Has it end with its last figures, or without them."""
        with suppress(LocalspecError):
            asking.whole("POST", "/localspec/cancel", {"id": number}, _LAST_FIGURES_SECONDS)
        if not self.over.wait(_LAST_FIGURES_SECONDS):
            call.cut()

    def read(self, use: Use) -> FinishReason:
        """Asks for what is still to be said, and posts it.

        Raises:
            Cancelled: its connection was cut.
        """
        from localspec.remote.asking import Call  # takes 20 ms, and the first key comes before
        from localspec.runner.host import asking_of

        asking, call, number = asking_of(use), Call(), secrets.token_hex(8)
        with self._lock:
            if self._cancelled:
                raise Cancelled("Cancelled before it was asked.")
            self._asked = asking, call, number
        if self.question.alone:
            asking.whole("POST", "/localspec/forget", {})
        hearer, finish = Hearer(), FinishReason.STOP
        hearer.pieces, self.stats = self._pieces, hearer.stats
        with closing(asking.pieces("chat/completions", own_body(self._rest(), number), call)) as pieces:
            for piece in pieces:
                if "taken" in piece.own:
                    self._take(piece.own["taken"])
                    continue
                steps = hearer.take(piece.own)
                finish = steps.finish or finish
                if steps.progress is not None:
                    self.sink.post_message(Prefilled(self, *steps.progress))
                if not (steps.tokens or piece.text or piece.thinking):
                    continue
                use.doing = "answered"
                self._text, self._thoughts = self._text + piece.text, self._thoughts + piece.thinking
                self._count += len(steps.tokens)
                part = (piece.text, steps.tokens, steps.origins, steps.records, hearer.stats, piece.thinking)
                self.sink.post_message(AnswerPart(self, *part))
        return finish

    def _take(self, tokens: int) -> None:
        """The first process that takes it says so for all."""
        if not self._taken:
            self._taken = True
            self.sink.post_message(Taken(self, tokens))

    def _rest(self) -> Question:
        """What is left to ask after all that was posted."""
        asked = self.question
        return replace(
            asked,
            prefix=asked.prefix + self._text,
            reasoning=asked.reasoning + self._thoughts,
            max_tokens=None if asked.max_tokens is None else max(1, asked.max_tokens - self._count),
        )


def own_body(question: Question, number: str) -> dict[str, Any]:
    """The request's JSON, as `server.own.answer` reads it; `number` is the answer's, to cancel it by."""
    body = replace(question, prefix="", reasoning="").body("")
    if biases := question.sampling.logit_bias:
        body["logit_bias"] = {str(token): False if bias == -math.inf else bias for token, bias in biases}
    keeps = not (question.alone or question.private)
    body["localspec"] = {
        "id": number,
        "resume": {name: getattr(question, name) for name in ("reasoning", "prefix", "thought_out")},
        **{name: getattr(question, name) for name in ("drafter", "max_draft_tokens", "chat", "room", "raw")},
        **dict.fromkeys(("recall", "remember"), keeps),
    }
    return body


def _told(child: Host, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the process answers at once."""
    from localspec.runner.host import asking_of

    with child.use() as use:
        use.doing = "read a text"
        return asking_of(use).whole(method, f"/localspec/{path}", body).json()


def _facts(told: ModelFacts, name: str, key: str) -> Facts:
    """`name`: of the bundled pair."""
    target, bundled = Path(told.target), is_bundled(Path(told.target))
    drafts = told.draft or next(iter(told.heads.values()), None)
    return Facts(
        name=name if bundled else title_of(target, named=key),
        key=key,
        target=target,
        context=told.context,
        draft=None if drafts is None else Path(drafts).stem,
        configuration=told.configuration,
        can_think="enable_thinking" in told.template,
        completes=told.completes,
        channels=told.channels,
        bundled=bundled,
        layers=told.layers,
    )
