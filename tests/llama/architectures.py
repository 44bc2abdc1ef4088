"""Tiny models with random weights, one for each of many architectures.

llama.cpp itself says which tensors an architecture has: `llama_model_init_from_user` makes a model of metadata alone
and hands each tensor over to be filled. Their names and shapes are noted, and a file with such tensors is written.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.llama import lib
from localspec.llama.graph import _Tensor

Shape = tuple[int, ...]
"""Elements per dimension, slowest first (numpy's order)."""
Values = npt.NDArray[np.float16] | npt.NDArray[np.float32]

SIZES: dict[str, Any] = {
    "context_length": 2048,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}
"""Metadata that all of them share. A loader ignores keys that it does not know."""

OPTIONAL = re.compile(
    r"\.(bias|scale|input_scale)$|^rope_|\.rope_|attn_[qk]_norm|attn_sub_norm|ffn_sub_norm|norm_2\.|attn_sinks|\.nextn\."
)
"""Tensors that a loader asks for, and that files have only where their recipe says so."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What tells an architecture from the others."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its own, without the prefix; they win over `SIZES`."""
    keeps: str = r"(?!)"
    """A pattern of `OPTIONAL` tensors that its files have."""
    layers: int = 2
    tied: bool = False
    """The output matrix is the embedding."""
    fused: bool = False
    """Queries, keys and values come from one matrix, though the loader would take three."""


_QKV_BIAS, _QK_NORM, _NORM_BIAS, _ALL_BIAS = r"attn_[qkv]\.bias", r"attn_[qk]_norm\.weight", r"norm\.bias", r"\.bias$"
_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
_WINDOW = {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2}
"""Every second layer sees the last 64 tokens."""
_SCALES = {"embedding_scale": 12.0, "attention.scale": 0.0156, "logit_scale": 1.0, "residual_scale": 0.22}
_DENSE = {
    "llama": Recipe({"rope.freq_base": 5e5}, keeps="rope_freqs"),
    "qwen2": Recipe(keeps=_QKV_BIAS, tied=True),
    "qwen3": Recipe({"attention.key_length": 128, "attention.value_length": 128}, keeps=_QK_NORM, tied=True),
    "gemma2": Recipe({**_WINDOW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, tied=True),
    "gemma3": Recipe({**_WINDOW, "attention.head_count_kv": 1}, keeps=_QK_NORM, tied=True),
    "phi3": Recipe({"rope.scaling.original_context_length": 512}, keeps="rope_factors", fused=True),
    "granite": Recipe(_SCALES, tied=True),
    "olmo2": Recipe(_WINDOW, keeps=_QK_NORM),
    "starcoder2": Recipe(keeps=_ALL_BIAS),
    "falcon": Recipe({"attention.head_count_kv": 1}, keeps=_NORM_BIAS),
    "smollm3": Recipe(tied=True, layers=4),
    "cohere2": Recipe({**_WINDOW, "logit_scale": 1.0}, tied=True),
    "exaone4": Recipe(keeps=_QK_NORM),
    "stablelm": Recipe({"use_parallel_residual": False, "attention.head_count_kv": 4}, keeps=_NORM_BIAS),
    "internlm2": Recipe(),
    "minicpm": Recipe(layers=3),
    "seed_oss": Recipe(keeps=_QKV_BIAS),
    "hunyuan-dense": Recipe(keeps=_QK_NORM, tied=True),
    "gptneox": Recipe({"use_parallel_residual": True, "attention.head_count_kv": 4}, keeps=_ALL_BIAS),
    "bloom": Recipe({"attention.head_count_kv": 4}, keeps=_ALL_BIAS),
    "lfm2": Recipe({"shortconv.l_cache": 3, "attention.head_count_kv": [2, 0]}, keeps=_QK_NORM, tied=True),
}
_MIXED = {
    "qwen3moe": Recipe(_EXPERTS, keeps=_QK_NORM),
    "granitemoe": Recipe({**_SCALES, **_EXPERTS}, tied=True),
}
DENSE = tuple(_DENSE)
"""Architectures whose every matrix is packed where the weights are F16."""
MIXED = tuple(_MIXED)
"""Architectures with routers in F32, and experts that are llama.cpp's."""


_GAINS = {r"^token_embd|^output": 4.0, "attn_[qk]": 1.5, "ffn_gate_inp": 2.0}
"""How large the products of these matrices are; those of others are about 1."""


def write(name: str, folder: Path) -> Path:
    """Writes a model of the architecture `name`, with F16 matrices and the bundled target's vocabulary.

    Raises:
        RuntimeError: llama.cpp does not make a model of the metadata.
    """
    recipe = {**_DENSE, **_MIXED}[name]
    path = folder / f"{name}.gguf"
    _write(path, name, recipe, [])
    wanted = dict(_wanted(path))
    if recipe.fused:
        wanted = _fused(wanted)
    kept = {
        tensor: shape
        for tensor, shape in wanted.items()
        if (not OPTIONAL.search(tensor) or re.search(recipe.keeps, tensor))
        and not (recipe.tied and tensor == "output.weight")
    }
    _write(path, name, recipe, [(tensor, values(tensor, shape)) for tensor, shape in kept.items()])
    return path


def values(name: str, shape: Shape) -> Values:
    """Random numbers that a tensor of this name could have; the same for the same name and shape.

    They make some logits and attention weights much larger than others, so that a difference shows.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    normal = random.standard_normal(shape).astype(np.float32)
    if "rope_f" in name:  # divisors of frequencies
        return normal**2 + 1
    if name.endswith(".bias"):
        return 0.2 * normal
    if len(shape) == 1:
        return 1 + 0.15 * normal
    gain = next((gain for pattern, gain in _GAINS.items() if re.search(pattern, name)), 1.0)
    matrix: npt.NDArray[np.float32] = normal * np.float32(gain / math.sqrt(shape[-1]))
    if "ffn_gate_inp" in name or re.search(r"conv(?!.*proj)", name):  # F32 in every file
        return matrix
    return matrix.astype(np.float16)


def _write(path: Path, name: str, recipe: Recipe, tensors: Iterable[tuple[str, Values]]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, name)
    for key, value, kind, inner in _tokenizer():
        writer.add_key_value(key, value, kind, inner)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in {**SIZES, "block_count": recipe.layers, **recipe.metadata}.items():
        add[type(value)](f"{name}.{key}", value)
    writer.add_file_type(1)
    for tensor, data in tensors:
        writer.add_tensor(tensor, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def _tokenizer() -> list[tuple[str, Any, Any, Any]]:
    """(key, value, type, type of an array's elements) of the bundled target's tokenizer."""
    import gguf

    return [
        (name, one.contents(), one.types[0], one.types[1] if len(one.types) > 1 else None)
        for name, one in gguf.GGUFReader(paths.bundled("tiny-target-q8_0.gguf")).fields.items()
        if name.startswith("tokenizer.")
    ]


class _Options(ctypes.Structure):
    """A gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _wanted(path: Path) -> list[tuple[str, Shape]]:
    """The tensors that the loader would read from a file with this metadata."""
    api, pointer = lib.api(), ctypes.c_void_p
    read = lib.c_function("gguf_init_from_file", pointer, ctypes.c_char_p, _Options)
    free = lib.c_function("gguf_free", None, pointer)
    name_of = lib.c_function("ggml_get_name", ctypes.c_char_p, pointer)
    found: list[tuple[str, Shape]] = []

    @api.llama_model_set_tensor_data_t  # type: ignore[untyped-decorator]
    def note(tensor: int, _: object) -> None:
        sizes = list(_Tensor.from_address(tensor).ne)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        found.append((name_of(tensor).decode(), tuple(reversed(sizes))))

    params, mark = api.llama_model_default_params(), lib.log.mark()
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    metadata = read(str(path).encode(), _Options(True, None))
    model = api.llama_model_init_from_user(metadata, note, None, params)
    free(metadata)
    if not model:
        raise RuntimeError(f"llama.cpp makes no model of {path.name}: {lib.log.reason(mark)}.")
    api.llama_model_free(model)
    return found


def _fused(wanted: Mapping[str, Shape]) -> dict[str, Shape]:
    """The same with one matrix in place of those of queries, keys and values."""
    found: dict[str, Shape] = {}
    for name, shape in wanted.items():
        one = re.sub(r"attn_[qkv]\.", "attn_qkv.", name)
        found[one] = (found.get(one, (0,))[0] + shape[0], *shape[1:]) if one != name else shape
    return found
