"""gpt-oss's answers: channels are told apart however the text is cut, and its template gets what it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.reply.dialect import Dialect, ReplyTurn
from localspec.chat.reply.harmony import HarmonyParser
from localspec.chat.reply.reply import AnswerParser, Content, Part
from localspec.chat.reply.tool import AUTO, CallArguments, CallBegun, CallEnded, Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler
from localspec.llama.model import Model
from localspec.types import Tokens
from tests.chat.marked_file import HARMONY, write_harmony
from tests.chat.test_dialect import Spelled

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("get_weather", "", CITY), Tool("clock"))
HI = [Message("user", "Hi")]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
FINAL = "<|channel|>final<|message|>Yes."
NEXT = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}'
Shown = tuple[str, ...]


def shown(parts: list[Part]) -> list[Shown]:
    """Parts with what belongs together joined, and without ids."""
    found: list[Shown] = []
    for part in parts:
        if isinstance(part, CallBegun):
            found.append(("call", part.name, ""))
        elif isinstance(part, CallArguments):
            found[-1] = (*found[-1][:2], found[-1][2] + part.text)
        elif isinstance(part, CallEnded):
            found[-1] = (*found[-1], *(() if part.whole else ("cut",)))
        else:
            kind = "says" if isinstance(part, Content) else "thinks"
            if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + part.text)
            else:
                found.append((kind, part.text))
    return found


def read(parser: AnswerParser, text: str, size: int) -> list[Shown]:
    parts = [part for at in range(0, len(text), size) for part in parser.push(text[at : at + size])]
    return shown([*parts, *parser.finish()])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FINAL, [("says", "Yes.")]),
        (f"{FINAL}<|end|>", [("says", "Yes.")]),
        (f"{THOUGHT}{NEXT}{FINAL}", [("thinks", "Hm."), ("says", "Yes.")]),
        (f"{THOUGHT}{NEXT}{THOUGHT}{NEXT}{FINAL}", [("thinks", "Hm.\n\nHm."), ("says", "Yes.")]),
        (f"{THOUGHT}{NEXT}{CALL}", [("thinks", "Hm."), ("call", "get_weather", '{"city": "Oslo"}')]),
        (f"{CALL}<|call|>{NEXT}{FINAL}", [("call", "get_weather", '{"city": "Oslo"}'), ("says", "Yes.")]),
        (" to=functions.clock<|channel|>commentary json<|message|>{}", [("call", "clock", "{}")]),
        ("<|channel|>analysis to=functions.clock code<|message|> {}", [("call", "clock", "{}")]),
        (
            f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}",
            [("says", "I look."), ("call", "get_weather", '{"city": "Oslo"}')],
        ),
        (f"<|channel|>commentary<|message|>I look.<|end|>{NEXT}{FINAL}", [("says", "I look.\n\nYes.")]),
        (f"<|channel|>analysis<|message|><|end|>{NEXT}{FINAL}", [("says", "Yes.")]),
        ("<|channel|>analysis<|message|>Hm", [("thinks", "Hm")]),
        ("<|channel|>final<|message|>a <|en b", [("says", "a <|en b")]),
        ("<|channel|>final<|message|>a<|end|>b", [("says", "a<|end|>b")]),
        ("Plain words.", [("says", "Plain words.")]),
        ("<|start|>user<|message|>x", [("says", "<|start|>user<|message|>x")]),
        (CALL[:-5], [("call", "get_weather", '{"city": "O', "cut")]),
        ("<|channel|>commentary to=functions.clock <|cons", [("call", "clock", "", "cut")]),
        ("<|channel|>commentary to=functions.clo", []),
        ("<|channel|>ana", []),
        (CALL.replace("get_weather", "rm"), [("says", CALL.replace("get_weather", "rm"))]),
        ("<|channel|>commentary to=python<|message|>1+1", [("says", "<|channel|>commentary to=python<|message|>1+1")]),
        (CALL.replace('{"city"', "city"), [("says", CALL.replace('{"city"', "city"))]),
    ],
)
def test_channels(text: str, expected: list[Shown], size: int) -> None:
    assert read(HarmonyParser(within=None, tools=TOOLS), text, size) == expected


def test_one_call_ends_the_answer_where_no_more_are_wanted() -> None:
    parser = HarmonyParser(within=None, tools=TOOLS, parallel=False)
    assert shown(parser.push(f"{CALL}<|call|>{NEXT}{CALL}")) == [("call", "get_weather", '{"city": "Oslo"}')]
    assert (parser.done, parser.calls) == (True, 1)


def test_arguments_stream_as_they_are_written() -> None:
    parser = HarmonyParser(within=None, tools=TOOLS)
    begun = parser.push(CALL.partition('"Oslo')[0])
    assert [type(part) for part in begun] == [CallBegun, CallArguments]
    assert parser.push('"Os') == [CallArguments('"Os')]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model.load(write_harmony(tmp_path_factory.mktemp("models") / "harmony.gguf")) as loaded:
        yield loaded


def prompt_of(model: Model, turn: ReplyTurn) -> Tokens:
    text = ChatTemplate(HARMONY.read_text("utf-8")).render(turn.messages, **turn.variables)
    return model.tokenize(text, special=True, add_bos=False)


def test_a_model_of_this_kind_is_recognised(model: Model) -> None:
    dialect = Dialect(model)
    assert dialect.has_channels
    assert dialect.renders_tools
    assert dialect.thought is not None
    end = dialect.token_of("<|end|>")
    assert end is not None
    assert end not in model.end_tokens, "it ends a message, and not the turn"
    assert {dialect.token_of("<|return|>"), dialect.token_of("<|call|>")} <= model.end_tokens


@pytest.mark.parametrize(
    ("reasoning", "content", "out", "ending", "goes_on"),
    [
        ("", "", False, "<|start|>assistant", [("thinks", "Hm."), ("says", "Yes.")]),
        ("So", "", False, "<|channel|>analysis<|message|>So", [("thinks", "on"), ("says", "Yes.")]),
        ("So", "", True, f"So<|end|>{NEXT}<|channel|>final<|message|>", [("says", "on")]),
        ("So", "It", False, f"So<|end|>{NEXT}<|channel|>final<|message|>It", [("says", "on")]),
        ("", "It", False, f"{NEXT}<|channel|>final<|message|>It", [("says", "on")]),
    ],
)
def test_an_answer_goes_on_where_it_was(
    model: Model, reasoning: str, content: str, out: bool, ending: str, goes_on: list[Shown]
) -> None:
    turn = Dialect(model).turn(HI)
    tokens, parser = turn.resume(prompt_of(model, turn), reasoning, content, out)
    assert model.detokenize(tokens, special=True).endswith(ending)
    text = f"{THOUGHT}{NEXT}{FINAL}" if not reasoning and not content else "on"
    if len(goes_on) == 2 and text == "on":
        text = f"on<|end|>{NEXT}{FINAL}"
    assert read(parser, text, 5) == goes_on
    assert read(turn.parser(tokens), text, 5) == goes_on, "a prompt says where its answer goes on"


def fits(model: Model, compiler: Compiler, lark: str | None, text: str) -> bool:
    assert lark is not None
    tokens = [*model.tokenize(text, special=True, add_bos=False).tolist(), model.eos]
    return compiler.compile(Grammar.lark(lark)).fresh().fits(tokens) == len(tokens)


def test_a_call_is_forced_after_a_thought_or_at_once(model: Model) -> None:
    compiler = Compiler(model)
    turn = Dialect(model).turn(HI, TOOLS, ToolChoice("required"))
    lark = turn.lark(prompt_of(model, turn))
    other = CALL.replace("commentary to=functions.get_weather <|constrain|>json", "commentary to=functions.clock json")
    for text, expected in (
        (CALL, True),
        (f"{THOUGHT}{NEXT}{CALL}", True),
        (" to=functions.clock<|channel|>commentary json<|message|>{}", True),
        (other.replace('{"city": "Oslo"}', "{}"), True),
        (CALL.replace("get_weather", "rm"), False),
        (CALL.replace('"Oslo"', "5"), False),
        (FINAL, False),
        (f"{THOUGHT}{NEXT}{FINAL}", False),
    ):
        assert fits(model, compiler, lark, text) is expected, text
    tokens, _ = turn.resume(prompt_of(model, turn), "So", "")
    assert fits(model, compiler, turn.lark(tokens), f"on<|end|>{NEXT}{CALL}")
    tokens, _ = turn.resume(prompt_of(model, turn), "", "I look.")
    assert fits(model, compiler, turn.lark(tokens), f"<|end|>{NEXT}{CALL}")
    compiler.close()


def test_an_answer_in_a_schema_has_its_header(model: Model) -> None:
    compiler = Compiler(model)
    turn = Dialect(model).turn(HI)
    prompt = prompt_of(model, turn)
    assert not turn.dialect.begins_answer(prompt)
    value = '{"city": "Oslo"}'
    for text, expected in (
        (f"<|channel|>final<|message|>{value}", True),
        (f"{THOUGHT}{NEXT}<|channel|>final<|message|>{value}", True),
        (value, False),
        (FINAL, False),
    ):
        assert fits(model, compiler, turn.lark(prompt, CITY), text) is expected, text
    both = Dialect(model).turn(HI, TOOLS, AUTO)
    assert fits(model, compiler, both.lark(prompt, CITY), CALL)
    tokens, _ = turn.resume(prompt, "", "", thought_out=True)
    assert turn.dialect.begins_answer(tokens)
    assert fits(model, compiler, turn.lark(tokens, CITY), value)
    compiler.close()


def test_the_template_takes_several_calls_words_before_them_and_thoughts() -> None:
    calls = (ToolCall("a", "clock", "{}"), ToolCall("b", "get_weather", '{"city": "Oslo"}'))
    said = Message("assistant", "I look.", calls, reasoning="Hm.")
    messages = [*HI, said, Message("tool", "3 degrees", (), "b"), Message("tool", "noon", (), "a")]

    source = HARMONY.read_text("utf-8")
    turn = Dialect(Spelled(source)).turn(messages, TOOLS)
    text = ChatTemplate(source).render(turn.messages, **turn.variables)
    assert text.partition("Hi<|end|>")[2] == (
        f"{NEXT}<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        f"{NEXT} to=functions.clock<|channel|>commentary json<|message|>{{}}<|call|>"
        '<|start|>functions.clock to=assistant<|channel|>commentary<|message|>"noon"<|end|>'
        f'{NEXT} to=functions.get_weather<|channel|>commentary json<|message|>{{"city": "Oslo"}}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"3 degrees"<|end|>'
        f"{NEXT}"
    )


@pytest.mark.parametrize(
    ("said", "shown_to_the_model"),
    [
        (f"{THOUGHT}{NEXT}{FINAL}", "Yes."),
        (f"{THOUGHT}{NEXT}", ""),
        ("The mark <|channel|> begins a header.", "The mark <|channel|> begins a header."),
    ],
)
def test_an_answer_with_its_headers_can_be_part_of_a_conversation(said: str, shown_to_the_model: str) -> None:
    """`chat --plain`, `verify` and callers of the Python API keep answers as the model wrote them."""
    template = ChatTemplate(HARMONY.read_text("utf-8"))
    text = template.render([*HI, Message("assistant", said), *HI])
    assert f"{NEXT}<|channel|>final<|message|>{shown_to_the_model}<|end|><|start|>user" in text
    assert text.count("Hm.") == 0
