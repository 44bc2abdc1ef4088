"""The link to the process that has the models: what is under way there, and what becomes of it when the process dies.

One thread starts each process and reads what it says. It lives as long as the process does, which on Linux ends with
the thread that started it.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from typing import Any

from localspec.engine.request import Event, FinishReason
from localspec.errors import LocalspecError, RunnerError
from localspec.llama.exact.choice import Progress
from localspec.remote.steps import figures_in
from localspec.runner.messages import (
    LOADING,
    Ask,
    Call,
    Cancel,
    Close,
    Failed,
    Load,
    Loading,
    Logged,
    Prefilled,
    Pulse,
    Ready,
    Result,
    State,
    event_in,
    grammar_of,
)
from localspec.runner.outbox import Frame
from localspec.runner.process import Process
from localspec.runner.tape import cause
from localspec.runtime.generation import Generation

_LOG = logging.getLogger("localspec")
_LOADING_FACTOR = 5
"""Times as much while models are loaded: a GPU's driver may compile its kernels."""
_GOODBYE_SECONDS = 20.0
"""For a process that is asked to end: it keeps what was learned."""
_REPEATED = ("configure", "work_when_idle")
"""Methods whose effect outlives a process."""
_CANCEL_SECONDS = 0.05
"""Between two questions whether a caller still waits."""


