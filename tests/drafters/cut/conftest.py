"""A draft model of two layers that was cut from the bundled target, not trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.drafters.cut import VocabPart, Weights, choose, cut_layers, export, read_shape
from localspec.gguf import Header, read_header
from localspec.models.facts.pairing import TRAINED_FOR

SIZE = 600
"""Tokens chosen of the bundled target's 4,096."""


@pytest.fixture(scope="session")
def header(tiny_target: Path) -> Header:
    return read_header(tiny_target)


@pytest.fixture(scope="session")
def part(header: Header) -> VocabPart:
    weight = np.random.default_rng(3).random(len(header.tokens)).astype(np.float32)
    return choose(header, weight, SIZE)


@pytest.fixture(scope="session")
def cut(header: Header, part: VocabPart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, weights = tmp_path_factory.mktemp("cut") / "cut.gguf", Weights(header)
    layers = [weights.layer(number) for number in cut_layers(read_shape(header).layers, 2)]
    assert weights.slower is None
    rest = {
        "token_embd.weight": weights.rows("token_embd.weight", part.ids),
        "output.weight": weights.rows(weights.output, part.ids),
        "output_norm.weight": weights.whole("output_norm.weight"),
    }
    export(path, header, part, layers, rest, "cut", {TRAINED_FOR: "0" * 64})
    return path
