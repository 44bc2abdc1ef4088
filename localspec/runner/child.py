"""A process that has one model and serves it, as the program that started it sees it.

One thread starts each process and hears its life. It lives as long as the process does, which on Linux ends with
the thread that started it. A question is asked in a `HostUse`, which says so if the process dies.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, TypeAlias

from localspec import paths
from localspec.errors import LocalspecError, RunnerError, heard
from localspec.llama.exact.choice import Progress
from localspec.runner.own_socket import HEADER, connect
from localspec.runtime.loaded import ModelFacts

_LOG = logging.getLogger("localspec")
SILENCE_SECONDS = 60.0
"""Without a sign of life, after which a process counts as hung."""
_LOADING_FACTOR = 5
"""Times as much patience while models are loaded: a GPU's driver may compile its kernels."""
_GOODBYE_SECONDS = 20.0
"""For a process that is asked to end: it keeps what was learned."""
_EXIT_SECONDS = 10.0
"""Between a process's last event and its end."""
_BROKEN_SECONDS = 20.0
"""Between a broken connection and a process's last event; one that still speaks then lives."""
_SIGNALS = {"SIGKILL": "was killed", "SIGABRT": "gave up", "SIGTERM": "was ended"}
"""What a signal means; any other one is a crash."""
_LAST_BYTES = 1 << 14
"""So much of the end of what a process wrote is read."""
_CRASH = re.compile(r"GGML_ASSERT|GGML_ABORT|ggml_abort|terminate called|CUDA error", re.IGNORECASE)
"""What lines say that llama.cpp, ggml or C++ write before they end the process."""
_SOURCE = re.compile(r"^\S+\.(?:c|cpp|h|hpp|cu|cuh|m):\d+: ")
"""The line of a source file, at the beginning of such a line."""

Hear: TypeAlias = Callable[[str, dict[str, Any]], None]
"""(event, what is told of it)."""


@dataclass(eq=False, slots=True)
class HostUse:
    """Something that is asked of a host: a process that has models, or a thread of this one."""

    at: Path | None
    """Path of its socket; None = it listens at a port."""
    headers: dict[str, str]
    """Of its requests: they prove that the program itself asks."""
    fate: Callable[[], LocalspecError]
    """What became of the host, to which a connection broke; waits until it is known."""
    url: str = "http://localhost"
    outdate: Callable[[str], object] = lambda why: None
    """The host has said why it answers nothing any more; "" = it does."""
    doing: str = "read a prompt"
    """What the host does for it; changed by the asking side. The error says it if the host dies."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a process is to load: arguments of `Pool`."""

    target: str | Path
    draft: str | Path | None
    heads: Iterable[str | Path]
    settings: dict[str, Any]
    called: str | None = None
    """Name of the model in requests; None = as its file's."""
    public: Any = None
    """`ServerSettings` of a server that is in front of it; None = only its parent asks it something."""


