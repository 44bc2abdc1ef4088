"""The socket side: binding with a sentence when it fails, connections with timers and limits, and an orderly end."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import math
import os
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import LocalspecError, UsageError
from localspec.llama.exact.choice import Progress
from localspec.runtime.pool import Pool
from localspec.server.chat.service import Service
from localspec.server.front import Processes
from localspec.server.http.app import create_app, too_long_head
from localspec.server.http.output import LOG, error_response, invalid
from localspec.server.http.settings import PREFIX, ServerSettings

_LOOK_SECONDS = 0.25
"""Between two looks whether a client that sends no more still takes something."""
_STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What every client passes over: a client that is gone answers it with a reset."""
_SELDOM_SECONDS = 60.0
"""Between two lines of the log about the same want."""
_FULL = "There are more than %d connections, and no more files may be open (ulimit -n): quiet ones are closed."
_KEEP_ALIVE = 65
"""Seconds an idle connection is kept; longer than the minute after which common clients and proxies let go."""
_GRACE_SECONDS = 5.0
"""Seconds for the last chunks to get out, after `drain_seconds`; the process is ended by force after twice as many."""
_OWN_FILES = 64
"""Open files besides connections: models, their processes, logs, what a route opens. A choice."""
_MOST_FILES = 65_536
"""As many as the limit is raised to; more connections than that are no use here. A choice."""


_warned: dict[str, float] = {}
"""When each of `_warn`'s lines was written."""


def _warn(line: str, *facts: object) -> None:
    """Writes a line of the log, unless it was written lately."""
    if monotonic() - _warned.get(line, -math.inf) >= _SELDOM_SECONDS:
        _warned[line] = monotonic()
        LOG.warning(line, *facts)


class Connection(H11Protocol):
    """uvicorn's, which waits forever for the head of a request and for clients that take no answer, and tells its
    errors as plain text."""

    _half = False
    """The client has said that it sends no more."""
    quiet_since = 0.0
    """When its last answer ended, or it began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # What the system does not take yet is waited for, not collected. Over TLS, 0 bytes would be over a limit of 0.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1)
        self._time_head()
        self.quiet_since = self.loop.time()
        self._make_room()

    def _make_room(self) -> None:
        """Closes the connection that has been quiet for longest where there are too many."""
        most = self._settings.most_connections
        if most is None or len(self.connections) <= most:
            return
        open_ = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(open_) <= most:
            return
        quiet = (one for one in open_ if one.is_quiet and one is not self)
        min(quiet, key=lambda one: one.quiet_since, default=self).transport.abort()
        _warn(_FULL, most)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.quiet_since = self.loop.time()
        self._time_head()  # the next head may have begun to come
        if self._half and self.is_quiet:
            self.transport.close()

    @property
    def is_quiet(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that sends no more may wait for its answer, or be gone: True = that is found out by sending."""
        if self.is_quiet or self.conn.their_state is not h11.DONE or self.transport.get_extra_info("sslcontext"):
            return False
        if not self.cycle.response_started:
            if self.scope["http_version"] != "1.1":
                return False
            self.transport.write(_STILL_THERE)
        self._half = True
        self._look()
        return True

    def _look(self) -> None:
        """Ends the connection of a client that is gone: nothing is read any more, so that nothing else would tell."""
        found = self.transport.get_extra_info("socket")
        if self.transport.is_closing():
            return
        if found is not None and found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self._timers["look"] = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("write")

    def _watch_writing(self, before: float = math.inf) -> None:
        """Looks now and then whether the client has taken anything of what was left `before`."""
        left, seconds = self.transport.get_write_buffer_size(), self._settings.write_seconds
        if left < before:
            self._timers["write"] = self.loop.call_later(seconds, self._watch_writing, left)
            return
        LOG.info("A client took nothing for %g s; its connection is cut.", seconds)
        self.transport.abort()  # its answers are cancelled, as if it had left

    def _stop(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    @property
    def _settings(self) -> ServerSettings:
        service: Service = self.config.app.state.service  # type: ignore[union-attr]
        return service.settings

    def _time_head(self) -> None:
        """Runs a timer while a head is awaited: the first, or one of which something has come."""
        begun = self.cycle is None or self.conn.trailing_data[0]
        if self.conn.their_state is not h11.IDLE or not begun or self.transport.is_closing():
            self._stop("head")
        elif "head" not in self._timers:
            self._timers["head"] = self.loop.call_later(self._settings.head_seconds, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP request, or has too long a head; called while h11's error is being handled."""
        fault = sys.exc_info()[1]
        why = str(fault or msg).partition(": b")[0]  # without the bytes themselves
        error = invalid(f"This is no HTTP request: {why}.")
        if isinstance(fault, h11.RemoteProtocolError) and fault.error_status_hint == 431:
            error = too_long_head(self.config.h11_max_incomplete_event_size or 0)
        response = error_response(error, "/")
        response.headers["Connection"] = "close"
        head = h11.Response(status_code=response.status_code, headers=response.raw_headers)
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket at an address, or at unix: and a path; then `port` is not looked at.

    Raises:
        UsageError: the port or path is taken or not allowed, or there is no such address here.
    """
    if host.startswith(PREFIX):
        return UnixSocket(Path(host.removeprefix(PREFIX)))
    try:
        address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        both = address[4][0] == "::" and socket.has_dualstack_ipv6()  # all addresses are IPv4's, too
        return socket.create_server(address[4][:2], family=address[0], backlog=512, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "Choose another with --port; 0 is any free one."
            raise UsageError(f"Port {port} of {host} is taken.", hint) from None
        raise UsageError(f"Cannot listen on port {port} of {host}: {error.strerror or error}.") from None


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    if isinstance(listening, UnixSocket):
        return f"{PREFIX}{listening.getsockname()}"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}/v1"


def place_of(listening: socket.socket) -> str:
    """Its port, or its socket file."""
    name = listening.getsockname()
    return str(name if isinstance(listening, UnixSocket) else name[1])


class EndpointServer(uvicorn.Server):
    """Ends in order: no new requests, time for running answers, an error for those that need longer, then the engines.

    A second signal takes the time away. The process then ends by itself, with what `serve` returns, or later by force.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings, ending: Callable[[], None] | None = None) -> None:
        """`ending` is called when its end begins."""
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            backlog=settings.backlog,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=int(settings.drain_seconds + _GRACE_SECONDS) + 1,
            h11_max_incomplete_event_size=settings.max_header_bytes,
            ssl_certfile=settings.ssl_cert,
            ssl_keyfile=settings.ssl_key,
        )
        super().__init__(config)
        self._service: Service = app.state.service
        self._ending = ending
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_told)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.refuse()
        if self._ending is not None:
            self._ending()
        stop = asyncio.get_running_loop().call_later(self._service.settings.drain_seconds, self._service.stop)
        try:
            await super().shutdown(sockets)
        finally:
            stop.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's has the signal kill the process once more when all is over."""
        again = self.should_exit
        if again and self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.stop)
        self.should_exit = True
        # Ends it also if one of its threads holds the interpreter's lock, which no timer of Python's
        # gets past. faulthandler's thread does, and its words go nowhere.
        seconds = 2 * _GRACE_SECONDS + (0.0 if again else self._service.settings.drain_seconds)
        faulthandler.dump_traceback_later(seconds, exit=True, file=os.open(os.devnull, os.O_WRONLY))


