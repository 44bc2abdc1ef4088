"""Grammars that force calls: what each form's own text looks like fits, whole, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.reply.dialect import Dialect, ReplyTurn
from localspec.chat.reply.tool import AUTO, CallArguments, CallBegun, CallEnded, Tool, ToolChoice
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler, Lazy
from localspec.llama.model import Model
from localspec.types import Prompt, Tokens

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/place"}},
    "required": ["at"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}
TOOLS = (Tool("get.weather/now", "", CITY), Tool("go", "", NESTED))
PROMPT = np.array([0], dtype=np.int32)


class Disguised:
    """The bundled model's vocabulary behind another model's template."""

    def __init__(self, model: Model, chat_template: str) -> None:
        self._model = model
        self.chat_template: str | None = chat_template
        self.end_tokens = model.end_tokens
        self.special_tokens = model.special_tokens

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        return self._model.tokenize(text, special=special, add_bos=add_bos)

    def tokenize_prompt(self, prompt: Prompt, *, add_bos: bool) -> Tokens:
        return self._model.tokenize_prompt(prompt, add_bos=add_bos)

    def detokenize(self, tokens: Sequence[int] | Tokens, special: bool = False) -> str:
        return self._model.detokenize(tokens, special)

    def piece(self, token: int, special: bool = False) -> bytes:
        return self._model.piece(token, special)


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def compiler(model: Model) -> Iterator[Compiler]:
    compiler = Compiler(model)
    yield compiler
    compiler.close()


def turn_of(
    model: Model,
    template: str,
    choice: ToolChoice = ToolChoice("required"),  # noqa: B008 - frozen
    parallel: bool = True,
    tools: Sequence[Tool] = TOOLS,
) -> ReplyTurn:
    return Dialect(Disguised(model, template)).turn([Message("user", "?")], tools, choice, parallel)


def share(turn: ReplyTurn, text: str, model: Model, compiler: Compiler, prompt: Tokens = PROMPT) -> tuple[int, int]:
    """How many of a text's tokens (and an end token) the turn's grammar takes, and how many there are."""
    lark = turn.lark(prompt)
    assert lark is not None
    tokens = [*model.tokenize(text, special=True, add_bos=False).tolist(), model.eos]
    return compiler.compile(Grammar.lark(lark)).fresh().fits(tokens), len(tokens)


def fits(turn: ReplyTurn, text: str, model: Model, compiler: Compiler, prompt: Tokens = PROMPT) -> bool:
    taken, there = share(turn, text, model, compiler, prompt)
    return taken == there


WEATHER, GO = '{"city": "Oslo", "n": 3}', '{"at": {"x": 5}}'
TEMPLATES = {
    "tagged": "{{ tools }}<tool_call>",
    "bare": "{{ tools }}<|python_tag|>",
    "list": "{{ tools }}[TOOL_CALLS]",
    "named list": "{{ tools }}[TOOL_CALLS][ARGS]",
    "xml": "{{ tools }}<tool_call><function=x><parameter=y>",
}
TEXTS = {
    "tagged": (
        f'<tool_call>{{"name": "get.weather/now", "arguments": {WEATHER}}}</tool_call>',
        f'<tool_call>\n{{"name": "go", "arguments": {GO}}}\n</tool_call>',
    ),
    "bare": (
        f'{{"name": "get.weather/now", "parameters": {WEATHER}}}',
        f'{{"name": "go", "parameters": {GO}}}',
    ),
    "list": (
        f'[TOOL_CALLS][{{"name": "get.weather/now", "arguments": {WEATHER}}}]',
        f'[TOOL_CALLS][{{"name": "go", "arguments": {GO}}}]',
    ),
    "named list": (f"[TOOL_CALLS]get.weather/now[ARGS]{WEATHER}", f"[TOOL_CALLS]go[ARGS]{GO}"),
    "xml": (
        "<tool_call>\n<function=get.weather/now>\n<parameter=city>\nOslo\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        '<tool_call>\n<function=go>\n<parameter=at>\n{"x": 5}\n</parameter>\n</function>\n</tool_call>',
    ),
}


@pytest.mark.parametrize("form", TEMPLATES)
def test_a_call_fits_its_own_form_and_is_read_back(form: str, model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES[form])
    for text, name, arguments in zip(TEXTS[form], ("get.weather/now", "go"), (WEATHER, GO), strict=True):
        assert fits(turn, text, model, compiler), text
        parser = turn.parser(PROMPT)
        begun, *pieces, ended = parser.push(text) + parser.finish()
        assert isinstance(begun, CallBegun)
        written = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
        assert (begun.name, json.loads(written), ended) == (name, json.loads(arguments), CallEnded(whole=True))


@pytest.mark.parametrize("form", TEMPLATES)
def test_text_and_unknown_tools_do_not_fit(form: str, model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES[form])
    for text in ("Hello.", TEXTS[form][1].replace("go", "run"), TEXTS[form][1] + " and"):
        assert not fits(turn, text, model, compiler), text
    named = turn_of(model, TEMPLATES[form], ToolChoice("named", "go"))
    assert fits(named, TEXTS[form][1], model, compiler)
    assert not fits(named, TEXTS[form][0], model, compiler)


@pytest.mark.parametrize("form", ["tagged", "named list", "xml"])
def test_several_calls_only_where_they_are_wanted(form: str, model: Model, compiler: Compiler) -> None:
    both = "\n".join(TEXTS[form]) if form != "named list" else "".join(TEXTS[form])
    assert fits(turn_of(model, TEMPLATES[form]), both, model, compiler)
    assert not fits(turn_of(model, TEMPLATES[form], parallel=False), both, model, compiler)


@pytest.mark.parametrize("form", ["tagged", "bare", "list", "named list"])
def test_arguments_must_fit_the_schema(form: str, model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES[form])
    assert not fits(turn, TEXTS[form][1].replace("5", '"5"'), model, compiler)
    assert not fits(turn, TEXTS[form][0].replace('"city": "Oslo", ', ""), model, compiler)


def test_parameters_that_say_nothing_are_those_of_an_object(model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES["tagged"], tools=[Tool("go", parameters={})])
    assert fits(turn, '<tool_call>{"name": "go", "arguments": {"any": [1]}}</tool_call>', model, compiler)
    assert not fits(turn, '<tool_call>{"name": "go", "arguments": [1]}</tool_call>', model, compiler)


def lazily(turn: ReplyTurn, text: str, model: Model, compiler: Compiler, prompt: Tokens = PROMPT) -> bool:
    """Whether a text fits where calls are the model's to make."""
    found = turn.lazily(prompt)
    assert found is not None
    lark, trigger = found
    lazy = Lazy(compiler.compile(Grammar.lark(lark)).fresh(), trigger, model.n_vocab)
    tokens = model.tokenize(text, special=True, add_bos=False).tolist()
    return lazy.fits(tokens) == len(tokens)


