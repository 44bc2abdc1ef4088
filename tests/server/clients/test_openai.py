"""OpenAI's own Python client against the real server: what it parses, raises and streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from pydantic import BaseModel

from tests.server.live import COPIED, COPY, RECORD, RECORDED, Live
from tests.server.named_events import LOOK_UP, QUERY, RESULT, SUBJECT, said_of

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": COPY}]


class Wikipedia(BaseModel):
    """Looks something up."""

    query: str


class Host(BaseModel):
    """What RECORD asks for."""

    date: str
    host: str


class Verdict(BaseModel):
    """Of a small world."""

    answer: Literal["yes", "no"]
    sure: bool


# The client's own tool for `Wikipedia`, under the name that the bundled model knows.
TOOL: ChatCompletionToolParam = pydantic_function_tool(Wikipedia, name="wikipedia")


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=ASK, temperature=0)
    assert answer.choices[0].message.content == COPIED
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 10
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model == "tiny"


def test_a_chat_in_a_stream(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == COPIED
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 10


def test_the_clients_own_reading_of_a_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=ASK, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == COPIED


def test_several_choices_with_log_probs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, n=3, seed=5, max_tokens=8, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(one.token for one in choice.logprobs.content) == choice.message.content
        assert all(len(one.top_logprobs) == 2 for one in choice.logprobs.content)


def test_a_pydantic_model_comes_back(client: OpenAI) -> None:
    asked: list[ChatCompletionMessageParam] = [{"role": "user", "content": RECORD}]
    answer = client.chat.completions.parse(model="tiny", messages=asked, temperature=0, response_format=Host)
    assert answer.choices[0].message.parsed == Host(**RECORDED)
    forced = client.chat.completions.parse(model="tiny", messages=ASK, seed=1, response_format=Verdict)
    assert isinstance(forced.choices[0].message.parsed, Verdict)


def test_tools_from_call_to_answer(live: Live, client: OpenAI) -> None:
    turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": LOOK_UP}]
    called = client.chat.completions.parse(model="tiny", messages=turns, temperature=0, tools=[TOOL])
    choice = called.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.function.name == "wikipedia"
    assert isinstance(call.function.parsed_arguments, Wikipedia)
    assert call.function.parsed_arguments.query == SUBJECT
    result: ChatCompletionMessageParam = {
        "role": "tool",
        "tool_call_id": call.id,
        "content": RESULT,
    }
    turns += [choice.message, result]  # type: ignore[list-item] # as the client's own documentation does it
    answer = client.chat.completions.create(model="tiny", messages=turns, temperature=0, tools=[TOOL])
    assert answer.choices[0].message.content == said_of(live)


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_is_demanded_in_a_stream(client: OpenAI, parallel: bool) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": LOOK_UP}],
        temperature=0,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=parallel,
        max_tokens=90,
    ) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls
    assert parallel or len(final.message.tool_calls) == 1
    assert all(isinstance(call.function.parsed_arguments, Wikipedia) for call in final.message.tool_calls)


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=8, temperature=0)
    streamed = client.completions.create(
        model="tiny", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == answer.choices[0].text


def test_models(client: OpenAI) -> None:
    assert "tiny" in [model.id for model in client.models.list()]
    assert client.models.retrieve("tiny").owned_by == "localspec"


def test_embeddings(client: OpenAI) -> None:
    plain = client.embeddings.create(model="tiny", input=["A castle."], encoding_format="float")
    own = client.embeddings.create(model="tiny", input="A castle.")  # the client asks for base64 and unpacks it
    assert own.data[0].embedding == pytest.approx(plain.data[0].embedding)
    packed = client.embeddings.create(model="tiny", input="A castle.", encoding_format="base64").data[0].embedding
    assert np.frombuffer(base64.b64decode(str(packed)), dtype="<f4").shape == (256,)


def test_a_response(client: OpenAI) -> None:
    answer = client.responses.create(model="tiny", input=COPY, temperature=0)
    assert answer.output_text == COPIED
    assert answer.status == "completed"
    assert answer.usage is not None
    assert client.responses.retrieve(answer.id).output_text == COPIED
    again = client.responses.create(
        model="tiny", input="Say that again.", previous_response_id=answer.id, max_output_tokens=8
    )
    assert again.previous_response_id == answer.id
    counted = client.responses.input_tokens.count(model="tiny", input=COPY)
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_response_in_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model="tiny", input=COPY, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == COPIED


def test_a_response_with_a_model_and_with_tools(client: OpenAI) -> None:
    parsed = client.responses.parse(model="tiny", input=RECORD, temperature=0, text_format=Host)
    assert parsed.output_parsed == Host(**RECORDED)
    tool: FunctionToolParam = {
        "type": "function",
        "name": "wikipedia",
        "parameters": Wikipedia.model_json_schema(),
        "strict": True,
    }
    answer = client.responses.create(model="tiny", input=LOOK_UP, temperature=0, tools=[tool])
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert json.loads(call.arguments) == QUERY


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=ASK)
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=ASK, extra_body={"mirostat": 2})
    assert refused.value.param == "mirostat"
    with pytest.raises(BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "long " * 2000}])
    assert long.value.code == "context_length_exceeded"


def test_a_request_may_decide_on_its_drafts(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASK, temperature=0, extra_body={"speculative": {"enabled": False}}
    )
    assert answer.choices[0].message.content == COPIED
    extra = answer.model_extra or {}
    assert extra["timings"]["draft_n"] == 0
    assert extra["localspec"][0]["stats"]["exact"] is True
