"""Which targets a draft model can be cut from, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.cut import Weights, cut_layers, read_shape
from localspec.errors import ModelError
from localspec.gguf import Header, read_header
from tests.llama import architectures


def test_the_bundled_target_can_be_cut(header: Header) -> None:
    shape = read_shape(header)
    assert (shape.layers, shape.hidden, shape.feed_forward, shape.vocabulary) == (6, 256, 768, 4096)
    assert (shape.heads, shape.kv_heads, shape.head_size, shape.halves) == (4, 2, 64, False)
    assert shape.layer_parameters == sum(array.size for array in Weights(header).layer(0).values() if array.ndim == 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [("gemma3", "its architecture is gemma3"), ("phi3", "its architecture is phi3"), ("qwen3moe", "qwen3moe")],
)
def test_other_architectures_are_refused_in_one_sentence(name: str, words: str, tmp_path: Path) -> None:
    path = architectures.write(name, tmp_path)
    with pytest.raises(ModelError, match=f"No draft model can be cut from {path.name}: .*{words}") as error:
        read_shape(read_header(path))
    assert error.value.hint == "Its layers must be plain ones of llama, qwen2, qwen3."


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rope.scaling.type", "yarn", "its positions are scaled"),
        ("rope.scaling.factor", 4.0, "its positions are scaled"),
        ("rope.scale_linear", 2.0, "its positions are scaled"),
        ("attention.scale", 0.5, "its attention is of another kind"),
        ("attention.value_length", 32, "its attention is of another kind"),
        ("attention.head_count_kv", [2, 2, 1, 1, 2, 2], "its layers differ in heads"),
    ],
)
def test_layers_of_another_kind_are_refused(header: Header, key: str, value: Any, words: str) -> None:
    metadata = {**header.metadata, f"llama.{key}": value}
    with pytest.raises(ModelError, match=words):
        read_shape(replace(header, metadata=metadata))


def test_a_layer_with_a_tensor_that_is_not_known_is_named(header: Header) -> None:
    odd = replace(header.tensors[-1], name="blk.3.ffn_gate_exps.weight")
    with pytest.raises(ModelError, match=r"layer 3 has ffn_gate_exps\.weight"):
        read_shape(replace(header, tensors=(*header.tensors, odd)))
    gone = tuple(tensor for tensor in header.tensors if tensor.name != "blk.2.attn_q.weight")
    with pytest.raises(ModelError, match=r"layer 2 has no attn_q\.weight"):
        read_shape(replace(header, tensors=gone))


@pytest.mark.parametrize(
    ("kept", "found"), [(1, [0]), (2, [0, 29]), (3, [0, 1, 29]), (4, [0, 1, 28, 29]), (99, list(range(30)))]
)
def test_half_of_the_layers_are_the_first_ones(kept: int, found: list[int]) -> None:
    assert cut_layers(30, kept) == found


def test_rows_are_those_of_the_whole(header: Header) -> None:
    weights = Weights(header)
    whole = weights.whole("token_embd.weight")
    assert whole.shape == (4096, 256)
    np.testing.assert_array_equal(weights.rows("token_embd.weight", [5, 3, 4000]), whole[[5, 3, 4000]])
