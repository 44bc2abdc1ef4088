"""What is wrong with a body, a schema or a grammar is told in a sentence without the names of what read it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.server.live import Live, error_of, user

NAMES = re.compile(
    r"llguidance|NoExtensionBias|%|\^|start:|\bat \d+\(\d+\)|lexer|parser|regex parse|retriev|pydantic|recursion|\n",
    re.IGNORECASE,
)
"""Names of libraries, their places and their copies of a grammar."""
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
ENDLESS = "only leads back to itself"


def deep(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = [found]
    return found


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (schema(LOOP), ENDLESS),
        (schema({"$ref": "#"}), ENDLESS),
        (schema({"$ref": "#/$defs/none"}), "'/$defs/none' does not exist"),
        (schema({"$ref": "http://x.example/y"}), "'http://x.example/y' is not to a part of the schema"),
        (schema({"type": "string", "pattern": "("}), "the pattern '(': unclosed group"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5) is greater than maximum (3)"),
        ({"grammar": "root ::= root"}, ENDLESS),
        ({"grammar": "root ::= a\na ::= root"}, ENDLESS),
        ({"grammar": "root ::= a"}, "Rule 'a' not found"),
        ({"grammar": "root ::= [z-a]"}, "the pattern '[z-a]': invalid character class range"),
        ({"grammar": 'root ::= "a"{5,2}'}, "range end must be >= start, got (5, 2)"),
        ({"guided_regex": "("}, "the pattern '(': unclosed group"),
        ({"guided_regex": "(?=a)b"}, "the pattern '(?=a)b': look-around"),
        ({"guided_regex": "(a{1000}){1000}"}, "too many expressions"),
        ({"guided_json": "{"}, "guided_json is not JSON"),
        ({"guided_json": "[" * 300 + "]" * 300}, "guided_json nests too deeply: JSON of at most 200 levels"),
        ({"metadata": deep(300)}, "The body nests too deeply: JSON of at most 200 levels"),
    ],
)
def test_what_cannot_be_used_is_a_sentence_of_ours(live: Live, fields: dict[str, Any], said: str) -> None:
    response = live.http.post("/v1/chat/completions", json={"messages": [user("Hi")], "max_tokens": 2} | fields)
    assert response.status_code == 400, response.text
    message = error_of(response)["message"]
    assert said in message
    assert not NAMES.search(message), message


def tools(parameters: dict[str, Any]) -> dict[str, Any]:
    """Two tools, one of which must be called."""
    given = {"big": parameters, "small": {"type": "object"}}
    return {
        "tools": [{"type": "function", "function": {"name": name, "parameters": one}} for name, one in given.items()],
        "tool_choice": "required",
    }


def chained(links: int) -> dict[str, Any]:
    """A schema whose references are so many steps deep."""
    steps = {f"d{one}": {"type": "array", "items": {"$ref": f"#/$defs/d{one + 1}"}} for one in range(links)}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": steps | {f"d{links}": {}}}


LONG = {"type": "object", "properties": {"x": {"enum": ["x" * 1000 + str(one) for one in range(600)]}}}
BIG = "set of 2 tools, the largest of which is 'big' with"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (tools(LONG), f"tools (the {BIG} 604"),
        (tools(LONG), "at most 524288 are read"),
        (tools(LONG) | schema({"type": "object"}), f"response_format (the JSON schema beside the {BIG} 604"),
        (tools(chained(5000)), f"The {BIG} 31"),
        (tools(chained(5000)), "takes too much memory or nests too deeply"),
        (schema(LONG), "response_format has 604"),
        ({"guided_choice": ["x" * 600 + str(one) for one in range(1000)]}, "guided_choice (the choice) has 60"),
    ],
)
def test_what_is_too_large_is_named_as_the_client_knows_it(live: Live, fields: dict[str, Any], said: str) -> None:
    response = live.http.post("/v1/chat/completions", json={"messages": [user("Hi")], "max_tokens": 2} | fields)
    assert response.status_code == 400, response.text
    message = error_of(response)["message"]
    assert said in message
    assert not re.search("lark|grammar", message, re.IGNORECASE), message
    assert not NAMES.search(message), message


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/tokenize"])
def test_a_body_that_nests_too_deeply_is_refused_everywhere(live: Live, path: str) -> None:
    body = b'{"x":' * 5000 + b"1" + b"}" * 5000
    response = live.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert "at most 200 levels" in response.json()["error"]["message"]


def test_levels_that_are_allowed_are_read(live: Live) -> None:
    fields = {"messages": [user("Hi")], "max_tokens": 1, "metadata": deep(190)}
    assert live.http.post("/v1/chat/completions", json=fields).status_code == 200
