"""Clients for the soak: what each of them does to a server, and what it must see. An action returns its name."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.server.live import COPIED, COPY, user
from tests.server.named_events import LOOK_UP, QUERY, WIKIPEDIA

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": WIKIPEDIA}]
SHORT = {"max_tokens": 40}
REFUSALS = (400, 404, 405, 408, 413, 415, 431)
Action = Callable[["Client"], Awaitable[None]]


class Client:
    """One of many."""

    def __init__(self, http: httpx.AsyncClient, seed: int, body_limit: int) -> None:
        self.http = http
        self.random = random.Random(seed)
        self.body_limit = body_limit
        target = urlsplit(str(http.base_url))
        self.host, self.port = str(target.hostname), int(target.port or 0)

    async def act(self) -> str:
        """Does one thing, at random."""
        (action,) = self.random.choices(list(ACTIONS), weights=list(ACTIONS.values()))
        await action(self)
        return action.__name__

    async def post(self, path: str, body: Any) -> httpx.Response:
        """A whole answer, which came once."""
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text[:300]
        return response

    async def send_raw(self, data: bytes, patience: float) -> bytes:
        """Bytes over a connection of their own; what came back until the server closed it or patience ended."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(data)
            await writer.drain()
            received = b""
            with suppress(TimeoutError, asyncio.TimeoutError):
                while more := await asyncio.wait_for(reader.read(65536), patience):
                    received += more
            return received
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def head(self, length: int, path: str = CHAT) -> bytes:
        """Of a POST request."""
        lines = f"POST {path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Content-Type: application/json"
        return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


async def copies(client: Client) -> None:
    body = (await client.post(CHAT, {"messages": [user(COPY)], "temperature": 0})).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == [COPIED]


async def streams(client: Client) -> None:
    sent = {"messages": [user(COPY)], "temperature": 0, "stream": True}
    text, finishes, done = "", 0, 0
    async with client.http.stream("POST", CHAT, json=sent) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                done += 1
            elif line.startswith("data: "):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    finishes += choice["finish_reason"] is not None
    assert (text, finishes, done) == (COPIED, 1, 1)


async def several(client: Client) -> None:
    body = (await client.post(CHAT, {"messages": [user("Tell me a story.")], "n": 3, "logprobs": True} | SHORT)).json()
    assert sorted(choice["index"] for choice in body["choices"]) == [0, 1, 2]


async def calls(client: Client) -> None:
    wanted = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    body = (await client.post(CHAT, {"messages": [user(LOOK_UP)], "temperature": 0} | wanted)).json()
    (call,) = body["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == QUERY


async def answers_in_json(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = (await client.post(CHAT, {"messages": [user("Hi")], "response_format": wanted} | SHORT)).json()
    assert json.loads(body["choices"][0]["message"]["content"])["a"] in (1, 2)


async def other_apis(client: Client) -> None:
    path, body = client.random.choice(
        (
            ("/v1/completions", {"prompt": "Once upon a time"} | SHORT),
            ("/v1/messages", {"messages": [user(COPY)]} | SHORT),
            ("/v1/responses", {"input": COPY, "max_output_tokens": 40}),
            ("/v1/embeddings", {"input": [COPY, "x"]}),
            ("/v1/completions", {"prompt": COPY, "echo": True, "logprobs": 2, "max_tokens": 0}),
            ("/tokenize", {"content": COPY}),
        )
    )
    await client.post(path, body)
    assert (await client.http.get("/slots")).status_code == 200


async def leaves_a_stream(client: Client) -> None:
    sent = {"messages": [user("Tell me a story.")], "stream": True, "ignore_eos": True, "temperature": 1}
    left = client.random.randrange(12)
    async with client.http.stream("POST", CHAT, json=sent) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            left -= 1
            if left <= 0:
                return


async def never_reads(client: Client) -> None:
    sent = {"messages": [user("Tell me a story.")], "stream": True, "ignore_eos": True, "logprobs": True}
    body = json.dumps(sent | {"n": 2, "top_logprobs": 20}).encode()
    _, writer = await asyncio.open_connection(client.host, client.port, limit=1)
    try:
        writer.write(client.head(len(body)) + body)
        await writer.drain()
        await asyncio.sleep(client.random.uniform(0.5, 5))
    finally:
        writer.transport.abort()


async def leaves_before_the_answer(client: Client) -> None:
    sent = {"messages": [user("Tell me a story.")], "ignore_eos": True}
    with suppress(httpx.TimeoutException):
        await client.http.post(CHAT, json=sent, timeout=client.random.uniform(0.01, 0.5))


async def sends_garbage(client: Client) -> None:
    some = client.random.randbytes(client.random.randrange(1, 4000))
    body = client.random.choice((some, b"{", b"[" * 2000, b"null", json.dumps({"messages": some.hex()}).encode()))
    path = client.random.choice((CHAT, "/v1/messages", "/v1/responses", "/v1/embeddings", "/nowhere", "/tokenize"))
    response = await client.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in REFUSALS, response.text[:300]


async def speaks_no_http(client: Client) -> None:
    answer = await client.send_raw(client.random.randbytes(500) + b"\r\n\r\n", 5)
    assert not answer or answer.startswith(b"HTTP/1.1 4")


async def sends_too_much(client: Client) -> None:
    said = client.head(client.body_limit * 2)
    answer = await client.send_raw(said, 10)
    assert answer.startswith(b"HTTP/1.1 413")
    response = await client.http.post(CHAT, json={"messages": [user("word " * 5000)]})
    assert response.status_code == 400


async def sends_slowly(client: Client) -> None:
    body = json.dumps({"messages": [user(COPY)], "max_tokens": 3}).encode()
    reader, writer = await asyncio.open_connection(client.host, client.port)
    try:
        writer.write(client.head(len(body)).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        for start in range(0, len(body), 16):
            writer.write(body[start : start + 16])
            await writer.drain()
            await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 200")
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def never_finishes_sending(client: Client) -> None:
    await client.send_raw(client.head(1000) + b'{"messages": [', client.random.uniform(0.1, 3))


ACTIONS: dict[Action, int] = {
    copies: 4,
    streams: 6,
    several: 2,
    calls: 2,
    answers_in_json: 2,
    other_apis: 5,
    leaves_a_stream: 6,
    leaves_before_the_answer: 4,
    never_reads: 1,
    sends_garbage: 4,
    speaks_no_http: 1,
    sends_too_much: 1,
    sends_slowly: 1,
    never_finishes_sending: 1,
}
"""What is done, and how often."""
