"""Calls as the families' own chat templates write them: rendered by the real template, read back, forced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.reply.dialect import Dialect
from localspec.chat.reply.forms import JsonForm, NamedForm
from localspec.chat.reply.harmony import HarmonyForm
from localspec.chat.reply.reply import Content, Part
from localspec.chat.reply.tool import CallArguments, CallBegun, CallEnded, Tool, ToolCall, ToolChoice
from localspec.chat.turn import Message
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler, Lazy
from localspec.llama.model import Model
from tests.chat.marked_file import CONTROL, USER_DEFINED, write_marked
from tests.chat.test_call_grammar import PROMPT, Disguised
from tests.chat.test_dialect import Spelled

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name"},
            "days": {"type": "integer", "description": "How many"},
            "at": {
                "type": "object",
                "description": "More",
                "properties": {"units": {"type": "array", "items": {"type": "string"}}},
                "additionalProperties": {"type": "boolean"},
            },
        },
        "required": ["city"],
    },
)
CLOCK = Tool("clock", "Time", {"type": "object", "properties": {}})
GIVEN: dict[str, Any] = {"city": 'Köln "am Rhein", {1}', "days": 3, "at": {"units": ["°C", "km/h"], "wind": True}}
ASKED = Message("user", "How is the weather?")
CALL = ToolCall("abcdefghi", "get_weather", json.dumps(GIVEN, ensure_ascii=False))
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<eos>", "<|call|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<|end_of_text|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|tool_response>", "<|observation|>"),
)
FAMILIES = {
    "Hermes": "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen3": "Qwen-Qwen3-0.6B",
    "Qwen3-Coder": "Qwen3-Coder",
    "Llama 3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "Mistral Nemo": "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral Small 3.2": "Mistral-Small-3.2-24B-Instruct-2506",
    "Devstral": "unsloth-mistral-Devstral-Small-2507",
    "DeepSeek R1": "llama-cpp-deepseek-r1",
    "DeepSeek V3.1": "deepseek-ai-DeepSeek-V3.1",
    "Granite 4": "ibm-granite-granite-4.0",
    "Command-R+": "CohereForAI-c4ai-command-r-plus-tool_use",
    "Command-R7B": "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "Gemma 4": "google-gemma-4-31B-it",
    "GLM 4.6": "GLM-4.6",
    "Kimi K2": "moonshotai-Kimi-K2",
    "gpt-oss": "openai-gpt-oss-120b",
}
WHOLE = ("Qwen3-Coder", "Gemma 4", "GLM 4.6")
"""Families whose arguments come in one piece."""


def source_of(family: str) -> str:
    return (TEMPLATES / f"{FAMILIES.get(family, family)}.jinja").read_text(encoding="utf-8")


def written(family: str, tool: Tool = WEATHER, call: ToolCall = CALL, content: str = "", times: int = 1) -> str:
    """What the model says when it makes the call so often, by its template."""
    template = ChatTemplate(source_of(family), bos="", eos="<eos>")
    variables = {"tools": [tool.as_function()]}
    prompt = template.render([ASKED], **variables)
    said = Message("assistant", content, (call,) * times)
    whole = template.render([ASKED, said], add_generation_prompt=False, **variables)
    if family == "Command-R+":  # it repeats its instructions before an answer
        prompt = whole[: whole.rindex("<|CHATBOT_TOKEN|>") + len("<|CHATBOT_TOKEN|>")]
    for thought in ("<|channel>thought\n<channel|>", "<think>\n"):  # left out of calls that were made before
        prompt = prompt if whole.startswith(prompt) else prompt.removesuffix(thought)
    assert whole.startswith(prompt)
    answer = whole[len(prompt) :]
    return answer[: min((at for end in ENDS if (at := answer.find(end)) >= 0), default=len(answer))]


def read(family: str, pieces: list[str], tools: tuple[Tool, ...] = (WEATHER, CLOCK), cut: bool = False) -> list[Part]:
    parser = Dialect(Spelled(source_of(family))).turn([ASKED], tools).parser(PROMPT)
    return [part for piece in pieces for part in parser.push(piece)] + parser.finish(cut)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_of_the_template_is_read_back(family: str) -> None:
    text = written(family)
    for pieces in ([text], list(text)):
        begun, *arguments, ended = read(family, pieces)
        assert isinstance(begun, CallBegun)
        assert begun.name == "get_weather"
        told = "".join(part.text for part in arguments if isinstance(part, CallArguments))
        assert json.loads(told) == GIVEN
        assert ended == CallEnded(whole=True)
        assert all(isinstance(part, CallArguments) for part in arguments)
    assert (len(arguments) > 20) is (family not in WHOLE)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_of_a_tool_that_is_not_there_is_text(family: str) -> None:
    text = re.sub(r"\s*<think>\s*</think>\s*", "", written(family))
    for pieces in ([text], list(text)):
        parts = read(family, pieces, (CLOCK,))
        assert "".join(part.text for part in parts if isinstance(part, Content)).strip() == text.strip()
        assert all(isinstance(part, Content) for part in parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_anywhere_is_text_or_a_beginning_of_it(family: str) -> None:
    text = written(family)
    kinds = set()
    for end in range(1, len(text)):
        parts = read(family, [text[:end]])
        assert parts == [] or not isinstance(parts[-1], CallArguments)
        if any(isinstance(part, CallBegun) for part in parts):
            kinds.add("call")
            told = "".join(part.text for part in parts if isinstance(part, CallArguments))
            assert not parts or all(not isinstance(part, Content) for part in parts)
            assert isinstance(parts[-1], CallEnded)
            assert not parts[-1].whole or json.loads(told) == GIVEN
        else:
            kinds.add("text")
            assert "call" not in kinds, "what was a call becomes none by more of it"
    assert "call" in kinds


UNMARKED = ("Llama 3.1", "Command-R+")
"""Families whose calls begin with what any text may begin with."""
ONE_EACH = ("Llama 3.1", "gpt-oss")
"""Families whose templates take one call a message."""


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_limit_cuts_of_a_call_is_no_text(family: str) -> None:
    """Of the first call, but for the letters of a mark (models spell some); of the second, without exception."""
    twice = written(family) if family in ONE_EACH else written(family, times=2)
    opening, kinds = Dialect(Spelled(source_of(family))).form.openings[0], set()
    for end in range(1, len(twice)):
        for pieces in ([twice[:end]], [twice[: end // 2], twice[end // 2 : end]], list(twice[:end])):
            parts = read(family, pieces, cut=True)
            said = "".join(part.text for part in parts if isinstance(part, Content)).strip()
            calls = sum(isinstance(part, CallBegun) for part in parts)
            kinds.add(calls)
            assert not said or (not calls and (family in UNMARKED or f"<think>{opening}".find(said) in (0, 7))), twice[
                :end
            ]
    assert kinds == ({0, 1} if family in ONE_EACH else {0, 1, 2})


SIMPLE = ToolCall("abcdefghi", "get_weather", '{"city": "Oslo", "days": 3}')
GRANITE_3 = "ibm-granite-granite-3.3-2B-Instruct"


def spelled(family: str) -> str:
    """A simple call with no more white space than the family's form needs."""
    form = Dialect(Spelled(source_of(family))).form
    if isinstance(form, NamedForm) or (isinstance(form, JsonForm) and form.array):
        lead = "\n```json\n" if family == "Command-R+" else ""
        return form.written([SIMPLE]).replace("```json", lead, 1) if lead else form.written([SIMPLE])
    text = re.sub(r"^\s*<think>\s*</think>\s*", "", written(family, call=SIMPLE))
    return re.sub(rf', "id": "{SIMPLE.id}"|\[CALL_ID\]{SIMPLE.id}', "", text)  # the model need not write ids


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target) as loaded:
        yield loaded


