"""Benchmark models: random ones of every type (packaging/bench), and padded ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localspec.bench.models.shapes import PADDED, SHAPES, Shape
from localspec.errors import UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Tokens

pytest.importorskip("gguf")

from localspec.bench.models.padded import Padded, Small
from localspec.bench.models.pairs import Wanted, logit_difference, make

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "bench" / "random_model.py"


@pytest.fixture(scope="module")
def random_model() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("random_model_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def test_random_models_load_and_stay_finite(
    random_model: ModuleType, tmp_path: Path, tokens: Tokens, name: str, types: set[str]
) -> None:
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
    source = Wanted(kind, "small", "Q8_0").source
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
