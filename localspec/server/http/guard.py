"""Who may come in, and with how much: Host, Origin, API key, limits of headers and of bodies. Runs before any route."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import zlib
from time import monotonic

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.http.errors import ApiError, error_response, invalid
from localspec.server.http.settings import PREFIX, ServerSettings

PUBLIC_PATHS = ("/health", "/v1/health")
"""Paths that need no API key: who asks learns only whether a model is loaded."""
_CLOSE = {"Connection": "close"}
_OLLAMA = "/api/"
"""Where the paths of Ollama's API begin."""


class Guard:
    """ASGI middleware. A refusal is an ordinary error response; nothing of the body has been read by then."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self._settings = settings
        self._keys = [key.encode() for key in settings.api_keys]
        self._own_names = _own_names(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_size(scope, headers)
            self._check_host(headers)
            self._check_origin(headers)
            if scope["path"] not in PUBLIC_PATHS:
                self._check_key(headers)
            self._check_body(scope, headers)
            encoding = encoding_of(headers.get("content-encoding", ""))
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        settings = self._settings
        await self.app(scope, _Body(receive, settings.max_body_bytes, settings.body_seconds, encoding), send)

    def _check_size(self, scope: Scope, headers: Headers) -> None:
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) for name, value in headers.raw)
        if size > self._settings.max_header_bytes:
            raise too_long_head(self._settings.max_header_bytes)

    def _check_host(self, headers: Headers) -> None:
        """Against DNS rebinding: a page of a name that was made to point here still says that name. No page reaches a
        socket that is a file."""
        if self._settings.host.startswith(PREFIX):
            return
        allowed = self._settings.allowed_hosts
        name = host_name(headers.get("host", ""))
        if "*" in allowed or name in allowed or name in self._own_names or _is_address(name):
            return
        if name.endswith(".localhost"):
            return
        if not name:
            raise ApiError(403, "permission_error", "The Host header is missing or empty.")
        raise ApiError(
            403,
            "permission_error",
            f"The Host header says {name[:80]!r}, which is no name of this server. "
            "Start it with --allow-host NAME if it is one.",
        )

    def _check_origin(self, headers: Headers) -> None:
        """A web page of another origin may send requests without asking; its browser only hides the answer from it."""
        origin = headers.get("origin")
        if origin is None or self._settings.lets_in(origin):
            return
        if origin.partition("://")[2] == headers.get("host"):
            return
        raise ApiError(
            403,
            "permission_error",
            f"Pages of {origin[:80]!r} may not use this server. Start it with --cors ORIGIN to let them.",
        )

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Every key is compared, each in constant time, so that the time taken tells nothing.
        if sum(hmac.compare_digest(given.encode("latin-1"), key) for key in self._keys):
            return
        what = "is not right" if given else "is missing"
        raise ApiError(
            401,
            "authentication_error",
            f"The API key {what}. Send it as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_body(self, scope: Scope, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._settings.max_body_bytes:
            raise too_large(self._settings.max_body_bytes)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = length != "0" or "transfer-encoding" in headers
        if scope["method"] == "POST" and has_body and not _is_json(kind):
            if scope["path"].startswith(_OLLAMA) and "origin" not in headers:
                _call_it_json(scope)
                return
            said = f"Content-Type is {kind[:80]!r}" if kind else "There is no Content-Type"
            raise ApiError(415, "invalid_request_error", f"{said}; it must be application/json.", headers=_CLOSE)


def _call_it_json(scope: Scope) -> None:
    """Ollama reads every body as JSON, and its manual sends bodies with curl, which calls them a form."""
    kept = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    scope["headers"] = [*kept, (b"content-type", b"application/json")]


class _Body:
    """`receive` that takes compressed bodies apart, and gives up on those that are too large or too slow."""

    def __init__(self, receive: Receive, most: int, seconds: float, encoding: str) -> None:
        """`encoding`: of the body; "" = none."""
        self._receive, self._most, self._seconds = receive, most, seconds
        self._decompression = Decompression(encoding, most) if encoding else None
        self._until = monotonic() + seconds
        self._size = 0
        self._complete = False

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            with anyio.fail_after(max(0.0, self._until - monotonic())):
                message = await self._receive()
        except TimeoutError:
            what = f"The body did not arrive within {self._seconds:g} seconds."
            raise ApiError(408, "invalid_request_error", what, headers=_CLOSE) from None
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            if self._decompression is not None:
                message["body"] = self._decompression.feed(message.get("body", b""), self._complete)
            self._size += len(message.get("body", b""))
            if self._size > self._most:
                raise too_large(self._most)
        return message


def too_large(most: int) -> ApiError:
    """413."""
    return ApiError(413, "invalid_request_error", f"The body is larger than {most} bytes.", headers=_CLOSE)


def too_long_head(most: int) -> ApiError:
    """431."""
    return ApiError(431, "invalid_request_error", f"The request's head is longer than {most} bytes.", headers=_CLOSE)


def host_name(host: str) -> str:
    """A Host header without its port, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):  # IPv6
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _own_names(host: str) -> frozenset[str]:
    """Names under which this machine may be addressed."""
    own = socket.gethostname().lower()
    return frozenset({"localhost", host.lower(), own, f"{own}.local"} - {""})


