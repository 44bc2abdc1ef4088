"""The bundled pair: its generated tasks, its shipped files and its report."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packaging.scripts import imported

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "packaging" / "tiny-pair"
DATA = ROOT / "localspec" / "data"
TARGET, DRAFT = DATA / "tiny-target-q8_0.gguf", DATA / "tiny-draft-q8_0.gguf"
SPECIALS = (
    "<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<think>", "</think>",
    "<tool_call>", "</tool_call>", "<tool_result>", "</tool_result>", "<|fim_prefix|>", "<|fim_suffix|>",
    "<|fim_middle|>", "<|mask|>", *(f"<|spare_{index}|>" for index in range(15)),
)  # fmt: skip
RECIPE_MODULES = ("words", "material", "tasks")


@pytest.fixture(scope="module")
def tasks() -> Iterator[ModuleType]:
    """The recipe's generators."""
    with imported("tiny-pair", *RECIPE_MODULES) as found:
        yield found["tasks"]


def examples(tasks: ModuleType, name: str, count: int = 200) -> Iterator[Any]:
    """Examples of one task in many sizes."""
    for index in range(count):
        rng = random.Random(f"test-{name}-{index}")
        yield tasks.TASKS[name](rng, rng.randint(2, 300), tasks.Source())


def question(example: Any) -> str:
    """What the last user turn asks."""
    text: str = example.messages[-1]["content"]
    return text


def test_generators_repeat_by_seed(tasks: ModuleType) -> None:
    for name in tasks.TASKS:
        first, second = list(examples(tasks, name, 30)), list(examples(tasks, name, 30))
        assert first == second
        assert len({(question(item), item.answer) for item in first}) > 20


def test_copies_are_in_the_question(tasks: ModuleType) -> None:
    for example in examples(tasks, "copy"):
        assert example.answer
        assert example.answer in question(example)


def test_json_holds_values_of_the_text(tasks: ModuleType) -> None:
    for example in examples(tasks, "json"):
        found = json.loads(example.answer)
        for record in found if isinstance(found, list) else [found]:
            for key, value in record.items():
                assert key in question(example)
                assert str(value) in question(example)


def test_rename_changes_one_name_only(tasks: ModuleType) -> None:
    identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
    for example in examples(tasks, "rename"):
        asked, written = set(identifier.findall(question(example))), set(identifier.findall(example.answer))
        undone = (re.sub(rf"\b{new}\b", old, example.answer) for new in written & asked for old in asked - written)
        assert any(code in question(example) for code in undone)


def test_sorted_lists_are_sorted(tasks: ModuleType) -> None:
    for example in examples(tasks, "sort"):
        shown = re.split(r": ", question(example))[-1].split(", ")
        answer = example.answer.split(", ")
        if shown[0].isdigit():
            down = "descending" in question(example) or "largest to" in question(example)
            assert answer == [str(number) for number in sorted(map(int, shown), reverse=down)]
        else:
            assert answer == sorted(shown)


def test_counts_are_right(tasks: ModuleType) -> None:
    for example in examples(tasks, "count"):
        asked = question(example)
        total = int(example.answer.rsplit(" ", 1)[1])
        wanted = re.match(r"How many times does (\w+) appear\?|Count (\w+):|How often do you see (\w+)\?", asked)
        items = re.split(r"[?:] ", asked, maxsplit=1)[1].split(" ")
        plain = wanted is None or asked.startswith("Count the words")
        word = next(filter(None, wanted.groups())) if wanted and not plain else ""
        assert total == (len(items) if plain else items.count(word))


def test_sums_are_right(tasks: ModuleType) -> None:
    for example in examples(tasks, "arithmetic"):
        numbers = re.findall(r"[-+]|\d+", question(example).replace(" and ", " + "))
        total, sign = 0, 1
        for part in numbers:
            if part in "+-":
                sign = 1 if part == "+" else -1
            else:
                total += sign * int(part)
        lines = example.answer.split("\n")
        assert lines[-1] == f"Answer: {total}"
        for line in lines[:-1]:
            left, right = line.split(" = ")
            assert sum(int(part) for part in left.replace("- ", "-").replace("+ ", "").split()) == int(right)


def test_words_are_reversed_and_capitalised(tasks: ModuleType) -> None:
    for example in examples(tasks, "reverse"):
        assert question(example).endswith(": " + " ".join(reversed(example.answer.split(" "))))
    for example in examples(tasks, "upper"):
        assert example.answer in (example.answer.upper(), example.answer.lower())
        assert question(example).lower().endswith(example.answer.lower())


