"""Anthropic's own Python client, where it is installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import CONTEXT
from tests.server.live import COPIED, COPY, Live, user
from tests.server.named_events import LOOK_UP, QUERY, RESULT, WIKIPEDIA, said_of

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed", exc_type=ImportError)
TOOL = {"name": "wikipedia", "description": "Looks something up.", "input_schema": WIKIPEDIA["parameters"]}
ASK: dict[str, Any] = {"model": "tiny", "extra_body": {"temperature": 0}, "messages": [user(COPY)]}
ASK["max_tokens"] = CONTEXT  # as good as none, which other clients may leave out


@pytest.fixture
def client(live: Live) -> Any:
    return anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60)


def test_a_message_and_its_length(client: Any) -> None:
    answer = client.messages.create(**ASK)
    assert [block.text for block in answer.content] == [COPIED]
    assert answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="tiny", messages=ASK["messages"])
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_a_stream_as_the_client_gathers_it(client: Any) -> None:
    with client.messages.stream(**ASK) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == COPIED
    assert final.usage.output_tokens > 10


def test_tools_from_call_to_answer(live: Live, client: Any) -> None:
    asked = ASK | {"tools": [TOOL]}
    with client.messages.stream(**asked | {"messages": [user(LOOK_UP)]}) as stream:
        called = stream.get_final_message()
    (call,) = called.content
    assert (called.stop_reason, call.name, call.input) == ("tool_use", "wikipedia", QUERY)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns = [user(LOOK_UP), {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked | {"messages": turns}).content[0].text == said_of(live)


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        client.messages.create(**ASK | {"model": "nobody"})
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ASK | {"extra_body": {"unheard_of": 1}})
    assert refused.value.body["error"]["type"] == "invalid_request_error"
