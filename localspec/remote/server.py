"""An OpenAI-style server as its clients know it: where it is, its key, its events, the sentences of its failures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2 as httpx

from localspec.chat.reply.tool import ToolCall, members, new_call_id
from localspec.errors import LocalspecError, UsageError, heard, reason
from localspec.models.hub.hub import certificates, check_proxies
from localspec.models.hub.names import is_server
from localspec.models.installed.catalog import EndpointEntry

_CONNECT_SECONDS = 30.0
_LONGEST_SILENCE_SECONDS = 600.0  # seconds; a long prompt on a slow machine takes minutes before the first token
_NO_KEY = (401, 403)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_Kind = TypeVar("_Kind")
ODD = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What a server that is away, or that speaks another language, leads to."""


class Refused(LocalspecError):
    """The server answered with another status than success."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


class Server:
    """What a client needs to ask it, without a connection; redirects are not followed, as a key is sent."""

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        name: str = "",
        silence: float = _LONGEST_SILENCE_SECONDS,
        option: str = "--endpoint",
        key_hint: str = "Set OPENAI_API_KEY, or give --api-key-file.",
        hint: str = "",
    ) -> None:
        """`address`: with or without /v1 at its end; `option` gave it, which the error says. `name`: in sentences; "" =
        the address. `silence`: seconds without a sign of life, reading a long prompt included, after which it is given
        up. `key`: sent as a bearer token. `key_hint` is for a server that wants a key, or another one, `hint` for any
        other failure. Raises UsageError: the address is none, the key cannot be sent, or a proxy of the environment
        cannot be used."""
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError("The API key has characters that cannot be sent.", "Check OPENAI_API_KEY or its file.")
        self.base = base_of(address, option)
        self.name = self.base.partition("://")[2].removesuffix("/v1")  # host and port, and the path if there is one
        self.settings: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "timeout": httpx.Timeout(silence, connect=_CONNECT_SECONDS),
            **way_to(self.base),
        }
        self._called, self._silence = name or self.base, silence
        self._key_hint, self._hint = key_hint, hint

    def check(self, reply: httpx.Response, content: bytes) -> None:
        """Raises `Refused` for any status but success, with the server's own sentence."""
        if not reply.is_success:
            said = words_of(content.decode("utf-8", "replace")) or reply.reason_phrase
            hint = self._key_hint if reply.status_code in _NO_KEY else self._hint
            raise Refused(f"{self._called} answers {reply.status_code}: {said}", hint, reply.status_code)

    def piece(self, line: str) -> Piece | None:
        """What a line of a streamed answer brings; None = nothing. An error of the server is raised."""
        found = piece_of(line)
        if found is not None and found.error:
            raise LocalspecError(f"{self._called} failed: {found.error}", self._hint)
        return found

    def failure(self, error: Exception | None, begun: bool = False) -> LocalspecError:
        """One of `ODD` in a sentence; None = the stream of an answer ended before the answer did. `begun`: something
        of an answer has come."""
        words = "" if error is None else reason(error)
        if error is None:
            text = "ended its answer in the middle."
        elif isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            text = f"said nothing for {self._silence:g} seconds."
        elif not isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            text = f"answers something that is not OpenAI's format: {error!r}."
        elif begun:
            text = f"closed the connection in the middle of its answer: {words}."
        else:
            text = f"cannot be reached: {words}."
        return LocalspecError(f"{self._called} {text}", self._hint)


class HostServer(Server):
    """A host of models of this program, which is waited for as long as it lives: what hangs is ended elsewhere."""

    def __init__(
        self, url: str, headers: dict[str, str], fate: Callable[[], LocalspecError], outdate: Callable[[str], object]
    ) -> None:
        """`fate`: what became of it, to which a connection broke; `outdate` hears why it answers nothing any more."""
        super().__init__(url, name="The process of the models")
        self.settings |= {"headers": headers, "timeout": None}
        self._fate, self._outdate = fate, outdate

    def check(self, reply: httpx.Response, content: bytes) -> None:
        if not reply.is_success:
            raise heard(**json.loads(content)["error"])

    def failure(self, error: Exception | None, begun: bool = False) -> LocalspecError:
        if error is None or isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
            return self._fate()
        return super().failure(error, begun)

    def piece(self, line: str) -> Piece | None:
        if line.startswith('data: {"error":'):
            told = json.loads(line.removeprefix("data: "))
            self._outdate(told["outdated"])  # before the asking side hears of the error
            raise heard(**told["error"])
        return super().piece(line)


def base_of(address: str, option: str = "--endpoint", example: str = "http://127.0.0.1:8000/v1") -> str:
    """An endpoint's address, with /v1 at its end. It comes with or without that, or with what stands below it for
    answers. Raises UsageError: it is none; names the option that gave it, and an example."""
    if not is_server(address.strip()):
        raise UsageError(f"{option} is {address!r}; it must look like {example}.")
    base = address.strip().rstrip("/")
    for end in ("/chat/completions", "/completions"):
        base = base.removesuffix(end)
    return base if base.endswith("/v1") else base + "/v1"


def way_to(base: str) -> dict[str, Any]:
    """How an HTTP client gets to an address: proxies and certificates of the environment; to this machine, no proxy."""
    here = port_here(base) is not None
    if not here:
        check_proxies()
    secure = {"verify": certificates()} if urlsplit(base).scheme == "https" else {}
    return {"trust_env": not here, **secure}