def _is_address(name: str) -> bool:
    """Whether a host is an address: no name was looked up, so no name can have been rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


# Bodies that come compressed (`Content-Encoding`), taken apart as they arrive and never beyond the limit of a body.

ENCODINGS = ("gzip", "deflate")
"""Those that are read."""
_EITHER = 32 + zlib.MAX_WBITS
"""`wbits` of zlib for data with a header of gzip or of zlib."""


class Decompression:
    """One body."""

    def __init__(self, encoding: str, most: int) -> None:
        """
        Args:
            encoding: one of `ENCODINGS`.
            most: bytes that may come out at most; there is one more where there would be more.
        """
        self._encoding = encoding
        self._left = most + 1
        self._inflate = zlib.decompressobj(_EITHER)
        self._begun = b""
        """The first byte, until the second has come: both tell whether deflated data has a header."""
        self._read = False

    def feed(self, data: bytes, last: bool) -> bytes:
        """What some bytes of the body bring; `last`: no more come.

        Raises:
            ApiError: 400, it is no such data.
        """
        data, self._begun = self._begun + data, b""
        if not self._read and len(data) < 2 and not last:
            self._begun = data
            return b""
        if not self._read and data:
            self._read = True
            if self._encoding == "deflate" and not _has_header(data):
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = self._inflated(data)
        except zlib.error:
            raise invalid(f"The body is not what its Content-Encoding says: no {self._encoding} data.") from None
        if last and self._read and self._left and not self._inflate.eof:
            raise invalid(f"The body's {self._encoding} data is cut off.")
        return found

    def _inflated(self, data: bytes) -> bytes:
        found = []
        while data and self._left:
            if self._inflate.eof:  # gzip data may have several parts
                self._inflate = zlib.decompressobj(_EITHER)
            piece = self._inflate.decompress(data, self._left)
            self._left -= len(piece)
            found.append(piece)
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
        return b"".join(found)


def encoding_of(header: str) -> str:
    """The encoding that a header names; "" = the body comes as it is.

    Raises:
        ApiError: 415, one that is not read here.
    """
    name = header.strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name in ENCODINGS:
        return name
    what = f"Content-Encoding is {header.strip()[:80]!r}; this server reads {' and '.join(ENCODINGS)}, or none."
    headers = {"Accept-Encoding": ", ".join(ENCODINGS), "Connection": "close"}
    raise ApiError(415, "invalid_request_error", what, headers=headers)


def _has_header(data: bytes) -> bool:
    """Whether deflated data begins with a header of zlib: many programs leave it out."""
    return len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
