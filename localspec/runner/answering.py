"""A host of models as an answerer: a thread starts it, a thread reads each answer over its socket."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from localspec.engine.interfaces import fresh_seed
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError, RunnerError
from localspec.llama.exact.choice import Progress
from localspec.models.installed.installed import title_of
from localspec.processes import announce
from localspec.remote.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    AnswerPart,
    Facts,
    Hearer,
    LoadFailed,
    Loading,
    ModelReady,
    ModelReport,
    Prefilled,
    Question,
    Sink,
    Taken,
    question_out,
)
from localspec.runner import own_socket
from localspec.runner.child import HostUse
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.offered import is_bundled

if TYPE_CHECKING:
    from localspec.remote.asking import Call, Requests

_LAST_FIGURES_SECONDS = 0.5
"""For the end of an answer that was cancelled; then its connection is cut."""


class Host(Protocol):
    """Has models, or loads them: a `Child`, or a thread of this process. Thread-safe."""

    facts: ModelFacts | None
    """Of the models; None before they are loaded."""
    last_log: tuple[str, ...]
    """What llama.cpp wrote at the end of the process that died last."""

    @property
    def outdated(self) -> str:
        """Why it answers nothing any more; "" = it does."""

    def wait(self, progress: Progress | None = None) -> None:
        """Waits until the models are loaded; gives them up if that, or `progress`, raises."""

    def use(self) -> AbstractContextManager[HostUse]:
        """Something that is asked of it; raises a LocalspecError if it answers nothing any more."""

    def close(self, at_once: bool = False) -> None:
        """Ends answers and frees the models; `at_once`: it does not keep what it has learned."""


class ChildAnswerer:
    """Starts and asks a host; the first question may come before the model is loaded."""

    def __init__(self, make: Callable[[], Host], name: str, key: str = "", *, command: str = "") -> None:
        """`make` makes the host, on a thread; it begins to load then, or when it is waited for. `name` serves until it
        is known; `key` loads it again, "" = unknown. `command`: as which other programs are told of the models, until
        they are closed; "" = they are not."""
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
        threading.Thread(target=self._load, args=(sink,), name="localspec-load", daemon=True).start()

    def answer(self, question: Question, sink: Sink) -> ChildAnswer:
        if question.seed is None:
            question = replace(question, seed=fresh_seed())
        answer = ChildAnswer(question, sink, self._pieces)
        threading.Thread(target=self._read, args=(answer,), name="localspec-read", daemon=True).start()
        return answer

    def count(self, question: Question) -> int | None:
        found = self._asked("POST", "count", question_out(question))
        return None if found is None else int(found["tokens"])

    def piece(self, token: int) -> bytes:
        """Of tokens of answers only."""
        return self._pieces.get(token, b"")

    def forget_chat(self, chat: str) -> bool:
        return self._asked("POST", "forget", {"chat": chat}) is not None

    def look(self, context: int) -> ModelReport | None:
        child = self.child
        found = self._asked("GET", f"doctor?context={context}")
        if found is None or child is None or child.facts is None:
            return None
        files = tuple(Path(path) for path in (child.facts.target, child.facts.draft) if path is not None)
        return ModelReport(found["use"], found["parts"], files, child.facts.wide, child.last_log)

    def close(self) -> None:
        self._closed = True
        if (child := self.child) is not None:
            child.close(at_once=not child.facts)
        self._at_close.close()

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """What a host answers at once; None = it has no models yet."""
        child = self.child
        if child is None or child.facts is None:
            return None
        with child.use() as use:
            use.doing = "read a text"
            return _requests(use).whole(method, f"/localspec/{path}", body).json()

    def _load(self, sink: Sink) -> None:
        """Makes the host, and posts how it goes."""
        last = 0.0

        def report(what: str, share: float) -> None:
            nonlocal last
            if monotonic() - last >= 1 / POSTS_PER_SECOND:
                last = monotonic()
                sink.post_message(Loading(what, share))

        try:
            child = self.child = self._make()
            if self._closed:  # before there was anything to close
                child.close(at_once=True)
            child.wait(report)
            facts = child.facts
            assert facts is not None
            self.facts = _facts(facts, self.name, self._key)
            if self._command:
                draft = None if facts.draft is None else Path(facts.draft)
                self._at_close.callback(announce(self._command, Path(facts.target), draft, facts.context))
            if self._closed:  # meanwhile
                self._at_close.close()
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

    def _read(self, answer: ChildAnswer) -> None:
        """One answer, from asking to its end, on a thread of its own. Should the process die meanwhile, the next one
        goes on from the text."""
        finish, error = None, None
        try:
            self._loaded.wait()
            with self._reloading:  # tabs may ask at the same time
                self._load_again(answer.sink)
            if (child := self.child) is None:
                raise self._error or Cancelled("Closed while loading.")
            while finish is None:
                try:
                    with child.use() as use:
                        finish = answer.read(use)
                except RunnerError:
                    marked = answer.question.raw or answer.called  # what cannot be gone on from
                    if child.outdated or answer.question.alone or marked:
                        raise  # else what happened is in the log, which the chat shows
        except Exception as failure:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            error = _failure("The answer failed", failure)
            finish = FinishReason.CANCELLED if isinstance(error, Cancelled) else FinishReason.ERROR
        answer.over.set()
        answer.sink.post_message(AnswerEnded(answer, finish, answer.stats, error))

    def _load_again(self, sink: Sink) -> None:
        """If the models are lost: the host is of no use any more, or died while it was loaded again."""
        child = self.child
        if child is not None and child.outdated:
            child.close()
        elif child is not None or self.facts is None or not isinstance(self._error, RunnerError):
            return
        self._at_close.close()
        self._load(sink)


def _failure(what: str, error: Exception) -> LocalspecError:
    """An error as it is, or an unforeseen one in a sentence."""
    if isinstance(error, LocalspecError):
        return error
    return LocalspecError(f"{what}: {error!r}.", "LOCALSPEC_DEBUG=1 shows more.")


class ChildAnswer:
    """One answer under way, also one that still waits for the model."""

    def __init__(self, question: Question, sink: Sink, pieces: dict[int, bytes]) -> None:
        self.question, self.sink = question, sink
        self.seed = question.seed
        self.stats = RequestStats()
        """Figures so far; of the last process that it needed."""
        self.over = threading.Event()
        self._pieces = pieces
        self._text = self._thoughts = ""
        self._count, self._taken = 0, False
        self.called = False
        """It has called a tool."""
        self._lock = threading.Lock()
        self._cancelled = False
        self._asked: tuple[Requests, Call, str] | None = None

    def cancel(self) -> None:
        with self._lock:
            asked, done, self._cancelled = self._asked, self._cancelled, True
        if asked is not None and not done and not self.over.is_set():
            threading.Thread(target=self._cancel, args=asked, name="localspec-cancel", daemon=True).start()

    def _cancel(self, requests: Requests, call: Call, number: str) -> None:
        with suppress(LocalspecError):
            requests.whole("POST", "/localspec/cancel", {"id": number}, _LAST_FIGURES_SECONDS)
        if not self.over.wait(_LAST_FIGURES_SECONDS):
            call.cut()

    def read(self, use: HostUse) -> FinishReason:
        """Asks for what is still to be said, and posts it. Raises Cancelled: its connection was cut."""
        from localspec.remote.asking import Call

        requests, call, number = _requests(use), Call(), secrets.token_hex(8)
        with self._lock:
            if self._cancelled:
                raise Cancelled("Cancelled before it was asked.")
            self._asked = requests, call, number
        question, hearer, finish = self.question, Hearer(), FinishReason.STOP
        if question.alone:
            requests.whole("POST", "/localspec/forget", {})
        hearer.pieces, self.stats = self._pieces, hearer.stats
        rest = replace(
            question,
            prefix=question.prefix + self._text,
            reasoning=question.reasoning + self._thoughts,
            max_tokens=None if question.max_tokens is None else max(1, question.max_tokens - self._count),
        )
        body = {"id": number, "question": question_out(rest)}
        with closing(requests.pieces("chat/completions", body, call)) as pieces:
            for piece in pieces:
                if "taken" in piece.own:
                    if not self._taken:  # the first process that takes it says so for all
                        self._taken = True
                        self.sink.post_message(Taken(self, piece.own["taken"]))
                    continue
                steps = hearer.take(piece.own)
                finish = steps.finish or finish
                if steps.progress is not None:
                    self.sink.post_message(Prefilled(self, *steps.progress))
                if not (steps.tokens or piece.text or piece.thinking or piece.calls):
                    continue
                use.doing = "answered"
                self._text, self._thoughts = self._text + piece.text, self._thoughts + piece.thinking
                self._count += len(steps.tokens)
                part = (piece.text, steps.tokens, steps.origins, steps.records, hearer.stats, piece.thinking)
                calls = tuple(one.call for one in piece.calls)
                self.called = self.called or bool(calls)
                self.sink.post_message(AnswerPart(self, *part, calls))
        return finish


def _requests(use: HostUse) -> Requests:
    from localspec.remote.asking import Requests  # an HTTP client takes 20 ms, and the first key comes before
    from localspec.remote.server import HostServer

    server = HostServer(use.url, use.headers, use.fate, use.outdate)
    return Requests(server) if use.at is None else Requests(server, use.at, own_socket.check)


def _facts(facts: ModelFacts, name: str, key: str) -> Facts:
    target = Path(facts.target)
    bundled = is_bundled(target)
    drafts = facts.draft or next(iter(facts.heads.values()), None)
    return Facts(
        name=name if bundled else title_of(target, named=key),
        key=key,
        target=target,
        context=facts.context,
        draft=None if drafts is None else Path(drafts).stem,
        configuration=facts.configuration,
        can_think="enable_thinking" in facts.template,
        completes=facts.completes,
        channels=facts.channels,
        bundled=bundled,
        layers=facts.layers,
    )
