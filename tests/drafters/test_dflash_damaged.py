"""Damaged heads: whatever the bytes of a header are, there is a drafter or one sentence, and the process goes on."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.drafters.heads import blocks as heads
from localspec.engine.interfaces import History
from localspec.errors import LocalspecError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model
from localspec.types import Noise, SamplingParams
from tests.drafters import dflash_files as files
from tests.fakes import draft_request

KINDS = ("dflash", "dflash2", "dspark")
TOKENS = b"tokenizer.ggml.tokens"


def damaged(data: bytes, seed: int) -> bytes:
    """The file with a few bytes of its metadata or of its list of tensors changed."""
    rng, out = random.Random(seed), bytearray(data)
    begin, end = data.index(TOKENS), data.index(b"fc.weight")
    stop = data.index(b"output_norm.weight", end) + 4000
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.randrange(24, begin) if rng.random() < 0.5 else rng.randrange(end - 16, stop)
        out[place] = rng.choice((0, 1, 2, 3, 0x7F, 0xFF, out[place] ^ (1 << rng.randrange(8))))
    return bytes(out)


def use(path: Path, target: Context) -> str:
    """Loads a head and asks it for a draft; the sentence of what was wrong, "" if nothing was."""
    try:
        head = heads.load_dflash(path, target.model.header)
        try:
            drafter = head.attach(target, 1)
            history = History(range(300, 340))
            drafter.draft([draft_request(0, history, 4, 4, SamplingParams(temperature=0.0), Noise(1))])
            drafter.close()
        finally:
            head.close()
    except LocalspecError as error:
        return str(error)
    return ""


def main(folder: Path, target: Path, kind: str, first: int, stop: int) -> None:
    """In a process of its own: every mutation, whose number is said before it is tried."""
    path = folder / f"{kind}.gguf"
    data, wrong = path.read_bytes(), folder / f"{kind}-{first}.gguf"
    with Model.load(target) as model:
        context = Context(model, ContextSettings(n_ctx=128, threads=1), tap=Tap((1, 3, 5)))
        context.prefill(0, History(range(300, 340)).tokens, 40)
        for seed in range(first, stop):
            print(seed, end=" ", flush=True)
            wrong.write_bytes(damaged(data, seed))
            print(repr(use(wrong, context)), flush=True)


def attempt(kind: str, mutations: int, target: Path, folder: Path) -> list[str]:
    """What was said to each mutation.

    Raises:
        AssertionError: the process ended, or said something that is no sentence.
    """
    files.head(folder / f"{kind}.gguf", target, kind)
    command = [sys.executable, "-c", f"from {__name__} import main; from pathlib import Path; import sys; "
               "main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], 0, int(sys.argv[4]))"]  # fmt: skip
    done = subprocess.run(
        [*command, str(folder), str(target), kind, str(mutations)], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{kind}, mutation {lines[-1:]}: {done.stderr[-2000:]}"
    assert len(lines) == mutations
    return [line.split(" ", 1)[1][1:-1] for line in lines]


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_damaged_heads(kind: str, tiny_target: Path, tmp_path: Path) -> None:
    said = attempt(kind, 25, tiny_target, tmp_path)
    assert any(said)


@pytest.mark.trial
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_heads(kind: str, tiny_target: Path, tmp_path: Path) -> None:
    """334 mutations of each kind, 1,000 in all."""
    said = attempt(kind, 334, tiny_target, tmp_path)
    refused = [sentence for sentence in said if sentence]
    assert len(refused) > 100
    assert all(sentence.rstrip().endswith((".", "?")) for sentence in refused)
    assert read_header(tiny_target).n_layers == 6
