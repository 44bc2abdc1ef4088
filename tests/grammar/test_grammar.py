"""Grammars on a real vocabulary: what they allow, where they end, and what is wrong with bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import GrammarError, KernelError, LocalspecError, UsageError
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler, Matcher
from localspec.llama.model import Model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GBNF = 'root ::= ("yes" | "no") ", " word\nword ::= [a-z]+ "."'


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def compiler(model: Model) -> Compiler:
    return Compiler(model)


def tokens_of(model: Model, text: str) -> list[int]:
    found: list[int] = model.tokenize(text, special=False, add_bos=False).tolist()
    return found


def begun(compiler: Compiler, grammar: Grammar, model: Model, text: str = "") -> Matcher:
    matcher = compiler.compile(grammar).fresh()
    for token in tokens_of(model, text):
        matcher.advance(token)
    return matcher


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (Grammar.json_object(), ['{"a": [1, null]}', "{}", '{\n  "b": {}}'], ["[1]", '{"a"}', "1"]),
        (Grammar.json_schema(PERSON), ['{"name": "Ann", "age": 3}', '{"name":"","age":-1}'], ['{"age": 3}', "{}"]),
        (Grammar.json_schema({"enum": ["red", 7]}), ['"red"', "7"], ['"blue"', "8"]),
        (Grammar.json_schema(True), ["1", '"x"', "[{}]"], ["x"]),
        (Grammar.gbnf(GBNF), ["yes, ok.", "no, a."], ["maybe", "yes ok."]),
        (Grammar.regex(r"[0-9]{3}-[a-f]+;"), ["123-abc;"], ["12-a;", "123-x;"]),
        (Grammar.lark('start: "a" INT "z"\nINT: /[0-9]+/'), ["a12z"], ["az", "b1z"]),
    ],
    ids=lambda value: value.name if isinstance(value, Grammar) else "",
)
def test_it_takes_what_it_should_and_nothing_else(
    grammar: Grammar, good: list[str], bad: list[str], compiler: Compiler, model: Model
) -> None:
    for text in good:
        matcher = compiler.compile(grammar).fresh()
        for token in tokens_of(model, text):
            mask = matcher.mask([])
            assert mask is not None
            assert mask[token], f"{model.detokenize([token])!r} in {text!r}"
            matcher.advance(token)
        ends = matcher.mask([])
        assert matcher.complete or (ends is not None and ends[sorted(model.end_tokens)].all()), "every end token"
    for text in bad:
        tokens = tokens_of(model, text)
        assert compiler.compile(grammar).fresh().fits([*tokens, model.eos or 0]) <= len(tokens)


def test_a_path_says_what_saying_its_tokens_would_say(compiler: Compiler, model: Model) -> None:
    text = '{"name": "Al", "age": 41 }'
    tokens = tokens_of(model, text)
    for start in range(len(tokens)):
        looking = begun(compiler, Grammar.json_schema(PERSON), model)
        for token in tokens[:start]:
            looking.advance(token)
        for length in range(len(tokens) - start + 1):
            saying = compiler.compile(Grammar.json_schema(PERSON)).fresh()
            for token in tokens[: start + length]:
                saying.advance(token)
            there, here = looking.mask(tokens[start : start + length]), saying.mask([])
            assert (there is None) == (here is None) == (start + length == len(tokens))
            assert there is None or (there == here).all()
        assert looking.fits(tokens[start:]) == len(tokens) - start
        assert not looking.complete


def test_forced_tokens_are_those_without_a_choice(compiler: Compiler, model: Model) -> None:
    matcher = begun(compiler, Grammar.json_schema(PERSON), model, '{"')
    assert model.detokenize(matcher.forced()).startswith("name")
    assert matcher.fits(matcher.forced().tolist()) == len(matcher.forced())
    free = begun(compiler, Grammar.json_object(), model, '{"')
    assert len(free.forced()) == 0


def test_an_end_token_ends_it_and_only_where_it_may(compiler: Compiler, model: Model) -> None:
    for end in model.end_tokens:
        matcher = begun(compiler, Grammar.regex("[ab]+"), model, "ab")
        assert matcher.fits([end]) == 1
        assert matcher.mask([end]) is None
        matcher.advance(end)
        assert matcher.complete
        assert matcher.fits(tokens_of(model, "a")) == 0
        with pytest.raises(KernelError, match="does not take token"):
            compiler.compile(Grammar.regex("[ab]+")).fresh().advance(end)


def alike(count: int) -> dict[str, Any]:
    """A schema that is small, and whose alternatives begin alike, each in as many ways."""
    inner = [{"type": "array", "items": {"type": "integer"}, "minItems": least} for least in range(1, count + 1)]
    outer = [{"type": "array", "items": {"anyOf": inner}, "minItems": least} for least in range(1, count + 1)]
    return {"anyOf": outer}


def test_a_schema_that_becomes_too_complex_while_answering_says_so(compiler: Compiler, model: Model) -> None:
    matcher = compiler.compile(Grammar.json_schema(alike(60))).fresh()
    with pytest.raises(GrammarError, match="The JSON schema became too complex while the answer was written: C") as e:
        matcher.advance(tokens_of(model, "[")[0])
    assert "\n" not in str(e.value)
    assert "alternatives that begin alike" in e.value.hint
    assert len(matcher.forced()) == matcher.fits(tokens_of(model, "[")) == 0
    with pytest.raises(GrammarError):
        matcher.mask(())
    other = compiler.compile(Grammar.json_schema(alike(60))).fresh()
    for _ in range(2):
        with pytest.raises(GrammarError):
            other.mask(tokens_of(model, "["))
    assert other.fits(tokens_of(model, "[")) == 1, "only that path is too complex"
    assert other.mask(()) is not None


def test_a_matcher_begins_anew_whatever_became_of_the_one_before(compiler: Compiler, model: Model) -> None:
    first = begun(compiler, Grammar.json_schema(PERSON), model, '{"name"')
    again, new = first.fresh().mask([]), compiler.compile(Grammar.json_schema(PERSON)).mask([])
    assert again is not None
    assert new is not None
    assert (again == new).all()
    assert compiler.compile(Grammar.json_schema(PERSON)) is compiler.compile(Grammar.json_schema(dict(PERSON)))


def test_whitespace_does_not_go_on_for_ever(compiler: Compiler, model: Model) -> None:
    matcher = compiler.compile(Grammar.json_object()).fresh()
    blanks = [token for token in range(model.n_vocab) if model.piece(token) and not model.piece(token).strip()]
    for token in tokens_of(model, "{"):
        matcher.advance(token)
    for _ in range(30):
        mask = matcher.mask([])
        assert mask is not None
        allowed = [token for token in blanks if mask[token]]
        if not allowed:
            return
        matcher.advance(allowed[0])
    raise AssertionError("thirty blanks and no end")


def any_json(rng: np.random.Generator, matcher: Matcher, model: Model, most: int) -> str:
    """Random tokens that are allowed, until the grammar is complete."""
    said: list[int] = []
    while not matcher.complete and len(said) < most:
        mask = matcher.mask([])
        assert mask is not None
        said.append(int(rng.choice(np.flatnonzero(mask))))
        matcher.advance(said[-1])
    return model.detokenize([token for token in said if token not in model.end_tokens])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        {"type": "object", "properties": {"k": {"enum": ["x", "y"]}}, "required": ["k"], "additionalProperties": False},
        {"type": "integer", "minimum": 3, "maximum": 900},
        {"anyOf": [{"type": "null"}, {"const": "one"}]},
    ],
    ids=str,
)
def test_whatever_is_drawn_is_json(schema: dict[str, Any], compiler: Compiler, model: Model) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        json.loads(any_json(rng, compiler.compile(Grammar.json_schema(schema)).fresh(), model, 200))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Grammar.json_schema({"type": "foo"}), "JSON schema cannot be used: Invalid type: foo."),
        (lambda: Grammar.json_schema({"$ref": "#/nope"}), "JSON schema cannot be used: .*'/nope' does not exist."),
        (
            lambda: Grammar.json_schema({"not": {"type": "string"}}),
            "JSON schema cannot be used: 'not' cannot be kept to.",
        ),
        (lambda: Grammar.json_schema([1, 2]), "A JSON schema is an object, and this is .1, 2."),  # type: ignore[arg-type]
        (lambda: Grammar.json_schema({"enum": {1, 2}}), "JSON schema cannot be read"),
        (lambda: Grammar.json_schema(False), "JSON schema cannot be used"),
        (lambda: Grammar.regex("("), "regular expression cannot be used: .*unclosed group"),
        (lambda: Grammar.gbnf('root ::= "a" b'), "GBNF grammar cannot be read: Rule 'b' not found."),
        (lambda: Grammar.gbnf('root := "a"'), "GBNF grammar cannot be read: Expected ::= at line 1"),
        (lambda: Grammar.gbnf(""), "GBNF grammar cannot be read: No 'root' rule found."),
        (lambda: Grammar.lark("begin: A"), "Lark grammar cannot be used"),
        (
            lambda: Grammar.json_schema({"enum": [f"x{i}" for i in range(100000)]}),
            "JSON schema cannot be used: it is too large",
        ),
    ],
)
def test_a_bad_grammar_is_refused_in_one_sentence(make: Any, said: str, compiler: Compiler) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        compiler.compile(make())
    assert "\n" not in str(caught.value)


def test_nothing_is_compiled_for_a_closed_model(model: Model) -> None:
    compiler = Compiler(model)
    compiler.close()
    with pytest.raises(LocalspecError, match="closed"):
        compiler.compile(Grammar.json_object())
