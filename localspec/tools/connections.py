"""Servers of tools while a chat has them: started when they are first needed, asked and ended, on one thread."""

from __future__ import annotations

import atexit
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.reply.tool import Tool
from localspec.chat.text_file import LARGEST
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.tools.servers import Server, dicts

if TYPE_CHECKING:
    from localspec.tools.running import Running

START_SECONDS = 60.0  # in which a server must answer; one that is fetched first takes long
CALL_SECONDS = 300.0  # of a call; a user who waits longer presses Esc
MOST_CHARACTERS = 200_000  # of a result that is kept: more than any context here holds
_LOOK_SECONDS = 0.05  # between two looks whether a caller wants no more
_ODD = re.compile(r"[^a-zA-Z0-9_.:/-]")  # not allowed in the name of a tool
_OVER = "The tools are closed."


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
    """The servers of one chat. Thread-safe; `close` it, or the end of the program does."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = {one.name: one for one in servers}
        self._running: dict[str, Running] = {}  # of the loop alone
        self._lock, self._closed = threading.Lock(), False
        self._stack = ExitStack()
        self._portal: Any = None  # to the thread of servers, once there is one
        self.notices: list[str] = []  # sentences for the user about servers and tools that were left out
        self.begun: dict[str, Running] = {}  # those whose tools were offered last
        self._said, self._failed = set[str](), set[str]()  # notices so far; servers that did not start

    def start(self, name: str, cancelled: Callable[[], bool] = lambda: False) -> Running:
        """A server, started if need be. Raises LocalspecError: it fails; Cancelled: its start goes on."""
        running: Running = self._run(cancelled, self._ready, name)
        return running

    def offered(self, off: Collection[str] = (), cancelled: Callable[[], bool] = lambda: False) -> dict[str, Offered]:
        """The tools of all servers but those in `off`, by distinct names; what fails is a notice. A server that has
        failed is left alone until it was off: its start may take a minute."""
        self._failed -= set(off)
        names = [name for name in self._servers if name not in off and name not in self._failed]
        for name in names:
            with suppress(LocalspecError):  # they start side by side
                self._begin(self._ready, name)
        begun: dict[str, Running] = {}
        for name in names:
            try:
                begun[name] = self.start(name, cancelled)
                for text in sorted(begun[name].faults):
                    self._notice(text)
            except Cancelled:
                raise
            except LocalspecError as error:
                self._failed.add(name)
                self._notice(str(error))
        self.begun = begun
        listed = [(self._servers[name], tool) for name, running in begun.items() for tool in running.tools]
        count, found = Counter(_plain(tool) for _, tool in listed), dict[str, Offered]()
        for server, tool in listed:
            plain = _plain(tool)
            name = (plain if count[plain] == 1 else f"{server.name}__{plain}")[:128]
            try:
                if name in found:
                    raise UsageError(f"There are two tools called {name}.")
                found[name] = _offered(server, tool, name)
            except UsageError as error:
                self._notice(f"The tool {plain} of the server {server.name} is left out: {error.message}")
        return found

    def starting(self, off: Collection[object]) -> list[str]:
        """Servers that are to run and do not yet."""
        up = {name for name, one in self._running.copy().items() if one.up.is_set()}
        return [name for name in self._servers if name not in {*up, *off, *self._failed}]

    def _notice(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.notices.append(text)

    def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        cancelled: Callable[[], bool] = lambda: False,
        key: str = "",
    ) -> Called:
        """What a tool gives. `key`: that it had when it was offered; "" = any. Raises LocalspecError: it has another
        one now; its server fails, or takes too long; Cancelled."""
        begun = perf_counter()
        found = self._run(cancelled, self._ask, server, "tools/call", {"name": tool, "arguments": arguments}, key)
        structured = found.get("structuredContent") or ""
        text = _text(found.get("content")) or (structured and json.dumps(structured, ensure_ascii=False))
        return Called(cut(text, MOST_CHARACTERS), found.get("isError") is True, perf_counter() - begun)

    def text(self, server: str, method: str, cancelled: Callable[[], bool], **params: Any) -> str:
        """Of a prompt or a resource. Raises LocalspecError: its server fails, or gives none or too much; Cancelled."""
        found = self._run(cancelled, self._ask, server, method, params)
        said = [one.get("content") for one in dicts(found.get("messages"))] or dicts(found.get("contents"))
        text = "\n\n".join(filter(None, map(_text, said)))
        if not text or len(text.encode()) > LARGEST:
            fault = f"{len(text.encode()):,} bytes; up to {LARGEST:,} can be taken" if text else "no text"
            why = one_line(_text(found.get("content")))[:300].rstrip(".")
            raise LocalspecError(f"The server {server} gives {fault}{f': {why}' if why else ''}.")
        return text

    def close(self) -> None:
        """Ends all servers, their children too; a second call does nothing."""
        with self._lock:
            self._closed, portal = True, self._portal
        if portal is not None:
            portal.call(self._end)  # once more, should Ctrl-C come meanwhile
            self._portal = None
            atexit.unregister(self.close)
            self._stack.close()

    async def _end(self) -> None:
        for one in self._running.values():
            one.end("was ended")
        for one in self._running.values():
            await one.over.wait()

    async def _ask(self, name: str, method: str, params: dict[str, Any], key: str = "") -> dict[str, Any]:
        sent = json.loads(json.dumps(params, ensure_ascii=False).encode("utf-8", "replace"))  # no half characters
        running = await self._ready(name)
        if key and key not in [_key(self._servers[name], one) for one in running.tools if one["name"] == sent["name"]]:
            raise LocalspecError(f"The server {name} has changed its tool {sent['name']} meanwhile: it was not called.")
        return await running.call(method, sent, CALL_SECONDS)

    async def _ready(self, name: str) -> Running:
        """One that runs, started if need be."""
        from localspec.tools.running import Running

        found = self._running.get(name)
        if found is not None:
            await found.renew()
        if found is not None and found.ending:
            await found.over.wait()
            found = self._running.get(name)
        if found is None or found.ending:
            if self._closed:
                raise Cancelled(_OVER)
            found = self._running[name] = Running(self._servers[name], START_SECONDS)
        await found.up.wait()
        if found.ending:
            await found.over.wait()
            raise found.why()
        return found

    def _begin(self, work: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            if self._closed:
                raise Cancelled(_OVER)
            if self._portal is None:
                try:
                    from anyio.from_thread import start_blocking_portal

                    import localspec.tools.running  # noqa: F401 - and not later, on its thread
                except ImportError as error:
                    what = f"Tools need {str(error.name).partition('.')[0]}, which is not installed."
                    raise LocalspecError(what, "pip install 'localspec[tools]'") from None
                self._portal = self._stack.enter_context(start_blocking_portal(name="localspec-tools"))
                atexit.register(self.close)
            return self._portal.start_task_soon(work, *args)

    def _run(self, cancelled: Callable[[], bool], work: Callable[..., Any], *args: Any) -> Any:
        """Waits for the result; raises Cancelled once the caller wants no more, and ends the work."""
        future = self._begin(work, *args)
        try:
            while not wait((future,), _LOOK_SECONDS).done:
                if cancelled():
                    raise Cancelled("The call was cancelled.")
            return future.result()
        except (LocalspecError, CancelledError) as error:
            if self._closed or isinstance(error, CancelledError):
                raise Cancelled(_OVER) from None
            raise
        finally:
            future.cancel()


def _plain(tool: dict[str, Any]) -> str:
    return _ODD.sub("_", tool["name"])


def _offered(server: Server, tool: dict[str, Any], name: str) -> Offered:
    """A tool as its server lists it, under the name that the model is told. Raises UsageError: it is none."""
    notes = tool.get("annotations")
    read_only = isinstance(notes, dict) and notes.get("readOnlyHint") is True
    told = Tool(name, str(tool.get("description") or ""), _checked(tool.get("inputSchema")))
    return Offered(told, server.name, tool["name"], _key(server, tool), read_only)


def _key(server: Server, tool: dict[str, Any]) -> str:
    what = [server.key, tool["name"], str(tool.get("description") or ""), tool.get("inputSchema")]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _checked(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise UsageError("Its schema is no JSON object.")
    try:
        fault = _fault(json.dumps(schema))
    except Exception as error:  # noqa: BLE001 - such as a $schema that is no text
        raise UsageError(f"Its schema is none: {plain_text(repr(error))[:200]}.") from None
    if fault:
        raise UsageError(f"Its schema is none: {fault}.")
    return schema


@lru_cache(1000)
def _fault(text: str) -> str:
    """Why a schema is none; "" = it is one. Tools are listed in each round of an answer, and seldom change."""
    from jsonschema import Draft202012Validator, validators

    schema = json.loads(text)
    draft = validators.validator_for(schema, Draft202012Validator)
    fault = next(draft(draft.META_SCHEMA).iter_errors(schema), None)
    return "" if fault is None else plain_text(fault.message)[:200]


def _text(content: Any) -> str:
    """The texts of a result; what is none is named. Any part may lack, or be of another kind."""
    if not isinstance(content, dict):
        return "\n".join(map(_text, dicts(content)))
    inner = content["resource"] if isinstance(content.get("resource"), dict) else content
    if isinstance(inner.get("text"), str):
        return str(inner["text"])
    data = inner.get("data") or inner.get("blob") or ""
    size = f"{max(1, round(len(str(data)) * 0.75 / 1000))} kB" if data else ""
    words = (content.get("type") or "part", inner.get("mimeType"), inner.get("uri"), size)
    return f"[{', '.join(str(word) for word in words if word)}: not shown to the model]"


def cut(text: str, most: int) -> str:
    """A text of at most about `most` characters, its middle left out, which is said."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
