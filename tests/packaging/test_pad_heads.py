"""Heads in a larger shape say what they said before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from localspec.drafters.heads.final_state import SpeculatorShape, read_medusa
from localspec.models.facts.heads import Tensors
from tests.drafters.made_heads import speculator_says
from tests.drafters.shipped_heads import SHIPPED

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "tiny-pair" / "pad_heads.py"


def padded(method: str, out: Path, *options: str) -> Path:
    subprocess.run([sys.executable, SCRIPT, SHIPPED[method], out, *options], check=True)
    return out


def test_medusa_heads(tmp_path: Path) -> None:
    large = padded("medusa", tmp_path / "out", "--hidden", "512", "--vocabulary", "5000")
    state = np.random.default_rng(1).standard_normal((1, 512)).astype(np.float32)
    state[0, 256:] = 0.0
    state[0, -1] = 2.0  # where such a target has its constant
    for one, other in zip(read_medusa(SHIPPED["medusa"]), read_medusa(large), strict=True):
        expected, found = one.scores(state[:, :256].copy(), 1)[0], other.scores(state, 1)[0]
        np.testing.assert_allclose(found[:4096], expected, atol=1e-2 * float(np.abs(expected).max()))
        assert found[4096:].max() < -100.0


def test_a_speculator(tmp_path: Path) -> None:
    folder = padded("mlp", tmp_path / "out", "--hidden", "512")
    state = np.random.default_rng(1).standard_normal(512).astype(np.float32)
    state[256:] = 0.0
    said = []
    for path in (SHIPPED["mlp"], folder):
        tensors, shape = Tensors(path), SpeculatorShape.of(path)
        arrays = {name: tensors.array(name) for name in tensors.shapes if not name.endswith("_scale")}
        facts = {"scale_input": False, "tie_weights": True, "n_predict": shape.steps, "inner_dim": shape.inner}
        said.append(speculator_says(arrays, facts, state[: shape.hidden], [5, 9, 200]))
    np.testing.assert_allclose(said[1], said[0], rtol=1e-3, atol=1e-3)
