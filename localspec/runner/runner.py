"""What the child process does: loads models, answers what comes over the pipe, and ends with its parent."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from localspec.engine.request import Event
from localspec.grammar.lazy import Lazy
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.remote.steps import figures_out
from localspec.runner import tape
from localspec.runner.messages import (
    LOADING,
    Ask,
    Call,
    Cancel,
    Failed,
    Load,
    Loading,
    Logged,
    NamedHead,
    Prefilled,
    Pulse,
    Ready,
    Result,
    State,
    event_out,
)
from localspec.runner.outbox import Outbox, received
from localspec.runtime import memory
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.signs import Signs

_PR_SET_PDEATHSIG = 1
CANCELLABLE = ("embed", "score", "hidden_states")
"""Methods that ask, between passes, whether the caller wants no more."""
CALLABLE = (*CANCELLABLE, "forget", "forget_chat", "configure", "work_when_idle", "inspect")
"""Methods of `Engine` that a parent may call."""


def live_with(parent: int) -> None:
    """This process ends when its parent does, and its fate is written to standard error."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    cpus.join(parent)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on meanwhile: reading their frames may crash


class Answer(Generation):
    """An answer that somebody reads in the other process."""

    def __init__(self, runner: Runner, asked: Ask, constraint: Any) -> None:
        super().__init__(asked.request if constraint is None else replace(asked.request, grammar=constraint))
        self.number, self.started = asked.number, asked.started
        self._runner = runner
        self._gaps = 0  # those that were sent

    def prefilled(self, done: int, total: int) -> None:
        super().prefilled(done, total)
        self._runner.outbox.post(Prefilled(self.number, done, total, self.stats.reused_tokens))

    def deliver(self, item: Event | BaseException) -> None:
        if isinstance(item, BaseException):
            self._runner.over(self.number)
            self._runner.outbox.post(Failed.of(self.number, item))
            return
        gaps = item.stats.gaps[self._gaps :]
        self._gaps += len(gaps)
        if item.finish is not None:
            self._runner.over(self.number)
        self._runner.outbox.post_event(event_out(self.number, item, gaps), figures_out(item.stats))


class Runner:
    """Serves one parent until it goes."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._answers: dict[int, Answer] = {}
        self._stops: dict[int, threading.Event] = {}
        """One for each answer and call under way; set = it is not wanted any more."""
        self._state: State | None = None
        self._signs = Signs()
        """Of loading; later ones are the engine's."""
        self.outbox = Outbox(pipe, self._news, self._pulse)

    def serve(self) -> None:
        """Loads, answers, and returns when the parent says so."""
        threading.Thread(target=self._read, name="localspec-reader", daemon=True).start()
        logger = logging.getLogger("localspec")
        logger.addHandler(_Handler(self.outbox))
        logger.propagate = False
        lib.log.echo = tape.write
        engine = self._loaded(self._messages.get())
        if engine is not None:
            self._engine = engine
            with engine:
                self._answer(engine)
        self.outbox.close()

    def _read(self) -> None:
        """Takes messages as they come, so that the parent never waits; ends the process when the parent is gone."""
        with suppress(EOFError, OSError):
            while True:
                for message in received(self._pipe)[0]:
                    self._messages.put(message)
        os._exit(0)

    def _loaded(self, load: Load) -> Engine | None:
        def report(what: str, share: float) -> None:
            self._signs.alive()
            self.outbox.post(Loading(what, share))

        try:
            engine = Engine.load(
                load.target, load.draft, heads=load.heads, progress=report, tuned=load.tuned, **load.settings
            )
            for call in load.calls:
                getattr(engine, call.method)(*call.arguments, **dict(call.changes))
        except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
            self.outbox.post(Failed.of(LOADING, error))
            return None
        memory.settle()
        loaded = engine.loaded
        heads = tuple(NamedHead(head.name, head.path) for head in loaded.heads)
        self.outbox.post(self._state_of(engine))
        self.outbox.post(Ready(loaded.context.n_ctx, loaded.exactness, loaded.configuration, heads))
        return engine

    def _answer(self, engine: Engine) -> None:
        while True:
            message = self._messages.get()
            if isinstance(message, Cancel):
                self._cancel(message.number)
                continue
            if not isinstance(message, Ask | Call):
                return
            self._stops[message.number] = threading.Event()
            if isinstance(message, Call):
                threading.Thread(target=self._call, args=(engine, message), daemon=True).start()
            elif message.grammar is None:
                self._begin(engine, message)
            else:  # a second, with a large vocabulary
                threading.Thread(target=self._begin, args=(engine, message), daemon=True).start()

    def _cancel(self, number: int) -> None:
        stop = self._stops.get(number)
        if stop is not None:
            stop.set()
        answer = self._answers.get(number)
        if answer is not None:
            answer.cancel()

    def _begin(self, engine: Engine, asked: Ask) -> None:
        stop = self._stops[asked.number]
        try:
            constraint: Any = None if asked.grammar is None else engine.compiled(asked.grammar)
            if asked.trigger is not None:
                constraint = Lazy(constraint, asked.trigger, engine.loaded.model.n_vocab)
            answer = self._answers[asked.number] = Answer(self, asked, constraint)
            if stop.is_set():
                answer.cancel()
            engine.begin(answer)
        except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
            self.over(asked.number)
            self.outbox.post(Failed.of(asked.number, error))

    def _call(self, engine: Engine, call: Call) -> None:
        stop = self._stops[call.number]
        try:
            if call.method not in CALLABLE:
                raise AttributeError(call.method)
            options = dict(call.changes) | ({"cancel": stop.is_set} if call.method in CANCELLABLE else {})
            self.outbox.post(Result(call.number, getattr(engine, call.method)(*call.arguments, **options)))
        except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
            self.outbox.post(Failed.of(call.number, error))
        finally:
            self.over(call.number)

    def over(self, number: int) -> None:
        """An answer or a call has ended."""
        self._answers.pop(number, None)
        self._stops.pop(number, None)

    def _pulse(self) -> list[Any]:
        signs = self._signs
        return [Pulse(*((signs.silent, signs.longest) if self._engine is None else self._engine.silence))]

    def _news(self) -> list[Any]:
        """The engine's state, if it is another one than was said."""
        if self._engine is None:
            return []
        state = self._state_of(self._engine)
        if state == self._state:
            return []
        self._state = state
        return [state]

    def _state_of(self, engine: Engine) -> State:
        running = {slot: one.number for slot, one in engine.running.items() if isinstance(one, Answer)}
        return State(engine.settings, running, engine.drafters, engine.dropped, engine.outdated)


class _Handler(logging.Handler):
    """Hands log lines to the parent."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.post(Logged(record.levelno, record.getMessage()))
