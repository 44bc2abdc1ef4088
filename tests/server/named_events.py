"""Server-sent events that carry a name, as the Messages and the Responses API send them."""

from __future__ import annotations

import json
from typing import Any

from tests.server.live import Live, user

WIKIPEDIA: dict[str, Any] = {
    "name": "wikipedia",
    "description": "Looks something up.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
SHORT_ANSWER = {
    "type": "object",
    "properties": {"query": {"enum": ["a", "b"]}},
    "required": ["query"],
    "additionalProperties": False,
}
"""For tools that are forced: parameters that are complete after a few tokens, whichever."""
SUBJECT = "green tower"
LOOK_UP = f"Look up {SUBJECT}."
"""What the bundled pair answers with a call of that tool, on any CPU, as with `COPY`."""
QUERY, QUERY_JSON = {"query": SUBJECT}, f'{{"query": "{SUBJECT}"}}'


RESULT = '{"summary": "It is old."}'
"""What that tool may say."""


def said_of(live: Live, result: str = RESULT) -> str:
    """What the model makes of a result of the tool. Whatever the words are, each client must hear the same ones."""
    function = {"name": "wikipedia", "arguments": QUERY_JSON}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    turns = [user(LOOK_UP), call, {"role": "tool", "tool_call_id": "a", "content": result}]
    prompt = live.http.post("/apply-template", json={"messages": turns}).json()["prompt"]
    assert json.loads(result)["summary"] in prompt
    sent = {"messages": turns, "tools": [{"type": "function", "function": WIKIPEDIA}], "temperature": 0}
    text: str = live.http.post("/v1/chat/completions", json=sent).json()["choices"][0]["message"]["content"]
    assert text
    return text


def named_events(live: Live, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Data of all events of a streamed request, whose names and form are checked."""
    response = live.http.post(path, json=fields | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    found = []
    for event in response.text[:-2].split("\n\n"):
        name, data = event.split("\n")
        assert data.startswith("data: ")
        body: dict[str, Any] = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        found.append(body)
    return found
