"""What a schema means where it says nothing, and what is kept of one that cannot be kept to."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.grammar.grammar import FORMATS, admits, bound, fault, loosened

TEXT = {"type": "string"}
A, B = {"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}
SHUT = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        (A, SHUT),
        ({"properties": {}}, SHUT),
        ({"type": "object"}, {}),
        ({**A, "additionalProperties": True}, {}),
        ({**A, "additionalProperties": TEXT}, {}),
        ({**A, "patternProperties": {"^x": TEXT}}, {}),
        ({**A, "required": ["a"]}, SHUT),
        ({**A, "required": ["b"]}, {}),
        ({**A, "anyOf": [{"required": ["a"]}, {"required": []}]}, SHUT),
        ({**A, "anyOf": [B]}, {}),
        ({**A, "$ref": "#/$defs/b", "$defs": {"b": B}}, {}),
    ],
)
def test_an_object_has_the_members_that_are_named_and_no_others(schema: Any, more: Any) -> None:
    assert bound(schema) == {**schema, **more}
    assert bound({"items": schema})["items"] == bound({"anyOf": [schema]})["anyOf"][0] or "$ref" in schema


def test_parts_that_are_put_together_are_open_and_alternatives_are_not() -> None:
    assert bound({"allOf": [A, B]}) == {"allOf": [A, B]}
    assert bound({"anyOf": [A, B]}) == {"anyOf": [{**A, **SHUT}, {**B, **SHUT}]}
    assert bound({"allOf": [A]}) == {"allOf": [{**A, **SHUT}]}
    named = {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A, "other": A}}
    assert bound(named) == {**named, "$defs": {"a": A, "other": {**A, **SHUT}}}
    tree = {"properties": {"next": {"$ref": "#"}}}
    assert bound(tree) == {**tree, **SHUT}
    assert bound({"enum": [A], "const": A, "properties": {"properties": TEXT}})["enum"] == [A], "values are no schemas"


@pytest.mark.parametrize("form", ["path", "password", "binary", "base64", "uri-reference", "int32", "unknown"])
def test_a_format_that_nobody_knows_is_a_note(form: str) -> None:
    assert admits({"properties": {"a": {**TEXT, "format": form}}}, {"a": "x"})
    assert bound({"properties": {"format": {"enum": [form]}}})["properties"] == {"format": {"enum": [form]}}


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_format_that_is_known_is_kept_to(form: str) -> None:
    assert not admits({**TEXT, "format": form}, "-"), "no date, time, address or the like"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"not": {"const": "x"}}, "'not' cannot be kept to"),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, "'uniqueItems' cannot be kept to"),
        ({"if": {"const": "x"}, "then": {}}, "'if', 'then' cannot be kept to"),
        ({"pattern": "(?=x).*"}, "the pattern '(?=x).*': look-around"),
        ({"$ref": "https://example.org/other.json"}, "the reference 'https://example.org/other.json' is not to a part"),
        ({"$ref": "#/definitions/x"}, "Pointer '/definitions/x' does not exist"),
        ({"oneOf": [TEXT, {"type": "string", "maxLength": 9}]}, "oneOf constraints are not supported"),
    ],
)
def test_the_rest_is_kept_of_a_schema_that_cannot_be_kept_to(schema: Any, why: str) -> None:
    whole = {
        "properties": {"a": {**TEXT, **schema} if schema.get("type") != "array" else schema, "n": {"type": "integer"}}
    }
    assert fault(whole).startswith(why)
    rest = loosened(whole)
    assert fault(rest) == ""
    assert admits(rest, {"a": ["x"] if "items" in schema else "x", "n": 1})
    assert not admits(rest, {"n": "x"})
    assert not admits(rest, {"other": 1})
