"""One start of a server, on the event loop of `connections.py`, by the official SDK (`mcp`, of the extra `tools`)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any

import anyio
import httpx2
from mcp.client.session import ClientSession
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, Implementation, jsonrpc_message_adapter
from pydantic import ValidationError

from localspec import __version__, paths
from localspec.chat.plain_text import plain_text
from localspec.errors import LocalspecError, reason
from localspec.tools.servers import Server, dicts

for _name in ("mcp", "client"):  # their tracebacks: what fails is said in a sentence
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_MOST_BYTES = 16 << 20  # of one message
_MOST_JUNK = 1_000  # lines of a server that are no messages
_LOG_BYTES = 1 << 20  # of standard error that are kept
_MOST_PAGES, _MOST_LISTED = 100, 1_000
_NAMED = {"tools": "name", "prompts": "name", "resources": "uri"}  # what is listed, and the part that each has
_GRACE_SECONDS = 1.0  # for an end by itself, and again after it was asked to
_STUCK_SECONDS = 5.0  # in which one that runs must list its tools again
_ENDED = "closed its output"
_CLOSED = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)


class Running:
    def __init__(self, server: Server, seconds: float) -> None:
        self.up, self.over, self.seconds = anyio.Event(), anyio.Event(), 0.0  # `up`: ready, or over
        self.title, self._kinds = server.name, list[str]()  # of what it lists
        self.tools, self.prompts, self.resources = (list[dict[str, Any]]() for _ in range(3))  # other parts may lack
        self.faults = set[str]()  # sentences on lists that it refuses
        self._server, self._seconds, self._secrets = server, seconds, list[str]()
        self._wire: JSONRPCDispatcher[Any]
        self._last = ""  # line of its standard error
        self._fault = self._status = ""  # why it was ended, or ended; what its address says, if that is an error
        self._error: Exception | None = None
        self._scope, self._renewing = anyio.CancelScope(), anyio.Lock()
        self._stale = False  # whether its list may have changed, or it may be stuck in a call that was given up
        self._task = asyncio.create_task(self._live())

    @property
    def ending(self) -> bool:
        return self._scope.cancel_called or self.over.is_set()

    def end(self, why: str) -> None:
        self._fault = self._fault or why
        self._scope.cancel()

    async def call(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The result of a request; an error that is the answer reads like a tool's own: the model may mend it."""
        try:
            with anyio.fail_after(seconds):
                try:
                    return await self._wire.send_raw_request(method, params)
                except anyio.get_cancelled_exc_class():
                    self._stale = True
                    raise
        except TimeoutError:
            raise LocalspecError(self._told(f"gave no result for {seconds:g} seconds")) from None
        except MCPError as error:
            if not self.ending and error.message not in ("Connection closed", "Session terminated"):
                text = self._shown(_words(error) + (f" ({self._status})" if self._status else ""))
                return {"isError": True, "content": [{"type": "text", "text": text}]}
            self.end("ended the session")  # at its address is another one now
        await self.over.wait()
        raise self.why()

    async def renew(self) -> None:
        """Lists its tools again if that may be needed, and ends it if it does not."""
        async with self._renewing:
            if self._stale and self.up.is_set():
                self._stale = False
                try:
                    with anyio.fail_after(_STUCK_SECONDS, shield=True):
                        await self._list()
                except TimeoutError:
                    self.end(f"did not list its tools for {_STUCK_SECONDS:g} seconds")
                except MCPError as error:
                    self.end(_cause(error))

    async def _heed(self, message: Any) -> None:
        self._stale = self._stale or str(getattr(message, "method", "")).endswith("/list_changed")

    async def _live(self) -> None:
        begun, late = perf_counter(), f"did not answer for {self._seconds:g} seconds"
        timer = asyncio.get_running_loop().call_later(self._seconds, self.end, late)
        try:
            server = self._server.filled()
            given = [*server.env.values(), *server.headers.values()]
            given += [word for one in given for word in one.split()]
            self._secrets = sorted((one for one in given if len(one) >= 8), key=len, reverse=True)  # or no key
            async with self._address(server) if server.url else self._pipes(server) as streams:
                with self._scope:  # within, so that an address can be told of the end
                    self._wire = JSONRPCDispatcher(*streams, on_stream_exception=self._nonsense)
                    me = Implementation(name="localspec", version=__version__)
                    client = ClientSession(dispatcher=self._wire, client_info=me, message_handler=self._heed)
                    async with client as session:
                        told = await session.initialize()
                        info = told.server_info
                        self.title = f"{info.title or info.name} {info.version}".strip() or self.title
                        self._kinds = [kind for kind in _NAMED if getattr(told.capabilities, kind)] or ["tools"]
                        await self._list()
                        timer.cancel()
                        self.seconds = perf_counter() - begun
                        self.up.set()
                        await anyio.sleep_forever()
        except Exception as error:  # noqa: BLE001 - whatever it is, `why` says it
            while isinstance(inner := getattr(error, "exceptions", (None,))[0], Exception):  # of task groups
                error = inner
            self._error = error
        finally:
            timer.cancel()
            self.over.set()
            self.up.set()

    async def _nonsense(self, error: Exception) -> None:
        self.end(_cause(error))

    async def _list(self) -> None:
        for kind in self._kinds:
            params, found = dict[str, Any](), list[dict[str, Any]]()
            try:
                for _ in range(_MOST_PAGES):
                    page = await self._wire.send_raw_request(f"{kind}/list", params)
                    found += [one for one in dicts(page.get(kind)) if isinstance(one.get(_NAMED[kind]), str)]
                    params = {"cursor": page.get("nextCursor")}
                    if not params["cursor"] or len(found) > _MOST_LISTED:
                        break
            except MCPError as error:
                if kind == "tools":
                    raise
                self.faults.add(self._told(f"does not list its {kind}: {_words(error)}"))
            setattr(self, kind, found[:_MOST_LISTED])

    @asynccontextmanager
    async def _address(self, server: Server) -> AsyncIterator[Any]:
        limits = httpx2.Timeout(self._seconds, read=None)  # a call has its own
        http = httpx2.AsyncClient(headers=dict(server.headers), timeout=limits)
        http.event_hooks["response"].append(self._seen)
        opened = streamable_http_client(server.url, http_client=http, max_sse_event_size=_MOST_BYTES)
        with anyio.CancelScope() as ending:
            async with http, opened as streams:
                try:
                    yield streams
                finally:  # its session is ended now
                    ending.deadline = anyio.current_time() + _GRACE_SECONDS

    async def _seen(self, response: httpx2.Response) -> None:
        bad = response.request.method == "POST" and response.status_code >= 400
        self._status = f"HTTP {response.status_code} {response.reason_phrase}".strip() if bad else ""
        stream, data = response.stream, bytearray()
        if not response.headers.get("content-type", "").startswith("text/event-stream"):  # whose events have a bound
            assert isinstance(stream, httpx2.AsyncByteStream)
            async for chunk in stream:
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise LocalspecError(self._told(f"sent more than {_MOST_BYTES >> 20} MB at once"))
            await stream.aclose()
            response.stream = httpx2.ByteStream(bytes(data))

    @asynccontextmanager
    async def _pipes(self, server: Server) -> AsyncIterator[Any]:
        """Of a process's standard input and output. The SDK's own has no limit for a line."""
        command, env = [server.command, *server.args], get_default_environment() | dict(server.env)
        with anyio.CancelScope(shield=True):  # a process that is half made would stay
            process = await anyio.open_process(command, env=env, cwd=server.cwd or None, start_new_session=True)
        to_us, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, to_it = anyio.create_memory_object_stream[SessionMessage](0)
        heard = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, process, to_us)
            tasks.start_soon(_write, process.stdin, to_it)
            tasks.start_soon(self._hear, process, heard)
            try:
                yield read, write
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._stop(process, heard)
                    for stream in (to_us, read, write, to_it):
                        stream.close()

    async def _read(self, process: Any, to_us: Any) -> None:
        """Hands on its messages, of bounded size; what else it writes is dropped, up to a bound."""
        junk = 0
        with suppress(*_CLOSED):
            async for line in _lines(process.stdout, _MOST_BYTES):
                try:  # by way of `json`, which takes halves of characters, as of a text that was cut
                    data = json.loads(json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace"))
                    await to_us.send(SessionMessage(jsonrpc_message_adapter.validate_python(data, by_name=False)))
                except (ValueError, RecursionError):  # such as a greeting that belongs on standard error
                    junk += bool(line.strip())
                    if len(line) > _MOST_BYTES:
                        return self.end(f"wrote a message of more than {_MOST_BYTES >> 20} MB")
                    if '"jsonrpc"' in line or junk > _MOST_JUNK:
                        return self.end(f"writes what is no message of MCP: {line[:80]}")
        return self.end(_ENDED)

    async def _hear(self, process: Any, heard: anyio.Event) -> None:
        path, room, log = paths.data_dir() / f"mcp-{self._server.name}.log", _LOG_BYTES, -1
        with anyio.CancelScope(shield=True):  # its last words come at its end
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # one that runs elsewhere has its file to itself
                log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            async for line in _lines(process.stderr, _LOG_BYTES):
                text = self._shown(line).strip()
                self._last = text[-300:] or self._last
                room -= len(data := f"{text}\n".encode("utf-8", "replace"))
                with suppress(OSError):  # such as of a full disk
                    os.write(log, data if room >= 0 else b"")
            with suppress(OSError):
                os.close(log)
            heard.set()

    def _shown(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return plain_text(text)

    async def _stop(self, process: Any, heard: anyio.Event) -> None:
        """Ends a process as the protocol says, and all that it started."""
        with suppress(*_CLOSED):
            await process.stdin.aclose()
        with anyio.move_on_after(_GRACE_SECONDS):
            while (code := process.returncode) is None:  # `wait` waits for its children, too
                await anyio.sleep(0.01)
            if self._fault == _ENDED:
                self._fault = f"ended ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"
            await heard.wait()
        if os.name == "posix":
            await terminate_posix_process_tree(process, _GRACE_SECONDS)
        with anyio.move_on_after(_GRACE_SECONDS), suppress(*_CLOSED):
            await process.aclose()

    def why(self) -> LocalspecError:
        """The sentence for its end."""
        error = self._error
        if isinstance(error, LocalspecError):
            return error
        what = self._fault or (f"refuses ({self._status})" if self._status else _cause(error))
        last = f": {self._last}" if self._last and what.startswith("ended (") else ""
        if isinstance(error, OSError) and not self._fault:
            what = f"cannot be started: {error.filename or self._server.command}: {reason(error)}"
        return LocalspecError(self._told(what + last), f"`localspec mcp check {self._server.name}` tries it.")

    def _told(self, what: str) -> str:
        return self._shown(f"The server {self._server.name} {what.rstrip('.')}.")


def _cause(error: Exception | None) -> str:
    if isinstance(error, httpx2.TransportError):
        return f"cannot be reached: {reason(error)}"
    return f"does not answer as an MCP server does ({_words(error)[:200]})"


def _words(error: Exception | None) -> str:
    no_message = error is None or isinstance(error, ValidationError) or getattr(error, "code", 0) == PARSE_ERROR
    return "it writes what is no message" if no_message else str(error)


async def _lines(stream: Any, most: int) -> AsyncIterator[str]:
    """Of a stream to its end; one of more than `most` bytes comes in pieces."""
    rest = bytearray()
    with suppress(*_CLOSED):
        async for chunk in stream:
            rest += chunk
            if b"\n" in chunk or len(rest) > most:
                *lines, rest = rest.split(b"\n") if b"\n" in chunk else (rest, bytearray())
                for line in lines:
                    yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


async def _write(stdin: Any, to_it: Any) -> None:
    with suppress(*_CLOSED):
        async for item in to_it:
            text = json.dumps(item.message.model_dump(by_alias=True, exclude_unset=True))
            await stdin.send(f"{text}\n".encode())