class _Process:
    """One process: started, heard, and gone."""

    def __init__(self, load: Load, patience: float) -> None:
        self._written: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        """Its standard error, llama.cpp's log among it. The file has no name: the system deletes it when the last
        process that has it open ends, however it ends."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),  # plug-ins are found where they are found here
            "GGML_NO_BACKTRACE": "1",  # else ggml starts a debugger when it gives up
        }
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "localspec.server.own"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._written,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            self._written.close()
            raise LocalspecError(f"{sys.executable} cannot be started: {error.strerror}.") from error
        self._load = load
        self.name = paths.shown(os.path.basename(load.target))
        self.at, self.headers = Path(), dict[str, str]()
        self.outdated = ""
        """Why it answers nothing any more; "" = it does. It stays so."""
        self.patience = patience
        self.hung = 0.0
        """Seconds without a sign of life, for which it was ended; 0 = it was not."""
        self.uses: set[HostUse] = set()
        self.listens, self.silent, self.gone = threading.Event(), threading.Event(), threading.Event()
        """It can be asked; it tells nothing any more; it has ended."""
        self.error: LocalspecError | None = None
        """What became of it, once it is `gone`."""

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, until it is gone; one that tells nothing for too long is ended."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        with suppress(OSError), self.popen.stdin as given:
            load = self._load
            plain = {one.name: getattr(load, one.name) for one in fields(load)}  # the process need not import this
            plain |= {"target": str(load.target), "draft": None if load.draft is None else str(load.draft)}
            plain |= {"parent": os.getpid(), "heads": tuple(map(str, load.heads))}
            given.write(pickle.dumps(plain))
        with self.popen.stdout as said:
            first_line = select.poll()  # any number of files may be open
            first_line.register(said)
            if not first_line.poll(self.patience * 1000):
                self.end_hung(self.patience)
            line = said.readline()
        if not line:
            return
        first = json.loads(line)
        if "failed" in first:
            yield {"event": "failed"} | first["failed"]
            return
        self.at, self.headers = Path(first["at"]), {HEADER: first["secret"]}
        try:
            with self._asked("GET", "life", self.patience) as (made, answer):
                self.listens.set()
                while line := answer.readline():
                    yield json.loads(line)
                    made.settimeout(self.patience)
        except TimeoutError:
            self.end_hung(self.patience)
        except (OSError, HTTPException):
            pass  # it is gone

    @contextmanager
    def _asked(self, method: str, path: str, seconds: float) -> Iterator[tuple[socket.socket, HTTPResponse]]:
        """A connection and what is answered there; `seconds` are those of silence."""
        with connect(self.at) as made:
            made.settimeout(seconds)
            asked = HTTPConnection("localspec")
            asked.sock = made
            asked.request(method, f"/localspec/{path}", headers=self.headers)
            yield made, asked.getresponse()

    def outdate(self, why: str) -> None:
        """It has said why it answers nothing any more; "" = it does."""
        self.outdated = why or self.outdated

    def fate(self) -> LocalspecError:
        """What became of it, to which a connection broke; waits until that is known."""
        if not self.silent.wait(_BROKEN_SECONDS):
            return LocalspecError(f"The connection to the process that computes {self.name} broke.", "Ask again.")
        self.gone.wait()
        assert self.error is not None
        return type(self.error)(self.error.message, self.error.hint)

    def end_hung(self, seconds: float) -> None:
        """Ends one that gave no sign of life for so long."""
        self.hung = seconds
        self.popen.kill()

    def ask_to_end(self) -> None:
        """It keeps what was learned, and ends."""
        with suppress(OSError, HTTPException, LocalspecError):
            if not self.listens.is_set():
                self.popen.kill()
                return
            with self._asked("POST", "end", _EXIT_SECONDS):
                pass

    def ended(self) -> tuple[str, tuple[str, ...]]:
        """Waits until it is gone and removes its socket; how it ended, as the end of a sentence, and its last lines."""
        try:
            self.popen.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for path in (self.at, self.at.with_suffix(".lock")) if self.headers else ():
            path.unlink(missing_ok=True)
        code = self.popen.returncode
        if self.hung:
            how = f"gave no sign of life for {self.hung:.0f} seconds"
        elif code >= 0:
            how = f"ended with exit code {code}"
        else:
            name = signal.Signals(-code).name
            how = f"{_SIGNALS.get(name, 'crashed')} ({name})"
        with self._written as written:
            start = max(0, os.fstat(written.fileno()).st_size - _LAST_BYTES)
            lines = os.pread(written.fileno(), _LAST_BYTES, start).decode("utf-8", "replace").splitlines()
        return how, tuple(line for line in lines[1 if start else 0 :] if line.strip())


def cause(lines: Iterable[str]) -> str:
    """Why a process ended, in llama.cpp's words; "" = it gave no reason."""
    found = [line for line in lines if _CRASH.search(line)]
    return _SOURCE.sub("", found[-1]).strip() if found else ""


