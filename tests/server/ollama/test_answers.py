"""Ollama's API: answers, streamed and whole, options, forms, tools, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, cast

import pytest

from localspec.chat.reply.reply import Content, Part, Reasoning
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded
from localspec.engine.slot import Event
from localspec.runtime.pool import Pool
from localspec.server.chat.chat import Exchange, News
from localspec.server.chat.fields import ChatMessage
from localspec.server.http.output import LINES, ApiError
from localspec.server.http.settings import ServerSettings
from localspec.server.ollama.answers import OllamaChat, OllamaReply
from tests.server.conftest import CONTEXT
from tests.server.held import eventually
from tests.server.live import COPIED, COPY, RECORD, RECORDED, Live, engine_of, running, user
from tests.server.named_events import LOOK_UP, QUERY, RESULT, SHORT_ANSWER, WIKIPEDIA, said_of

COLD = {"temperature": 0, "num_predict": 200}
TOOL = {"type": "function", "function": WIKIPEDIA}


def chat(live: Live, content: str = COPY, **fields: Any) -> dict[str, Any]:
    """A whole answer."""
    asked = {"model": "tiny", "stream": False, "options": COLD, "messages": [user(content)]} | fields
    response = live.http.post("/api/chat", json=asked)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


def lines(live: Live, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Objects of a stream."""
    response = live.http.post(path, json={"model": "tiny", "options": COLD} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def error_of(live: Live, path: str, **fields: Any) -> str:
    """The sentence of a request that is refused with 400."""
    response = live.http.post(path, json={"model": "tiny"} | fields)
    assert response.status_code == 400, response.text
    assert set(response.json()) == {"error"}
    return str(response.json()["error"])


def check_end(last: dict[str, Any]) -> None:
    """The figures that come with the end of an answer."""
    assert last["done"] is True
    assert 0 < last["prompt_eval_count"] < CONTEXT
    assert last["eval_count"] > 10
    assert 0 <= last["load_duration"] < last["total_duration"]
    assert last["prompt_eval_duration"] + last["eval_duration"] < last["total_duration"]
    assert last["eval_duration"] > 0


def test_a_whole_answer(live: Live) -> None:
    body = chat(live)
    assert body["model"] == "tiny"
    assert body["message"] == {"role": "assistant", "content": COPIED}
    assert body["done_reason"] == "stop"
    assert datetime.fromisoformat(body["created_at"].replace("Z", "+00:00")).year >= 2026
    check_end(body)


def test_an_answer_comes_as_it_is_written(live: Live) -> None:
    *pieces, last = lines(live, "/api/chat", messages=[user(COPY)])
    assert len(pieces) > 1  # how many tokens a pass brings is the drafts' affair
    assert {piece["done"] for piece in pieces} == {False}
    assert all(set(piece) == {"model", "created_at", "message", "done"} for piece in pieces)
    assert "".join(piece["message"]["content"] for piece in pieces) == COPIED
    assert last["message"] == {"role": "assistant", "content": ""}
    check_end(last)


def test_a_prompt_is_answered_as_a_conversation_of_one(live: Live) -> None:
    *pieces, last = lines(live, "/api/generate", prompt=COPY)
    assert "".join(piece["response"] for piece in pieces) == COPIED
    assert (last["response"], last["done_reason"]) == ("", "stop")
    check_end(last)
    said = lines(live, "/api/generate", prompt=COPY, system="You are brief.", stream=True)
    told = chat(live, messages=[{"role": "system", "content": "You are brief."}, user(COPY)])
    assert "".join(piece["response"] for piece in said) == told["message"]["content"]
    assert said[-1]["prompt_eval_count"] == told["prompt_eval_count"] > last["prompt_eval_count"]


@pytest.mark.parametrize("end", [{}, {"num_predict": 4}, {"stop": [" in Lisbon"]}])
def test_a_prompt_goes_on_from_the_context_of_an_answer(live: Live, end: dict[str, Any]) -> None:
    """As the same conversation in /api/chat, however the answer ended."""
    system = {"role": "system", "content": "You are brief."}
    asked = {"system": system["content"], "options": COLD | end}
    *pieces, first = lines(live, "/api/generate", prompt=COPY, **asked)
    assert not any("context" in piece for piece in pieces)
    said = "".join(piece["response"] for piece in pieces)
    again = "Repeat this text exactly: The castle is violet."
    (second,) = lines_of_whole(live, prompt=again, context=first["context"], system=system["content"])
    turns = [system, user(COPY), {"role": "assistant", "content": said}, user(again)]
    told = chat(live, messages=turns)
    assert second["response"] == told["message"]["content"]
    shown = live.http.post("/apply-template", json={"messages": turns}).json()["prompt"]
    text = live.http.post("/detokenize", json={"tokens": second["context"]}).json()["content"]
    assert text.strip() == f"{shown}{second['response']}".strip()
    assert second["prompt_eval_count"] == told["prompt_eval_count"] > len(first["context"])


def test_the_context_of_a_model_without_a_template_is_its_text(
    live: Live, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_of(pool).template, "exists", False)
    (first,) = lines_of_whole(live, prompt="The castle is", options={"num_predict": 4, "temperature": 0})
    (second,) = lines_of_whole(live, prompt=" and", context=first["context"], options=COLD)
    whole = live.complete(f"The castle is{first['response']} and", temperature=0, max_tokens=200).json()
    assert second["response"] == whole["choices"][0]["text"]
    text = live.http.post("/detokenize", json={"tokens": second["context"]}).json()["content"]
    assert text.endswith(f"The castle is{first['response']} and{second['response']}")


def test_raw_text_goes_on(live: Live) -> None:
    (body,) = lines_of_whole(live, prompt="The castle is", raw=True)
    expected = live.complete("The castle is", temperature=0, max_tokens=200).json()["choices"][0]["text"]
    assert body["response"] == expected
    prompt = live.http.post("/apply-template", json={"messages": [user(COPY)]}).json()["prompt"]
    (same,) = lines_of_whole(live, prompt=prompt, raw=True)
    assert same["response"] == COPIED
    assert "context" not in same


def test_a_gap_is_filled(live: Live) -> None:
    asked = {"prompt": "The castle is", "suffix": "and tall."}
    (body,) = lines_of_whole(live, **asked)
    expected = live.http.post("/v1/completions", json=asked | {"temperature": 0, "max_tokens": 200}).json()
    assert body["response"] == expected["choices"][0]["text"]
    assert body["prompt_eval_count"] == expected["usage"]["prompt_tokens"]
    assert "insert" in live.http.post("/api/show", json={}).json()["capabilities"]


def lines_of_whole(live: Live, **fields: Any) -> list[dict[str, Any]]:
    response = live.http.post("/api/generate", json={"stream": False, "options": COLD} | fields)
    assert response.status_code == 200, response.text
    return [response.json()]


def test_options_do_what_they_say(live: Live) -> None:
    cut = chat(live, options={"num_predict": 3, "temperature": 0})
    assert (cut["done_reason"], cut["eval_count"]) == ("length", 3)
    stopped = chat(live, options=COLD | {"stop": ["lanterns in"]})
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("Maria bought 12 ", "stop")
    hot = COLD | {"temperature": 2.0, "seed": 7, "top_k": 50, "top_p": 0.99, "min_p": 0.0, "repeat_penalty": 1.1}
    first, again = (chat(live, options=hot)["message"]["content"] for _ in range(2))
    plain = live.chat(temperature=2.0, seed=7, top_k=50, top_p=0.99, min_p=0.0, repeat_penalty=1.1, max_tokens=200)
    assert first == again == plain.json()["choices"][0]["message"]["content"]
    assert chat(live, options=hot | {"seed": 8})["message"]["content"] != first
    endless = COLD | {"num_predict": -1, "num_ctx": 131_072, "num_gpu": 99, "num_thread": 2, "use_mmap": True}
    assert chat(live, options=endless)["message"]["content"] == COPIED


def test_a_form_is_kept(live: Live) -> None:
    schema = {
        "type": "object",
        "properties": {"date": {"type": "string"}, "host": {"type": "string"}},
        "required": ["date", "host"],
        "additionalProperties": False,
    }
    assert json.loads(chat(live, RECORD, format=schema)["message"]["content"]) == RECORDED
    assert isinstance(json.loads(chat(live, RECORD, format="json")["message"]["content"]), dict)
    (body,) = lines_of_whole(live, prompt=RECORD, format=schema)
    assert json.loads(body["response"]) == RECORDED


def test_a_tool_is_called_and_its_result_is_used(live: Live) -> None:
    *pieces, last = lines(live, "/api/chat", messages=[user(LOOK_UP)], tools=[TOOL])
    (call,) = [call for piece in pieces for call in piece["message"].get("tool_calls", ())]
    assert call["function"] == {"index": 0, "name": "wikipedia", "arguments": QUERY}
    assert last["done_reason"] == "stop"
    whole = chat(live, LOOK_UP, tools=[TOOL])["message"]
    assert [one["function"] for one in whole["tool_calls"]] == [call["function"]]
    for result in ({"tool_name": "wikipedia"}, {}, {"tool_call_id": call["id"]}):
        turns = [user(LOOK_UP), whole, {"role": "tool", "content": RESULT, **result}]
        if "tool_call_id" not in result:  # as clients send calls that know of no ids
            turns[1] = {"role": "assistant", "content": "", "tool_calls": [{"function": call["function"]}]}
        else:
            turns[1] = {"role": "assistant", "content": "", "tool_calls": [call]}
        answer = chat(live, messages=turns, tools=[TOOL])
        assert answer["message"]["content"] == said_of(live)


def test_results_without_ids_go_with_the_calls_in_their_order() -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("first", "second", "second")]
    results = [
        {"role": "tool", "content": "b", "tool_name": "second"},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "c", "tool_name": "second"},
        {"role": "tool", "content": "d"},
    ]
    turns = [{"role": "assistant", "tool_calls": calls}, *results]
    found = OllamaChat.model_validate({"messages": turns}).fields().messages
    ids = [call.id for call in found[0].tool_calls or ()]
    assert [turn.tool_call_id for turn in found[1:]] == [ids[1], ids[0], ids[2], None]


