"""Servers of tools while they run: started when they are first needed, asked, and ended, by the official SDK (`mcp`).

One thread has them all. Each has a task that opens and closes it; callers wait on their own threads.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as Waited
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import __version__, paths
from localspec.chat.plain_text import plain_text
from localspec.chat.reply.tool import Tool
from localspec.errors import Cancelled, LocalspecError, UsageError, reason
from localspec.tools.servers import Server

if TYPE_CHECKING:
    from anyio.abc import Process
    from anyio.from_thread import BlockingPortal
    from mcp.client.client import Client

START_SECONDS = 60.0
"""In which a server must answer: one that a package runner fetches first takes long at its first start."""
CALL_SECONDS = 300.0  # of a call; a user who waits longer presses Esc
MOST_CHARACTERS = 200_000  # of a result that is kept: more than any context here holds
_MOST_BYTES = 16 << 20  # of one message of a server
_MOST_JUNK = 1_000  # lines of a server that are no messages
_LOG_BYTES = 1 << 20  # of standard error that are kept of a server
_MOST_TOOLS, _MOST_PAGES = 1_000, 100  # of a server's lists
_LAST_LINES = 20  # of standard error
_END_SECONDS = 1.0  # for a server to end by itself, and again after it was asked to
_LOOK_SECONDS = 0.05  # between two looks whether a caller wants no more
_EXTRA = "Install what speaks to servers of tools: pip install 'localspec[tools]'"
_ODD = re.compile(r"[^a-zA-Z0-9_.:/-]")  # not allowed in the name of a tool


@dataclass(frozen=True, slots=True)
class ListedTool:
    name: str
    description: str
    schema: dict[str, Any]
    read_only: bool


@dataclass(frozen=True, slots=True)
class Listed:
    """What a server has."""

    title: str
    tools: tuple[ListedTool, ...]
    seconds: float  # that its start took


@dataclass(frozen=True, slots=True)
class Called:
    """What came of a call."""

    text: str
    failed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as a model is told of it: distinct in name."""

    tool: Tool
    server: str
    name: str  # as its server calls it
    key: str  # changes with server, name, description and schema: a consent holds for it
    read_only: bool


