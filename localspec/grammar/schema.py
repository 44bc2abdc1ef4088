"""JSON schemas as they are kept to: objects have the members that are named, and unknown formats are notes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
"""Those that llguidance keeps to."""
_ONE = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains")
_SAME = ("not", "if", "then", "else", "propertyNames")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_OPENS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
"""Keys that say which other members there may be."""
_SHAPES = ("properties", "$ref", "allOf", "anyOf", "oneOf", "if")
_BEYOND = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P[=>]")
"""What Python's and JavaScript's patterns have and llguidance's have not: looking around, and referring back."""


def bound(schema: Any) -> Any:
    """The schema with defaults and notes as llama.cpp has them.

    An object with `properties` and nothing said of others has no others, unless several parts of the schema name
    members of it, as with `allOf`. A `format` that llguidance does not know is left out.
    """
    root = json.loads(json.dumps(schema))
    every = list(_within(root))
    parts: set[int] = set()
    for one in every:
        if id(one) not in parts:
            _mark(one, root, parts)
    for one in every:
        form, properties, required = one.get("format"), one.get("properties"), one.get("required")
        if isinstance(form, str) and form not in FORMATS:
            del one["format"]
        if not isinstance(properties, dict) or id(one) in parts or any(key in one for key in _OPENS):
            continue
        if not isinstance(required, list) or all(str(name) in properties for name in required):
            one["additionalProperties"] = False
    return root


def loosened(schema: Any) -> Any:
    """What llguidance can keep to of a schema, for calls of tools that are not strict."""
    root = bound(schema)
    for one in _within(root):
        pattern, reference = one.get("pattern"), one.get("$ref")
        if isinstance(pattern, str) and _BEYOND.search(pattern):
            del one["pattern"]
        if isinstance(reference, str) and _target(root, reference) is None:
            del one["$ref"]
    return {**root, "x-guidance": {"lenient": True, "coerce_one_of": True}}


def _within(root: Any) -> Iterator[dict[str, Any]]:
    """All schemas within one, itself included."""
    todo = [root]
    while todo:
        one = todo.pop()
        if not isinstance(one, dict):
            continue
        yield one
        todo += [one[key] for key in (*_ONE, *_SAME) if key in one]
        todo += [part for key in _LISTS if isinstance(one.get(key), list) for part in one[key]]
        todo += [part for key in _NAMED if isinstance(one.get(key), dict) for part in one[key].values()]


def _beside(one: Mapping[str, Any], root: Any) -> list[dict[str, Any]]:
    """Schemas that say more of the values of one."""
    found = [part for key in ("allOf", "anyOf", "oneOf") if isinstance(one.get(key), list) for part in one[key]]
    found += [one[key] for key in ("if", "then", "else") if key in one]
    if isinstance(one.get("dependentSchemas"), dict):
        found += one["dependentSchemas"].values()
    if isinstance(one.get("$ref"), str):
        found.append(_target(root, one["$ref"]))
    return [part for part in found if isinstance(part, dict)]


def _mark(one: dict[str, Any], root: Any, parts: set[int]) -> None:
    """Adds a schema and those beside it, if several of them may name members of an object."""
    beside = _beside(one, root)
    naming = [part for part in beside if any(key in part for key in _SHAPES)]
    ways = [key for key in ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas") if key in one]
    alternatives = ways in (["anyOf"], ["oneOf"], ["$ref"]) or (ways == ["allOf"] and len(beside) < 2)
    if not naming or (alternatives and "properties" not in one):
        return
    todo = [one]
    while todo:
        part = todo.pop()
        if id(part) not in parts:
            parts.add(id(part))
            todo += _beside(part, root)


def _target(root: Any, reference: str) -> Any:
    """What a reference within a schema is to; None = it is to nothing there."""
    if not reference.startswith("#"):
        return None
    found = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