def test_thoughts_and_cut_calls_are_told_apart() -> None:
    reply = OllamaReply(OllamaChat(model="tiny"), "tiny")
    begun: list[Part] = [CallBegun("a", "look"), CallArguments('{"x": 1'), CallArguments("}")]
    told = reply.said(reply.spoken([Reasoning("hm"), Content("so"), *begun]))["message"]
    assert told == {"role": "assistant", "content": "so", "thinking": "hm"}
    (call,) = reply.spoken([CallEnded(True)])["tool_calls"]
    assert call["function"]["arguments"] == {"x": 1}
    cut = reply.spoken([CallBegun("b", "look"), CallArguments('{"x"'), CallEnded(False)])
    assert "tool_calls" not in cut


@pytest.mark.parametrize("think", [True, False, "low"])
def test_a_model_that_does_not_think_is_not_made_to(live: Live, think: bool | str) -> None:
    body = chat(live, think=think)
    assert body["message"] == {"role": "assistant", "content": COPIED}


def test_log_probabilities(live: Live) -> None:
    *pieces, _ = lines(live, "/api/chat", messages=[user(COPY)], logprobs=True, top_logprobs=2)
    found = [one for piece in pieces for one in piece.get("logprobs", ())]
    assert "".join(one["token"] for one in found).strip() == COPIED
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 2 for one in found)
    (raw,) = lines_of_whole(live, prompt="The castle is", raw=True, logprobs=True, options={"num_predict": 4})
    assert len(raw["logprobs"]) == raw["eval_count"] == 4


