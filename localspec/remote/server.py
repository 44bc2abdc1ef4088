"""An OpenAI-style server as its clients know it: where it is, and in which sentences it fails."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from localspec.errors import LocalspecError, UsageError
from localspec.models.hub.names import is_server
from localspec.remote.event_stream import Piece, piece_of, words_of

_CONNECT_SECONDS = 30.0
_SILENCE = 600.0
"""Seconds; a long prompt on a slow machine takes minutes before the first token."""
_NO_KEY = (401, 403)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
ODD = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What a server that is away, or that speaks another language, leads to."""


class Refused(LocalspecError):
    """The server answered with another status than success."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        self.status = status
        """Of HTTP."""


class Server:
    """What a client needs to ask it, without a connection; redirects are not followed, as a key is sent."""

    def __init__(
        self,
        address: str,
        key: str | None = None,
        *,
        name: str = "",
        silence: float = _SILENCE,
        option: str = "--endpoint",
        key_hint: str = "Set OPENAI_API_KEY, or give --api-key-file.",
        hint: str = "",
    ) -> None:
        """
        Args:
            address: with or without /v1 at its end.
            key: sent as a bearer token; None = none.
            name: in sentences; "" = the address.
            silence: seconds without a sign of life after which it is given up, reading a long prompt included.
            option: that gave the address, for the error.
            key_hint: what to do about a server that wants a key, or another one.
            hint: what to do about any other failure.

        Raises:
            UsageError: the address is none, or the key cannot be sent.
        """
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError("The API key has characters that cannot be sent.", "Check OPENAI_API_KEY or its file.")
        self.base = base_of(address, option)
        """The address with /v1."""
        self.name = self.base.partition("://")[2].removesuffix("/v1")
        """Host and port, and the path if there is one."""
        self.settings: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "timeout": httpx.Timeout(silence, connect=_CONNECT_SECONDS),
            "trust_env": urlsplit(self.base).hostname not in _LOOPBACK,  # a proxy cannot reach this machine
        }
        """Of an HTTP client."""
        self._called, self._silence = name or self.base, silence
        self._key_hint, self._hint = key_hint, hint

    def check(self, reply: httpx.Response, content: bytes) -> None:
        """Takes a success for what it is.

        Raises:
            Refused: any other status, with the server's own sentence.
        """
        if not reply.is_success:
            said = words_of(content.decode("utf-8", "replace")) or reply.reason_phrase
            hint = self._key_hint if reply.status_code in _NO_KEY else self._hint
            raise Refused(f"{self._called} answers {reply.status_code}: {said}", hint, reply.status_code)

    def piece(self, line: str) -> Piece | None:
        """What a line of a streamed answer brings; None = nothing.

        Raises:
            LocalspecError: an error of the server.
            ValueError: it is not OpenAI's format.
        """
        found = piece_of(line)
        if found is not None and found.error:
            raise LocalspecError(f"{self._called} failed: {found.error}", self._hint)
        return found

    def failure(self, error: Exception | None, begun: bool = False) -> LocalspecError:
        """One of `ODD` in a sentence.

        Args:
            error: which; None = the stream of an answer ended before the answer did.
            begun: something of an answer has come.
        """
        words = str(error) or type(error).__name__
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


def base_of(address: str, option: str = "--endpoint", example: str = "http://127.0.0.1:8000/v1") -> str:
    """An endpoint's address, with /v1 at its end.

    Args:
        address: with or without /v1, or what stands below it for answers.
        option: that gave it, for the error.
        example: of an address, for the error.

    Raises:
        UsageError: it is none.
    """
    if not is_server(address.strip()):
        raise UsageError(f"{option} is {address!r}; it must look like {example}.")
    base = address.strip().rstrip("/")
    for end in ("/chat/completions", "/completions"):
        base = base.removesuffix(end)
    return base if base.endswith("/v1") else base + "/v1"


def port_here(base: str) -> int | None:
    """The port of an endpoint of this machine; None = it is on another."""
    parts = urlsplit(base)
    return (parts.port or {"http": 80}.get(parts.scheme, 443)) if parts.hostname in _LOOPBACK else None
