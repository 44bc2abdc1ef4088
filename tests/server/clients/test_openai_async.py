"""OpenAI's asynchronous client: many streams at once, and one that is left early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.server.live import COPIED, COPY, Live

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": COPY}]
LONG: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]


@pytest_asyncio.fixture
async def client(live: Live) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def streamed(client: AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(model="tiny", messages=ASK, temperature=0, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


@pytest.mark.asyncio
async def test_more_streams_than_slots_all_say_the_same(client: AsyncOpenAI) -> None:
    assert await asyncio.gather(*(streamed(client) for _ in range(8))) == [COPIED] * 8


@pytest.mark.asyncio
async def test_whole_answers_responses_and_embeddings_at_once(client: AsyncOpenAI) -> None:
    chat, response, embedding = await asyncio.gather(
        client.chat.completions.create(model="tiny", messages=ASK, temperature=0),
        client.responses.create(model="tiny", input=COPY, temperature=0),
        client.embeddings.create(model="tiny", input=COPY),
    )
    assert chat.choices[0].message.content == response.output_text == COPIED
    assert len(embedding.data[0].embedding) == 256


@pytest.mark.asyncio
async def test_a_stream_that_is_left_gives_its_slot_back(client: AsyncOpenAI, live: Live) -> None:
    for _ in range(6):  # more than there are slots
        stream = await client.chat.completions.create(
            model="tiny", messages=LONG, stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        await stream.close()
    assert await asyncio.wait_for(streamed(client), 20) == COPIED
    for _ in range(100):
        if not sum(live.service.live.values()):
            break
        await asyncio.sleep(0.05)
    assert sum(live.service.live.values()) == 0