def test_a_model_is_loaded_and_freed_without_a_question(pool: Pool) -> None:
    own = Pool(settings={"context": CONTEXT, "slots": 1})
    try:
        with running(own, ServerSettings(drain_seconds=0.0)) as live:
            asked = {"model": "tiny", "keep_alive": "0s"}
            freed = live.http.post("/api/generate", json=asked).json()
            assert (freed["done"], freed["done_reason"], freed["response"]) == (True, "unload", "")
            assert live.http.get("/api/ps").json() == {"models": []}
            assert "No model is loaded." in live.http.get("/").text
            loaded = live.http.post("/api/chat", json={"model": "tiny", "keep_alive": "5m"}).json()
            assert (loaded["done_reason"], loaded["message"]["content"]) == ("load", "")
            assert [one["name"] for one in live.http.get("/api/ps").json()["models"]] == ["tiny"]
            for stream in (True, False):
                text = live.http.post("/api/generate", json={"prompt": COPY, "keep_alive": 0, "stream": stream}).text
                assert json.loads(text.splitlines()[-1])["done"] is True
                assert eventually(lambda: live.http.get("/api/ps").json() == {"models": []})
    finally:
        own.close()


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ("/api/chat", {"messages": [user("x") | {"images": ["iVBORw0KGgo="]}]}, "images is not supported"),
        ("/api/chat", {"messages": [user("x")], "options": {"top_a": 2}}, "top_a"),
        ("/api/chat", {"messages": [user("x")], "options": {"temperature": -1}}, "options.temperature"),
        ("/api/chat", {"messages": [user("x")], "keep_alive": "soon"}, "duration such as 5m"),
        ("/api/chat", {"messages": [user("x")], "format": "yaml"}, "format"),
        ("/api/chat", {"messages": [user("long " * 2000)]}, "maximum context length is 1024"),
        ("/api/chat", {"messages": [user("x")], "tools": [{"type": "function", "function": {"name": "a b"}}]}, "'a b'"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template is not supported"),
        ("/api/generate", {"prompt": "x", "context": [1, 2], "raw": True}, "no place for context"),
        ("/api/generate", {"prompt": "x", "context": [1, 2], "suffix": "y"}, "no place for context"),
        ("/api/generate", {"prompt": "x", "context": "1 2"}, "context is '1 2'"),
        ("/api/generate", {"prompt": "x", "context": [1, "2"]}, "context.1 is '2'"),
        ("/api/generate", {"prompt": "x", "context": [1, True]}, "context.1 is True"),
        ("/api/generate", {"prompt": "x", "context": [1, -1]}, "context holds the token -1; ids are 0 to"),
        ("/api/generate", {"prompt": "x", "context": [10**30]}, "context holds the token 1000"),
        ("/api/generate", {"prompt": "x", "context": [1] * CONTEXT}, "maximum context length is 1024"),
        ("/api/generate", {"prompt": "x", "context": [1] * (CONTEXT - 4)}, "maximum context length is 1024"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "raw and suffix"),
        ("/api/generate", {"prompt": "x", "images": ["iVBORw0KGgo="]}, "images is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(live: Live, path: str, fields: dict[str, Any], said: str) -> None:
    assert said in error_of(live, path, **fields)
    assert eventually(lambda: not live.service.live["tiny"])


def test_an_unknown_model_is_not_found(live: Live) -> None:
    for path, asked in (("/api/chat", {"messages": [user("x")]}), ("/api/generate", {"prompt": "x"})):
        response = live.http.post(path, json={"model": "nobody:latest", **asked})
        assert response.status_code == 404
        assert response.json()["error"].startswith("model 'nobody:latest' not found")


class _Failing:
    """An answer that begins and fails."""

    def __init__(self) -> None:
        self.answers, self.closed = self, False

    async def news(self, silence: float) -> AsyncIterator[News | None]:
        yield News(0, cast("Event", None), [Content("so")])
        yield None
        raise ApiError(503, "unavailable_error", f"Nothing came for {silence:g} s.")

    def close(self) -> None:
        self.closed = True


def test_silence_is_an_empty_object_and_an_error_the_last_line() -> None:
    exchange = _Failing()
    reply = OllamaReply(OllamaChat(model="tiny"), "tiny")

    async def read() -> list[dict[str, Any]]:
        reply.exchange = cast("Exchange", exchange)
        return [json.loads(line) async for line in LINES.lines(reply.chunks(7.0), "/api/chat") if line]

    begun, silent, failed = asyncio.run(read())
    assert begun["message"]["content"] == "so"
    assert (silent["message"]["content"], silent["done"]) == ("", False)
    assert failed == {"error": "Nothing came for 7 s."}
    assert exchange.closed


def test_a_short_answer_of_a_named_model(live: Live) -> None:
    tool = {"type": "function", "function": WIKIPEDIA | {"parameters": SHORT_ANSWER}}
    assert chat(live, COPY, model="tiny:latest", tools=[tool])["model"] == "tiny:latest"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", None])
def test_a_body_is_json_whatever_it_is_called(live: Live, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    body = json.dumps({"model": "tiny", "prompt": COPY, "stream": False, "options": COLD})
    response = live.http.post("/api/generate", content=body.encode(), headers=headers)
    assert response.status_code == 200, response.text
    assert response.json()["response"]


def test_a_page_cannot_send_a_form(live: Live) -> None:
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://{live.http.base_url.netloc.decode()}",
    }
    response = live.http.post("/api/generate", content=b'{"model": "tiny"}', headers=headers)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]


def test_options_that_ollama_knows_no_more_are_told_in_a_header(live: Live) -> None:
    options = {"mirostat": 2, "tfs_z": 0.5, "num_predict": 4.0, "top_k": 40.0, "seed": 1.0}
    response = live.http.post("/api/generate", json={"prompt": COPY, "stream": False, "options": options})
    assert (response.status_code, response.json()["eval_count"]) == (200, 4)
    assert response.headers["Localspec-Ignored-Fields"] == "mirostat, tfs_z"
    assert "num_predict" in error_of(live, "/api/generate", prompt=COPY, options={"num_predict": 4.5})


def test_arguments_of_a_call_may_be_text() -> None:
    def read(arguments: Any) -> list[ChatMessage]:
        call = {"function": {"name": "f", "arguments": arguments}}
        body = {"messages": [user("x"), {"role": "assistant", "tool_calls": [call]}]}
        return OllamaChat.model_validate(body).fields().messages

    (call,) = list(read('{"a": "b"}')[1].tool_calls or ())
    assert call.function.arguments == '{"a": "b"}'
    assert read('{"a": "b"}') == read({"a": "b"})
    for wrong in ('["a"]', "a", 5):
        with pytest.raises(ValueError, match="arguments"):
            read(wrong)
