"""Whether a schema admits a value, whatever the order of its members."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.grammar.grammar import admits

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "at": {"type": "array", "items": {"type": "object", "properties": {"x": {}, "y": {"enum": ["a", "b"]}}}},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"city": "Oslo"}, True),
        ({"days": 2, "city": 'Köln "am" Rhein\n'}, True),
        ({"at": [{"y": "b", "x": [1.5, None]}], "city": ""}, True),
        ({"at": [{"y": "c"}], "city": ""}, False),
        ({"city": "Oslo", "days": 0}, False),
        ({"city": "Oslo", "days": "2"}, False),
        ({"city": 5}, False),
        ({"days": 2}, False),
        ({"city": "Oslo", "more": 1}, False),
        ("Oslo", False),
    ],
)
def test_a_value_fits_or_not(value: Any, fits: bool) -> None:
    assert admits(CITY, value) is fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "("},
        {"$ref": "#"},
        {"$ref": "http://x.example/y"},
        {"description": "x" * 20_000},
        {"type": "string", "enum": {1, 2}},
    ],
)
def test_a_schema_that_cannot_be_used_admits_nothing(schema: dict[str, Any]) -> None:
    assert admits(schema, "x") is False


def test_a_pattern_that_keeps_other_engines_busy_does_not() -> None:
    assert admits({"type": "string", "pattern": "^(a+)+$"}, "a" * 40 + "b") is False
    assert admits({}, {"anything": [1, {"at": "all"}]}) is True
