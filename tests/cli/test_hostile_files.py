"""`check` and `suggest` on damaged files: a verdict or one sentence, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes
from tests.test_gguf_fuzz import cases, damaged

WHOLE = gguf_bytes()
VOCABULARY_START = WHOLE.index(b"tokenizer.ggml")
VOCABULARY_END = WHOLE.rindex(b"tokenizer.ggml") + 64
QUICK, MANY = 60, 3_000


def vocabularies(count: int, seed: int) -> Iterator[bytes]:
    """Files whose tokenizer is damaged and the rest is not."""
    chance = random.Random(seed)
    before, after = WHOLE[:VOCABULARY_START], WHOLE[VOCABULARY_END:]
    part = WHOLE[VOCABULARY_START:VOCABULARY_END]
    for _ in range(count):
        yield before + damaged(part, chance, len(part)) + after


def wrong_counts(count: int, seed: int) -> Iterator[bytes]:
    """Files whose tokens and types are not equally many, or are of other kinds."""
    chance, keys = random.Random(seed), ("tokens", "token_type", "merges", "model")
    odd: tuple[Any, ...] = ([], [7], ["x"], [1] * 400, ["<a>"] * 300, [3] * 300, [6] * 258, 3, "text", True)
    for _ in range(count):
        changed = {f"tokenizer.ggml.{key}": chance.choice(odd) for key in chance.sample(keys, chance.randint(1, 2))}
        yield gguf_bytes({**TINY_METADATA, **changed})


def judge(command: Command, folder: Path, data: bytes) -> set[int]:
    """Exit codes of all that looks at the file; each command prints something, once.

    The environment has LOCALSPEC_DEBUG, so an error that has no sentence is raised.
    """
    file, whole = folder / "damaged.gguf", folder / "whole.gguf"
    file.write_bytes(data)
    if not whole.exists():
        whole.write_bytes(WHOLE)
    codes = set()
    for words in (
        ("check", str(whole), str(file)),
        ("check", "--fit", "--cross-tokenizer", str(file), str(whole)),
        ("suggest", str(file)),
        ("suggest", str(whole)),
    ):
        done = command(*words)
        assert done.code in (0, 1, 3), (words, done)
        assert bool(done.out) != bool(done.err), (words, done)
        assert len(done.err.splitlines()) <= 1, (words, done)
        codes.add(done.code)
    return codes


def survived(command: Command, folder: Path, count: int, seed: int) -> set[int]:
    """Exit codes over `count` damaged files, a third of each kind."""
    share = count // 3
    made = (cases(share, seed), vocabularies(share, seed), wrong_counts(share, seed))
    return set().union(*(judge(command, folder, data) for kind in made for data in kind))


@pytest.fixture(autouse=True)
def _debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DEBUG", "1")


def test_damaged_files_end_in_a_sentence(command: Command, tmp_path: Path) -> None:
    assert survived(command, tmp_path, QUICK, seed=1) == {0, 1, 3}


@pytest.mark.trial
def test_3_000_damaged_files_end_in_a_sentence(command: Command, tmp_path: Path) -> None:
    assert survived(command, tmp_path, MANY, seed=2) == {0, 1, 3}


@pytest.mark.parametrize("types", [[1] * 400, [3] * 400, [3]])
def test_types_that_are_not_as_many_as_tokens_are_named(command: Command, tmp_path: Path, types: list[int]) -> None:
    broken, whole = tmp_path / "damaged.gguf", tmp_path / "whole.gguf"
    broken.write_bytes(gguf_bytes({**TINY_METADATA, "tokenizer.ggml.token_type": types}))
    whole.write_bytes(WHOLE)
    for pair in ((whole, broken), (broken, whole)):
        done = command("check", *map(str, pair), "--cross-tokenizer")
        assert done.code == 3
        assert f"{broken} is corrupt: it has 260 tokens and {len(types)} types of tokens." in done.err
