"""A model without a chat template: said when it is loaded, completes text within a limit, refuses what needs more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.chat.prompt.prompt import MOST_TOKENS, NO_TEMPLATE, continued, note
from localspec.chat.turn import Message
from localspec.errors import ModelError
from localspec.machine import Place
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Store
from localspec.tui.screens import models
from tests.cli.conftest import Command
from tests.llama.rewritten_gguf import rewritten

NAMED = ("--seed", "7", "--temperature", "0")
SHORT = (*NAMED, "--max-tokens", "8")
NOTE = f"localspec: {note('base.gguf')}\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    return rewritten(tiny_target, path, without=("tokenizer.chat_template",))


def test_run_says_it_and_completes(command: Command, base: Path) -> None:
    result = command("run", str(base), "Once upon", *SHORT)
    raw = command("run", "--raw", str(base), "Once upon", *SHORT)
    assert (result.code, result.err) == (0, NOTE)
    assert (raw.code, raw.err) == (0, "")
    assert result.out == raw.out


def test_a_completion_ends(command: Command, base: Path) -> None:
    words = ("run", str(base), "1 2 3 4 5 6 7 8 9", "--temperature", "5", "--seed", "1", "--json")
    answer = json.loads(command(*words).out)
    assert len(answer["tokens"]) <= MOST_TOKENS
    longer = json.loads(command(*words, "--max-tokens", str(MOST_TOKENS + 9)).out)
    assert longer["tokens"][: len(answer["tokens"])] == answer["tokens"]
    if answer["finish_reason"] == "length":
        assert len(longer["tokens"]) > MOST_TOKENS


def test_a_plain_chat_says_it_and_goes_on_with_the_text(command: Command, base: Path) -> None:
    result = command("chat", "--plain", str(base), *SHORT, stdin="Once upon\n and then\n")
    assert (result.code, result.err) == (0, NOTE)
    first = command("run", "--raw", str(base), "Once upon", *SHORT).out.removesuffix("\n")
    assert result.out.startswith(first)
    second = command("run", "--raw", str(base), f"Once upon{first} and then", *SHORT).out
    assert result.out.endswith(second)


@pytest.mark.parametrize("words", [("run", "hi"), ("chat", "--plain")])
def test_a_system_message_has_no_place(command: Command, base: Path, words: tuple[str, ...]) -> None:
    result = command(*words, "--target", str(base), "--system", "Be brief.", *SHORT, stdin="hi\n")
    assert (result.code, result.out) == (3, "")
    assert "no chat template, so that a system message has no place" in result.err


def test_raw_text_has_no_system_message_either(command: Command) -> None:
    result = command("run", "hi", "--raw", "--system", "Be brief.", *SHORT)
    assert result.code == 2
    assert "--raw and --system do not go together" in result.err


def test_batch_completes_prompts_and_refuses_messages(command: Command, base: Path) -> None:
    lines = '{"prompt": "Once"}\n{"messages": [{"role": "user", "content": "hi"}]}\n'
    result = command("run", "--batch", "-", "--target", str(base), *SHORT, stdin=lines)
    answers = {row["id"]: row for row in map(json.loads, result.out.splitlines())}
    assert result.code == 1
    assert result.err == NOTE + "1 answered, 1 failed.\n"
    assert answers[1]["text"]
    assert "no chat template" in answers[2]["error"]


def test_lists_say_it(command: Command, base: Path) -> None:
    assert command("import", str(base), "--name", "based").code == 0
    try:
        (line,) = (line for line in command("list").out.splitlines() if line.startswith("based"))
        assert line.endswith(f"good; {NO_TEMPLATE}")
        (entry,) = (one for one in json.loads(command("list", "--json").out) if one["name"] == "based")
        assert entry["completes_only"] is True
        assert "none: for completing text" in command("show", "based").out
        (item,) = (one for one in models.shelf(Catalog.load(), Store()) if one.name == "based")
        assert models.judged(item, [Place("CPU", "cpu", 1 << 34, 1 << 34)]).fit.endswith(f"It has {NO_TEMPLATE}.")
    finally:
        assert command("rm", "based").code == 0


def test_the_text_of_a_conversation() -> None:
    said = [Message("user", "Once upon"), Message("assistant", " a time"), Message("user", ", there")]
    assert continued(said) == "Once upon a time, there"
    with pytest.raises(ModelError, match="a system message has no place"):
        continued([Message("system", "x"), *said])


def test_verify_completes_texts(command: Command, base: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9"}))
    words = ("verify", "--target", str(base), "--exact", "strict", "--prompts", str(prompts), "--max-tokens", "40")
    result = command(*words, "--temperature", "1", "--json")
    report = json.loads(result.out)
    assert (result.code, report["forks"]) == (0, 0)
    assert sum(row["drafted"] for row in report["settings"]) > 0
