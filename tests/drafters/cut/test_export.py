"""A cut draft model is an ordinary file, which drafts for its target alone and never changes the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import Engine
from localspec.drafters import cut as exporting
from localspec.drafters.cut import VocabPart, export
from localspec.errors import LocalspecError
from localspec.gguf import Header, read_header
from localspec.models.facts.pairing import match
from localspec.types import SamplingParams
from tests.llama import architectures


def test_it_fits_its_target_unasked(header: Header, cut: Path) -> None:
    found = match(header, read_header(cut))
    assert found.fits
    assert found.shared is not None
    assert len(found.shared) >= 600
    assert found.verdict == (
        "cut.gguf can draft for tiny-target-q8_0.gguf, as a draft model that has a part of its vocabulary."
    )


def test_it_fits_no_other(cut: Path, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "other.gguf"
    source = read_header(architectures.write("llama", tmp_path))
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"word{number}" for number in range(500)])
    writer.add_token_types([1] * 500)
    writer.add_token_merges([])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert source.tokens
    found = match(read_header(path), read_header(cut))
    assert not found.fits
    assert found.verdict == "cut.gguf cannot draft for other.gguf: it was trained for another model."


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_equal_with_it(tiny_target: Path, cut: Path, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    with Engine.load(tiny_target, drafter="none") as plain, Engine.load(tiny_target, cut) as drafted:
        for seed in range(4):
            prompt = plain.tokenize("Sort: 4, 2, 9, 7, 1, 3", special=False)
            ours = plain.generate(prompt, sampling=sampling, seed=seed, max_tokens=48)
            theirs = drafted.generate(
                prompt, sampling=sampling, seed=seed, max_tokens=48, drafter="draft", forced=True, max_draft_tokens=4
            )
            assert theirs.text() == ours.text()
            assert theirs.tokens == ours.tokens
            assert theirs.stats.drafted > 0


def test_a_full_disk_is_one_sentence(header: Header, part: VocabPart, tmp_path: Path) -> None:
    with pytest.raises(LocalspecError, match=r"draft\.gguf cannot be written: "):
        export(tmp_path / "nowhere" / "draft.gguf", header, part, [], {}, "x", {})


def test_without_the_package_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(LocalspecError, match="package gguf, which is not installed") as error:
        exporting.gguf_package()
    assert error.value.hint == 'Install it with: pip install "localspec[train]"'
