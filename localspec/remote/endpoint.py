"""An OpenAI-style endpoint: vLLM, llama-server, Ollama, another localspec. It lists its models and streams answers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from localspec.chat.reply import ReplyParser
from localspec.chat.thinking import MARKS, apart
from localspec.engine.request import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError, UsageError
from localspec.models.names import is_server
from localspec.remote.prompt import Prompt

_TIMEOUT = httpx.Timeout(30.0, read=600.0)
"""Seconds; a long prompt on a slow machine takes minutes before the first token."""
_LIST_SECONDS = 30.0
"""How long a server may take to list its models."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_ODD = (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What a server that is away, or that speaks another language, leads to."""


class Endpoint:
    """Asks `URL/models` and `URL/chat/completions`. Of one event loop; redirects are not followed, as a key is sent."""

    def __init__(self, address: str, key: str | None = None) -> None:
        """`address`: with or without /v1 at its end. `key`: sent as a bearer token; None = none.

        Raises:
            UsageError: the address is none, or the key cannot be sent.
        """
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError("The API key has characters that cannot be sent.", "Check OPENAI_API_KEY or its file.")
        self.base = base_of(address)
        """The address with /v1."""
        self.name = self.base.partition("://")[2].removesuffix("/v1")
        """Host and port, and the path if there is one."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        proxies = urlsplit(self.base).hostname not in _LOOPBACK  # a proxy cannot reach this machine
        self._client = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, trust_env=proxies)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def models(self) -> list[str]:
        """Names of its models, in its order; at least one.

        Raises:
            LocalspecError: it is away, refuses, or lists no models.
        """
        try:
            reply = await self._client.get(f"{self.base}/models", timeout=_LIST_SECONDS)
            await _check(reply)
            names = [str(card["id"]) for card in reply.json()["data"]]
        except _ODD as error:
            raise self._failure(error) from None
        if not names:
            raise LocalspecError(f"{self.base} lists no models.", "Load one there, or name one with --model.")
        return list(dict.fromkeys(names))

    async def answer(self, prompt: Prompt, model: str, reply: Reply) -> AsyncGenerator[tuple[str, str], None]:
        """(text, thinking) as they come; `reply` gets the figures. Cancelling closes the connection: servers stop then.

        Raises:
            LocalspecError: it is away, refuses, or fails in the middle.
        """
        path = f"{self.base}/chat/completions"
        try:
            async with self._client.stream("POST", path, json=prompt.body(model)) as stream:
                await _check(stream)
                async for data in _events(stream):
                    yield reply.take(data)
        except _ODD as error:
            raise self._failure(error) from None
        yield reply.rest()

    def _failure(self, error: Exception) -> LocalspecError:
        if isinstance(error, httpx.TimeoutException):
            return LocalspecError(f"{self.base} does not answer in time.")
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL):
            return LocalspecError(f"{self.base} cannot be reached: {error or type(error).__name__}.")
        return LocalspecError(f"{self.base} answers something that is not OpenAI's format: {error!r}.")


class Reply:
    """One answer: chunks become text and thinking, and figures are kept."""

    def __init__(self, prompt: Prompt) -> None:
        self.stats = RequestStats()
        """What is known of it: tokens of prompt and answer, times."""
        self.finish = FinishReason.STOP
        """Why it ended, as the server says."""
        self._parser = ReplyParser(thought=None if prompt.prefix else MARKS, thinking=bool(prompt.reasoning))
        self._began, self._first = perf_counter(), 0.0

    def take(self, data: dict[str, Any]) -> tuple[str, str]:
        """(text, thinking) of a chunk.

        Raises:
            LocalspecError: the chunk is the server's error.
        """
        if "error" in data:
            raise LocalspecError(f"The endpoint failed: {_sentence(data['error'])}")
        usage = data.get("usage")
        if usage:
            self.stats.prompt_tokens = int(usage.get("prompt_tokens", 0))
            self.stats.generated = int(usage.get("completion_tokens", self.stats.generated))
        if not data.get("choices"):
            return "", ""
        choice = data["choices"][0]
        delta = choice.get("delta") or {}
        text, thinking = apart(self._parser.push(delta.get("content") or ""))
        thinking += delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or thinking:
            self._count(not usage)
        self.finish = _ENDS.get(choice.get("finish_reason") or "", self.finish)
        return text, thinking

    def rest(self) -> tuple[str, str]:
        """(text, thinking) that were held back until the end."""
        return apart(self._parser.finish())

    def _count(self, one: bool) -> None:
        """Endpoints send a token a chunk, mostly; the exact number may come at the end."""
        now = perf_counter()
        if not self._first:
            self._first = now
            self.stats.ttft_seconds = self.stats.prefill_seconds = now - self._began
        self.stats.generated += one
        self.stats.verify_seconds = now - self._first


def base_of(address: str, option: str = "--endpoint", example: str = "http://127.0.0.1:8000/v1") -> str:
    """An endpoint's address, with /v1 at its end.

    Args:
        address: with or without /v1.
        option: that gave it, for the error.
        example: of an address, for the error.

    Raises:
        UsageError: it is none.
    """
    if not is_server(address):
        raise UsageError(f"{option} is {address!r}; it must look like {example}.")
    base = address.rstrip("/")
    return base if base.endswith("/v1") else base + "/v1"


def port_here(base: str) -> int | None:
    """The port of an endpoint of this machine; None = it is on another."""
    parts = urlsplit(base)
    return (parts.port or {"http": 80}.get(parts.scheme, 443)) if parts.hostname in _LOOPBACK else None


async def _check(reply: httpx.Response) -> None:
    """Raises: LocalspecError with the endpoint's own sentence, for any status but success."""
    if reply.is_success:
        return
    text = (await reply.aread()).decode("utf-8", "replace")
    try:
        said = _sentence(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        said = text.strip()[:200]
    hint = "Set OPENAI_API_KEY, or give --api-key-file." if reply.status_code in (401, 403) else ""
    raise LocalspecError(f"The endpoint answers {reply.status_code}: {said or reply.reason_phrase}", hint)


def _sentence(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


async def _events(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The data of server-sent events, until [DONE]."""
    async for line in reply.aiter_lines():
        if line.startswith("data:"):
            data = line[5:].strip()
            if data == "[DONE]":
                return
            yield json.loads(data)
