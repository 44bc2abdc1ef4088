"""The benchmark models of packaging/bench: random ones of every type, and the padded pair."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.settings import ContextSettings
from localspec.types import Feed, Float32Array, Tokens

pytest.importorskip("gguf")
SCRIPTS = Path(__file__).resolve().parents[2] / "packaging" / "bench"
MODULES = ("shapes", "shipped", "random_model", "padded_pair")


@dataclass(frozen=True)
class Scripts:
    """The modules under test."""

    shapes: ModuleType
    random_model: ModuleType
    padded_pair: ModuleType


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    """Imported as they import each other, without leaving their short names behind."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    sys.path.insert(0, str(SCRIPTS))
    try:
        import padded_pair  # type: ignore[import-not-found, unused-ignore]
        import random_model  # type: ignore[import-not-found, unused-ignore]
        import shapes  # type: ignore[import-not-found, unused-ignore]

        yield Scripts(shapes, random_model, padded_pair)
    finally:
        sys.path.remove(str(SCRIPTS))
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old


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
    scripts: Scripts, tmp_path: Path, tokens: Tokens, name: str, types: set[str]
) -> None:
    path = tmp_path / "random.gguf"
    scripts.random_model.write(path, name, scripts.shapes.Shape(256, 8, 4, 1, 512))
    with Model.load(path) as model:
        assert {tensor.type for tensor in model.header.tensors} == types
        assert model.header.quantisation == name
    row = logits(path, tokens)
    assert np.isfinite(row).all()
    assert 0.5 < row.std() < 2.0
    assert [file.name for file in tmp_path.iterdir()] == ["random.gguf"]


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_padded_model_computes_the_same(
    scripts: Scripts, tmp_path: Path, tokens: Tokens, name: str, tiny_target: Path, tiny_draft: Path
) -> None:
    path = tmp_path / "padded.gguf"
    scripts.padded_pair.write(name, scripts.shapes.SHAPES["small"], path)
    small, large = logits({"target": tiny_target, "draft": tiny_draft}[name], tokens), logits(path, tokens)
    with Model.load(path) as model:
        assert model.header.number("embedding_length") == 512
        assert model.chat_template
    assert np.abs(large - small).max() < 0.02 * small.std()
