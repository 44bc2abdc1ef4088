"""What the trained block heads guess on held-out prompts, and that a shift by one takes half of it away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from localspec import paths
from localspec.checks.prompts import load_workloads
from localspec.engine.stats import RequestStats
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.drafters import dflash_files
from tests.drafters.shipped_heads import SHIPPED

TARGET = paths.bundled("tiny-target-q8_0.gguf")
WORKLOADS = ("maths", "code-edit", "json", "copy", "chat")
LEAST = {("dspark", 0.0): 2.5, ("dspark", 1.0): 1.9, ("dflash", 0.0): 2.0, ("dflash", 1.0): 1.7}
"""Tokens a pass that carried a draft, by method and temperature: over these five prompts, with room for another
machine's rounding. Over twenty, packaging/tiny-pair/REPORT.md says more."""


def answered(head: Path, method: str, temperature: float, tokens: int = 48) -> RequestStats:
    """The counters of five answers, added up, with drafts of five tokens in every pass."""
    total, sampling = RequestStats(), SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    with Engine.load(
        TARGET, heads=[head], drafter=method, max_draft_tokens=5, tuned=False, corpus="off", threads=1
    ) as engine:
        for seed, found in enumerate(load_workloads(WORKLOADS, limit=1).values()):
            generation = engine.chat(found[0].questions[0], sampling=sampling, seed=seed, max_tokens=tokens)
            generation.text()
            total.draft_passes += generation.stats.draft_passes
            total.accepted += generation.stats.accepted
            total.accepted_histogram.update(generation.stats.accepted_histogram)
    return total


@pytest.mark.parametrize(("method", "temperature"), LEAST)
def test_it_guesses_what_it_was_trained_for(method: str, temperature: float) -> None:
    found = answered(SHIPPED[method], method, temperature)
    assert found.mean_accepted_length >= LEAST[method, temperature]
    assert found.accepted_histogram[0] > 0
    assert found.accepted_histogram[5] > 0, "some drafts hold whole, some not at all"


@pytest.mark.parametrize(
    "shift",
    [{"target_layers": [0, 2, 4]}, {"sample_from_anchor": False}],
    ids=["the layers before those it was trained on", "each row for the token before its own"],
)
def test_a_shift_by_one_takes_half_of_its_guesses(shift: dict[str, Any], tmp_path: Path) -> None:
    tensors = {
        tensor.name: np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        for tensor in gguf.GGUFReader(SHIPPED["dspark"]).tensors
    }
    metadata = dflash_files.facts("dspark") | {"block_size": 7}
    accepted = []
    for number, facts in enumerate((metadata, metadata | shift)):
        path = dflash_files.write(tmp_path / f"{number}.gguf", TARGET, facts, tensors)
        accepted.append(answered(path, "dspark", 0.0).mean_accepted_tokens)
    assert accepted[1] < accepted[0] / 2
