"""A reply taken apart: every form of calls, thoughts, and the promise that no cut of the text and no byte matters."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.call_form import BareForm, CallForm, ListForm, TaggedForm
from localspec.chat.reply import Content, Part, Reasoning, ReplyParser, Thought
from localspec.chat.tool import Tool, ToolCall
from localspec.chat.xml_form import XmlForm

THINK = Thought("<think>", "</think>")
TOOLS = (
    Tool("f", parameters={"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool("get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}}),
)
FORMS: dict[str, CallForm] = {
    "tagged": TaggedForm(),
    "bare": BareForm(),
    "list": ListForm(named=False),
    "named list": ListForm(named=True),
    "xml": XmlForm(),
}
Shown = tuple[str, ...]


def shown(parts: Sequence[Part]) -> list[Shown]:
    """Parts without their ids, neighbours of one kind joined: what a client ends up with."""
    found: list[Shown] = []
    for part in parts:
        if isinstance(part, ToolCall):
            found.append(("call", part.name, part.arguments))
            continue
        kind = "says" if isinstance(part, Content) else "thinks"
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + part.text)
        else:
            found.append((kind, part.text))
    return found


def read(
    pieces: Sequence[str], form: CallForm | None = None, *, thinking: bool = False, parallel: bool = True
) -> list[Shown]:
    parser = ReplyParser(thought=THINK, thinking=thinking, form=form, tools=TOOLS, parallel=parallel)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    assert parser.calls == sum(isinstance(part, ToolCall) for part in parts)
    return shown(parts)


CALL = ("call", "f", '{"a": "x"}')


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'),
        ("tagged", '<tool_call>\n{"arguments": {"a": "x"}, "name": "f"}\n</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "parameters": {"a": "x"}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\\"}"}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x"}}'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x"}} </tool_'),
        ("bare", '{"name": "f", "parameters": {"a": "x"}}'),
        ("bare", '\n{"type": "function", "name": "f", "parameters": {"a": "x"}} '),
        ("bare", '<|python_tag|>{"name": "f", "arguments": {"a": "x"}}'),
        ("list", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "x"}, "id": "abcdefghi"}]'),
        ("list", '[TOOL_CALLS]f[ARGS]{"a": "x"}'),
        ("named list", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": "x"}'),
        ("named list", '[TOOL_CALLS]f{"a": "x"}'),
        ("xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"),
        ("xml", "<function=f><parameter=a>x</parameter></function>"),
    ],
)
def test_a_call_in_every_form(form: str, text: str) -> None:
    assert read([text], FORMS[form]) == [CALL]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>' * 2),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>\n' * 2),
        ("bare", '{"name": "f", "parameters": {"a": "x"}}\n{"name": "f", "parameters": {"a": "x"}}'),
        ("list", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}, {"name": "f", "arguments": {"a": "x"}}]'),
        ("named list", '[TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS]f[ARGS]{"a": "x"}'),
    ],
)
def test_two_calls_in_every_form(form: str, text: str) -> None:
    assert read([text], FORMS[form]) == [CALL, CALL]
    assert read([text], FORMS[form], parallel=False) == [CALL]
    parser = ReplyParser(form=FORMS[form], tools=TOOLS, parallel=False)
    parser.push(text)
    assert parser.done


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tagged", "Use <tool_call> tags."),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": '),
        ("tagged", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("tagged", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "not a name", "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>'),
        ("tagged", "<tool_call>" + '{"a":' * 2000),
        ("tagged", "<tool_call>" + "[" * 5000 + "]" * 5000),
        ("bare", '{"name": "Bob", "parameters": {"a": "x"}}'),
        ("bare", 'Yes: {"name": "f", "parameters": {"a": "x"}}'),
        ("bare", "<|python_tag|>print(1)"),
        ("bare", '{"name": "f", "parameters": {"a": "x"}'),
        ("list", "[TOOL_CALLS] none of them"),
        ("list", "[TOOL_CALLS][]"),
        ("list", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 5]'),
        ("named list", "[TOOL_CALLS]f[ARGS]"),
        ("xml", "<function=f><parameter=a>x</function>"),
        ("xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n"),
        ("xml", "<tool_call>text</tool_call>"),
    ],
)
def test_what_is_no_call_is_content_to_the_last_byte(form: str, text: str) -> None:
    assert read([text], FORMS[form]) == [("says", text)]
    assert read(list(text), FORMS[form]) == [("says", text)]


def test_arguments_are_the_models_own_bytes() -> None:
    arguments = '{"b":1.50,"a" : "\\u00e4\\"</tool_call>{", "c":[{}]}'
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert read(list(text), FORMS["tagged"]) == [("call", "f", arguments)]
    assert json.loads(arguments)["b"] == 1.5


def test_values_between_tags_follow_the_schema() -> None:
    text = (
        "<tool_call><function=f><parameter=a>\n12\n</parameter><parameter=n>\n12\n</parameter>"
        "<parameter=other>\n{\n</parameter></function></tool_call>"
    )
    assert read([text], FORMS["xml"]) == [("call", "f", '{"a": "12", "n": 12, "other": "{"}')]


def test_text_around_calls_stays_in_its_place() -> None:
    text = 'I look. \n<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>\n\nDone. '
    assert read([text], FORMS["tagged"]) == [("says", "I look."), CALL, ("says", "Done. ")]


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    text = '<tool_call>oh <tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
    assert read([text], FORMS["tagged"]) == [("says", "<tool_call>oh"), CALL]


@pytest.mark.parametrize(
    ("text", "thinking", "expected"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, [("thinks", "hm"), ("says", "yes")]),
        ("\n<think>hm</think>yes", False, [("thinks", "hm"), ("says", "yes")]),
        ("<think>\n\n</think>\n\nyes", False, [("says", "yes")]),
        ("\nhm\n</think>\nyes", True, [("thinks", "hm"), ("says", "yes")]),
        ("hm, cut off ", True, [("thinks", "hm, cut off ")]),
        ("<think>cut off", False, [("thinks", "cut off")]),
        ("a <think> in words</think>", False, [("says", "a <think> in words</think>")]),
        ("<think>a</think><think>b</think>", False, [("thinks", "a"), ("says", "<think>b</think>")]),
        (" \n", False, [("says", " \n")]),
        ("<thin", False, [("says", "<thin")]),
    ],
)
def test_thoughts_are_kept_apart(text: str, thinking: bool, expected: list[Shown]) -> None:
    assert read([text], thinking=thinking) == expected
    assert read(list(text), thinking=thinking) == expected


def test_a_thought_before_a_call_and_a_call_within_a_thought() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
    expected = [("thinks", f"or {call}?"), CALL]
    assert read([f"<think>\nor {call}?\n</think>\n\n{call}"], FORMS["tagged"]) == expected


def test_text_is_not_held_back_longer_than_needed() -> None:
    parser = ReplyParser(form=FORMS["tagged"], tools=TOOLS, thought=THINK)
    assert parser.push("Hel") == [Content("Hel")]
    assert parser.push("lo <to") == [Content("lo")]
    assert parser.push("day") == [Content(" <today")]
    parser = ReplyParser(thought=THINK, thinking=True)
    assert parser.push("hm ") == [Reasoning("hm")]
    assert parser.push("so") == [Reasoning(" so")]


PIECES = (
    "<tool_call>",
    "</tool_call>",
    '{"name":"f","arguments":{"a":"x"}}',
    '{"name":"f","parameters":{"a":"</tool_call>"}}',
    '<tool_call>{"name":"f","arguments":{"a":"x"}}</tool_call>',
    "[TOOL_CALLS]",
    '[{"name":"f","arguments":{}}]',
    'f[ARGS]{"a":1}',
    "<|python_tag|>",
    "<function=f>",
    "<parameter=a>x</parameter>",
    "</function>",
    "<think>",
    "</think>",
    "words",
    " ",
    "\n",
    "{",
    "}",
    '"',
    "\\",
    "<",
    "[",
    "ä€",
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(TEXTS, st.data(), st.sampled_from([*FORMS.values(), None]), st.booleans())
def test_no_cut_of_the_text_matters(text: str, data: st.DataObject, form: CallForm | None, thinking: bool) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = read([text], form, thinking=thinking)
    assert read(pieces, form, thinking=thinking) == expected
    assert read(list(text), form, thinking=thinking) == expected


@given(TEXTS)
def test_no_byte_is_lost(text: str) -> None:
    whole = ""
    for kind, *rest in read([text], FORMS["tagged"]):
        if kind == "call":
            key = "arguments" if rest[1] == '{"a":"x"}' else "parameters"
            whole += f'<tool_call>{{"name":"{rest[0]}","{key}":{rest[1]}}}</tool_call>'
        else:
            whole += rest[0] if kind == "says" else f"<think>{rest[0]}</think>"
    given_text, found = "".join(text.split()), "".join(whole.split())
    if "<think>" in text:  # an empty thought leaves nothing, and one that is cut off does not say so
        given_text, found = (part.replace("<think>", "").replace("</think>", "") for part in (given_text, found))
    assert found.startswith(given_text)
    assert "</tool_call>".endswith(found[len(given_text) :])  # of a call at the end that is not closed


@given(TEXTS, st.sampled_from(list(FORMS.values())))
def test_calls_can_be_used_as_they_come(text: str, form: CallForm) -> None:
    for kind, *rest in read([text], form):
        if kind == "call":
            assert isinstance(json.loads(rest[1]), dict)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tagged", '<tool_call>{"name": "g", "arguments": {"a": "x"}}</tool_call>'),
        ("bare", '{"name": "g", "parameters": {"a": "x"}}'),
        ("list", '[TOOL_CALLS] [{"name": "g", "arguments": {"a": "x"}}]'),
        ("list", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {"a": "x"}}]'),
        ("named list", '[TOOL_CALLS]g[ARGS]{"a": "x"}'),
        ("xml", "<tool_call>\n<function=g>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_a_call_of_a_tool_that_is_not_there_is_text(form: str, text: str) -> None:
    for pieces in ([text], list(text)):
        assert read(pieces, FORMS[form]) == [("says", text)]
        assert read(pieces, FORMS[form], parallel=False) == [("says", text)]
