"""What an answer must look like: a JSON schema, a grammar, a regular expression. Checked by `matcher.Compiler`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localspec.errors import UsageError
from localspec.grammar.fault import words

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})"}
"""A blank or a line break with its indentation between two JSON tokens: models that may write any whitespace go on
writing it for ever. llama.cpp allows the same."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like; hashable, and tied to no model."""

    kind: str
    """In words, for messages: "JSON schema", "GBNF grammar", ..."""
    source: str
    """In the form that llguidance takes."""

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON values that a schema admits.

        Raises:
            UsageError: the schema is no JSON object.
        """
        if not isinstance(schema, Mapping | bool):
            raise UsageError(f"A JSON schema is an object, and this is {json.dumps(schema, default=str)[:80]}.")
        try:
            text = json.dumps({} if schema is True else {"not": {}} if schema is False else dict(schema))
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"The JSON schema cannot be read: {words(str(error) or type(error).__name__)}.") from error
        return cls.schema_text(text)

    @classmethod
    def schema_text(cls, text: str) -> Grammar:
        """JSON values that a schema admits, which is itself JSON text.

        Raises:
            UsageError: a mistake in the schema.
        """
        from llguidance import LLMatcher

        try:
            return cls("JSON schema", LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS))
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"The JSON schema cannot be read: {words(str(error) or type(error).__name__)}.") from error

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's notation, with a rule `root`.

        Raises:
            UsageError: a mistake in the grammar.
        """
        from llguidance.gbnf_to_lark import gbnf_to_lark

        try:
            return cls("GBNF grammar", gbnf_to_lark(text))
        except Exception as error:
            raise UsageError(
                f"The GBNF grammar cannot be read: {words(str(error) or type(error).__name__)}."
            ) from error

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Answers that a regular expression matches as a whole (Rust's syntax, without look-around)."""
        from llguidance import LLMatcher

        return cls("regular expression", LLMatcher.grammar_from_regex(text))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in Lark's notation as llguidance knows it, with a rule `start`."""
        from llguidance import LLMatcher

        return cls("Lark grammar", LLMatcher.grammar_from_lark(text))
