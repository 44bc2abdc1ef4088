"""EAGLE-1 and -2 heads in their published layout, in a small size: computed as published, exact, wrong ones refused.

No trained head of these is shipped: what is guessed here means nothing, and so much the more must the text be plain's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec.drafters.heads import eagle
from localspec.drafters.heads.head import output_matrix
from localspec.errors import LocalspecError, ModelFileError, PairError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import FINAL, ContextSettings
from localspec.llama.model import Model
from localspec.models.facts.heads import Tensors, save
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, SamplingParams, Tokens

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 256, 320, 4, 2, 4096
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "num_hidden_layers": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "vocab_size": VOCABULARY,
}  # fmt: skip
SHAPES = {
    "embed_tokens.weight": (VOCABULARY, HIDDEN), "fc.weight": (HIDDEN, 2 * HIDDEN), "fc.bias": (HIDDEN,),
    "layers.0.mlp.down_proj.weight": (HIDDEN, INNER), "layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "layers.0.mlp.up_proj.weight": (INNER, HIDDEN), "layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "layers.0.self_attn.k_proj.weight": (128, HIDDEN), "layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN), "layers.0.self_attn.v_proj.weight": (128, HIDDEN),
}  # fmt: skip
"""Tensors of yuhuili/EAGLE-*."""
PROMPTS = ["<|user|>Count to ten.<|end|><|assistant|>", "<|user|>Name a fruit and a colour.<|end|><|assistant|>"]


def write(folder: Path, without: str = "", **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    rng, arrays = np.random.default_rng(1), {}
    for name, shape in SHAPES.items():
        if name != without:
            around = 1.0 if "norm" in name else 0.0
            arrays[name] = (around + rng.normal(0, shape[-1] ** -0.5, shape)).astype(np.float16)
    save(folder / "model.safetensors", arrays)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("eagle") / "head")


@pytest.fixture(scope="module")
def target(tiny_target: Path, folder: Path) -> Iterator[Context]:
    with Model.load(tiny_target) as model:
        tap = eagle.load(folder, read_header(tiny_target)).tap
        yield Context(model, ContextSettings(n_ctx=256, max_leaves=4, threads=2), tap=tap)


def from_scratch(folder: Path, target: Context, history: Tokens, path: list[int]) -> npt.NDArray[np.float64]:
    """The row behind a path, one cell after the other and nothing kept."""
    tensors, width = Tensors(folder), HIDDEN // HEADS
    weights = {name: tensors.array(name).astype(np.float64) for name in SHAPES}
    for name, weight in weights.items():
        if weight.ndim == 2:
            matrix = tensors.matrix(name)
            weights[name] = matrix.values.astype(np.float64) * matrix.scales[:, None]
    assert target.states is not None
    states = list(target.states.read(0, FINAL, 0, len(history) - 1).astype(np.float64))
    keys, values = [], []
    x = np.zeros(HIDDEN)
    for position, token in enumerate([*history[1:].tolist(), *path]):
        state = states[position] if position < len(states) else x
        x = weights["fc.weight"] @ np.concatenate([weights["embed_tokens.weight"][token], state]) + weights["fc.bias"]
        turn = np.exp(1j * position * 500000.0 ** (-np.arange(width // 2) / (width // 2)))

        def split(name: str, turn: npt.NDArray[np.complex128] | None = turn, x: Any = x) -> npt.NDArray[np.float64]:
            found = (weights[f"layers.0.self_attn.{name}_proj.weight"] @ x).reshape(-1, 2, width // 2)
            if turn is not None:
                pairs = (found[:, 0] + 1j * found[:, 1]) * turn
                found = np.stack([pairs.real, pairs.imag], axis=1)
            return np.repeat(found.reshape(-1, width), HEADS // found.shape[0], axis=0)

        keys.append(split("k"))
        values.append(split("v", None))
        scores = np.einsum("hd,nhd->hn", split("q"), np.array(keys)) / np.sqrt(width)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        mixed = np.einsum("hn,nhd->hd", shares, np.array(values)).reshape(-1)
        x = x + weights["layers.0.self_attn.o_proj.weight"] @ mixed
        h = x / np.sqrt(np.mean(x * x) + 1e-5) * weights["layers.0.post_attention_layernorm.weight"]
        gate = weights["layers.0.mlp.gate_proj.weight"] @ h
        inner = gate / (1 + np.exp(-gate)) * (weights["layers.0.mlp.up_proj.weight"] @ h)
        x = x + weights["layers.0.mlp.down_proj.weight"] @ inner
    output = output_matrix(target.model.header)
    found: npt.NDArray[np.float64] = (output.values * output.scales[:, None].astype(np.float64)) @ x
    return found


def test_rows_are_those_of_the_published_layer(target: Context, folder: Path) -> None:
    layer = eagle.EagleLayer(eagle.EagleShape.of(folder), Tensors(folder), output_matrix(target.model.header))
    context = eagle.EagleContext(layer, target)
    text = np.random.default_rng(2).integers(40, 4000, 90).astype(np.int32)
    for length, paths in ((20, [[], [3]]), (24, [[5], [6], [5, 7]]), (22, [[6, 8], [6, 9]]), (80, [[4, 4, 4]])):
        history = text[:length]
        target.prefill(0, history, length)
        feeds = [Feed(0, np.append(history, path).astype(np.int32), length) for path in paths]
        for path, found in zip(paths, context.decode(feeds), strict=True):
            expected = from_scratch(folder, target, history, path)
            np.testing.assert_allclose(found[0], expected, atol=0.02 * expected.std())


def test_only_what_is_asked_for_is_computed_with_the_targets_threads(
    target: Context, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[int, int, int]] = []
    matvec = kernels.matvec

    def counted(matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array:
        computed.append((matrix.shape[0], len(inputs), threads))
        return matvec(matrix, inputs, threads)

    monkeypatch.setattr(kernels, "matvec", counted)
    text, shape = np.arange(40, 70, dtype=np.int32), eagle.EagleShape.of(folder)
    context = eagle.EagleContext(eagle.EagleLayer(shape, Tensors(folder), output_matrix(target.model.header)), target)
    target.prefill(0, text, 30)
    context.decode([Feed(0, text, 30)])
    assert {threads for _, _, threads in computed} == {2}
    assert sorted(rows for size, rows, _ in computed if size == INNER) == [1, 1], "gate and up of the last cell"
    assert sorted(rows for size, rows, _ in computed if size == 128) == [29, 29], "keys and values of all"


def test_the_targets_output_matrix_makes_the_targets_logits(target: Context) -> None:
    text = np.arange(100, 130, dtype=np.int32)
    target.prefill(0, text, 30)
    (said,) = target.decode([Feed(0, text, 30)])
    logits = said[0].copy()
    assert target.states is not None
    found = kernels.matvec(output_matrix(target.model.header), target.states.read(0, FINAL, 29, 30))[0]
    np.testing.assert_allclose(found, logits, atol=0.15 * logits.std())


def test_the_text_is_plains(tiny_target: Path, folder: Path) -> None:
    with Engine.load(
        tiny_target,
        heads=[folder],
        threads=1,
        exact="strict",
        kernels="plain",
        context=512,
        branches=2,
        max_draft_tokens=4,
    ) as engine:

        def texts(drafter: str) -> list[str]:
            sampling = SamplingParams(temperature=0.8)
            answers = [
                engine.generate(prompt, sampling=sampling, seed=3, max_tokens=16, ignore_end=True, drafter=drafter)
                for prompt in PROMPTS
            ]
            found = [answer.text() for answer in answers]
            assert drafter == "none" or all(answer.stats.drafted > 16 for answer in answers)
            return found

        assert texts("eagle") == texts("none")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hidden_size": 512}, PairError, "hidden size: 256 in the target, 512 in the head"),
        ({"vocab_size": 32000}, PairError, "vocabulary: 4096 in the target, 32000 in the head"),
        ({"without": "fc.weight"}, ModelFileError, "lacks the tensor fc.weight"),
        ({"intermediate_size": 321}, ModelFileError, r"is \[320, 256\]; \[321, 256\] is needed"),
        ({"num_hidden_layers": 2}, ModelFileError, "num_hidden_layers is 2"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ModelFileError, "rope_scaling is"),
        ({"num_attention_heads": "four"}, ModelFileError, "num_attention_heads is 'four'"),
        ({"rms_norm_eps": 0}, ModelFileError, "rms_norm_eps is 0"),
        ({"rope_theta": 10**400}, ModelFileError, "rope_theta is 1000"),
        ({"hidden_size": None}, ModelFileError, "hidden_size is None"),
    ],
)
def test_a_wrong_file_is_refused(
    changes: dict[str, Any], error: type[LocalspecError], words: str, tiny_target: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        eagle.load(write(tmp_path / "head", **changes), read_header(tiny_target))


def test_null_means_what_is_usual(tmp_path: Path) -> None:
    shape = eagle.EagleShape.of(write(tmp_path / "head", num_key_value_heads=None, head_dim=None, rope_theta=None))
    assert (shape.kv_heads, shape.head_size, shape.rope_base) == (HEADS, HIDDEN // HEADS, 10000.0)


def test_a_target_that_scales_its_logits_is_refused(tiny_target: Path, folder: Path) -> None:
    header = read_header(tiny_target)
    scaled = dataclasses.replace(header, metadata={**header.metadata, "llama.logit_scale": 0.5})
    with pytest.raises(PairError, match="scales its logits"):
        eagle.load(folder, scaled)
