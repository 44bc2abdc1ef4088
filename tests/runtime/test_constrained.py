"""Answers under a grammar with the bundled pair: plain and speculative text is the same, and what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from localspec import Engine, Message, SamplingParams
from localspec.engine.slot import FinishReason
from localspec.errors import UsageError
from localspec.grammar.grammar import Grammar
from localspec.runtime.generation import Generation

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "city": {"enum": ["Lisbon", "Oslo", "Rome"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "city", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar.json_schema(PERSON),
    "nested": Grammar.json_schema({"type": "array", "items": PERSON, "minItems": 2, "maxItems": 2}),
    "any object": Grammar.json_object(),
    "words": Grammar.gbnf('root ::= word (" " word){3,9} "."\nword ::= [a-z]{1,9}'),
    "regex": Grammar.regex(r"The (cat|dog|bird) (sat|ran) [a-z ]{5,30}\."),
}
QUESTION = [Message("user", "Maria is 31 and lives in Oslo. She likes tea and maps. Repeat this as JSON.")]


@pytest.fixture(scope="module", params=[1, 3], ids=["chains", "trees"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine.load(exact="strict", context=1024, branches=request.param) as loaded:
        yield loaded


def ask(engine: Engine, grammar: Grammar | None, seed: int, temperature: float, **more: Any) -> Generation:
    sampling = SamplingParams(temperature=temperature)
    more = {"max_tokens": 100, **more}
    return engine.chat(QUESTION, sampling=sampling, seed=seed, grammar=grammar, **more)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.trial)], ids=["", "trial"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", GRAMMARS)
def test_drafting_does_not_change_constrained_text(engine: Engine, name: str, temperature: float, seeds: range) -> None:
    for seed in seeds:
        plain = ask(engine, GRAMMARS[name], seed, temperature, drafter="none")
        expected = plain.text()
        for drafter in ("auto", "draft", "lookup", "grammar"):
            found = ask(engine, GRAMMARS[name], seed, temperature, drafter=drafter)
            assert (found.text(), found.tokens, found.finish) == (expected, plain.tokens, plain.finish)
            assert found.stats.exact
        if plain.finish is FinishReason.STOP:
            assert_follows(name, expected)


def assert_follows(name: str, text: str) -> None:
    if name == "words":
        assert re.fullmatch(r"[a-z]{1,9}( [a-z]{1,9}){3,9}\.", text)
    elif name == "regex":
        assert re.fullmatch(r"The (cat|dog|bird) (sat|ran) [a-z ]{5,30}\.", text)
    elif name == "schema":
        found = json.loads(text)
        assert set(found) == set(PERSON["properties"])
        assert found["city"] in ("Lisbon", "Oslo", "Rome")
        assert 0 <= found["age"] <= 120
    else:
        json.loads(text)


def test_the_end_comes_with_the_grammars_and_not_before(engine: Engine) -> None:
    digits = Grammar.regex("[0-9]{12}")
    found = ask(engine, digits, 1, 1.0, ignore_end=True)
    assert re.fullmatch("[0-9]{12}", found.text())
    assert found.finish is FinishReason.STOP
    assert not set(found.tokens) & engine.loaded.model.end_tokens


def test_forced_tokens_are_drafted_in_every_pass_where_nobody_else_may() -> None:
    with Engine.load(exact="strict", context=1024, drafter="grammar") as engine:
        assert engine.drafters == ("grammar",)
        found = ask(engine, GRAMMARS["schema"], 0, 0.0)
        assert found.text() == ask(engine, GRAMMARS["schema"], 0, 0.0, drafter="none").text()
        assert found.stats.accepted_by_drafter["grammar"] > 0


def test_a_request_without_a_grammar_is_not_touched(engine: Engine) -> None:
    free = ask(engine, None, 3, 0.7).text()
    ask(engine, GRAMMARS["regex"], 3, 0.7).text()
    assert ask(engine, None, 3, 0.7).text() == free


def test_bad_grammars_are_refused_at_once(engine: Engine) -> None:
    with pytest.raises(UsageError, match="unclosed group"):
        engine.compiled(Grammar.regex("("))
    with pytest.raises(UsageError, match="Invalid type: foo"):
        ask(engine, Grammar.json_schema({"type": "foo"}), 1, 0.0)
    engine.compiled(GRAMMARS["schema"])
