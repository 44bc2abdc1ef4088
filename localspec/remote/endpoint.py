"""An OpenAI-style endpoint: vLLM, llama-server, Ollama, another localspec. It lists its models and streams answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import perf_counter

import httpx2 as httpx

from localspec.chat.reply.reply import ReplyParser
from localspec.chat.reply.thinking import MARKS, apart
from localspec.engine.request import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError
from localspec.remote.prompt import Prompt
from localspec.remote.server import END, ODD, Piece, Server

_LIST_SECONDS = 30.0
"""How long a server may take to list its models."""
_ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Endpoint:
    """Asks a server below its `base`. Of one event loop."""

    def __init__(self, address: str, key: str | None = None) -> None:
        """
        Args:
            address: with or without /v1 at its end.
            key: sent as a bearer token; None = none.

        Raises:
            UsageError: the address is none, or the key cannot be sent.
        """
        self._server = Server(address, key)
        self.base = self._server.base
        """The address with /v1."""
        self.name = self._server.name
        """Host and port, and the path if there is one."""
        self._client = httpx.AsyncClient(**self._server.settings)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def models(self) -> list[str]:
        """Names of its models, in its order; at least one.

        Raises:
            LocalspecError: it is away, refuses, or lists no models.
        """
        try:
            reply = await self._client.get(f"{self.base}/models", timeout=_LIST_SECONDS)
            self._server.check(reply, reply.content)
            names = [str(card["id"]) for card in reply.json()["data"]]
        except ODD as error:
            raise self._server.failure(error) from None
        if not names:
            raise LocalspecError(f"{self.base} lists no models.", "Load one there, or name one with --model.")
        return list(dict.fromkeys(names))

    async def answer(self, prompt: Prompt, model: str, reply: Reply) -> AsyncGenerator[tuple[str, str], None]:
        """(text, thinking) as they come; `reply` gets the figures. Cancelling closes the connection: servers stop then.

        Raises:
            LocalspecError: it is away, refuses, or fails in the middle.
        """
        path, begun, whole = f"{self.base}/chat/completions", False, False
        try:
            async with self._client.stream("POST", path, json=prompt.body(model)) as stream:
                self._server.check(stream, b"" if stream.is_success else await stream.aread())
                async for line in stream.aiter_lines():
                    piece = self._server.piece(line)
                    if piece is None:
                        continue
                    begun, whole = True, whole or piece.done
                    if piece == END:
                        break
                    yield reply.take(piece)
        except ODD as error:
            raise self._server.failure(error, begun) from None
        if not whole:
            raise self._server.failure(None)
        yield reply.rest()


class Reply:
    """One answer: chunks become text and thinking, and figures are kept."""

    def __init__(self, prompt: Prompt) -> None:
        self.stats = RequestStats()
        """What is known of it: tokens of prompt and answer, times."""
        self.finish = FinishReason.STOP
        """Why it ended, as the server says."""
        self._parser = ReplyParser(thought=None if prompt.prefix else MARKS, thinking=bool(prompt.reasoning))
        self._began, self._first = perf_counter(), 0.0

    def take(self, piece: Piece) -> tuple[str, str]:
        """(text, thinking) of a piece."""
        self.stats.prompt_tokens = piece.prompt_tokens or self.stats.prompt_tokens
        self.stats.generated = piece.tokens or self.stats.generated
        text, thinking = apart(self._parser.push(piece.text))
        thinking += piece.thinking
        if text or thinking:
            self._count(not piece.tokens)
        self.finish = _ENDS.get(piece.finish, self.finish)
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
