"""The draft model in PyTorch computes what llama.cpp computes with the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec import Engine
from localspec.drafters import cut as exporting
from localspec.drafters.cut import Weights, choose, export, read_shape
from localspec.gguf import read_header
from tests.llama import architectures

torch = pytest.importorskip("torch")

from localspec.training.learning import StudentModel  # noqa: E402 - needs torch


@pytest.mark.parametrize("name", ["tiny", "llama", "qwen2", "qwen3"])
def test_all_layers_of_a_target_give_its_own_probabilities(name: str, tiny_target: Path, tmp_path: Path) -> None:
    path = tiny_target if name == "tiny" else architectures.write(name, tmp_path)
    header = read_header(path)
    shape = read_shape(header)
    part = choose(header, np.ones(shape.vocabulary, dtype=np.float32), shape.vocabulary)
    assert len(part.ids) == shape.vocabulary
    model = StudentModel(shape, Weights(header), part, range(shape.layers))
    with Engine.load(path, drafter="none", context=256) as engine:
        tokens = engine.tokenize("Sort these: 4, 2, 9. Then say hello to Maria.", special=False)
        scores = engine.score(tokens, 20)
    with torch.inference_mode():
        states = model(torch.tensor(np.asarray(tokens, dtype=np.int64))[None])[0]
        found = model.logits(states).float().log_softmax(-1).numpy()
    for place, score in enumerate(scores):
        ids, theirs = zip(*score.top, strict=True)
        np.testing.assert_allclose(found[place][list(ids)], theirs, rtol=0.05, atol=0.2)


def test_what_is_exported_is_what_was_trained(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file, read by llama.cpp, has the probabilities of the module; in F16, whose rounding is small."""
    monkeypatch.setattr(exporting, "_BLOCK", 10**9)
    header = read_header(tiny_target)
    shape = read_shape(header)
    weight = np.random.default_rng(5).random(shape.vocabulary).astype(np.float32)
    part = choose(header, weight, 700)
    model = StudentModel(shape, Weights(header), part, [0, 5])
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(1.0 + 0.1 * torch.randn(one.shape, generator=torch.Generator().manual_seed(2)))
    export(tmp_path / "draft.gguf", header, part, *model.arrays(), name="draft", facts={})
    with Engine.load(tmp_path / "draft.gguf", drafter="none", context=256) as engine:
        tokens = engine.tokenize("Sort these: 4, 2, 9. Then say hello to Maria.", special=False)
        scores = engine.score(tokens, 20)
    with torch.inference_mode():
        states = model(torch.tensor(np.asarray(tokens, dtype=np.int64))[None])[0]
        found = model.logits(states).float().log_softmax(-1).numpy()
    for place, score in enumerate(scores):
        ids, theirs = zip(*score.top, strict=True)
        np.testing.assert_allclose(found[place][list(ids)], theirs, atol=0.12)