@pytest.mark.parametrize("strict", [False, True])
def test_text_is_free_and_a_call_that_begins_calls_a_tool(strict: bool, model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES["tagged"], AUTO, tools=[Tool("go", "", NESTED, strict=strict)])
    assert turn.lark(PROMPT) is None
    call = TEXTS["tagged"][1]
    assert lazily(turn, "Any words\nat all: {", model, compiler)
    assert lazily(turn, f"So: {call}", model, compiler)
    assert not lazily(turn, f"So: {call.replace('go', 'run')}", model, compiler)
    assert lazily(turn, f"So: {call.replace('5', 'null')}", model, compiler) is not strict
    assert turn_of(model, TEMPLATES["bare"], AUTO, tools=[Tool("go", strict=True)]).lazily(PROMPT) is None
    assert turn_of(model, TEMPLATES["tagged"]).lazily(PROMPT) is None, "it must be called at once"
    assert turn_of(model, TEMPLATES["tagged"], ToolChoice("none")).lazily(PROMPT) is None


def test_a_mark_within_a_thought_binds_nothing(model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, "{{ tools }}<tool_call><think>", AUTO)
    odd = "<tool_call>maybe"
    assert not lazily(turn, odd, model, compiler)
    assert lazily(turn, f"<think>{odd}</think>{TEXTS['tagged'][1]}", model, compiler)
    assert not lazily(turn, f"<think>{odd}</think>{odd}", model, compiler)
    prompt = model.tokenize("x<think>\n", special=True, add_bos=True)
    assert lazily(turn, f"{odd}</think>{TEXTS['tagged'][1]}", model, compiler, prompt)