def test_templates_lookups_and_tool_calls(tasks: ModuleType) -> None:
    for example in examples(tasks, "fill"):
        assert "{" not in example.answer
    for example in examples(tasks, "lookup"):
        lines = question(example).split("\n")
        assert example.answer in lines
        assert example.answer.split(":")[0] in lines[-1]
    for example in examples(tasks, "tool"):
        calls = [text for text in (example.answer, *(m["content"] for m in example.messages)) if "<tool_call>" in text]
        call = json.loads(calls[0].removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert f"\n{call['name']}(" in example.messages[0]["content"]
        for value in call["arguments"].values():
            assert str(value) in example.messages[1]["content"]


def test_chats_take_turns(tasks: ModuleType) -> None:
    names = [name for name in tasks.TASKS if name != "tool"]
    for index in range(100):
        example = tasks.chat(random.Random(index), 60, tasks.Source(), names, 4)
        roles = [message["role"] for message in example.messages]
        assert roles == ["user", "assistant"] * 3 + ["user"]
        if question(example) in tasks.AGAIN:
            assert example.answer == example.messages[-2]["content"]


def vocabulary(path: Path) -> tuple[Any, Any, list[tuple[bytes, int]]]:
    """The library, the model's vocabulary only, and every token with its attributes."""
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(model._model.model)
    entries = [
        (llama_cpp.llama_vocab_get_text(vocab, index), llama_cpp.llama_vocab_get_attr(vocab, index))
        for index in range(llama_cpp.llama_vocab_n_tokens(vocab))
    ]
    return llama_cpp, model, entries


def test_shipped_files_share_one_tokenizer() -> None:
    llama_cpp, target, entries = vocabulary(TARGET)
    _, draft, other = vocabulary(DRAFT)
    assert entries == other
    assert len(entries) == 4096
    assert [text.decode() for text, _ in entries[:32]] == list(SPECIALS)
    control = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
    assert [bool(attribute & control) for _, attribute in entries] == [True] * 32 + [False] * 4064
    for key in (
        "tokenizer.chat_template",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.bos_token_id",
    ):
        assert target.metadata[key] == draft.metadata[key]
    for text in ("naïve 12345 it's\n\n  x", "<|user|>hi<|end|>", "漢字 🙂\t"):
        assert target.tokenize(text.encode(), special=True) == draft.tokenize(text.encode(), special=True)
    assert target.tokenize(b"<|user|>hi<|end|>", add_bos=True, special=True)[:2] == [0, 4]


def test_shipped_files_have_sizes_that_k_quants_take() -> None:
    for path in (TARGET, DRAFT):
        _, model, _ = vocabulary(path)
        for key in ("embedding_length", "feed_forward_length"):
            assert int(model.metadata[f"llama.{key}"]) % 256 == 0
        assert int(model.metadata["llama.context_length"]) >= 2048
        assert model.metadata["general.license"] == "mit"
    assert TARGET.stat().st_size + DRAFT.stat().st_size <= 16_000_000


def test_chat_template_renders() -> None:
    jinja2 = pytest.importorskip("jinja2")
    _, model, _ = vocabulary(TARGET)
    template = jinja2.Template(model.metadata["tokenizer.chat_template"])
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    shown = template.render(messages=messages, bos_token="<|bos|>", add_generation_prompt=True)
    assert shown == "<|bos|><|system|>S<|end|><|user|>U<|end|><|assistant|>"


def test_prompts_are_complete() -> None:
    rows = [json.loads(line) for line in (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 60
    assert len({row["id"] for row in rows}) == len(rows)
    _, model, _ = vocabulary(TARGET)
    lengths = []
    for row in rows:
        assert set(row) == {"id", "task", "messages", "answer"}
        assert row["messages"][-1]["role"] in ("user", "tool")
        text = "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in row["messages"])
        lengths.append(len(model.tokenize(text.encode(), special=True)) + 1)
    assert sum(600 <= length <= 1700 for length in lengths) * 3 >= len(rows)
    assert max(lengths) < 2000
    assert (DATA / "prompts.jsonl").stat().st_size <= 300_000


def test_report_names_the_shipped_files() -> None:
    report = (RECIPE / "REPORT.md").read_text(encoding="utf-8")
    for path in (TARGET, DRAFT, DATA / "prompts.jsonl"):
        assert f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" in report
