"""Heads that no drafter can use are recognised and kept, which is said wherever one could think they draft."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from localspec.cli.output import not_used
from localspec.gguf import read_header
from localspec.methods import FROM_FILES, HEADS, NAMES
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Store, StoredFile
from tests.cli.conftest import Command
from tests.drafters.shipped_heads import SHIPPED
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, write
from tests.runtime import nearest_head


@pytest.fixture
def head(tmp_path: Path, tiny_target: Path) -> Path:
    """A head in the format of a fork, with the sizes of the bundled target, and no tokenizer."""
    width = read_header(tiny_target).number("embedding_length")
    metadata = {key: value for key, value in TINY_METADATA.items() if not key.startswith("tokenizer")}
    metadata |= {"general.architecture": "dflash-draft", "dflash-draft.target_hidden_size": width}
    return write(tmp_path / "head.gguf", gguf_bytes(metadata))


def test_every_method_is_used_or_said_not_to_be() -> None:
    assert set(FROM_FILES) <= set(NAMES)
    for method in ("draft", *HEADS):
        assert not_used(method) == ""
    assert "cannot draft with such a file yet" in not_used("forked")


def test_pairs_of_the_catalogue_are_all_used(command: Command) -> None:
    pairs = Catalog.load().pairs.values()
    assert not [pair.name for pair in pairs if pair.method not in FROM_FILES]
    (pair, *_) = [pair for pair in pairs if pair.method == "eagle3"]
    assert "no drafter yet" not in command("list", "--catalog").out
    assert "no such drafter" not in command("show", pair.name).out
    (found,) = json.loads(command("suggest", pair.name, "--json").out)
    assert found["unused"] == ""


def test_a_head_beside_its_target(
    command: Command, head: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = command("check", str(tiny_target), str(head))
    assert result.code == 0
    assert (
        "can draft for tiny-target-q8_0.gguf, as a head in the format of a fork of llama.cpp (dflash-draft)."
        in result.out
    )
    assert f"note: {not_used('forked')}" in result.out
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    command("import", str(head), "--role", "draft")
    target = StoredFile.of(tiny_target, "0" * 64, "foreign")
    Store().add(Entry("mine", (target,), draft="head"))
    lines = [line.split() for line in command("list").out.splitlines()]
    states = {line[0]: " ".join(line[4:]) for line in lines if line[0] in ("mine", "head")}
    assert states.keys() == {"mine", "head"}
    assert all(state.endswith("such heads are kept and not used yet") for state in states.values())
    answer = command("run", "mine", "Hi", "--max-tokens", "2", "--exact", "off", "--json")
    assert answer.code == 0
    for option in ("--draft", "--head"):
        refused = command("run", "Hi", "--target", "mine", option, "head")
        assert (refused.code, refused.out) == (3, "")
        assert "(dflash-draft), which localspec cannot draft with yet." in refused.err
    suggested = command("suggest", "mine").out
    assert not_used("forked") in suggested
    assert "--draft head" not in suggested


def test_a_damaged_head_breaks_neither_the_list_nor_its_target(
    command: Command, head: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    command("import", str(head), "--role", "draft")
    Store().add(Entry("mine", (StoredFile.of(tiny_target, "0" * 64, "foreign"),), draft="head"))
    before = head.stat()
    head.write_bytes(b"GGUF".ljust(before.st_size, b"\xff"))
    os.utime(head, ns=(before.st_atime_ns, before.st_mtime_ns))
    listed = command("list")
    assert listed.code == 1
    assert "head.gguf" in listed.out
    assert "not used yet" not in listed.out
    assert command("run", "mine", "Hi", "--max-tokens", "2", "--exact", "off", "--json").code == 0


def test_one_that_drafts_is_shown_with_its_target_and_used(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))  # the target has no other name in that folder
    pard = SHIPPED["pard"]
    assert "trained for    tiny-target (sha256 " in command("show", str(pard)).out
    answer = command("run", "Hi", "--head", str(pard), "--drafter", "pard", "--max-tokens", "4", "--json")
    assert answer.code == 0
    assert "pard" in json.loads(answer.out)["stats"]["drafted_by_drafter"]
    medusa = str(SHIPPED["medusa"])
    fits, wrong = command("check", "tiny", medusa), command("check", str(SHIPPED["mtp"]), medusa, "--json")
    assert (fits.code, wrong.code) == (0, 1)
    assert "tiny-medusa can draft for tiny-target-q8_0.gguf, as Medusa heads." in fits.out
    assert "heads on CPU" in fits.out
    assert "hidden size: 128 in the target, 256 in the head" in json.loads(wrong.out)["match"]["verdict"]
    folder = nearest_head.write(tmp_path / "nearest", target_sha256="ab" * 32)
    shown = command("show", str(folder)).out
    assert "an MLP speculator" in shown
    assert f"a model that is not known here (sha256 {'ab' * 32})" in shown
    assert json.loads(command("show", str(folder), "--json").out)["method"] == "mlp"
