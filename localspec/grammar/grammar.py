"""What an answer must look like: a JSON schema, a grammar, a regular expression; and whether a value fits a schema."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

from localspec.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions


LARGE = 16 * 1024
"""Characters from which on a grammar is tried first, in another process."""
_Result = TypeVar("_Result")
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
    for one in every:  # a schema and those beside it are parts, if several of them may name members of an object
        beside = _beside(one, root)
        ways = [key for key in ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas") if key in one]
        alternatives = ways in (["anyOf"], ["oneOf"], ["$ref"]) or (ways == ["allOf"] and len(beside) < 2)
        naming = any(key in part for part in beside for key in _SHAPES)
        todo = [one] if naming and ("properties" in one or not alternatives) else []
        while todo:
            part = todo.pop()
            if id(part) not in parts:
                parts.add(id(part))
                todo += _beside(part, root)
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


JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})"}
"""A blank or a line break with its indentation between two JSON tokens: models that may write any whitespace go on
writing it for ever. llama.cpp allows the same."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where a grammar begins and ends to hold."""

    opening: int
    """Token at which it begins to hold, and which is the first it takes."""
    thought: tuple[int, int] = (-1, -1)
    """Tokens around a thought, in which the opening means nothing; -1 = there is none."""
    thinking: bool = False
    """The answer begins within a thought."""
    again: bool = False
    """What comes after the grammar is complete is free until the next opening; else the answer is over there."""
    said: tuple[int, ...] = ()
    """Tokens of the prompt that the grammar takes first, the opening among them; () = the answer begins free."""


Kind = Literal["schema", "gbnf", "regex", "lark", "read"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like; hashable, and tied to no model."""

    kind: Kind
    """Notation of the source; `read` = that of llguidance."""
    source: str
    """As it was written; a schema is the text of a JSON object."""
    name: str = ""
    """Its author's name for it, for messages: "JSON schema", "GBNF grammar", ...; "" = by its kind."""
    trigger: Trigger | None = None
    """Where it begins to hold; None = at once."""

    @classmethod
    def json_object(cls) -> Grammar:
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON values that a schema admits. Raises UsageError: a mistake in the schema."""
        if not isinstance(schema, Mapping | bool):
            raise UsageError(f"A JSON schema is an object, and this is {json.dumps(schema, default=str)[:80]}.")
        try:
            text = json.dumps({} if schema is True else {"not": {}} if schema is False else dict(schema))
        except (ValueError, TypeError, RecursionError) as error:
            raise _unreadable("JSON schema", error) from error
        return cls("schema", text).read()

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A grammar in llama.cpp's notation, with a rule `root`. Raises UsageError: a mistake in the grammar."""
        return cls("gbnf", text).read()

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Answers that a regular expression matches as a whole (Rust's syntax, without look-around)."""
        return cls("regex", text).read()

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A grammar in Lark's notation as llguidance knows it, with a rule `start`."""
        return cls("lark", text).read()

    def read(self) -> Grammar:
        """The same in llguidance's notation; of a schema what `bound` makes of it.
        Raises UsageError: a mistake in the grammar.
        """
        if self.kind == "read":
            return self
        from llguidance import LLMatcher

        name, source = _NAMES[self.kind], self.source
        try:
            if self.kind == "schema":
                made = LLMatcher.grammar_from_json_schema(json.dumps(bound(json.loads(source))), overrides=JSON_OPTIONS)
            elif self.kind == "gbnf":
                from llguidance.gbnf_to_lark import gbnf_to_lark

                made = gbnf_to_lark(source)
            else:
                made = (LLMatcher.grammar_from_regex if self.kind == "regex" else LLMatcher.grammar_from_lark)(source)
        except Exception as error:
            raise _unreadable(name, error) from error
        return Grammar("read", made, self.name or name, self.trigger)


_NAMES = {"schema": "JSON schema", "gbnf": "GBNF grammar", "regex": "regular expression", "lark": "Lark grammar"}


def _unreadable(name: str, error: Exception) -> UsageError:
    return UsageError(f"The {name} cannot be read: {words(str(error) or type(error).__name__)}.")


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
    """What llguidance, or what translates for it, says, as a sentence without its full stop."""
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


# Whether a JSON value is one that a schema admits. llguidance, which forces such values, says so; no pattern of a
# schema can keep it busy.


def admits(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a schema admits a JSON value; False for a schema that is large or cannot be read."""
    try:
        text = json.dumps(schema)
        said = list(json.dumps(_ordered(value, schema), ensure_ascii=False).encode("utf-8", "replace"))

        def matches() -> bool:
            matcher = byte_matcher(Grammar("schema", text).read())
            if matcher.is_error() or matcher.validate_tokens(said) != len(said) or not matcher.consume_tokens(said):
                return False
            return bool(matcher.is_stopped() or matcher.is_accepting())

        return len(text) <= LARGE and deeply(matches)
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
    try:
        grammar = Grammar("schema", text).read()
    except UsageError as error:
        return error.message.partition(": ")[2].rstrip(".")
    matcher = deeply(lambda: byte_matcher(grammar))
    return words(matcher.get_error()) if matcher.is_error() else ""


def byte_matcher(grammar: Grammar) -> LLMatcher:
    """llguidance's matcher with a vocabulary of bytes."""
    from llguidance import LLMatcher, LLTokenizer

    return LLMatcher(LLTokenizer("byte"), grammar.source, log_level=0)


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


# A stack for work that recurses as deep as its input says: llguidance ends the whole process where its stack ends.

COMPILING = 64 << 20
"""Bytes of stack for compiling grammars; only what is used of it takes memory. A chain of references in a schema takes
about 10 KB a link, so that 16 KB of schema need less than 10 MB."""
TRYING = 16 << 20
"""Bytes of stack for trying them: what passes there has room for four times as much."""
_SIZE = threading.Lock()


def deeply(work: Callable[[], _Result], stack: int = COMPILING) -> _Result:
    """What `work` returns or raises, run on a thread of its own with `stack` bytes of stack."""
    result: Future[_Result] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            result.set_exception(error)

    thread = threading.Thread(target=run, name="localspec-grammar", daemon=True)
    with _SIZE:  # the size holds for all threads that start meanwhile
        before = threading.stack_size(stack)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return result.result()