def port_here(base: str) -> int | None:
    """The port of an endpoint of this machine; None = it is on another."""
    parts = urlsplit(base)
    return (parts.port or {"http": 80}.get(parts.scheme, 443)) if parts.hostname in _LOOPBACK else None


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A call of a tool, or what is new of one; some servers send whole ones, some of them without ids, or all with the
    same index."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def call(self) -> ToolCall:
        return ToolCall(self.id or new_call_id(), self.name, self.arguments or "{}")

    @property
    def is_whole(self) -> bool:
        return members(self.arguments) is not None

    def then(self, later: CallPiece) -> CallPiece | None:
        """Both; None = the later piece is of another call."""
        if later.index != self.index or (later.id != self.id if later.id else later.name and self.is_whole):
            return None
        return replace(self, name=self.name or later.name, arguments=self.arguments + later.arguments)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a streamed answer brought; a field it says nothing about is empty."""

    text: str = ""
    thinking: str = ""  # what a server that reads the model's marks for thinking itself takes for such
    finish: str = ""  # why the answer ended
    tokens: int = 0
    prompt_tokens: int = 0
    drafted: int | None = None  # by llama-server's timings; None = it says nothing
    accepted: int | None = None
    done: bool = False  # the answer is whole
    error: str = ""
    own: dict[str, Any] = field(default_factory=dict)  # what our own engine tells the program itself: see `Teller`
    calls: tuple[CallPiece, ...] = ()

    def then(self, later: Piece) -> Piece:
        """Both, without text; the later one counts where it says something."""
        none = Piece()
        values = {one.name: getattr(later, one.name) for one in fields(later)}
        said = {name: value for name, value in values.items() if value != getattr(none, name)}
        return replace(self, **said | {"text": "", "thinking": "", "calls": ()})


END = Piece(done=True)


def piece_of(line: str) -> Piece | None:
    """What a line brings; None = it has no data, such as a comment. Raises ValueError: it is not OpenAI's format."""
    kind, _, content = line.partition(":")
    content = content.strip()
    if kind == "error":  # llama-server's way of breaking an answer off
        return Piece(error=words_of(content))
    if kind != "data":
        return None
    if content == "[DONE]":
        return END
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError(content[:200])
    if data.get("error"):
        return Piece(error=words_of(content))
    choices = data.get("choices") or [{}]
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise ValueError(f"choices: {choices!r}"[:200])
    choice = choices[0]
    delta = _typed(dict, choice.get("delta")) or {}
    usage, timings = _typed(dict, data.get("usage")) or {}, _typed(dict, data.get("timings")) or {}
    return Piece(
        _typed(str, delta.get("content")) or _typed(str, choice.get("text")) or "",
        _typed(str, delta.get("reasoning_content")) or _typed(str, delta.get("reasoning")) or "",
        _typed(str, choice.get("finish_reason")) or "",
        _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n")) or 0,
        _count(usage.get("prompt_tokens")) or 0,
        _count(timings.get("draft_n")),
        _count(timings.get("draft_n_accepted")),
        done=bool(choice.get("finish_reason")),
        own=_typed(dict, data.get("localspec")) or {},
        calls=tuple(_calls(_typed(list, delta.get("tool_calls")) or ())),
    )


def _calls(told: Sequence[Any]) -> Iterator[CallPiece]:
    for place, one in enumerate(told):
        function = _typed(dict, one.get("function")) if isinstance(one, dict) else None
        if function is not None:
            index, arguments = _count(one.get("index")), function.get("arguments")
            text = json.dumps(arguments) if isinstance(arguments, dict) else _typed(str, arguments) or ""
            name = _typed(str, function.get("name")) or ""
            yield CallPiece(place if index is None else index, _typed(str, one.get("id")) or "", name, text)


def _typed(kind: type[_Kind], value: Any) -> _Kind | None:
    return value if isinstance(value, kind) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def words_of(content: str) -> str:
    """The message of an error, in JSON or not, on one line."""
    try:
        said = json.loads(content)
    except ValueError:
        said = content
    for name in ("error", "message"):
        said = said.get(name, said) if isinstance(said, dict) else said
    return " ".join(str(said).split())[:200]


def key_for(entry: EndpointEntry) -> str | None:
    """The key of a server that the catalogue names: from the environment or the keyring, never from a file. None = the
    entry names none, and none is sent. Raises UsageError: it is not where the entry says, or there is no keyring."""
    service, name = entry.keyring, entry.name
    if not service:
        if not entry.key_env:
            return None
        if key := os.environ.get(entry.key_env, "").strip():
            return key
        raise UsageError(f"The key of {name!r} is in the environment variable {entry.key_env}, which is not set.")
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        text = f"The key of {name!r} is in the keyring, and Python's keyring package is not installed."
        raise UsageError(text, "Install it, or name an environment variable with key_env.") from None
    try:
        key = keyring.get_password(service, name)
    except Exception as error:  # noqa: BLE001 - each keyring fails in its own way
        raise UsageError(f"The keyring cannot be read: {error!r}.") from None
    if not key:
        raise UsageError(f"The keyring has no key of {name!r} for {service!r}.", f"Try: keyring set {service} {name}")
    return str(key)
