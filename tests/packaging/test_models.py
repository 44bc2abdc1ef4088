"""Models for measuring (packaging/bench): random ones of every type, and padded ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from localspec.bench.sides import PADDED
from localspec.errors import UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Tokens
from tests.cli.conftest import Command
from tests.cli.conftest import command as command
from tests.packaging.scripts import PACKAGING, imported

pytest.importorskip("gguf")

with imported("bench", "shapes", "model_file", "padded", "pairs", "random_model") as scripts:
    random_model = scripts["random_model"]
    SHAPES, Shape = scripts["shapes"].SHAPES, scripts["shapes"].Shape
    Padded, Small = scripts["padded"].Padded, scripts["padded"].Small
    Wanted, logit_difference, make = (
        getattr(scripts["pairs"], name) for name in ("Wanted", "logit_difference", "make")
    )


def logits(path: Path, tokens: Tokens) -> Float32Array:
    """float32[vocabulary] behind the tokens, on llama.cpp's own kernels."""
    with Model.load(path, kernels="plain") as model:
        context = Context(model, ContextSettings(n_ctx=256, threads=1))
        row: Float32Array = context.decode([Feed(0, tokens, len(tokens))])[0][0].copy()
        return row


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    """int32[48] ordinary tokens."""
    return np.random.default_rng(3).integers(64, 4000, 48).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("Q8_0", {"F32", "Q8_0"}),
        ("Q4_0", {"F32", "Q4_0", "Q6_K"}),
        ("Q4_K_M", {"F32", "Q4_K", "Q6_K"}),
        ("Q5_K_M", {"F32", "Q5_K", "Q6_K"}),
        ("Q6_K", {"F32", "Q6_K"}),
        ("IQ4_NL", {"F32", "IQ4_NL", "Q5_K", "Q6_K"}),
        ("F16", {"F32", "F16"}),
        ("BF16", {"F32", "BF16"}),
    ],
)
def test_random_models_load_and_stay_finite(tmp_path: Path, tokens: Tokens, name: str, types: set[str]) -> None:
    path = tmp_path / "random.gguf"
    random_model.write(path, name, Shape(256, 8, 4, 1, 512))
    with Model.load(path) as model:
        assert {tensor.type for tensor in model.header.tensors} == types
        assert model.header.quantisation == name
    row = logits(path, tokens)
    assert np.isfinite(row).all()
    assert 0.5 < row.std() < 2.0
    assert [file.name for file in tmp_path.iterdir()] == ["random.gguf"]


QUARTER = Shape(1024, 7, 16, 4, 1024)
"""Four times the bundled models' channels: padding is exact."""


def bundled(kind: str, type_name: str, folder: Path) -> Path:
    """A bundled model in a format."""
    source: Path = Wanted(kind, "small", "Q8_0").source
    if type_name == "Q8_0":
        return source
    small = Small.read(source)
    Padded.plan(small, small.shape).write(folder / "own.gguf", "own", type_name)
    return folder / "own.gguf"


@pytest.mark.parametrize("kind", ["target", "draft"])
@pytest.mark.parametrize("type_name", ["Q8_0", "F16"])
def test_a_padded_model_computes_the_same(tmp_path: Path, tokens: Tokens, kind: str, type_name: str) -> None:
    source, path = bundled(kind, type_name, tmp_path), tmp_path / "padded.gguf"
    Padded.plan(Small.read(Wanted(kind, "small", "Q8_0").source), QUARTER).write(path, "quarter", type_name)
    assert np.array_equal(logits(source, tokens), logits(path, tokens))
    with Model.load(path) as model:
        assert model.header.number("embedding_length") == 1024
        assert model.header.quantisation == type_name
        assert model.chat_template
        assert "quarter shape, padded from" in model.header.text(PADDED)
    assert {file.name for file in tmp_path.iterdir()} <= {"padded.gguf", "own.gguf"}


def test_other_ratios_differ_by_rounding(tmp_path: Path, tokens: Tokens) -> None:
    source, path = bundled("target", "F16", tmp_path), tmp_path / "padded.gguf"
    Padded.plan(Small.read(Wanted("target", "small", "F16").source), SHAPES["small"]).write(path, "small", "F16")
    small, large = logits(source, tokens), logits(path, tokens)
    assert 0.0 < np.abs(large - small).max() < 0.02 * small.std()


