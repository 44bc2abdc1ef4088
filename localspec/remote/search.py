"""Servers of this machine: which of the usual ports answer, and with which models. Nothing is sent but GET.

Requests go to loopback addresses alone, by a bare transport: no proxy, no cookie, no key, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import httpx2 as httpx

PORTS: dict[int, str] = {
    1234: "LM Studio",
    1337: "Jan",
    4891: "GPT4All",
    5000: "text-generation-webui or TabbyAPI",
    5001: "KoboldCpp",
    8000: "vLLM",
    8080: "llama-server, LocalAI or localspec",
    11434: "Ollama",
    30000: "SGLang",
}
"""{port: the program whose default it is}."""
_HOSTS = ("127.0.0.1", "[::1]")
SECONDS = 0.3  # for each request: a server of this machine that lists its models needs milliseconds
_MOST_BYTES = 2**20  # of each answer: a list of models takes some 200 bytes a model
_MOST_NAMES, _LONGEST_NAME = 1000, 300  # models of a server and letters of a name; what is beyond is left out
_ODD = (ValueError, KeyError, TypeError, RecursionError)  # what an answer that is no list of models leads to


@dataclass(frozen=True, slots=True)
class FoundServer:
    address: str
    usual: str  # whose default port it is; another program may use it
    models: tuple[str, ...]


async def servers(ports: Mapping[int, str] | None = None, leave_out: Collection[int] = ()) -> list[FoundServer]:
    """Those that list models at `/v1/models`, or as Ollama does at `/api/tags`, by port; all are asked at once.
    `ports` are {port: whose it usually is}; None = `PORTS`. Those to `leave_out` are not asked."""
    asked = [(port, usual) for port, usual in (PORTS if ports is None else ports).items() if port not in leave_out]
    transport = httpx.AsyncHTTPTransport(trust_env=False)
    try:
        found = await asyncio.gather(
            *(_server(transport, f"http://{host}:{port}", usual) for port, usual in asked for host in _HOSTS)
        )
    finally:
        await transport.aclose()
    distinct = dict[tuple[str, tuple[str, ...]], FoundServer]()
    for server in found:
        if server is not None:  # a program may listen at both addresses
            distinct.setdefault((server.address.rpartition(":")[2], server.models), server)
    return list(distinct.values())


async def _server(transport: httpx.AsyncHTTPTransport, address: str, usual: str) -> FoundServer | None:
    for path, listed, field in (("/v1/models", "data", "id"), ("/api/tags", "models", "name")):
        try:
            cards = json.loads(await asyncio.wait_for(_read(transport, address + path), SECONDS))[listed]
            names = [card[field] for card in cards][:_MOST_NAMES]
            fit = all(isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME for name in names)
            if not (isinstance(cards, list) and fit):
                continue
        except _ODD:
            continue
        except (asyncio.TimeoutError, httpx.TransportError):
            return None
        return FoundServer(address, usual, tuple(dict.fromkeys(names)))
    return None


async def _read(transport: httpx.AsyncHTTPTransport, url: str) -> bytes:
    """The body of a successful answer; ValueError: it is no success, or too long."""
    request = httpx.Request("GET", url, headers={"Accept": "application/json", "Accept-Encoding": "identity"})
    reply = await transport.handle_async_request(request)
    try:
        if reply.status_code != 200:
            raise ValueError(reply.status_code)
        body = bytearray()
        async for part in reply.aiter_raw():
            body += part
            if len(body) > _MOST_BYTES:
                raise ValueError(len(body))
        return bytes(body)
    finally:
        await reply.aclose()
