"""/v1/messages: Anthropic's shapes, its order of events, its errors, and its ways with tools."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.messages import Blocks
from tests.server.conftest import CONTEXT
from tests.server.live import COPIED, COPY, Live, user
from tests.server.named_events import LOOK_UP, QUERY, QUERY_JSON, RESULT, SHORT_ANSWER, WIKIPEDIA, named_events, said_of

PATH = "/v1/messages"
TOOL = {"name": "wikipedia", "description": "Looks something up.", "input_schema": WIKIPEDIA["parameters"]}
ASKED: dict[str, Any] = {"max_tokens": CONTEXT, "temperature": 0, "messages": [user(COPY)]}


def send(live: Live, **fields: Any) -> httpx.Response:
    return live.http.post(PATH, json={"model": "tiny"} | ASKED | fields)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    error: dict[str, Any] = body["error"]
    return error


def test_an_image_in_a_result_is_a_text_in_its_place(live: Live) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    call = {"type": "tool_use", "id": "a1", "name": "wikipedia", "input": {}}

    def asked(shown: Any) -> list[Any]:
        result = {"type": "tool_result", "tool_use_id": "a1", "content": [{"type": "text", "text": "See "}, shown]}
        return [user(COPY), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    told = {"type": "text", "text": "[image: not shown, text only]"}
    counts = [live.http.post(f"{PATH}/count_tokens", json={"messages": asked(one)}) for one in (image, told)]
    assert [count.status_code for count in counts] == [200, 200]
    assert counts[0].json() == counts[1].json()
    assert send(live, messages=asked({"type": "picture"})).status_code == 400
    assert send(live, messages=[{"role": "user", "content": [image]}]).status_code == 400, "not in a result"


def test_an_answer_has_anthropics_shape(live: Live) -> None:
    body = send(live).json()
    assert body.pop("id").startswith("msg_")
    usage = body.pop("usage")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": COPIED}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    assert set(usage) == {
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    }
    assert usage["output_tokens"] > 10
    count = live.http.post(f"{PATH}/count_tokens", json={"messages": ASKED["messages"]})
    assert count.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_a_stream_in_order(live: Live) -> None:
    start, begun, *deltas, ended, last, stop = named_events(live, PATH, **ASKED)
    assert start["type"] == "message_start"
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] > 0
    assert begun == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {(delta["type"], delta["index"], delta["delta"]["type"]) for delta in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(delta["delta"]["text"] for delta in deltas) == COPIED
    assert ended == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"]["output_tokens"] > 10
    assert stop == {"type": "message_stop"}


def test_limits_and_stop_sequences(live: Live) -> None:
    cut = send(live, max_tokens=3).json()
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 3)
    stopped = send(live, stop_sequences=["Oslo", "lanterns in"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lanterns in")
    assert stopped["content"] == [{"type": "text", "text": "Maria bought 12 "}]
    *_, last, _ = named_events(live, PATH, **ASKED, stop_sequences=["Oslo"])
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "Oslo"}


def test_a_beginning_of_the_answer_is_gone_on_with(live: Live) -> None:
    begun = {"role": "assistant", "content": "Maria bought 12 lanterns in"}
    body = send(live, messages=[user(COPY), begun]).json()
    assert body["content"][0]["text"] == COPIED.removeprefix(begun["content"])


def test_a_tool_is_called_and_its_result_is_used(live: Live) -> None:
    asked = {"tools": [TOOL], "messages": [user(LOOK_UP)]}
    called = send(live, **asked).json()
    (call,) = called["content"]
    assert called["stop_reason"] == "tool_use"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "wikipedia", QUERY)
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}
    turns = [user(LOOK_UP), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    answer = send(live, tools=[TOOL], messages=turns).json()
    assert answer["content"] == [{"type": "text", "text": said_of(live)}]


def test_a_call_in_a_stream(live: Live) -> None:
    asked = {"tools": [TOOL], "messages": [user(LOOK_UP)], "speculative": {"enabled": False}}
    found = named_events(live, PATH, **ASKED | asked)
    start, begun, *deltas, stop, last, end = found
    assert [event["type"] for event in (start, begun, stop, last, end)] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert begun["content_block"]["input"] == {}
    assert len(deltas) > 2
    assert {(delta["index"], delta["delta"]["type"]) for delta in deltas} == {(0, "input_json_delta")}
    assert "".join(delta["delta"]["partial_json"] for delta in deltas) == QUERY_JSON
    assert last["delta"]["stop_reason"] == "tool_use"


def test_a_call_that_the_limit_cuts_is_a_block(live: Live) -> None:
    cut = []
    for limit in range(1, 40):
        asked = {"tools": [TOOL], "messages": [user(LOOK_UP)], "max_tokens": limit}
        body = send(live, **asked).json()
        if body["stop_reason"] == "tool_use":
            break
        assert body["stop_reason"] == "max_tokens"
        *found, last, _ = named_events(live, PATH, **ASKED | asked)
        assert last["delta"]["stop_reason"] == "max_tokens"
        begun = [event["content_block"] for event in found if event["type"] == "content_block_start"]
        assert [block["type"] for block in begun] == [block["type"] for block in body["content"]]
        if begun and begun[0]["type"] == "tool_use":
            pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]
            assert QUERY_JSON.startswith("".join(pieces))
            assert body["content"][0]["input"] in ({}, QUERY)
            cut.append("".join(pieces))
    assert any(0 < len(arguments) < len(QUERY_JSON) for arguments in cut)


@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        ({"type": "any", "disable_parallel_tool_use": True}, True),
        ({"type": "tool", "name": "wikipedia", "disable_parallel_tool_use": True}, True),
        ({"type": "none"}, False),
    ],
)
def test_what_a_choice_says_is_done(live: Live, choice: dict[str, Any], calls: bool) -> None:
    question = COPY if calls else LOOK_UP
    tool = TOOL | {"input_schema": SHORT_ANSWER}  # whatever is said when it is forced, it comes to an end
    body = send(live, tools=[tool], tool_choice=choice, messages=[user(question)]).json()
    assert [block["type"] for block in body["content"]] == (["tool_use"] if calls else ["text"])
    assert (body["stop_reason"] == "tool_use") is calls


def test_an_answer_in_a_schema(live: Live) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}, "required": ["name"]}
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    text = send(live, output_config=wanted, max_tokens=100).json()["content"][0]["text"]
    assert text.startswith("{")
    assert '"name"' in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"mirostat": 2}, "mirostat"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "'a b'"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
        ({"messages": [user("long " * 2000)]}, "maximum context length is 1024"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(live: Live, fields: dict[str, Any], said: str) -> None:
    response = send(live, **fields)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]


def test_errors_before_any_route_have_anthropics_shape_too(live: Live) -> None:
    unknown = send(live, model="nobody")
    assert (unknown.status_code, error_of(unknown)["type"]) == (404, "not_found_error")
    stranger = live.http.post(PATH, json=ASKED, headers={"Host": "evil.example"})
    assert (stranger.status_code, error_of(stranger)["type"]) == (403, "permission_error")
    broken = live.http.post(PATH, content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, error_of(broken)["type"]) == (400, "invalid_request_error")


def test_blocks_follow_the_parts_of_an_answer() -> None:
    blocks = Blocks()
    call: list[Part] = [CallBegun("abc", "f"), CallArguments('{"a"'), CallArguments(": 1}"), CallEnded(whole=True)]
    events = blocks.add([Reasoning("hm"), Reasoning("."), Content("So")])
    events += blocks.add([*call, Content("x")]) + blocks.close() + blocks.close()
    assert blocks.content == [
        {"type": "thinking", "thinking": "hm.", "signature": ""},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "abc", "name": "f", "input": {"a": 1}},
        {"type": "text", "text": "x"},
    ]
    assert [(event["type"].removeprefix("content_block_"), event["index"]) for event in events] == [
        ("start", 0),
        ("delta", 0),
        ("delta", 0),
        ("stop", 0),
        ("start", 1),
        ("delta", 1),
        ("stop", 1),
        ("start", 2),
        ("delta", 2),
        ("delta", 2),
        ("stop", 2),
        ("start", 3),
        ("delta", 3),
        ("stop", 3),
    ]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("", {}),
        ('{"a": "x", "b": "hal', {"a": "x"}),
        ('{"a": [1, {"b": "x"}, {"c', {"a": [1, {"b": "x"}, {}]}),
        ('{"a": 1,}', {}),
        ("[1]", {}),
    ],
)
def test_the_input_of_a_call_is_what_is_complete_of_it(written: str, given: dict[str, Any]) -> None:
    blocks = Blocks()
    blocks.add([CallBegun("abc", "f"), CallArguments(written), CallEnded(whole=False)])
    assert blocks.content == [{"type": "tool_use", "id": "abc", "name": "f", "input": given}]
