"""LangChain's ChatOpenAI: invoke, stream, tools and structured output."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.live import COPIED, COPY, RECORD, RECORDED, Live
from tests.server.named_events import LOOK_UP, QUERY, RESULT, SUBJECT, said_of

langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed", exc_type=ImportError)


class Host(BaseModel):
    """What RECORD asks for."""

    date: str
    host: str


@pytest.fixture
def chat(live: Live) -> Any:
    return langchain.ChatOpenAI(
        model="tiny", base_url=f"{live.url}/v1", api_key="none", temperature=0, max_retries=0, timeout=60
    )


def test_invoke_and_stream(chat: Any) -> None:
    answer = chat.invoke(COPY)
    assert answer.content == COPIED
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 10
    assert "".join(chunk.content for chunk in chat.stream(COPY)) == COPIED
    assert [one.content for one in chat.batch([COPY] * 3)] == [COPIED] * 3


def test_tools(live: Live, chat: Any) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def wikipedia(query: str) -> str:
        """Looks something up."""
        assert query == SUBJECT
        return RESULT

    able = chat.bind_tools([wikipedia])
    asked = HumanMessage(LOOK_UP)
    called = able.invoke([asked])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("wikipedia", QUERY)
    answer = able.invoke([asked, called, ToolMessage(wikipedia.invoke(call["args"]), tool_call_id=call["id"])])
    assert answer.content == said_of(live)


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(chat: Any, method: str) -> None:
    found = chat.with_structured_output(Host, method=method).invoke(RECORD)
    assert found == Host(**RECORDED)


def test_a_call_is_the_structure(chat: Any) -> None:
    found = chat.with_structured_output(Host, method="function_calling").invoke(RECORD)
    assert isinstance(found, Host)
