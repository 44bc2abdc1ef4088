"""One connection of a client: its timers, its errors, its end; and how many there may be."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
from time import monotonic

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.server.chat.service import Service
from localspec.server.http.errors import ApiError, error_body, invalid
from localspec.server.http.guard import too_long_head
from localspec.server.http.log import LOG
from localspec.server.http.settings import ServerSettings

_LOOK_SECONDS = 0.25
"""Between two looks whether a client that sends no more still takes something."""
_STILL_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""What every client passes over: a client that is gone answers it with a reset."""
_SELDOM_SECONDS = 60.0
"""Between two lines of the log about the same want."""


class Seldom:
    """Says whether something is to be said again."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self) -> bool:
        now = monotonic()
        if now - self._last < _SELDOM_SECONDS:
            return False
        self._last = now
        return True


_FULL = Seldom()


class Connection(H11Protocol):
    """uvicorn's, which waits forever for the head of a request and for clients that take no answer, and tells its
    errors as plain text."""

    _head_timer: asyncio.TimerHandle | None = None
    _look_timer: asyncio.TimerHandle | None = None
    _half = False
    """The client has said that it sends no more."""
    quiet_since = 0.0
    """When its last answer ended, or it began."""
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
        if _FULL():
            what = (
                "There are more than %d connections, and no more files may be open (ulimit -n): quiet ones are closed."
            )
            LOG.warning(what, most)

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
        """Whether nothing is answered."""
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
        self._look_timer = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _watch_writing(self) -> None:
        """Looks after a while whether the client has taken anything of what is left."""
        left = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._settings.write_seconds, self._check_written, left)

    def _check_written(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch_writing()
            return
        LOG.info("A client took nothing for %g s; its connection is cut.", self._settings.write_seconds)
        self.transport.abort()  # its answers are cancelled, as if it had left

    def _stop_watching(self) -> None:
        timer, self._write_timer = self._write_timer, None
        if timer is not None:
            timer.cancel()

    @property
    def _settings(self) -> ServerSettings:
        service: Service = self.config.app.state.service  # type: ignore[union-attr]
        return service.settings

    def _time_head(self) -> None:
        """Runs a timer while a head is awaited: the first, or one of which something has come."""
        begun = self.cycle is None or self.conn.trailing_data[0]
        if self.conn.their_state is not h11.IDLE or not begun or self.transport.is_closing():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._settings.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        timer, self._head_timer = self._head_timer, None
        if timer is not None:
            timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP request, or has too long a head; called while h11's error is being handled."""
        fault = sys.exc_info()[1]
        why = str(fault or msg).partition(": b")[0]  # without the bytes themselves
        error = invalid(f"This is no HTTP request: {why}.")
        if isinstance(fault, h11.RemoteProtocolError) and fault.error_status_hint == 431:
            error = too_long_head(self.config.h11_max_incomplete_event_size or 0)
        response = _as_json(error)
        for event in response:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _as_json(error: ApiError) -> list[h11.Event]:
    import json

    body = json.dumps(error_body(error, "/")).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    return [h11.Response(status_code=error.status_code, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
