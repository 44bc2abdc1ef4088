"""Heads with random weights in the published layouts, and what they should say, in plain numpy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.models.facts.heads import save
from localspec.types import Float32Array

HIDDEN, VOCABULARY = 256, 4096
Arrays = dict[str, npt.NDArray[Any]]


def write(folder: Path, file: str, arrays: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any] | None) -> Path:
    folder.mkdir(exist_ok=True)
    save(folder / file, arrays)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def random(*shape: int, seed: int) -> npt.NDArray[np.float16]:
    return (np.random.default_rng(seed).standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float16)


def medusa(heads: int = 2, layers: int = 1, hidden: int = HIDDEN, vocabulary: int = VOCABULARY) -> Arrays:
    """As FasterDecoding names them."""
    arrays: Arrays = {}
    for head in range(heads):
        for layer in range(layers):
            arrays[f"{head}.{layer}.linear.weight"] = random(hidden, hidden, seed=head + 10 * layer)
            arrays[f"{head}.{layer}.linear.bias"] = random(hidden, seed=head + 50)
        arrays[f"{head}.{layers}.weight"] = random(vocabulary, hidden, seed=head + 100)
    return arrays


def medusa_says(arrays: Arrays, head: int, layers: int, state: Float32Array) -> npt.NDArray[np.float64]:
    x = state.astype(np.float64)
    for layer in range(layers):
        inner = arrays[f"{head}.{layer}.linear.weight"] @ x + arrays[f"{head}.{layer}.linear.bias"]
        x = x + inner / (1 + np.exp(-inner))
    found: npt.NDArray[np.float64] = arrays[f"{head}.{layers}.weight"] @ x
    return found


def speculator(steps: int, tied: bool, inner: int = 32) -> tuple[Arrays, dict[str, Any]]:
    """As ibm-ai-platform names them; the scaled form goes with the untied one."""
    arrays: Arrays = {}
    for step in range(steps):
        parts = {
            "emb": random(VOCABULARY, inner, seed=step),
            "proj": random(inner, inner if step else HIDDEN, seed=step + 20),
            "head": random(VOCABULARY, inner, seed=step + 40),
            "ln": random(inner, seed=step + 60) + np.float16(1),
        }
        for name, array in parts.items():
            if not tied or step == 0 or (name == "proj" and step == 1):
                arrays[f"speculator.{name}.{step}.weight"] = array
        if not tied or step == 0:
            arrays[f"speculator.ln.{step}.bias"] = random(inner, seed=step + 80)
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN, "inner_dim": inner,
        "model_type": "mlp_speculator", "n_candidates": 5, "n_predict": steps, "scale_input": not tied,
        "tie_weights": tied, "top_k_tokens_per_head": [4, 3, 2][:steps], "torch_dtype": "float16",
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    return arrays, config


def speculator_says(
    arrays: Arrays, config: Mapping[str, Any], state: Float32Array, path: list[int]
) -> npt.NDArray[np.float64]:
    """Behind the tokens of a path, whose first one the target has not evaluated."""
    x = state.astype(np.float64)
    if config["scale_input"]:
        x = x / np.sqrt((x * x).mean() + 1e-6) / math.sqrt(2)
    kept = 0.5 ** (0.5 / config["n_predict"])
    weight = math.sqrt((1 - kept * kept) * (config["inner_dim"] / 2))
    step = 0
    for number, token in enumerate(path):
        step, proj = (0, min(number, 1)) if config["tie_weights"] else (number, number)
        x = arrays[f"speculator.proj.{proj}.weight"] @ x
        x = x + weight / kept * arrays[f"speculator.emb.{step}.weight"][token].astype(np.float64)
        x = x / np.sqrt((x * x).mean() + 1e-6)
        x = x * arrays[f"speculator.ln.{step}.weight"] + arrays[f"speculator.ln.{step}.bias"]
        x = np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])
    found: npt.NDArray[np.float64] = arrays[f"speculator.head.{step}.weight"] @ x
    return found
