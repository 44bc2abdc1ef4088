"""show, check and suggest: what they print, their JSON, and their exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from localspec.llama.exact import wide
from tests.cli.conftest import Command
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, write
from tests.models.made_models import Made, write_model
from tests.quantised import quantize


def test_show_explains_a_file(command: Command, tiny_target: Path) -> None:
    result = command("show", str(tiny_target))
    assert (result.code, result.err) == (0, "")
    for words in (
        "localspec tiny target",
        "llama, 6 layers, 5.8 M parameters",
        "Q8_0 (tensors: Q8_0",
        "BPE, 4,096 tokens, pre-tokenizer qwen2, bos 0 '<|bos|>'",
        "2,048 tokens in training",
        "512 tokens: ",
        "yes lookup: needs",
        "yes dspark, dflash2, dflash, eagle3: a head trained for it, as GGUF",
        "no  mtp: the file has no prediction layers",
    ):
        assert words in result.out
    assert "\x1b" not in result.out


@pytest.mark.skipif(not wide.available(), reason=wide.status().reason)
def test_show_says_what_is_exact(command: Command, tiny_target: Path, tmp_path: Path) -> None:
    assert command("show", str(tiny_target)).out.endswith("  yes, at every width and in prompts\n")
    file = quantize(tiny_target, tmp_path / "tq1.gguf", "TQ1_0", threads=1)
    result = command("show", str(file))
    assert "  yes, at every width; not in prompts: the product Qcur-0 (tq1_0) is llama.cpp's\n" in result.out
    assert "not packed" not in command("show", str(tiny_target)).out
    assert "localspec's kernels do not pack TQ1_0 (" in result.out
    assert " passes of one row, so drafts gain little\n" in result.out
    facts = json.loads(command("show", str(file), "--json").out)
    assert list(facts["unpacked_bytes"]) == ["TQ1_0"]
    assert facts["exact"] == {"widths": True, "prefill": False, "reason": "the product Qcur-0 (tq1_0) is llama.cpp's"}


def test_show_as_json(command: Command, tiny_target: Path) -> None:
    result = command("show", str(tiny_target), "--json", "--context", "1000", "--cache-type", "q8_0")
    facts = json.loads(result.out)
    assert facts["architecture"] == "llama"
    assert facts["tokenizer"]["eos"] == {"id": 1, "text": "<|end|>"}
    assert facts["template"]["marks"]
    assert [need["context"] for need in facts["memory"]][-3:] == [1000, 1024, 2048]
    assert facts["memory"][-1]["cache_bytes"] == 6 * 2048 * 2 * 128 * 34 // 32
    assert facts["bytes"] == tiny_target.stat().st_size
    assert sum(facts["tensor_bytes"].values()) < facts["bytes"]


def test_show_a_pair_shows_both(command: Command) -> None:
    assert command("show", "tiny").out.count("architecture") == 2
    pair = json.loads(command("show", "tiny", "--json").out)
    assert [facts["layers"] for facts in pair] == [6, 2]


def test_show_what_is_not_here(command: Command) -> None:
    result = command("show", "qwen3-8b")
    assert result.code == 0
    assert "Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf" in result.out
    assert "not yet" in result.out
    assert result.out.endswith("Not on this machine. localspec pull qwen3-8b\n")
    entries = json.loads(command("show", "qwen3-8b", "--json").out)
    assert [entry["installed"] for entry in entries] == [False, False]
    assert "in doubt" in command("show", "qwen3.6-27b-eagle3-q4_k_m").out


@pytest.mark.parametrize(
    ("data", "words"),
    [(None, "does not exist"), (b"no model", "not a GGUF file"), (gguf_bytes()[:3000], "truncated")],
)
def test_show_what_cannot_be_read(command: Command, tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "x.gguf"
    if data is not None:
        write(path, data)
    result = command("show", str(path))
    assert (result.code, result.out) == (3, "")
    assert words in result.err


def test_show_other_kinds(command: Command, tmp_path: Path) -> None:
    metadata = {**TINY_METADATA, "general.architecture": "eagle3", "eagle3.target_hidden_size": 32}
    result = command("show", str(write(tmp_path / "head.gguf", gguf_bytes(metadata))))
    assert "what it is     an EAGLE-3 head" in result.out
    assert "not a target" in result.out
    bare = {key: value for key, value in TINY_METADATA.items() if not key.startswith("tokenizer")}
    result = command("show", str(write(tmp_path / "bare.gguf", gguf_bytes(bare))))
    assert "tokenizer      none" in result.out
    assert "none: for completing text" in result.out
    result = command("show", str(write(tmp_path / "vocabulary.gguf", gguf_bytes(tensors=[]))))
    assert "a vocabulary, without weights" in result.out
    assert "memory" not in result.out
    hybrid = {**TINY_METADATA, "llama.ssm.conv_kernel": 4}
    assert (
        "no  draft, lookup, suffix, habits, pard: its recurrent"
        in command("show", str(write(tmp_path / "hybrid.gguf", gguf_bytes(hybrid)))).out
    )


def test_show_a_split_model(command: Command, tmp_path: Path) -> None:
    metadata = {**TINY_METADATA, "split.count": 2}
    for part in (1, 2):
        tensors = [("token_embd.weight", (32, 260))] if part == 1 else [("blk.0.attn_k.weight", (32, 32))]
        write(tmp_path / f"m-0000{part}-of-00002.gguf", gguf_bytes(metadata, tensors))
    first = tmp_path / "m-00001-of-00002.gguf"
    facts = json.loads(command("show", str(first), "--json").out)
    assert (facts["parts"], facts["layers"], facts["parameters"]) == (2, 1, 32 * 260 + 32 * 32)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    result = command("show", str(first))
    assert result.code == 3
    assert "m-00002-of-00002.gguf is missing; m-00001-of-00002.gguf is one of 2 parts." in result.err


def test_check_a_pair_that_fits(command: Command) -> None:
    result = command("check", "tiny")
    assert result.code == 0
    assert "tiny-draft-q8_0.gguf can draft for tiny-target-q8_0.gguf, as a draft model." in result.out
    assert "target on CPU: " in result.out
    assert "draft on CPU: " in result.out
    assert "A context of 2048 tokens with F16 cache fits" in result.out


def test_check_two_files_that_do_not(command: Command, tiny_target: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.gguf", gguf_bytes())
    result = command("check", str(tiny_target), str(other))
    assert result.code == 1
    assert "their tokenizers are of different kinds (BPE, SPM)" in result.out
    verdict = json.loads(command("check", str(tiny_target), str(other), "--json").out)
    assert verdict["match"]["fits"] is False
    assert verdict["match"]["difference"] == {
        "fact": "kind of tokenizer",
        "target": "BPE",
        "draft": "SPM",
        "token": None,
    }
    assert verdict["memory"]["fits"] is True


def test_check_says_when_memory_is_too_small(command: Command) -> None:
    result = command("check", "tiny", "--context", "100000000")
    assert result.code == 1
    assert "with F16 cache does not fit" in result.out
    assert "too little" in result.out


def test_check_fit_chooses_a_cache(command: Command, tmp_path: Path) -> None:
    made = write_model(tmp_path / "m.gguf", Made(layers=2, context=1 << 24))
    found = json.loads(command("check", str(made), str(made), "--fit", "--json").out)
    memory = found["memory"]
    assert memory["fits"]
    assert 4096 <= memory["context"] < 1 << 24
    assert [share["model"] for share in memory["shares"]] == ["target", "draft"]


def test_check_of_what_is_not_here(command: Command) -> None:
    assert command("check", "qwen3-8b").code == 3
    assert command("check", "tiny", "--cache-type", "q9").code == 2


def test_suggest_from_the_catalogue(command: Command) -> None:
    result = command("suggest", "qwen3-8b-q4_k_m")
    assert result.code == 0
    assert "qwen3-0.6b-q8_0 (draft, on the hub, 639.4 MB)" in result.out
    assert "localspec pull qwen3-8b" in result.out
    (found,) = json.loads(command("suggest", "qwen3-8b", "--json").out)
    assert (found["draft"], found["installed"], found["method"]) == ("qwen3-0.6b-q8_0", False, "draft")


def test_suggest_what_is_on_this_machine(command: Command, tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    target = Path(shutil.copy(tiny_target, tmp_path / "my-target.gguf"))
    draft = Path(shutil.copy(tiny_draft, tmp_path / "my-draft.gguf"))
    write(tmp_path / "foreign.gguf", gguf_bytes())
    write(tmp_path / "broken.gguf", b"GGUF")
    found = json.loads(command("suggest", str(target), "--json").out)
    assert [one["draft"] for one in found] == ["tiny-draft", str(draft)]
    assert all(one["installed"] for one in found)
    assert "3.1 times as large" in found[1]["why"]
    assert found[1]["command"] == f"localspec run --target {target} --draft {draft}"
    assert json.loads(command("suggest", "tiny-target", "--json").out)[0]["command"] == "localspec run --target tiny"


def test_suggest_nothing(command: Command, tmp_path: Path) -> None:
    alone = write(tmp_path / "alone.gguf", gguf_bytes())
    result = command("suggest", str(alone))
    assert result.code == 1
    assert "Drafters without a file draft for it unasked" in result.out
    assert f"localspec train {alone} makes a draft model." in result.out
    assert "--drafter" not in result.out
    assert json.loads(command("suggest", str(alone), "--json").out) == []
    result = command("suggest", "nobody")
    assert result.code == 3
    assert "no model, pair or file called 'nobody'" in result.err


def test_show_as_another_engine_of_a_pair_that_is_here_and_of_one_that_is_not(
    command: Command, tiny_target: Path, tiny_draft: Path
) -> None:
    result = command("show", "tiny", "--as", "llama-server")
    words = ["-m", str(tiny_target), "-md", str(tiny_draft), "--spec-type", "draft-simple", "--spec-draft-n-max", "3"]
    assert (result.code, result.out.split(), result.err) == (0, ["llama-server", *words], "")
    result = command("show", "qwen3-8b", "--as", "llama-server")
    assert result.out.startswith(
        "llama-server -hf Qwen/Qwen3-8B-GGUF:Q4_K_M -hfd Qwen/Qwen3-0.6B-GGUF:Q8_0 --spec-type"
    )
    result = command("show", "qwen3.5-4b-dflash", "--as", "sglang")
    assert "--speculative-algorithm DFLASH" in result.out
    assert "note: sglang reads checkpoints, not GGUF files: put the one that unsloth/Qwen3.5-4B-GGUF" in result.err


def test_show_as_another_engine_says_what_it_cannot(command: Command, tiny_target: Path) -> None:
    result = command("show", "qwen3.8-27b-dflash2", "--as", "vllm")
    assert (result.code, result.out) == (2, "")
    assert "vllm documents no drafting by dflash2." in result.err
    result = command("show", str(tiny_target), "--as", "vllm")
    assert (result.code, result.err) == (
        2,
        f"localspec: Nothing is known that drafts for {tiny_target}. Name a pair: localspec list --catalog\n",
    )
    assert command("show", "qwen3.8-27b", "--as", "vllm").err == (
        "localspec: qwen3.8-27b is not installed, so that nothing tells what drafts for it. "
        "Try: localspec pull qwen3.8-27b\n"
    )


def test_show_as_another_engine_as_json(command: Command) -> None:
    found = json.loads(command("show", "tiny", "--as", "vllm", "--json").out)
    assert found["command"].startswith("vllm serve TARGET_CHECKPOINT --speculative-config ")
    assert len(found["notes"]) == 2