class Connections:
    """The servers of one chat. Thread-safe; `close` it."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = {one.name: one for one in servers}
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None  # to the thread of servers, once there is one
        self._closed = False
        self.notices: list[str] = []
        """Sentences for the user about servers and tools that were left out."""

    def start(self, name: str, cancelled: Callable[[], bool] = lambda: False) -> Listed:
        """What a server has, which is started if it does not run. Raises LocalspecError: it fails; Cancelled."""
        found: Listed = self._result(self._begun(name).listed, cancelled, keep=True)
        return found

    def offered(self, off: Collection[str] = (), cancelled: Callable[[], bool] = lambda: False) -> dict[str, Offered]:
        """The tools of all servers but those in `off`, by distinct names; what fails is a notice."""
        names = [name for name in self._servers if name not in off]
        for name in names:
            with suppress(LocalspecError):  # they start side by side
                self._begun(name)
        listed = list[tuple[Server, ListedTool]]()
        for name in names:
            try:
                listed += [(self._servers[name], tool) for tool in self.start(name, cancelled).tools]
            except Cancelled:
                raise
            except LocalspecError as error:
                self.notices.append(str(error))
        count, found = Counter(_ODD.sub("_", tool.name) for _, tool in listed), dict[str, Offered]()
        for server, tool in listed:
            plain = _ODD.sub("_", tool.name)
            name = (plain if count[plain] == 1 else f"{server.name}__{plain}")[:128]
            try:
                if name in found:
                    raise UsageError(f"There are two tools called {name}.")
                told = Tool(name, tool.description, tool.schema)
            except UsageError as error:
                self.notices.append(f"The tool {tool.name} of the server {server.name} is left out: {error.message}")
                continue
            found[name] = Offered(told, server.name, tool.name, _key(server, tool), tool.read_only)
        return found

    def call(
        self, server: str, tool: str, arguments: Mapping[str, Any], cancelled: Callable[[], bool] = lambda: False
    ) -> Called:
        """What a tool gives. Raises LocalspecError: its server fails, or takes too long; Cancelled."""
        begun, running = perf_counter(), self._begun(server)
        self._result(running.listed, cancelled, keep=True)
        made = self._result(self._on_loop(running.call, tool, dict(arguments)), cancelled)
        return Called(cut(made[0], MOST_CHARACTERS), made[1], perf_counter() - begun)

    def close(self) -> None:
        """Ends all servers, their children too; a second call does nothing."""
        with self._lock:
            self._closed, running = True, list(self._running.values())
        if self._portal is not None:
            for one in running:
                self._portal.call(one.end)
            for one in running:
                with suppress(Exception):
                    one.ended.result(5 * _END_SECONDS)
            self._stack.close()
            self._portal = None

    def _begun(self, name: str) -> _Running:
        with self._lock:
            if self._closed:
                raise Cancelled("The tools are closed.")
            found = self._running.get(name)
            if found is None or found.dead:
                found = _Running(self._servers[name])
                found.ended = self._on_loop(found.run)
                self._running[name] = found
            return found

    def _on_loop(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._portal is None:
            try:
                import mcp  # noqa: F401 - and not later, on its thread
                from anyio.from_thread import start_blocking_portal
            except ImportError:
                raise LocalspecError("Tools need the package mcp, which is not installed.", _EXTRA) from None
            logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its tracebacks: what fails is said in a sentence
            self._portal = self._stack.enter_context(start_blocking_portal(name="localspec-tools"))
        return self._portal.start_task_soon(work, *args)

    @staticmethod
    def _result(future: Future[Any], cancelled: Callable[[], bool], keep: bool = False) -> Any:
        """Waits; raises Cancelled once the caller wants no more, and ends what it waits for unless that is to go on."""
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except Waited:
                if future.done():
                    raise
                if cancelled():
                    if not keep:
                        future.cancel()
                    raise Cancelled("The call was cancelled.") from None
            except CancelledError:
                raise Cancelled("The call was cancelled.") from None


class _Running:
    """One server from its start to its end, on the thread of servers; others wait for `listed`."""

    ended: Future[Any]

    def __init__(self, server: Server) -> None:
        self.listed = Future[Listed]()
        self.dead = False
        self._server = server
        self._fault = ""  # why it was ended, or ended by itself
        self._errors = _ErrorLines(server.name)
        self._client: Client | None = None
        self._scope: Any = None  # of `run`: cancelled, it ends

    async def run(self) -> None:
        """Its life: started, listed, and kept until `end`."""
        import anyio
        from mcp.client.client import Client

        begun, fault = perf_counter(), None
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                group.start_soon(self._watch)
                async with Client(self._transport(), client_info=_info()) as self._client:
                    tools = await self._tools()
                    info = self._client.server_info
                    title = " ".join(filter(None, (info.title or info.name, info.version))) if info else ""
                    self.listed.set_result(Listed(title or self._server.name, tools, perf_counter() - begun))
                    await anyio.sleep_forever()
        except Exception as error:  # noqa: BLE001 - who waits for it hears of it
            fault = error
        finally:
            self.dead = True
            last = self._errors.close()
            if not self.listed.done():
                self.listed.set_exception(self._failure(fault, last, "could not be started"))

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Text of a result, and whether the tool failed. Raises LocalspecError."""
        import anyio

        assert self._client is not None
        try:
            with anyio.fail_after(CALL_SECONDS):
                result = await self._client.call_tool(tool, arguments)
        except TimeoutError:
            raise LocalspecError(f"{self._named} gave no result for {CALL_SECONDS:.0f} seconds.") from None
        except Exception as error:  # noqa: BLE001 - whatever the server has done
            await anyio.sleep(_LOOK_SECONDS)  # so that its end is known, if it has ended
            raise self._failure(error, self._errors.last, f"failed in a call of {tool}") from None
        structured = getattr(result, "structured_content", None)
        parts = [_words(one) for one in result.content] or ([json.dumps(structured)] if structured else [])
        return "\n".join(parts), bool(result.is_error)

    async def end(self, why: str = "") -> None:
        self._fault, self.dead = self._fault or why, True
        if self._scope is not None:
            self._scope.cancel()

    @property
    def _named(self) -> str:
        return f"The server {self._server.name}"

    async def _watch(self) -> None:
        import anyio

        await anyio.sleep(START_SECONDS)
        if not self.listed.done():
            await self.end(f"did not answer for {START_SECONDS:.0f} seconds")

    async def _tools(self) -> tuple[ListedTool, ...]:
        assert self._client is not None
        found, cursor = list[ListedTool](), None
        for _ in range(_MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            for one in page.tools:
                hints = one.annotations
                read_only = hints is not None and hints.read_only_hint is True
                found.append(ListedTool(one.name, one.description or "", one.input_schema, read_only))
            cursor = page.next_cursor
            if not cursor or len(found) > _MOST_TOOLS:
                break
        return tuple(found[:_MOST_TOOLS])

    def _failure(self, error: BaseException | None, last: str, did: str) -> LocalspecError:
        """What happened, in a sentence."""
        while (inner := getattr(error, "exceptions", None)) is not None:  # of task groups
            error = inner[0]
        if isinstance(error, LocalspecError):
            return error
        what = self._fault or (f"{did}: {_reason(error)}" if error is not None else "was ended")
        said = f": {plain_text(last)}" if last and self._fault.startswith("ended") else ""
        return LocalspecError(
            f"{self._named} {what}{said.rstrip('.')}.", f"`localspec mcp check {self._server.name}` tries it."
        )

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        server = self._server
        if not server.url:
            async with self._streams() as streams:
                yield streams
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        headers = {name: server.filled(value) for name, value in server.headers.items()}
        timeout = httpx2.Timeout(START_SECONDS, read=CALL_SECONDS)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout) as client,
            streamable_http_client(server.filled(server.url), http_client=client) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[Any]:
        """Of a process's standard input and output. The SDK's own has no limit for a line."""
        import anyio
        from mcp.client.stdio import get_default_environment

        server = self._server
        own = {name: server.filled(value) for name, value in server.env.items()}
        command = [server.command, *map(server.filled, server.args)]
        try:
            process = await anyio.open_process(
                command,
                env=get_default_environment() | own,
                cwd=server.cwd or None,
                stderr=self._errors.open(),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise LocalspecError(f"{self._named} cannot be started: {server.command}: {reason(error)}.") from None
        finally:
            self._errors.begin()
        to_session, read = anyio.create_memory_object_stream[Any](0)
        write, from_session = anyio.create_memory_object_stream[Any](0)
        async with anyio.create_task_group() as group:
            group.start_soon(self._hear, process, to_session)
            group.start_soon(self._tell, process, from_session)
            try:
                yield read, write
            finally:
                self.dead = True
                with anyio.CancelScope(shield=True):
                    await _end(process)
                    for one in (read, write, to_session, from_session):
                        await one.aclose()
                group.cancel_scope.cancel()

    async def _hear(self, process: Process, to_session: Any) -> None:
        """Hands on what the process writes, a message a line, until it ends, or writes what cannot be."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        held, junk = list[bytes](), 0
        assert process.stdout is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for chunk in process.stdout:
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    text, held = b"".join((*held, line)).decode("utf-8", "replace"), []
                    try:
                        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
                    except ValueError:
                        junk += bool(text.strip())
                        continue
                    await to_session.send(SessionMessage(message))
                held.append(rest)
                if sum(map(len, held)) > _MOST_BYTES or junk > _MOST_JUNK:
                    much = f"wrote a message of more than {_MOST_BYTES >> 20} MB"
                    await self.end(f"writes what are no messages of MCP, {junk} lines" if junk > _MOST_JUNK else much)
                    return
            if self.dead:  # it was ended
                return
            with anyio.move_on_after(_END_SECONDS):
                await process.wait()
            code = process.returncode
            await self.end("closed its output" if code is None else f"ended (exit code {code})")

    @staticmethod
    async def _tell(process: Process, from_session: Any) -> None:
        import anyio

        assert process.stdin is not None
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            async for sent in from_session:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")


async def _end(process: Process) -> None:
    """Ends a process and its children: its input is closed, then it is asked, then it is killed."""
    import anyio

    with suppress(Exception):
        if process.stdin is not None:
            await process.stdin.aclose()
    for sign in ("SIGTERM", "SIGKILL"):
        with anyio.move_on_after(_END_SECONDS):
            await process.wait()
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, getattr(signal, sign))  # its group: what it has started, too
            else:
                process.terminate()
    with anyio.move_on_after(_END_SECONDS):
        await process.aclose()


class _ErrorLines:
    """What a server writes to standard error: the last lines, and a file of bounded size."""

    def __init__(self, name: str) -> None:
        self._path = paths.data_dir() / f"mcp-{name}.log"
        self._lines = deque[str](maxlen=_LAST_LINES)
        self._ends: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    @property
    def last(self) -> str:
        return next((line for line in reversed(self._lines) if line.strip()), "")

    def open(self) -> int:
        """The end for the server."""
        self._ends = os.pipe()
        return self._ends[1]

    def begin(self) -> None:
        """Reads, once the server has its end, or none."""
        if self._ends is not None:
            os.close(self._ends[1])
            self._thread = threading.Thread(
                target=self._read, args=(self._ends[0],), name="localspec-tools-log", daemon=True
            )
            self._thread.start()

    def close(self) -> str:
        """The last line, once the server has ended."""
        if self._thread is not None:
            self._thread.join(_LOOK_SECONDS)  # a child of the server may keep its end open
        return self.last

    def _read(self, end: int) -> None:
        rest, size = b"", 0
        with open(end, "rb", buffering=0) as pipe, suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as kept:
                while block := pipe.read(1 << 16):
                    *lines, rest = (rest + block)[-_LOG_BYTES:].split(b"\n")
                    self._lines.extend(line.decode("utf-8", "replace") for line in lines)
                    size += len(block)
                    with suppress(OSError):  # such as of a full disk
                        kept.write(block if size < _LOG_BYTES else b"")
            self._lines.extend([rest.decode("utf-8", "replace")] if rest else [])


def _words(content: Any) -> str:
    """A part of a result as text; what is none is named."""
    match content.type:
        case "text":
            return str(content.text)
        case "image" | "audio":
            size = f"{len(content.data) * 0.75 / 1000:.0f} kB"
            return f"[{content.type}, {content.mime_type}, {size}: not shown to the model]"
        case "resource" if hasattr(content.resource, "text"):
            return str(content.resource.text)
        case "resource":
            return f"[resource {content.resource.uri}, not a text: not shown to the model]"
        case "resource_link":
            return f"[link to {content.uri}: {content.name}]"
    return f"[{content.type}: not shown to the model]"


def cut(text: str, most: int) -> str:
    """A text of at most about `most` characters, its middle left out, which is said."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _key(server: Server, tool: ListedTool) -> str:
    what = [server.key, tool.name, tool.description, tool.schema]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _reason(error: BaseException) -> str:
    if (errors := getattr(error, "errors", None)) is not None:  # of pydantic: an answer of another form
        first = errors()[0]
        return f"its answer is not MCP, at {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return plain_text(reason(error))


def _info() -> Any:
    from mcp_types import Implementation

    return Implementation(name="localspec", version=__version__)