def _told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio tells every connection that it cannot take, thousands a second."""
    error = context.get("exception")
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        loop.default_exception_handler(context)
    else:
        _warn("No connection can be taken now: no more files may be open (ulimit -n).")


def serve(
    pool: Pool,
    settings: ServerSettings,
    listening: socket.socket,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> None:
    """Serves until a signal comes; loads the default model meanwhile, and closes the pool at the end.

    Raises:
        LocalspecError: the default model cannot be loaded.
    """
    failure: list[BaseException] = []
    if (limit := raised()) is not None:  # what else is opened has room
        at_once = max(16, min(512, (limit - _OWN_FILES) // 8))
        most = max(16, limit - _OWN_FILES - 2 * at_once)
        settings = replace(settings, most_connections=most, backlog=at_once)

    async def load(service: Service) -> None:
        try:
            await service.load(pool.default, progress)
            LOG.info("%s is ready: %s", pool.default, pool.facts()[pool.default].exactness)
        except Exception as error:  # noqa: BLE001 - a server without its model would say for ever that it loads
            if not service.ending:
                failure.append(error.__cause__ or error)
                server.should_exit = True

    server = EndpointServer(create_app(pool, settings, on_start=load, processes=processes), settings, pool.give_up)
    try:
        server.run([listening])
    finally:
        pool.close()
        listening.close()
    if failure:
        if isinstance(failure[0], LocalspecError):
            raise failure[0]
        raise LocalspecError(f"{pool.default} cannot be served: {failure[0]}.") from failure[0]


class UnixSocket(socket.socket):
    """Listens at a path that only this user may use (mode 0600), and takes the file away when it is closed."""

    def __init__(self, path: Path) -> None:
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            raise UsageError("This system has no sockets that are files.", "Leave --host out.")
        _remove_left(path, family)
        super().__init__(family, socket.SOCK_STREAM)
        self._path = path
        before = os.umask(0o177)
        try:
            self.bind(str(path))
        except OSError as error:
            super().close()
            if error.errno == errno.EADDRINUSE:
                raise _taken(path) from None
            raise UsageError(f"Cannot listen at {path}: {error.strerror or error}.") from None
        finally:
            os.umask(before)
        self._made: os.stat_result | None = path.lstat()
        self.listen(512)

    def close(self) -> None:
        """Closes it. A file that another server has put there meanwhile stays."""
        super().close()
        made, self._made = self._made, None
        with suppress(OSError):
            if made is not None and os.path.samestat(made, self._path.lstat()):
                self._path.unlink()


def _remove_left(path: Path, family: int) -> None:
    """Removes the socket of a server that is gone."""
    try:
        kind = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or `bind` says what is wrong
    if not stat.S_ISSOCK(kind):
        raise UsageError(f"{path} is there and is no socket.", "Choose another path.")
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise UsageError(f"Cannot listen at {path}: {error.strerror or error}.") from None
    raise _taken(path)


def _taken(path: Path) -> UsageError:
    return UsageError(f"A server listens at {path} already.", "End it, or choose another path.")


def raised() -> int | None:
    """Raises the soft limit of open files as far as it goes, and returns it; None = this system has none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY:
        return wanted
    with suppress(OSError, ValueError):  # macOS allows less than it says
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft
