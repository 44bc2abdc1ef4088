"""Heads are recognised and kept; that localspec cannot draft with them yet is said wherever one could think it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.cli.unused import not_used
from localspec.drafters import NAMES
from localspec.gguf import read_header
from localspec.models.catalog import METHODS, Catalog
from localspec.models.store import Entry, Store, StoredFile
from tests.cli.conftest import Command
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, write

UNUSED = sorted(set(METHODS) - set(NAMES) - {"pard"})


@pytest.fixture
def head(tmp_path: Path, tiny_target: Path) -> Path:
    """An EAGLE-3 head with the sizes of the bundled target, and no tokenizer."""
    width = read_header(tiny_target).number("embedding_length")
    metadata = {key: value for key, value in TINY_METADATA.items() if not key.startswith("tokenizer")}
    metadata |= {"general.architecture": "eagle3", "eagle3.target_hidden_size": width}
    return write(tmp_path / "head.gguf", gguf_bytes(metadata))


def test_every_method_is_used_or_said_not_to_be() -> None:
    assert not_used("draft") == ""
    for method in UNUSED:
        assert f"no {method} drafter yet" in not_used(method)
    assert "pard" in NAMES or "token by token" in not_used("pard")


def test_pairs_of_the_catalogue_say_so(command: Command) -> None:
    catalog = Catalog.load()
    heads = [pair for pair in catalog.pairs.values() if pair.method in UNUSED]
    lines = {line.split()[0]: line for line in command("list", "--catalog").out.splitlines() if line.strip()}
    for pair in heads:
        assert "no EAGLE-3 drafter" in pair.doubt
        assert f"({pair.method}: no drafter yet)" in lines[pair.name]
        assert "localspec has no such drafter yet" in command("show", pair.name).out
        assert not_used(pair.method) in command("suggest", pair.name).out
        (found,) = json.loads(command("suggest", pair.name, "--json").out)
        assert found["unused"] == not_used(pair.method)


@pytest.mark.skipif("eagle3" in NAMES, reason="heads are used")
def test_a_head_beside_its_target(
    command: Command, head: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = command("check", str(tiny_target), str(head))
    assert result.code == 0
    assert "can draft for tiny-target-q8_0.gguf, as an EAGLE-3 head." in result.out
    assert f"note: {not_used('eagle3')}" in result.out
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    assert command("import", str(head), "--role", "draft").out.endswith("it is not used yet.\n")
    target = StoredFile.of(tiny_target, "0" * 64, "foreign")
    Store().add(Entry("mine", (target,), draft="head"))
    lines = [line.split() for line in command("list").out.splitlines()]
    states = {line[0]: " ".join(line[4:]) for line in lines if line[0] in ("mine", "head")}
    assert states.keys() == {"mine", "head"}
    assert all(state.endswith("heads are kept and not used yet") for state in states.values())
    answer = command("run", "mine", "Hi", "--max-tokens", "2", "--exact", "off", "--json")
    assert answer.code == 0
    assert "eagle3" not in json.loads(answer.out)["stats"]["drafted_by_drafter"]
    refused = command("run", "Hi", "--target", "mine", "--draft", "head")
    assert (refused.code, refused.out) == (3, "")
    assert "head.gguf is an EAGLE-3 head, which localspec cannot draft with yet." in refused.err
    suggested = command("suggest", "mine").out
    assert not_used("eagle3") in suggested
    assert "--draft head" not in suggested