class Child:
    """Has one process at a time. One that dies is replaced, once, until a use has come to its end. Thread-safe."""

    def __init__(self, load: Load, patience: float = SILENCE_SECONDS, hear: Hear = lambda event, news: None) -> None:
        """Starts the process. Call `wait` next; it gives the process up if it raises. A process is ended after
        `patience` seconds without a sign of life, to which three times its longest pass is added while it works. `hear`
        is told of the other events, on a thread of the child's."""
        self._load, self._patience, self._hear = load, patience, hear
        self._turn = threading.Condition()
        """Guards what is below."""
        self._process: _Process | None = None
        """None = the next one is about to start, or there is a `fault`."""
        self._is_ready = self._closing = False
        self._spare = True
        """Whether a process that dies is replaced."""
        self.fault: LocalspecError | None = None
        """Why there is no process any more."""
        self.facts: ModelFacts | None = None
        """Of the models; None before they are loaded."""
        self.last_log: tuple[str, ...] = ()
        """The last lines of llama.cpp's log, and what was written beside it, of the process that died last."""
        self._loading: queue.SimpleQueue[tuple[str, float] | LocalspecError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="localspec-child", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process; 0 = there is none now."""
        process = self._process
        return 0 if process is None else process.popen.pid

    @property
    def listens(self) -> bool:
        """Whether `use` waits for nothing."""
        process = self._process
        return (process is not None and process.listens.is_set()) or self.fault is not None or self._closing

    @property
    def outdated(self) -> str:
        """Why it answers nothing any more; "" = it does."""
        process = self._process
        if self.fault is not None:
            return self.fault.message
        return "" if process is None else process.outdated

    def wait(self, progress: Progress | None = None) -> None:
        """Waits until the first process has loaded. Raises RunnerError: it ended; LocalspecError: what loading raised
        there; also what `progress` raises."""
        try:
            while (news := self._loading.get()) is not None:
                if isinstance(news, LocalspecError):
                    raise news
                if progress is not None:
                    progress(*news)
        except BaseException:
            self.close(at_once=True)
            raise

    @contextmanager
    def use(self) -> Iterator[HostUse]:
        """Something that is asked of the process; an answer without an error lets a later death be mended again. Raises
        LocalspecError: there is no process any more."""
        with self._turn:
            self._turn.wait_for(lambda: self.listens)
            if self._closing:
                raise LocalspecError("The engine is closed.")
            if self.fault is not None:
                raise type(self.fault)(self.fault.message, self.fault.hint)
            assert self._process is not None
            process = self._process
            use = HostUse(process.at, process.headers, process.fate, outdate=process.outdate)
            process.uses.add(use)
        try:
            yield use
            self._spare = self._spare or use.doing == "answered"
        finally:
            with self._turn:
                process.uses.discard(use)

    def close(self, at_once: bool = False) -> None:
        """Ends the process and waits for its end; `at_once`: it does not keep what it has learned."""
        with self._turn:
            if self._closing:
                return
            self._closing, process = True, self._process
            self._turn.notify_all()
        if process is not None:
            if not at_once:
                process.ask_to_end()
                self._thread.join(_GOODBYE_SECONDS)
            process.popen.kill()
        self._thread.join()

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self._turn:
                if self._closing or self.fault is not None:
                    return
                self._is_ready = False
                try:
                    process = self._process = _Process(self._load, _LOADING_FACTOR * self._patience)
                except LocalspecError as error:
                    self.fault = error
                    self._loading.put(error)
                    return
                finally:
                    self._turn.notify_all()
            for news in process.events():
                self._take(process, news)
            process.silent.set()
            self._end(process)

    def _take(self, process: _Process, news: dict[str, Any]) -> None:
        match event := news.pop("event"):
            case "loading":
                self._loading.put((news["what"], news["share"]))
            case "ready":
                facts = ModelFacts(**news | {"layers": tuple(news["layers"])})
                self.facts, self._is_ready = facts, True
                process.patience = self._patience
                self._loading.put(None)
            case "failed":
                self.fault = heard(**news)
                process.popen.terminate()
            case "state":
                process.outdate(news["outdated"])
            case "log":
                logging.getLogger(news["name"]).log(news["level"], "%s", news["text"])
            case "pulse":
                if news["silent"] > process.patience + 3 * news["longest"]:
                    process.end_hung(news["silent"])
            case _:
                self._hear(event, news)
        with self._turn:  # for `use`, which waits for the first event
            self._turn.notify_all()

    def _end(self, process: _Process) -> None:
        """A process tells nothing any more: its end is waited for, and reported to all that used it."""
        how, lines = process.ended()
        with self._turn:
            error, used = self.fault, bool(process.uses)
            if self._closing:
                error = LocalspecError("The engine is closed.")
            elif error is None:
                doing = "was idle" if self._is_ready else "was loaded"
                if self._is_ready and used:
                    order = ("read a text", "read a prompt", "answered")
                    doing = max((use.doing for use in process.uses), key=order.index)
                error = RunnerError(f"The process that computes {process.name} {how} while it {doing}.")
                if why := cause(lines):
                    error.hint = f"llama.cpp wrote: {why}"
                elif "SIGKILL" in how:
                    error.hint = "The system does so where memory lacks."
                self.last_log = lines
                if self._is_ready and self._spare:
                    self._spare = False
                    _LOG.warning("%s The models are loaded again.", error)
                else:
                    self.fault = error
                    _LOG.log(logging.INFO if used else logging.WARNING, "%s", error)  # or the user of it says so
            self._process, process.error = None, error
            process.gone.set()
            self._turn.notify_all()
        if not self._is_ready:
            self._loading.put(error)