@pytest.mark.parametrize("family", [*FAMILIES, GRANITE_3])
def test_a_call_can_be_forced(family: str, model: Model) -> None:
    text = spelled(family)
    compiler = Compiler(model)
    for tools, fits in (((WEATHER, CLOCK), True), ((CLOCK,), False)):
        turn = Dialect(Disguised(model, source_of(family))).turn([ASKED], tools, ToolChoice("required"))
        lark = turn.lark(PROMPT)
        assert lark is not None
        tokens = [*model.tokenize(text, special=True, add_bos=False).tolist(), model.eos]
        assert (compiler.compile(Grammar.lark(lark)).fresh().fits(tokens) == len(tokens)) is fits
    compiler.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_as_the_template_writes_it_can_be_forced(family: str, model: Model) -> None:
    """The model has seen it so: ids, numbers and white space included."""
    text = re.sub(r"^\s*<think>\s*</think>\s*", "", written(family, call=SIMPLE))
    text = text.strip() if family == "Command-R+" else text
    compiler = Compiler(model)
    turn = Dialect(Disguised(model, source_of(family))).turn([ASKED], (WEATHER, CLOCK), ToolChoice("required"))
    lark = turn.lark(PROMPT)
    assert lark is not None
    tokens = model.tokenize(text, special=True, add_bos=False).tolist()
    taken = compiler.compile(Grammar.lark(lark)).fresh().fits(tokens)
    assert taken == len(tokens), model.detokenize(tokens[:taken], special=True)
    compiler.close()


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED], ids=["control", "user-defined"])
@pytest.mark.parametrize("family", [*FAMILIES, GRANITE_3])
def test_with_marks_that_are_tokens_a_call_is_free_to_come_and_bound_when_it_does(
    family: str, kind: int, tmp_path: Path
) -> None:
    form = Dialect(Spelled(source_of(family))).form
    thought = Dialect(Spelled(source_of(family))).thought
    marks = {mark for mark in (*form.openings, *form.markers) if mark[-1] in ">]"}
    if thought is not None and not isinstance(form, HarmonyForm):
        marks |= {thought.opening.removesuffix("thought"), thought.closing}
    file = write_marked(tmp_path / "marked.gguf", source_of(family), sorted(marks), kind)
    with Model.load(file) as model:
        compiler = Compiler(model)
        turn = Dialect(model).turn([ASKED], (WEATHER, CLOCK))
        lead = "<|start|>assistant" if isinstance(form, HarmonyForm) else ""
        found = turn.lazily(model.tokenize(lead or "x", special=True, add_bos=False))
        if family in ("Llama 3.1", "Command-R+"):
            assert found is None, "no token tells its calls"
            return
        assert found is not None
        lark, trigger = found
        lazy = Lazy(compiler.compile(Grammar.lark(lark)).fresh(), trigger, model.n_vocab)
        other = spelled(family).replace("get_weather", "get_whether")
        for text, fits in (
            (f"So: {spelled(family)}" if not lead else spelled(family), True),
            (f"So: {other}" if not lead else other, False),
            ("So: get_whether {}" if not lead else "<|channel|>final<|message|>So: get_whether {}", True),
        ):
            tokens = model.tokenize(text, special=True, add_bos=False).tolist()
            assert (lazy.fits(tokens) == len(tokens)) is fits, text
            forced = turn.dialect.turn([ASKED], (WEATHER, CLOCK), ToolChoice("required")).lark(PROMPT)
            assert forced is not None
            matcher = compiler.compile(Grammar.lark(forced)).fresh()
            call = text.removeprefix("So: ")
            tokens = model.tokenize(call, special=True, add_bos=False).tolist()
            assert (matcher.fits(tokens) == len(tokens)) is (call == spelled(family)), call
        compiler.close()


