"""`localspec check FILE`: what a model is, whether it loads, fits and is exact, and what drafts for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.llama.model import Model
from tests.cli.conftest import Command
from tests.hub import published
from tests.llama.rewritten_gguf import rewritten
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, write


def test_all_that_is_to_be_known_of_a_target(
    command: Command, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a.gguf"
    shutil.copyfile(tiny_target, file)
    shutil.copyfile(tiny_draft, tmp_path / "beside.gguf")
    result = command("check", str(file))
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:4] == [
        "a.gguf is a language model: llama, Q8_0.",
        "loads: yes",
        "exact: yes, at every width and in prompts",
        "drafted from the text alone: lookup, suffix, habits",
    ]
    assert "drafted by tiny-draft (draft, here)" in lines
    assert f"drafted by {tmp_path / 'beside.gguf'} (draft, here)" in lines
    assert any(line.startswith("target on CPU: ") for line in lines)
    assert "fits" in lines[-1]
    told = json.loads(command("check", str(file), "--json").out)
    assert (told["loads"], told["template"], told["exact"]["widths"], told["memory"]["fits"]) == (
        True,
        True,
        True,
        True,
    )
    assert told["methods"][:4] == ["draft", "lookup", "suffix", "habits"]
    assert [one["draft"] for one in told["drafts"]] == ["tiny-draft", str(tmp_path / "beside.gguf")]
    assert command("check", "tiny-target").code == 0


def test_a_base_model_is_called_one(command: Command, tiny_target: Path, tmp_path: Path) -> None:
    base = rewritten(tiny_target, tmp_path / "base.gguf", without=("tokenizer.chat_template",))
    result = command("check", str(base))
    assert result.code == 0
    assert "Q8_0; it has no chat template, so it completes text." in result.out


def test_what_does_not_fit_is_a_failure(command: Command, tiny_target: Path) -> None:
    result = command("check", str(tiny_target), "--context", str(1 << 30))
    assert result.code == 1
    assert "does not fit" in result.out


def test_what_llama_cpp_does_not_load_is_a_failure(command: Command, tmp_path: Path) -> None:
    strange = gguf_bytes({**TINY_METADATA, "general.architecture": "nosuch", "nosuch.block_count": 1})
    file = write(tmp_path / "strange.gguf", strange)
    try:
        Model.load(file, weights=False).close()
    except ModelFileError as error:
        reason = str(error)
    result = command("check", str(file))
    assert result.code == 1
    assert f"loads: no: {reason}" in result.out
    assert json.loads(command("check", str(file), "--json").out)["refusal"] == reason


def test_what_cannot_be_a_target_is_one_sentence(command: Command, tmp_path: Path) -> None:
    head = write(tmp_path / "head.gguf", published.eagle3())
    cut = write(tmp_path / "cut.gguf", gguf_bytes()[:900])
    for file, code, words in (
        (tmp_path / "none.gguf", 3, "does not exist"),
        (cut, 3, "cut.gguf is "),
        (head, 2, f"Name that before it: localspec check TARGET {head}"),
    ):
        result = command("check", str(file))
        assert (result.code, result.out) == (code, "")
        assert words in result.err
        assert len(result.err.splitlines()) == 1
