"""Large grammars in a process of their own: what passes is read once, what takes too much is refused."""

from __future__ import annotations

import json
import sys

import pytest

from localspec.errors import Cancelled, UsageError
from localspec.grammar.grammar import LARGE, Grammar
from localspec.grammar.trial import Trials

ENUM = json.dumps({"enum": [f"value {number}" for number in range(3000)]})
RULES = "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(8000)) + 'r8000 ::= "b"\n'
LINKS = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(6000)}
CHAIN = json.dumps({"$defs": LINKS | {"d6000": {"type": "string"}}, "$ref": "#/$defs/d0"})


def test_a_small_grammar_needs_no_trial() -> None:
    assert Trials(seconds=0.0).read(Grammar("gbnf", 'root ::= "a"')) == Grammar.gbnf('root ::= "a"')


def test_a_large_grammar_that_passes_is_what_it_is_without_a_trial_and_passes_once() -> None:
    assert len(ENUM) > LARGE
    trials = Trials()
    assert trials.read(Grammar("schema", ENUM)) == Grammar("schema", ENUM).read()
    again = trials.read(Grammar("schema", ENUM), lambda: True)  # a second trial would be cancelled
    assert again == Grammar("schema", ENUM).read()
    with pytest.raises(Cancelled):
        trials.read(Grammar("schema", ENUM + " "), lambda: True)


def test_a_mistake_is_told_as_it_is_without_a_trial() -> None:
    text = 'root ::= "a" | (\n' + "# much more\n" * 2000
    with pytest.raises(UsageError) as small:
        Grammar.gbnf(text)
    with pytest.raises(UsageError) as large:
        Trials().read(Grammar("gbnf", text))
    assert large.value.message == small.value.message


def test_time_has_an_end() -> None:
    with pytest.raises(UsageError, match=r"takes more than 1\.5 s"):
        Trials(seconds=1.5).read(Grammar("gbnf", RULES))


@pytest.mark.skipif(sys.platform == "win32", reason="how a stack ends")
def test_what_ends_the_stack_ends_only_the_trial() -> None:
    with pytest.raises(UsageError, match="nests too deeply"):
        Trials(seconds=30).read(Grammar("schema", CHAIN))
