"""The official `ollama` package for Python, told of the endpoint as of an Ollama."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.live import COPIED, COPY, Live, user
from tests.server.named_events import LOOK_UP, QUERY

ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")
COLD = {"temperature": 0}


def wikipedia(query: str) -> str:
    """Looks something up.

    Args:
        query: what to look for.
    """
    return query


@pytest.fixture
def client(live: Live) -> Iterator[Any]:
    client = ollama.Client(host=live.url)
    yield client
    client._client.close()  # it leaves its connections open, unless it is a new one


def test_it_chats(client: Any) -> None:
    whole = client.chat("tiny", [user(COPY)], options=COLD)
    assert whole.message.content == COPIED
    assert whole.eval_count > 10
    pieces = list(client.chat("tiny", [user(COPY)], options=COLD, stream=True))
    assert "".join(piece.message.content for piece in pieces) == COPIED
    assert pieces[-1].done_reason == "stop"


def test_it_generates(client: Any) -> None:
    assert client.generate("tiny", COPY, options=COLD).response == COPIED
    pieces = client.generate("tiny", COPY, options=COLD, stream=True)
    assert "".join(piece.response for piece in pieces) == COPIED


def test_it_knows_the_models(client: Any) -> None:
    listed = client.list().models[0]
    assert (listed.model, listed.details.format) == ("tiny", "gguf")
    shown = client.show("tiny")
    assert shown.details == listed.details
    assert shown.capabilities[0] == "completion"
    assert shown.modelinfo["general.architecture"] == listed.details.family
    (here,) = [one for one in client.ps().models if one.model == "tiny"]
    assert here.digest == listed.digest


def test_it_embeds(client: Any) -> None:
    found = client.embed("tiny", ["A castle.", "A dog."])
    assert [len(vector) for vector in found.embeddings] == [256, 256]
    assert client.embeddings("tiny", "A castle.").embedding == found.embeddings[0]


def test_it_calls_functions(client: Any) -> None:
    answer = client.chat("tiny", [user(LOOK_UP)], tools=[wikipedia], options=COLD)
    (call,) = answer.message.tool_calls
    assert (call.function.name, dict(call.function.arguments)) == ("wikipedia", QUERY)


def test_it_hears_of_errors(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nobody' not found") as raised:
        client.chat("nobody", [user("x")])
    assert raised.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="images is not supported"):
        client.chat("tiny", [user("x") | {"images": [b"png"]}])


def test_it_works_without_threads(live: Live) -> None:
    async def ask() -> str:
        client = ollama.AsyncClient(host=live.url)
        pieces = await client.chat("tiny", [user(COPY)], options=COLD, stream=True)
        said = "".join([piece.message.content async for piece in pieces])
        await client._client.aclose()
        return said

    assert asyncio.run(ask()) == COPIED