class Link:
    """Has one process at a time. One that dies is replaced, once, until an answer has come to its end. Thread-safe."""

    def __init__(self, load: Load, patience: float) -> None:
        """Starts the process. Call `wait` next; it gives the process up if it raises.

        Args:
            load: what is loaded.
            patience: seconds without a sign of life, after which a process is ended; three times its longest pass is
                added while it works.
        """
        self._load, self._patience = load, patience
        self._numbers = itertools.count(LOADING + 1)
        self._answers: dict[int, Generation] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._turn = threading.Condition()
        """Guards what is under way, and which process serves it."""
        self._process: Process | None = None
        """None = the next one is about to start, or there is a `fault`."""
        self._is_ready = False
        self._spare = True
        """Whether a process that dies is replaced."""
        self._closing = False
        self.fault: LocalspecError | None = None
        """Why there is no process any more."""
        self.state: State | None = None
        """As the process last told it; None before it has loaded."""
        self.last_words: tuple[str, ...] = ()
        """The last lines of llama.cpp's log, and what was written beside it, of the process that died last."""
        self._loading: queue.SimpleQueue[Loading | Ready | LocalspecError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="localspec-runner", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process; 0 = there is none now."""
        process = self._process
        return 0 if process is None else process.pid

    def wait(self, progress: Progress | None) -> Ready:
        """Waits until the first process has loaded.

        Raises:
            RunnerError: it ended.
            LocalspecError: whatever loading raised there.
            Whatever `progress` raises.
        """
        try:
            while not isinstance(news := self._loading.get(), Ready):
                if isinstance(news, LocalspecError):
                    raise news
                if progress is not None:
                    progress(news.what, news.share)
        except BaseException:
            self.close(at_once=True)
            raise
        return news

    def begin(self, generation: Generation) -> None:
        """Has the process answer.

        Raises:
            LocalspecError: there is no process any more.
            UsageError: the request has a constraint that cannot travel.
        """
        grammar, trigger = grammar_of(generation.request)
        request = replace(generation.request, grammar=None, on_prefill=None)
        with self._turn:
            process, number = self._living(), next(self._numbers)
            self._answers[number] = generation
            generation.on_cancel = lambda: process.post(Cancel(number))
            process.post(Ask(number, request, grammar, trigger, generation.started))

    def call(self, method: str, *arguments: Any, cancel: Callable[[], bool] | None = None, **changes: Any) -> Any:
        """What a method of the engine there returns, or raises.

        Raises:
            RunnerError: the process ended meanwhile.
        """
        done: Future[Any] = Future()
        with self._turn:
            process, number = self._living(), next(self._numbers)
            self._calls[number] = done
            asked = Call(number, method, arguments, tuple(changes.items()))
            process.post(asked)
        while cancel is not None:
            try:
                return done.result(_CANCEL_SECONDS)
            except NotYet:
                if cancel():
                    process.post(Cancel(number))
                    break
        result = done.result()
        if method in _REPEATED:
            self._load = replace(self._load, calls=(*self._load.calls, asked))
        return result

    @property
    def running(self) -> dict[int, Generation]:
        """What is answered now, by slot."""
        slots = {} if self.state is None else self.state.running
        with self._turn:
            return {slot: self._answers[number] for slot, number in slots.items() if number in self._answers}

    def close(self, at_once: bool = False) -> bool:
        """Cancels what runs, and waits until the process has ended; False if that was done before.

        Args:
            at_once: do not let it keep what it has learned.
        """
        with self._turn:
            if self._closing:
                return False
            self._closing, process = True, self._process
            self._turn.notify_all()
        if process is not None:
            if at_once:
                process.kill()
            process.post(Close())
            self._thread.join(_GOODBYE_SECONDS)
            process.kill()
        self._thread.join()
        return True

    def _living(self) -> Process:
        """The process that serves, or will. The caller holds `_turn`."""
        self._turn.wait_for(lambda: self._process is not None or self.fault is not None or self._closing)
        if self._closing:
            raise LocalspecError("The engine is closed.")
        if self._process is None:
            assert self.fault is not None
            raise type(self.fault)(self.fault.message, self.fault.hint)
        return self._process

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (process := self._started()) is not None:
            trouble: Exception | None = None
            try:
                while True:
                    self._take(process, process.receive())
            except (EOFError, OSError):
                pass
            except Exception as error:  # noqa: BLE001 - somebody's callback; no caller may wait for a thread that is gone
                trouble = error
                process.kill()
            process.bury()
            self._mourn(process, trouble)
            process.tape.close()

    def _started(self) -> Process | None:
        """A new process; None = there is to be none."""
        with self._turn:
            if self._closing or self.fault is not None:
                return None
            self._is_ready = False
            try:
                self._process = Process(_LOADING_FACTOR * self._patience)
            except LocalspecError as error:
                self.fault = error
                self._loading.put(error)
            else:
                self._process.post(self._load)
            self._turn.notify_all()
            return self._process

    def _take(self, process: Process, frame: Frame) -> None:
        """Hands out what came."""
        messages, figures = frame
        for number, said in figures.items():
            if (answer := self._answers.get(number)) is not None:
                figures_in(answer.stats, said)
        for message in messages:
            if isinstance(message, tuple):
                self._take_event(message)
            elif isinstance(message, Prefilled):
                if (answer := self._answers.get(message.number)) is not None:
                    answer.stats.reused_tokens = message.reused
                    answer.prefilled(message.done, message.total)
            elif isinstance(message, Result | Failed):
                self._take_result(message)
            elif isinstance(message, State):
                self.state = message
            elif isinstance(message, Logged):
                _LOG.log(message.level, "%s", message.text)
            elif isinstance(message, Pulse):
                self._look_after(process, message)
            else:
                if isinstance(message, Ready):
                    self._is_ready = True
                    process.give(self._patience)
                self._loading.put(message)

    def _take_event(self, said: tuple[Any, ...]) -> None:
        answer = self._answers.get(said[0])
        if answer is None:
            return
        event = event_in(said, answer.stats)
        if event.finish is not None:
            with self._turn:
                del self._answers[said[0]]
            self._spare = True
        answer.deliver(event)

    def _take_result(self, message: Result | Failed) -> None:
        with self._turn:
            answer, call = self._answers.pop(message.number, None), self._calls.pop(message.number, None)
            if isinstance(message, Failed) and message.number == LOADING:
                self.fault = message.error()
        if isinstance(message, Result):
            if call is not None:
                call.set_result(message.value)
        elif message.number == LOADING:
            self._loading.put(message.error())
        elif answer is not None:
            answer.deliver(message.error())
        elif call is not None:
            call.set_exception(message.error())

    def _look_after(self, process: Process, pulse: Pulse) -> None:
        """Ends a process whose models do nothing although something is asked of them."""
        patience = self._patience * (1 if self._is_ready else _LOADING_FACTOR)
        if pulse.silent > patience + 3 * pulse.longest:
            process.end_hung(pulse.silent)

    def _mourn(self, process: Process, trouble: Exception | None) -> None:
        """A process is gone: all who waited for it hear of it."""
        with self._turn:
            answers, calls = list(self._answers.values()), list(self._calls.values())
            self._answers, self._calls, self._process = {}, {}, None
            error = self.fault
            if self._closing:
                error = LocalspecError("The engine is closed.")
            elif error is None:
                error = self._obituary(process, answers, bool(calls), trouble)
                if self._is_ready and self._spare:
                    self._spare = False
                    _LOG.warning("%s The models are loaded again.", error)
                else:
                    self.fault = error
                    _LOG.log(logging.INFO if answers or calls else logging.WARNING, "%s", error)  # or who waits says so
            self._turn.notify_all()
        if not self._is_ready:
            self._loading.put(error)
        for answer in answers:
            gone = Event(-1, "", (), (), (), FinishReason.CANCELLED, answer.stats)
            answer.deliver(gone if self._closing else type(error)(error.message, error.hint))
        for call in calls:
            call.set_exception(type(error)(error.message, error.hint))

    def _obituary(
        self, process: Process, answers: list[Generation], called: bool, trouble: Exception | None
    ) -> LocalspecError:
        """What happened, to which file, and why."""
        if trouble is not None:
            return LocalspecError(f"The engine has failed: {trouble!r}.", "Start again; please report it.")
        self.last_words = tuple(process.tape.lines())
        if not self._is_ready:
            doing = "was loaded"
        elif answers:
            doing = "answered" if any(answer.stats.passes for answer in answers) else "read a prompt"
        else:
            doing = "read a text" if called else "was idle"
        ended, why = process.ended(), cause(list(self.last_words))
        error = RunnerError(f"The process that computes {self._load.target.name} {ended} while it {doing}.")
        if why:
            error.hint = f"llama.cpp wrote: {why}"
        elif "SIGKILL" in ended:
            error.hint = "The system does so where memory lacks."
        return error
