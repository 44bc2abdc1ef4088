"""A model's dialect: recognised from its template and vocabulary, told of tools in its own way, forced where asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.reply.call_form import CallForm
from localspec.chat.reply.dialect import Dialect
from localspec.chat.reply.forms import (
    COMMAND_R7B,
    FUNCTION_GEMMA,
    GEMMA,
    GRANITE,
    KIMI,
    LLAMA,
    TAGGED,
    ListForm,
    PairForm,
    XmlForm,
)
from localspec.chat.reply.reply import Content, Part, Reasoning, Thought
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded, Tool, ToolCall, ToolChoice, new_call_id
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.llama.model import Model
from localspec.llama.special_tokens import PromptTokenizer, SpecialToken
from localspec.types import Prompt, Tokens

WEATHER = Tool(
    "get_weather", "Weather of a city", {"type": "object", "properties": {"city": {"type": "string"}, "day": {}}}
)
HI = [Message("user", "Hi")]
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}"
MISTRAL += "[TOOL_CALLS]{% for c in m.tool_calls %}{{ c.id }}{{ c.function | tojson }}{% endfor %}{% else %}"
MISTRAL += "{{ m.tool_call_id }}{{ m.content }}{% endif %}{% endfor %}"


class Spelled:
    """A vocabulary of bytes, in which markers are tokens of their own if it is told so."""

    def __init__(self, chat_template: str | None, *markers: str) -> None:
        self.chat_template = chat_template
        self.end_tokens: frozenset[int] = frozenset()
        self.special_tokens = tuple(SpecialToken(text, 256 + at, control=True) for at, text in enumerate(markers))
        self._markers = list(markers)

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        if text in self._markers:
            return np.array([256 + self._markers.index(text)], dtype=np.int32)
        return np.array(list(text.encode()), dtype=np.int32)

    def tokenize_prompt(self, prompt: Prompt, *, add_bos: bool) -> Tokens:
        return PromptTokenizer(self.special_tokens, partial(self.tokenize, add_bos=add_bos), False).tokens(prompt)

    def detokenize(self, tokens: Sequence[int] | Tokens, special: bool = False) -> str:
        return b"".join(self.piece(int(token), special) for token in tokens).decode()

    def piece(self, token: int, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return self._markers[token - 256].encode() if special else b""


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target) as loaded:
        yield loaded


def test_marks_of_calls_are_control_tokens_of_the_bundled_model(model: Model) -> None:
    dialect = Dialect(model)
    for marker in ("<tool_call>", "</tool_call>", "<think>", "</think>"):
        token = dialect.token_of(marker)
        assert token is not None
        assert model.piece(token) == b"", "so that answers would leave it out"
        assert token in dialect.turn(HI, [WEATHER]).preserved
    assert dialect.token_of("<tool_call> ") is None
    assert len(dialect.turn(HI).preserved) == 2, "without tools only thoughts are kept apart"
    assert len(dialect.turn(HI, [WEATHER], ToolChoice("none")).preserved) == 2


def test_the_bundled_model_is_told_of_tools_as_it_has_learned(model: Model) -> None:
    call = ToolCall("x", "get_weather", '{"city": "Oslo"}')
    turn = Dialect(model).turn(
        [Message("user", "?"), Message("assistant", "", (call,)), Message("tool", '{"temperature": 3}')], [WEATHER]
    )
    assert [(message.role, message.content) for message in turn.messages] == [
        ("system", "Tools:\nget_weather(city, day)"),
        ("user", "?"),
        ("assistant", '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'),
        ("tool", '<tool_result>{"temperature": 3}</tool_result>'),
    ]
    assert turn.variables == {}
    told = Dialect(model).turn([Message("system", "Be brief."), *HI], [WEATHER]).messages
    assert told[0].content == "Be brief.\n\nTools:\nget_weather(city, day)"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% if tools %}<tool_call>{{ tools }}", TAGGED),
        ("{{ tools }}<tool_call><function=x><parameter=y>", XmlForm()),
        ("{{ tools }}<tool_call>f<arg_key>k</arg_key><arg_value>", PairForm()),
        ("{{ tools }}<|tool_call>call:", GEMMA),
        ("{{ tools }}<start_function_call>", FUNCTION_GEMMA),
        ("{{ tools }}<|tool_call|>", GRANITE),
        ("{{ tools }}<|START_ACTION|>", COMMAND_R7B),
        ("{{ tools }}<|tool_call_begin|>", KIMI),
        (MISTRAL, ListForm(named=False)),
        ("{{ tools }}[TOOL_CALLS]name[ARGS]", ListForm(named=True)),
        ("{{ tools }}<|python_tag|>", LLAMA),
        ('{{ tools }}<|start_header_id|>{"name": x, "parameters": y}', LLAMA),
    ],
)
def test_a_form_is_recognised_from_the_template(source: str, form: CallForm) -> None:
    dialect = Dialect(Spelled(source))
    assert dialect.renders_tools
    assert dialect.form == form
    turn = dialect.turn([Message("system", "s"), *HI], [WEATHER])
    assert turn.messages == (Message("system", "s"), *HI)
    assert turn.variables == {"tools": [WEATHER.as_function()]}


@pytest.mark.parametrize("source", ["{{ messages }}", "{{ tools }}<|unheard|>", None])
def test_a_model_whose_template_does_not_help_is_told_in_words(source: str | None) -> None:
    call = ToolCall("x", "get_weather", "{}")
    dialect = Dialect(Spelled(source))
    assert not dialect.renders_tools
    turn = dialect.turn([*HI, Message("assistant", "So:", (call,)), Message("tool", "3"), *HI], [WEATHER])
    system, _, said, result, _ = turn.messages
    assert turn.variables == {}
    assert json.dumps(WEATHER.as_function()["function"]) in system.content
    assert said.content == 'So:<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    assert not said.tool_calls
    assert (result.role, result.content) == ("user", "<tool_response>\n3\n</tool_response>")
    parts = turn.parser(np.array([1], dtype=np.int32)).push(said.content)
    said_text, begun, *more = parts
    assert said_text == Content("So:")
    assert isinstance(begun, CallBegun)
    assert begun.name == "get_weather"
    assert more == [CallArguments("{}"), CallEnded(whole=True)]


def test_results_that_follow_one_another_become_one_message_where_roles_alternate() -> None:
    turn = Dialect(Spelled("{{ messages }}")).turn([Message("tool", "1"), Message("tool", "2")])
    assert [message.content for message in turn.messages] == [
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    ]


def test_ids_for_templates_that_want_nine_letters() -> None:
    call = ToolCall("call_8f2a", "get_weather", '{"city": "Oslo"}')
    turn = Dialect(Spelled(MISTRAL)).turn([Message("assistant", "", (call,)), Message("tool", "3", (), "call_8f2a")])
    text = ChatTemplate(MISTRAL).render(turn.messages, **turn.variables)
    short = turn.messages[1].tool_call_id
    assert len(short) == 9
    assert text == f'[TOOL_CALLS]{short}{{"name": "get_weather", "arguments": {{"city": "Oslo"}}}}{short}3'
    fresh = new_call_id()
    kept = Dialect(Spelled(MISTRAL)).turn([Message("tool", "3", (), fresh)])
    assert kept.messages[0].tool_call_id == fresh


def test_what_may_be_called() -> None:
    dialect = Dialect(Spelled("{{ tools }}<tool_call>"))
    other = Tool("other")
    assert dialect.turn(HI, [WEATHER, other], ToolChoice("named", "other")).tools == (other,)
    assert dialect.turn(HI, [WEATHER], ToolChoice("none")).variables == {}
    with pytest.raises(UsageError, match="'third' is to be called, but it is not among the tools"):
        dialect.turn(HI, [WEATHER], ToolChoice("named", "third"))
    with pytest.raises(UsageError, match="there are no tools"):
        dialect.turn(HI, [], ToolChoice("required"))
    with pytest.raises(UsageError, match="A tool is named 'a b'"):
        Tool("a b")
    with pytest.raises(UsageError, match="not the JSON schema of an object"):
        Tool("f", "", {"type": "array"})


def test_thoughts() -> None:
    dialect = Dialect(Spelled("{{ '<think>' }}", "</think>"))
    assert dialect.thought == Thought("<think>", "</think>")
    opened = dialect.turn(HI).parser(np.array(list(b"x<think>\n"), dtype=np.int32))
    assert opened.push("a</think>b") == [Reasoning("a"), Content("b")]
    closed = dialect.turn(HI).parser(np.array(list(b"x<think></think>"), dtype=np.int32))
    assert closed.push("a</think>b") == [Content("a</think>b")]
    assert Dialect(Spelled("{{ messages }}")).thought is None


def written(tokens: Tokens, dialect: Dialect) -> str:
    return "".join(dialect._vocabulary.piece(int(token), True).decode() for token in tokens)


@pytest.mark.parametrize(
    ("prompt", "reasoning", "content", "shown", "more"),
    [
        (b"x", "", "", "x", [Reasoning("a"), Content("b")]),
        (b"x", "", "so", "xso", [Content("<think>a</think>b")]),
        (b"x", "hm", "", "x<think>\nhm", [Reasoning("<think>a"), Content("b")]),
        (b"x", "hm", "so", "x<think>\nhm\n</think>\n\nso", [Content("<think>a</think>b")]),
        (b"x<think>\n", "hm", "", "x<think>\nhm", [Reasoning("<think>a"), Content("b")]),
        (b"x<think>\n", "", "so", "x<think>\n\n</think>\n\nso", [Content("<think>a</think>b")]),
    ],
)
def test_an_answer_goes_on_inside_its_thought_or_behind_it(
    prompt: bytes, reasoning: str, content: str, shown: str, more: list[Part]
) -> None:
    dialect = Dialect(Spelled("{{ '<think>' }}", "<think>", "</think>"))
    tokens, reply = dialect.turn(HI).resume(np.array(list(prompt), dtype=np.int32), reasoning, content)
    assert written(tokens, dialect) == shown
    assert reply.push("<think>a</think>b") + reply.finish() == more


@pytest.mark.parametrize("prompt", [b"x", b"x<think>\n"])
def test_a_thought_that_is_ended_early_is_closed_and_the_answer_begins(prompt: bytes) -> None:
    dialect = Dialect(Spelled("{{ '<think>' }}", "<think>", "</think>"))
    tokens, reply = dialect.turn(HI).resume(np.array(list(prompt), dtype=np.int32), "hm", "", thought_out=True)
    assert written(tokens, dialect) == "x<think>\nhm\n</think>\n\n"
    assert reply.push("so") + reply.finish() == [Content("so")]


def test_what_was_thought_is_spelled_and_its_marks_are_tokens() -> None:
    dialect = Dialect(Spelled("{{ '<think>' }}", "<think>", "</think>"))
    tokens, _ = dialect.turn(HI).resume(PROMPT, "hm", "so")
    assert [int(token) for token in tokens if token > 255] == [256, 257]
    silent = Dialect(Spelled("{{ messages }}"))
    tokens, reply = silent.turn(HI).resume(PROMPT, "hm", "so")
    assert written(tokens, silent) == "xso"
    assert reply.push("</think>") == [Content("</think>")]


PROMPT = np.array(list(b"x"), dtype=np.int32)


def test_a_grammar_only_where_one_is_needed() -> None:
    free = Dialect(Spelled("{{ tools }}<tool_call>", "<tool_call>", "</tool_call>"))
    assert free.turn(HI).lark(PROMPT) is None
    assert free.turn(HI, [WEATHER]).lark(PROMPT) is None
    forced = free.turn(HI, [WEATHER], ToolChoice("required")).lark(PROMPT)
    assert forced is not None
    assert forced.startswith("start: calls\n")
    assert "<[256]>" in forced
    schema = {"type": "object"}
    alone, either = free.turn(HI).lark(PROMPT, schema), free.turn(HI, [WEATHER]).lark(PROMPT, schema)
    assert alone is not None
    assert alone.startswith("start: answer\nanswer: %json {")
    assert either is not None
    assert either.startswith("start: calls | answer\n")


def test_templates_write_json_as_models_have_seen_it() -> None:
    template = ChatTemplate("{{ tools | tojson }}{{ x | tojson(indent=2) }}")
    assert template.render(HI, tools=[{"b": "<é>", "a": 1}], x=[1]) == '[{"b": "<é>", "a": 1}][\n  1\n]'
    assert ChatTemplate("{{ tools is none }}").render(HI) == "True"
    assert ChatTemplate("{{ [1] | tojson(indent=1000000000) | length }}").render(HI) == "21"


def test_arguments_that_are_no_json_go_into_a_template_as_they_are() -> None:
    template = ChatTemplate("{% for c in messages[0].tool_calls %}{{ c.function.arguments }}{% endfor %}")
    message = Message("assistant", "", (ToolCall("i", "f", "{oops"), ToolCall("j", "f", '{"a": 1}')))
    assert template.render([message]) == "{oops{'a': 1}"