@pytest.mark.parametrize("family", [*FAMILIES, GRANITE_3])
def test_what_is_forced_is_read_back(family: str) -> None:
    begun, *arguments, ended = read(family, list(spelled(family)))
    assert isinstance(begun, CallBegun)
    told = "".join(part.text for part in arguments if isinstance(part, CallArguments))
    assert (begun.name, json.loads(told), ended) == ("get_weather", {"city": "Oslo", "days": 3}, CallEnded(whole=True))


@pytest.mark.parametrize("family", ["DeepSeek V3.1", GRANITE_3])
def test_what_a_template_leaves_out_is_spelled(family: str) -> None:
    """V3.1's template shows no tools, and Granite 3's no calls."""
    said = [ASKED, Message("assistant", "", (SIMPLE,)), Message("tool", "3 degrees", (), SIMPLE.id), ASKED]
    turn = Dialect(Spelled(source_of(family))).turn(said, [WEATHER])
    prompt = ChatTemplate(source_of(family)).render(turn.messages, **turn.variables)
    assert spelled(family) in prompt
    assert "Weather of a city" in prompt
    assert "3 degrees" in prompt


GEMMA_TEXT = (
    '<|tool_call>call:get_weather{city:<|"|>a}<tool<|"|>,days:-3,at:{units:[1.5,true,null,<|"|><|"|>]}}<tool_call|>'
)


def test_gemmas_notation() -> None:
    _, arguments, _ = read("Gemma 4", list(GEMMA_TEXT))
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text) == {"city": "a}<tool", "days": -3, "at": {"units": [1.5, True, None, ""]}}
    deep = "<|tool_call>call:get_weather{a:" + "{b:" * 2000 + "1" + "}" * 2001 + "<tool_call|>"
    assert read("Gemma 4", [deep]) == [Content(deep)]
