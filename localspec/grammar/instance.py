"""Whether a JSON value is one that a schema admits. llguidance, which forces such values, says so; no pattern of a
schema can keep it busy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from localspec.errors import UsageError
from localspec.grammar.deep_stack import deeply
from localspec.grammar.grammar import Grammar, words
from localspec.grammar.trial import LARGE


def admits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a schema admits a value; False for a schema that is large or cannot be read.

    Args:
        schema: a JSON schema.
        value: what `json.loads` makes of a text.
    """
    try:
        text = json.dumps(schema)
        said = json.dumps(_ordered(value, schema), ensure_ascii=False)
        return len(text) <= LARGE and deeply(lambda: _matches(Grammar.schema_text(text), said))
    except (UsageError, ValueError, TypeError, RecursionError):
        return False


def fault(schema: Mapping[str, Any]) -> str:
    """Why answers cannot be held to a schema, as a sentence without its end; "" = they can, or it is large: then that
    is tried in another process.
    """
    text = json.dumps(schema)
    return _fault(text) if len(text) <= LARGE else ""


@lru_cache(maxsize=256)  # a program sends the same tools with every request
def _fault(text: str) -> str:
    from llguidance import LLMatcher, LLTokenizer

    try:
        source = Grammar.schema_text(text).source
    except UsageError as error:
        return error.message.partition(": ")[2].rstrip(".")
    matcher = deeply(lambda: LLMatcher(LLTokenizer("byte"), source, log_level=0))
    return words(matcher.get_error()) if matcher.is_error() else ""


def _matches(grammar: Grammar, text: str) -> bool:
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), grammar.source, log_level=0)
    said = list(text.encode("utf-8", "replace"))
    return not matcher.is_error() and matcher.validate_tokens(said) == len(said) and _ends(matcher, said)


def _ends(matcher: Any, said: list[int]) -> bool:
    return bool(matcher.consume_tokens(said)) and bool(matcher.is_stopped() or matcher.is_accepting())


def _ordered(value: Any, schema: Any) -> Any:
    """The same with the members of objects as the schema has them: llguidance takes them in this order only."""
    if not isinstance(schema, Mapping):
        return value
    if isinstance(value, list):
        return [_ordered(one, schema.get("items")) for one in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, Mapping):
        return value
    names = [*(name for name in properties if name in value), *(name for name in value if name not in properties)]
    return {name: _ordered(value[name], properties.get(name)) for name in names}
