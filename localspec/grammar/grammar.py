"""What an answer must look like: a JSON schema, a grammar, a regular expression. Checked by `matcher.Compiler`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localspec.errors import UsageError
from localspec.grammar.schema import bound

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
        """JSON values that a schema admits, which is itself JSON text; see `schema.bound`.

        Raises:
            UsageError: a mistake in the schema.
        """
        from llguidance import LLMatcher

        try:
            made = json.dumps(bound(json.loads(text)))
            return cls("JSON schema", LLMatcher.grammar_from_json_schema(made, overrides=JSON_OPTIONS))
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


# What is wrong with a grammar, in the words of the person who wrote it: without names, places and copies
# of what it was made into.

ENDLESS = "it never gets to a text: a rule or a reference only leads back to itself"
_ENDLESS = "NoExtensionBias"
"""llguidance's word where no token can come first."""
_COPY = re.compile(r" \d+ \| .*")
"""The lines of the grammar around a mistake; they are those of a translation."""
_PLACE = re.compile(
    r"\bat \d+\(\d+\): |\(in \w+\): |(?:lexer|parser) error: |failed to compile JSON schema: ", re.IGNORECASE
)
_LARGE = re.compile(r"\b(?:lexer|grammar)\b.*\b(?:too (?:big|large)|limit)\b")
"""llguidance's words where what it made of a text is larger than it takes."""
_PATTERN = re.compile(r"(?:invalid regex .*?)?regex parse error: (?P<pattern>.*?) \^+ error: (?P<why>.*)")
_KEYS = re.compile(r'Unimplemented keys: \[(?P<keys>".*?")\]')
_FOREIGN = re.compile(r"Resource '(?P<name>.*?)' is not present.*")


def words(text: str) -> str:
    """A sentence without its full stop.

    Args:
        text: what llguidance, or what translates for it, says; any number of lines.
    """
    said = _COPY.sub("", " ".join(text.split("<state>")[0].split()))
    if _ENDLESS in said:
        return ENDLESS
    if _LARGE.search(said):
        return "it is too large"
    said = _PLACE.sub("", said)
    if found := _PATTERN.search(said):
        said = f"the pattern {found['pattern']!r}: {found['why']}"
    if found := _KEYS.search(said):
        said = f"{found['keys'].replace(chr(34), chr(39))} cannot be kept to"
    if found := _FOREIGN.search(said):
        said = f"the reference {found['name']!r} is not to a part of the schema, and nothing is fetched"
    return said.rstrip(" ^.") or "it gives no reason"