def test_too_many_tools_bind_nothing_unless_one_is_strict(model: Model) -> None:
    many = [Tool(f"tool_number_{number}") for number in range(500)]
    assert turn_of(model, TEMPLATES["tagged"], AUTO, tools=many).lazily(PROMPT) is None
    assert turn_of(model, TEMPLATES["tagged"], AUTO, tools=many[:100]).lazily(PROMPT) is not None
    assert turn_of(model, TEMPLATES["tagged"], AUTO, tools=[*many, Tool("f", strict=True)]).lazily(PROMPT) is not None


@pytest.mark.parametrize("opening", ["<think>", "[THINK]"])
def test_a_thought_that_the_template_opened_may_be_finished_first(
    opening: str, model: Model, compiler: Compiler
) -> None:
    turn = turn_of(model, "{{ tools }}<tool_call>" + opening)
    closing = opening.replace("<", "</").replace("[", "[/")
    prompt = model.tokenize(f"x{opening}\n", special=True, add_bos=True)
    call = TEXTS["tagged"][1]
    assert fits(turn, f"hm, {{\n{closing}\n\n{call}", model, compiler, prompt)
    assert not fits(turn, f"hm {closing} no", model, compiler, prompt)
    assert fits(turn, call, model, compiler)


def test_an_answer_in_a_schema_may_be_a_call_instead(model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES["tagged"], AUTO)
    lark = turn.lark(PROMPT, CITY)
    assert lark is not None
    grammar = Grammar.lark(lark)
    for text, expected in ((WEATHER, True), (TEXTS["tagged"][1], True), ("Oslo", False), (GO, False)):
        tokens = [*model.tokenize(text, special=True, add_bos=False).tolist(), model.eos]
        assert (compiler.compile(grammar).fresh().fits(tokens) == len(tokens)) is expected


ODD: dict[str, Any] = {"properties": {"a": {"type": "string", "not": {"const": "x"}}, "n": {"type": "integer"}}}


@pytest.mark.parametrize("form", [form for form in TEMPLATES if form != "xml"])  # whose values are free
def test_a_tool_whose_schema_cannot_be_kept_to_is_held_to_the_rest(form: str, model: Model, compiler: Compiler) -> None:
    turn = turn_of(model, TEMPLATES[form], tools=[Tool("go", parameters=ODD), *TOOLS[:1]])
    assert fits(turn, TEXTS[form][1].replace(GO, '{"a": "x", "n": 3}'), model, compiler)
    assert not fits(turn, TEXTS[form][1].replace(GO, '{"a": "x", "n": "y"}'), model, compiler)
    nothing = turn_of(model, TEMPLATES[form], tools=[Tool("go", parameters={"properties": {"a": {"type": "file"}}})])
    assert fits(nothing, TEXTS[form][1], model, compiler), "any object"


@pytest.mark.parametrize("mode", ["required", "auto"])
def test_a_strict_tool_whose_schema_cannot_be_kept_to_is_named(mode: Any, model: Model) -> None:
    turn = turn_of(model, TEMPLATES["tagged"], ToolChoice(mode), tools=[*TOOLS, Tool("odd", "", ODD, strict=True)])
    with pytest.raises(UsageError) as told:
        (turn.lark if mode == "required" else turn.lazily)(PROMPT)
    assert told.value.message == "The tool odd is strict, and its parameters cannot be used: 'not' cannot be kept to."


def test_a_schema_beside_tools_that_cannot_be_kept_to_is_called_one(model: Model) -> None:
    with pytest.raises(UsageError, match=r"^The JSON schema cannot be used: 'not' cannot be kept to\.$"):
        turn_of(model, TEMPLATES["tagged"], ToolChoice("auto")).lark(PROMPT, ODD)