def test_a_padded_vocabulary_is_never_drawn_and_changes_no_text(tmp_path: Path, tokens: Tokens) -> None:
    source, path = bundled("target", "Q8_0", tmp_path), tmp_path / "padded.gguf"
    Padded.plan(Small.read(source), QUARTER, 6000).write(path, "quarter", "Q8_0")
    small, large = logits(source, tokens), logits(path, tokens)
    assert len(large) == 6000
    assert large[4096:].max() < large[:4096].max() - 100.0
    shifted = large[:4096] - small
    assert np.abs(shifted - np.median(shifted)).max() < 1e-4
    with Model.load(path) as model:
        text = "Sort: <|padding_4100|> 4, 2, 9"
        assert model.tokenize(text, special=True, add_bos=True).max() < 4096
    assert logit_difference(source, path)[0] < 1e-4


def test_a_pair_is_made_once_and_checked(tmp_path: Path) -> None:
    wanted = Wanted("draft", "small", "Q4_K_M")
    made = make(wanted, tmp_path)
    with Model.load(made.path) as model:
        assert model.header.quantisation == "Q4_K_M"
        assert model.header.text(PADDED)
    check = made.check
    assert 0.0 < check.logit_difference < 0.05 * check.logit_spread
    assert 0.9 * check.small_perplexity.value < check.perplexity.value < 1.3 * check.small_perplexity.value
    assert sorted(file.name for file in tmp_path.iterdir()) == [wanted.name, f"{wanted.name}.json"]
    again = make(wanted, tmp_path)
    assert again.reused
    assert again.check == check


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    small = Small.read(Wanted("target", "small", "Q8_0").source)
    for shape, vocabulary, words in (
        (Shape(256, 6, 4, 2, 256), 0, "smaller than the model"),
        (Shape(512, 8, 4, 2, 2048), 0, "Heads have 64 values"),
        (SHAPES["small"], 100, "100 is less"),
        (Shape(256, 8, 4, 2, 2048), 5000, "512 channels"),
    ):
        with pytest.raises(UsageError, match=words):
            Padded.plan(small, shape, vocabulary)
    for arguments, words in (
        (("target", "9b", "Q8_0"), "no shape '9b'"),
        (("target", "1b", "Q3_K"), "no format 'Q3_K'"),
        (("target", "1b", "Q8_0", -1), "vocabulary is -1"),
    ):
        with pytest.raises(UsageError, match=words):
            Wanted(*arguments)


SCRIPT = PACKAGING / "bench" / "make_pair.py"


def test_the_script_makes_a_pair_whose_numbers_are_labelled(command: Command, tmp_path: Path) -> None:
    shapes = ("--target-shape", "small", "--draft-shape", "small", "--quant", "q8_0", "--draft-quant", "F16")
    arguments = [sys.executable, str(SCRIPT), *shapes, "--folder", str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.count("largest difference of a logit to the small model: 0.") == 2
    target, draft = tmp_path / "padded-target-small-q8_0.gguf", tmp_path / "padded-draft-small-f16.gguf"
    assert str(target) in done.stderr
    again = json.loads(subprocess.run([*arguments, "--json"], capture_output=True, text=True, check=True).stdout)
    assert [(one["path"], one["reused"]) for one in again] == [(str(target), True), (str(draft), True)]
    quick = ("--limit", "1", "--workloads", "copy", "--temperature", "0", "--tokens", "4", "--rounds", "1")
    more = ("--exact", "off", "--no-wide")  # what the larger model's passes cost is not looked into
    run = command("bench", "run", "--target", str(target), "--draft", str(draft), *quick, *more)
    assert run.code == 0, run.err
    assert "The target is a padded one: small shape, padded from tiny-target-q8_0" in run.out
    assert "The draft is a padded one" in run.out


def test_the_script_refuses_in_a_sentence(tmp_path: Path) -> None:
    arguments = [sys.executable, str(SCRIPT), "--folder", str(tmp_path), "--quant", "Q3"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no format 'Q3'" in done.stderr
    assert done.stderr.count("\n") == 1
