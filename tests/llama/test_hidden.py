"""Hidden states by architecture: read where llama.cpp shows them, refused where asking would end the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.runtime.engine import HiddenReader, HiddenStates
from localspec.types import Tokens
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, TINY_METADATA, gguf_bytes, tiny_tensors, write

BIASES = [(f"blk.0.attn_{name}.bias", (32,)) for name in "qkv"]
TOKENS = np.array([1, 70, 71, 72, 90, 70, 71, 100], dtype=np.int32)


def renamed(architecture: str) -> dict[str, Any]:
    """The facts of the tiny llama, under another architecture's name."""
    facts = {key.replace("llama.", f"{architecture}."): value for key, value in TINY_METADATA.items()}
    return facts | {"general.architecture": architecture}


def read(path: Path, layers: list[int], tokens: Tokens = TOKENS) -> HiddenStates:
    with Model.load(path) as model:
        context = Context(model, ContextSettings(n_ctx=64, threads=1))
        reader = HiddenReader(context)
        try:
            return next(found for found in reader.read(tokens, layers) if found is not None)
        finally:
            reader.close()
            context.close()


def test_another_architecture_that_shows_layers(tmp_path: Path) -> None:
    norms = [("blk.0.attn_q_norm.weight", (16,)), ("blk.0.attn_k_norm.weight", (16,))]
    facts = renamed("qwen3") | {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16}
    path = write(tmp_path / "qwen3.gguf", gguf_bytes(facts, [*tiny_tensors(), *norms]))
    states = read(path, [0])
    assert states.layers[0].shape == states.final.shape == (len(TOKENS), 32)
    same = (TOKENS[:, None] == TOKENS) == (states.layers[0][:, None] == states.layers[0]).all(axis=2)
    assert same.all(), "what goes into the first layer is the token's embedding"
    assert not np.allclose(states.final[1], states.final[5]), "final states know what came before"


@pytest.mark.parametrize(
    ("architecture", "facts", "tensors"),
    [("mamba", MAMBA_METADATA, MAMBA_TENSORS), ("qwen2", renamed("qwen2"), [*tiny_tensors(), *BIASES])],
)
def test_one_that_does_not_is_refused_and_still_has_final_states(
    architecture: str, facts: dict[str, Any], tensors: Any, tmp_path: Path
) -> None:
    path = write(tmp_path / "other.gguf", gguf_bytes(facts, tensors))
    with pytest.raises(UsageError, match=f"does not show what goes into layers of the architecture {architecture}"):
        read(path, [0])
    assert read(path, []).final.shape == (len(TOKENS), 32)
