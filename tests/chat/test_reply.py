"""A reply taken apart: every form of calls, thoughts, and the promise that no cut of the text and no byte matters."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.reply import tool
from localspec.chat.reply.call_form import CallForm
from localspec.chat.reply.forms import (
    COMMAND_R,
    GEMMA,
    GRANITE,
    KIMI,
    LLAMA,
    TAGGED,
    ListForm,
    PairForm,
    XmlForm,
    deepseek,
)
from localspec.chat.reply.reply import Content, Part, Reasoning, ReplyParser, Thought
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded, Tool

THINK = Thought("<think>", "</think>")
TOOLS = (
    Tool("f", parameters={"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool("get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}}),
)
FORMS: dict[str, CallForm] = {
    "tagged": TAGGED,
    "bare": LLAMA,
    "list": ListForm(named=False),
    "named list": ListForm(named=True),
    "xml": XmlForm(),
    "pairs": PairForm(),
    "gemma": GEMMA,
    "granite": GRANITE,
    "command": COMMAND_R,
    "kimi": KIMI,
    "deepseek": deepseek(fenced=True),
}
Shown = tuple[str, ...]


def shown(parts: Sequence[Part]) -> list[Shown]:
    """Parts without their ids, neighbours of one kind joined: what a client ends up with."""
    found: list[Shown] = []
    for part in parts:
        if isinstance(part, CallBegun):
            found.append(("open", part.name, ""))
            continue
        if isinstance(part, CallArguments | CallEnded):
            kind, name, arguments = found.pop()
            assert kind == "open"
            if isinstance(part, CallArguments):
                found.append((kind, name, arguments + part.text))
            else:
                found.append(("call" if part.whole else "cut", name, arguments))
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
    assert parser.calls == sum(isinstance(part, CallBegun) for part in parts)
    found = shown(parts)
    assert "open" not in {kind for kind, *_ in found}
    return found


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
        ("tagged", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("tagged", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("tagged", '<tool_call>{"name": "not a name", "arguments": {}}</tool_call>'),
        ("tagged", "<tool_call>" + '{"a":' * 2000),
        ("tagged", "<tool_call>" + "[" * 5000 + "]" * 5000),
        ("bare", '{"name": "Bob", "parameters": {"a": "x"}}'),
        ("bare", 'Yes: {"name": "f", "parameters": {"a": "x"}}'),
        ("tagged", '<tool_call>{"name": "f'),
        ("tagged", '<tool_call>{"name": "f", "unknown": 1'),
        ("tagged", '<tool_call>{"arguments": {"a": 1,}, "name": "f"}</tool_call>'),
        ("bare", '{"name": "f", "paramet'),
        ("bare", "<|python_tag|>print(1)"),
        ("list", "[TOOL_CALLS] none of them"),
        ("list", "[TOOL_CALLS][]"),
        ("named list", "[TOOL_CALLS]f[ARGS]"),
        ("xml", "<function=f><parameter=a>x</function>"),
        ("xml", "<tool_call>text</tool_call>"),
    ],
)
def test_what_is_no_call_is_content_to_the_last_byte(form: str, text: str) -> None:
    assert read([text], FORMS[form]) == [("says", text)]
    assert read(list(text), FORMS[form]) == [("says", text)]


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        ("tagged", '<tool_call>{"name": "f"', ""),
        ("tagged", '<tool_call>{"name": "f", "argu', ""),
        ("tagged", '<tool_call>{"name": "f", "arguments": ', ""),
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": "x', '{"a": "x'),
        ("bare", '{"name": "f", "parameters": {"a": ', '{"a": '),
        ("list", '[TOOL_CALLS][{"name": "f", "arguments": {"a', '{"a'),
        ("named list", '[TOOL_CALLS]f[ARGS]{"a": "x"', '{"a": "x"'),
        ("xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n", "{"),
        ("xml", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<para", '{"a": "x"'),
    ],
)
def test_a_call_that_was_cut_keeps_what_was_written(form: str, text: str, arguments: str) -> None:
    for pieces in ([text], list(text)):
        assert read(pieces, FORMS[form]) == [("cut", "f", arguments)]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("tagged", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', [("call", "f", '{"a": NaN}')]),
        (
            "tagged",
            '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
            [("call", "f", "{}"), ("says", "and more</tool_call>")],
        ),
        (
            "tagged",
            '<tool_call>{"name": "f", "arguments": {} oh}</tool_call>',
            [("call", "f", "{}"), ("says", "oh}</tool_call>")],
        ),
        ("bare", '{"name": "f", "parameters": {"a": "x"}', [("call", "f", '{"a": "x"}')]),
        (
            "list",
            '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            [("call", "f", "{}"), ("says", ', {"name": "g", "arguments": {}}]')],
        ),
        ("list", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 5]', [("call", "f", "{}"), ("says", ", 5]")]),
    ],
)
def test_what_was_told_of_a_call_stays(form: str, text: str, expected: list[Shown]) -> None:
    for pieces in ([text], list(text)):
        assert read(pieces, FORMS[form]) == expected


@pytest.mark.parametrize(
    ("form", "head"),
    [
        ("tagged", '<tool_call>{"name": "f", "arguments": '),
        ("bare", '{"type": "function", "name": "f", "parameters": '),
        ("list", '[TOOL_CALLS][{"name": "f", "arguments": '),
        ("named list", "[TOOL_CALLS]f[ARGS]"),
    ],
)
def test_arguments_come_as_they_are_written(form: str, head: str) -> None:
    parser = ReplyParser(form=FORMS[form], tools=TOOLS)
    assert parser.push(head) == []
    begun, first = parser.push('{"a"')
    assert isinstance(begun, CallBegun)
    assert (begun.name, first) == ("f", CallArguments('{"a"'))
    assert parser.push(': "x') == [CallArguments(': "x')]
    assert parser.push('"}') == [CallArguments('"}'), CallEnded(whole=True)]


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


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("tagged", '<tool_call>\n{"name": "', ""),
        ("tagged", "Well.\n<tool_call>", "Well."),
        ("tagged", '<tool_call>{"name": "get_w', ""),
        ("tagged", '<tool_call>{"name": "no_such', '<tool_call>{"name": "no_such'),
        ("tagged", '<tool_call>{"name": "g"', '<tool_call>{"name": "g"'),
        ("tagged", "Use <tool_call> tags", "Use <tool_call> tags"),
        ("tagged", "a < b and <to", "a < b and <to"),
        ("bare", '{"name": "', '{"name": "'),
        ("bare", '{"title": "x", "na', '{"title": "x", "na'),
        ("list", '[TOOL_CALLS][{"name": "', ""),
        ("named list", "[TOOL_CALLS]get_w", ""),
        ("named list", "[TOOL_CALLS]no_such", "[TOOL_CALLS]no_such"),
        ("xml", "<tool_call>\n<function=get", ""),
        ("xml", "<tool_call>\n<function=no_such>\n", "<tool_call>\n<function=no_such>\n"),
        ("pairs", "<tool_call>get_we", ""),
        ("gemma", "<|tool_call>call:get_w", ""),
        ("granite", '<|tool_call|>[{"name": "f', ""),
        ("command", "Action:\n```json\n[", "Action:\n```json\n["),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get", ""),
    ],
)
def test_what_a_limit_cuts_before_a_name_is_left_out(form: str, text: str, said: str) -> None:
    """What cannot become a call stays, and so does everything of an answer that ended by itself."""
    for pieces in ([text], list(text)):
        parser = ReplyParser(form=FORMS[form], tools=TOOLS)
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish(cut=True)
        assert shown(parts) == ([("says", said)] if said else [])
        assert read(pieces, FORMS[form]) == [("says", text)] or read(pieces, FORMS[form])[0][0] == "cut"


@pytest.mark.parametrize("rest", ['<tool_call>\n{"name": "', "\n<tool", "\n<tool_call>", " ", '<tool_call>{"na'])
def test_the_same_after_a_whole_call(rest: str) -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
    parser = ReplyParser(form=FORMS["tagged"], tools=TOOLS)
    assert shown(parser.push(call + rest) + parser.finish(cut=True)) == [CALL]
    parser = ReplyParser(form=FORMS["tagged"], tools=TOOLS)
    assert shown(parser.push(f"{call}Done. <") + parser.finish(cut=True)) == [CALL, ("says", "Done. <")]


OBJECT = '{"name": "f", "arguments": {"a": "x"}}'


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"\n{OBJECT}\n",
        f"```json\n{{{OBJECT}\n}}\n```",
        '{\n  "type": "function",\n  "id": 1,\n  "name": "f",\n  "arguments": {"a": "x"}\n}',
        f"```json\n{OBJECT}\n```",
        f"```\n{OBJECT}\n```\n",
        f"\n```json {OBJECT}```",
        '```json\n{\n  "arguments": {"a": "x"},\n  "name": "f"\n}\n```',
        '```json\n{"name": "f", "parameters": {"a": "x"}}\n```',
        '```json\n{"type": "function", "name": "f", "arguments": {"a": "x"}}\n```',
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_lone_object_is_a_call_in_a_fence_or_not(form: str, text: str) -> None:
    for pieces in ([text], list(text), re.split(r"(?<=\}\})", text)):
        assert read(pieces, FORMS[form]) == [CALL]
        assert read(["<think>hm</think>\n\n", *pieces], FORMS[form]) == [("thinks", "hm"), CALL]
        assert read(pieces) == [("says", text)], "without tools"
        parser = ReplyParser(form=FORMS[form], tools=TOOLS, lone=False)
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        assert form == "bare" or shown(parts) == [("says", text)], "where JSON is asked for"


@pytest.mark.parametrize(
    "text",
    [
        f"Sure:\n```json\n{OBJECT}\n```",
        f"```json\n{OBJECT}\n```\nThat is it.",
        f"```json\n{OBJECT}\n```\n```json\n{OBJECT}\n```",
        f"```json\n{OBJECT}\n{OBJECT}\n```",
        f"```json\n[{OBJECT}]\n```",
        f"```json\n{{{OBJECT}\n```",
        f"```json\n{OBJECT}}}\n```",
        f"```python\n{OBJECT}\n```",
        f"```json\n{OBJECT}\n",
        f"```json\n{OBJECT}",
        '```json\n{"name": "g", "arguments": {"a": "x"}}\n```',
        '```json\n{"name": "f"}\n```',
        '```json\n{"name": "f", "arguments": {"a": 5}}\n```',
        '```json\n{"name": "f", "arguments": {"n": "x"}}\n```',
        '```json\n{"name": "f", "arguments": [1]}\n```',
        '```json\n{"name": "f", "arguments": {"a": "x"}, "note": 1}\n```',
        '```json\n{"name": "f", "arguments": {"a": "x",}}\n```',
        '```json\n{"title": "f", "arguments": {"a": "x"}}\n```',
    ],
)
def test_nothing_else_is(text: str) -> None:
    for said in (text, text.replace("```json\n", "").replace("\n```", "")):
        if said.strip() != OBJECT:
            for pieces in ([said], list(said)):
                assert read(pieces, FORMS["tagged"]) == [("says", said)]


def test_doubled_brackets_around_a_lone_object_belong_to_it() -> None:
    for text in (f"{{{OBJECT}}}", f"{{{OBJECT}}}}}"):  # the latter as Qwen2.5-Coder closes both objects doubly
        for said in (text, f"```json\n{text}\n```"):
            for pieces in ([said], list(said)):
                assert read(pieces, FORMS["tagged"]) == [CALL]
    for wrong in (f"{{{OBJECT}", f"{{{OBJECT}}}}}}}", f"{OBJECT}}}"):
        assert read([wrong], FORMS["tagged"]) == [("says", wrong)]


@pytest.mark.parametrize("before", ["```json\n", ""])
@pytest.mark.parametrize(
    ("held", "rest"),
    [('{"ti', 'tle": "x'), ('{"name": "Bo', 'b"'), ('{"id": 5, "type": "x", "pri', 'ce": 4'), ("{", " return 1;")],
)
def test_an_answer_in_json_is_held_back_no_longer_than_to_a_key_or_name_of_no_call(
    before: str, held: str, rest: str
) -> None:
    parser = ReplyParser(form=FORMS["tagged"], tools=TOOLS)
    assert parser.push(before + held) == []
    assert parser.push(rest) == [Content(before + held + rest)]


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
    '{"name":"f","arguments":{"a":',
    '{"name":"f"',
    '<tool_call>{"name":"f","arguments":{"a":"x"}}</tool_call>',
    "[TOOL_CALLS]",
    '[{"name":"f","arguments":{}}]',
    'f[ARGS]{"a":1}',
    "<|python_tag|>",
    "f\n<arg_key>a</arg_key><arg_value>x</arg_value>",
    '<|tool_call>call:f{a:<|"|>x<|"|>}',
    "<tool_call|>",
    "<|tool_call|>",
    "Action:",
    "```json",
    "```",
    '[{"tool_name":"f","parameters":{}}]',
    "<|tool_call_begin|>functions.f:0",
    "<|tool_call_argument_begin|>",
    '{"a":1}',
    "<|tool_calls_section_end|>",
    deepseek(fenced=True).openings[0],
    f"{deepseek(fenced=True).call}{deepseek(fenced=True).before}f",
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
    """What is left out is the form of calls and thoughts, and nothing comes that was not there."""
    told = [re.escape(part) for _, *parts in read([text], FORMS["tagged"]) for part in parts]
    assert re.fullmatch(_FORM.join(["", *told, ""]) + _CUT, text)


_FORM = r'(?:\s|</?tool_call>|</?think>|\{"name":"|"(?:,"(?:arguments|parameters)":)?|\})*'
"""What may be left out: marks, and what stands around the name and the arguments in an object."""
_CUT = "(?:</?(?:t|to|too|tool|tool_|tool_c)?)?"
"""What may be left out at the end: the beginning of a mark."""


@given(TEXTS, st.sampled_from(list(FORMS.values())))
def test_calls_are_json_or_as_the_model_wrote_them(text: str, form: CallForm) -> None:
    for kind, *rest in read([text], form):
        if kind == "call" and tool.members(rest[1]) is None:
            assert rest[1] in text, "broken as the model broke it"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tagged", '<tool_call>{"name": "g", "arguments": {"a": "x"}}</tool_call>'),
        ("bare", '{"name": "g", "parameters": {"a": "x"}}'),
        ("list", '[TOOL_CALLS] [{"name": "g", "arguments": {"a": "x"}}]'),
        ("named list", '[TOOL_CALLS]g[ARGS]{"a": "x"}'),
        ("xml", "<tool_call>\n<function=g>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"),
    ],
)
def test_a_call_of_a_tool_that_is_not_there_is_text(form: str, text: str) -> None:
    for pieces in ([text], list(text)):
        assert read(pieces, FORMS[form]) == [("says", text)]
        assert read(pieces, FORMS[form], parallel=False) == [("says", text)]
