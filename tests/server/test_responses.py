"""/v1/responses: OpenAI's shapes and order of events, tools, and conversations that are remembered for a while."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx
import pytest

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.server.http.output import ApiError
from localspec.server.responses.body import ResponsePrompt
from localspec.server.responses.responses import Items, Remembered, ResponseMemory, ResponseObject
from tests.server.live import COPIED, COPY, Live, error_of, user
from tests.server.named_events import LOOK_UP, QUERY_JSON, RESULT, SHORT_ANSWER, WIKIPEDIA, named_events, said_of

PATH = "/v1/responses"
TOOL = {"type": "function", **WIKIPEDIA}


def send(live: Live, given: Any = COPY, **fields: Any) -> httpx.Response:
    return live.http.post(PATH, json={"input": given, "temperature": 0} | fields)


def text_of(body: dict[str, Any]) -> str:
    (message,) = body["output"]
    (part,) = message["content"]
    assert (message["type"], message["role"], part["type"]) == ("message", "assistant", "output_text")
    text: str = part["text"]
    return text


def test_an_answer_has_openais_shape(live: Live) -> None:
    body = send(live, instructions="Be brief.", metadata={"a": "b"}).json()
    assert body["id"].startswith("resp_")
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["error"] is None
    assert body["incomplete_details"] is None
    assert body["instructions"] == "Be brief."
    assert body["metadata"] == {"a": "b"}
    assert body["output"][0]["id"].startswith("msg_")
    assert body["text"] == {"format": {"type": "text"}}
    assert (body["tools"], body["tool_choice"], body["parallel_tool_calls"]) == ([], "auto", True)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert body["timings"]["predicted_n"] == usage["output_tokens"]
    assert text_of(send(live).json()) == COPIED


def test_input_as_items(live: Live) -> None:
    given = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": COPY}]},
    ]
    assert text_of(send(live, given).json())
    count = live.http.post(f"{PATH}/input_tokens", json={"input": given}).json()
    asked = {"messages": [{"role": "system", "content": "Be brief."}, user(COPY)]}
    same = live.http.post("/v1/chat/completions/input_tokens", json=asked).json()
    assert count == {"object": "response.input_tokens", "input_tokens": same["input_tokens"]}


def test_a_stream_in_order(live: Live) -> None:
    found = named_events(live, PATH, input=COPY, temperature=0)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    created, begun, item, part, *deltas, text, ended_part, ended, completed = found
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    key = item["item"]["id"]
    assert item["type"] == "response.output_item.added"
    assert item["item"]["status"] == "in_progress"
    assert part["type"] == "response.content_part.added"
    assert {delta["type"] for delta in deltas} == {"response.output_text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == COPIED
    assert (text["type"], text["text"]) == ("response.output_text.done", COPIED)
    assert (ended_part["type"], ended_part["part"]["text"]) == ("response.content_part.done", COPIED)
    for event in (part, *deltas, text, ended_part):
        assert (event["item_id"], event["output_index"], event["content_index"]) == (key, 0, 0)
    assert (ended["type"], ended["item"]["status"]) == ("response.output_item.done", "completed")
    assert completed["type"] == "response.completed"
    assert completed["response"]["id"] == created["response"]["id"]
    assert completed["response"]["output"] == [ended["item"]]
    assert completed["response"]["usage"]["output_tokens"] > 10


def test_a_stream_tells_llama_servers_progress_and_timings(live: Live) -> None:
    more = {"return_progress": True, "timings_per_token": True, "max_output_tokens": 5}
    found = named_events(live, PATH, input=COPY, **more)
    (progress,) = [one for one in found if "prompt_progress" in one]
    assert progress["type"] == "response.in_progress"
    assert progress["prompt_progress"]["processed"] == progress["prompt_progress"]["total"] > 0
    told = [one for one in found if "timings" in one]
    assert {one["type"] for one in told} == {"response.output_text.delta", "response.incomplete"}
    assert told[-1]["timings"]["predicted_n"] == 5
    assert not any({"timings", "prompt_progress"} & one.keys() for one in named_events(live, PATH, input=COPY))


def test_an_answer_that_is_cut_says_so(live: Live) -> None:
    body = send(live, max_output_tokens=3).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"
    *_, last = named_events(live, PATH, input=COPY, max_output_tokens=3)
    assert last["type"] == "response.incomplete"


def test_a_tool_is_called_and_its_result_is_used(live: Live) -> None:
    called = send(live, LOOK_UP, tools=[TOOL]).json()
    (call,) = called["output"]
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        "wikipedia",
        QUERY_JSON,
    )
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    by_items = send(live, [user(LOOK_UP), call, result], tools=[TOOL]).json()
    by_id = send(live, [result], tools=[TOOL], previous_response_id=called["id"]).json()
    assert text_of(by_items) == text_of(by_id) == said_of(live)
    assert by_id["previous_response_id"] == called["id"]


IMAGE = "data:image/png;base64,AAAA"


def test_what_other_tools_left_in_a_history_is_read_as_calls_and_results(live: Live) -> None:
    shell = {"type": "exec", "command": ["ls", "-l"]}
    history = [
        user("Patch it."),
        {"type": "custom_tool_call", "id": "1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
        {"type": "local_shell_call", "id": "2", "call_id": "c2", "status": "completed", "action": shell},
        {"type": "local_shell_call_output", "id": "c2", "output": "app.py"},
        {"type": "web_search_call", "id": "3", "status": "completed", "action": {"query": "x"}},
        {"type": "function_call", "call_id": "c3", "name": "look", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c3",
            "output": [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": IMAGE}],
        },
    ]
    read = ResponsePrompt.model_validate({"input": history}).added()
    functions = [(call["id"], call["function"]) for one in read for call in one.get("tool_calls", ())]
    calls = [(key, function["name"], function["arguments"]) for key, function in functions]
    assert calls == [
        ("c1", "apply_patch", '{"input": "*** Begin"}'),
        ("c2", "local_shell", json.dumps(shell)),
        ("c3", "look", "{}"),
    ]
    results = [(one["tool_call_id"], one["content"]) for one in read if one["role"] == "tool"]
    assert results == [("c1", "Done."), ("c2", "app.py"), ("c3", "See [input_image: not shown, text only]")]
    assert any(one["content"] == "[web_search_call: not shown]" for one in read)
    assert send(live, [*history, user(COPY)]).status_code == 200


def test_a_call_in_a_stream(live: Live) -> None:
    found = named_events(live, PATH, input=LOOK_UP, tools=[TOOL], temperature=0, speculative={"enabled": False})
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert [kind for kind in kinds if kind != "function_call_arguments.delta"] == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    item, *deltas, arguments, ended, _ = found[2:]
    assert len(deltas) > 2
    assert item["item"]["arguments"] == ""
    assert {delta["item_id"] for delta in deltas} == {item["item"]["id"]}
    assert "".join(delta["delta"] for delta in deltas) == arguments["arguments"] == QUERY_JSON
    assert ended["item"]["arguments"] == QUERY_JSON
    assert ended["item"]["status"] == "completed"
    assert ended["item"]["call_id"]


def test_a_call_that_the_limit_cuts_is_incomplete(live: Live) -> None:
    cut = []
    for limit in range(1, 40):
        body = send(live, LOOK_UP, tools=[TOOL], max_output_tokens=limit).json()
        if body["status"] == "completed":
            break
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}
        (item,) = body["output"]
        *_, ended, last = named_events(live, PATH, input=LOOK_UP, tools=[TOOL], temperature=0, max_output_tokens=limit)
        assert last["type"] == "response.incomplete"
        assert last["response"]["output"] == [ended["item"]]
        assert ended["item"]["type"] == item["type"]
        if item["type"] == "function_call" and item["status"] == "incomplete":
            assert (ended["item"]["arguments"], ended["item"]["status"]) == (item["arguments"], "incomplete")
            cut.append(item["arguments"])
    assert cut
    assert all(QUERY_JSON.startswith(arguments) and arguments != QUERY_JSON for arguments in cut)


@pytest.mark.parametrize(
    ("choice", "kind"),
    [("required", "function_call"), ({"type": "function", "name": "wikipedia"}, "function_call"), ("none", "message")],
)
def test_what_a_choice_says_is_done(live: Live, choice: Any, kind: str) -> None:
    question = LOOK_UP if kind == "message" else COPY
    tool = TOOL | {"parameters": SHORT_ANSWER}  # whatever is said when it is forced, it comes to an end
    body = send(live, question, tools=[tool], tool_choice=choice, parallel_tool_calls=False).json()
    assert [item["type"] for item in body["output"]] == [kind]


def test_an_answer_in_a_schema(live: Live) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    body = send(live, text={"format": form}).json()
    assert "".join(text_of(body).split()) in ('{"n":1}', '{"n":2}')
    assert body["text"] == {"format": form}


def test_log_probs_come_with_the_text(live: Live) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (message,) = send(live, **asked).json()["output"]
    found = message["content"][0]["logprobs"]
    assert "".join(one["token"] for one in found) == COPIED
    assert all(len(one["top_logprobs"]) == 2 for one in found)
    streamed = named_events(live, PATH, input=COPY, temperature=0, **asked)
    tokens = [one["token"] for event in streamed if "delta" in event for one in event["logprobs"]]
    assert "".join(tokens) == COPIED


def test_conversations_are_remembered_until_they_are_deleted(live: Live) -> None:
    first = send(live).json()
    again = send(live, "Say that again.", previous_response_id=first["id"]).json()
    assert again["usage"]["input_tokens"] > first["usage"]["total_tokens"]
    assert live.http.get(f"{PATH}/{first['id']}").json() == first
    assert live.http.delete(f"{PATH}/{first['id']}").json()["deleted"] is True
    gone = live.http.get(f"{PATH}/{first['id']}")
    assert (gone.status_code, error_of(gone)["type"]) == (404, "not_found_error")
    refused = send(live, previous_response_id=first["id"])
    assert (refused.status_code, error_of(refused)["code"]) == (400, "previous_response_not_found")
    assert send(live, "Once more.", previous_response_id=again["id"]).status_code == 200
    silent = send(live, store=False).json()
    assert live.http.get(f"{PATH}/{silent['id']}").status_code == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [5]}, "input.0"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "x"}, "conversation"),
        ({"mirostat": 2}, "mirostat"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(live: Live, fields: dict[str, Any], param: str) -> None:
    response = live.http.post(PATH, json={"input": COPY} | fields)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


def remembered(key: str, content: str) -> Remembered:
    return Remembered(cast("ResponseObject", {"id": key}), ({"role": "user", "content": content},))


def test_memory_has_a_bound_in_number_and_in_size() -> None:
    memory = ResponseMemory(most_answers=2, most_bytes=10_000)
    for key in ("a", "b"):
        memory.keep(remembered(key, ""))
    memory.find("a", "response_id")
    memory.keep(remembered("c", ""))
    with pytest.raises(ApiError, match="no response 'b'"):
        memory.find("b", "response_id")
    memory.keep(remembered("d", "x" * 7000))
    assert len(memory) == 1, "what is large pushes out what is old"
    memory.keep(remembered("e", "x" * 20_000))
    assert len(memory) == 0, "what is larger than all of it is not kept"


def test_items_follow_the_parts_of_an_answer() -> None:
    items = Items()
    call: list[Part] = [CallBegun("abc", "f"), CallArguments("{"), CallArguments("}"), CallEnded(whole=True)]
    events = items.add([Reasoning("hm"), Content("So"), *call, Content("x")])
    events += items.finish("completed")
    assert [item["type"] for item in items.output] == ["reasoning", "message", "function_call", "message"]
    assert {item["status"] for item in items.output} == {"completed"}
    assert [event["type"].removeprefix("response.") for event in events][:6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert [event["output_index"] for event in events] == sorted(event["output_index"] for event in events)
    silent = Items()
    silent.finish("completed")
    assert [item["type"] for item in silent.output] == ["message"]
