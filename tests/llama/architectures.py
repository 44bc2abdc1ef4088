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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.llama.library import lib
from localspec.llama.library.lib import GgmlTensor
from tests.llama.recipes import RECIPES, SIZES, Recipe

Shape = tuple[int, ...]
"""Elements per dimension, slowest first (numpy's order)."""
Values = npt.NDArray[np.float16] | npt.NDArray[np.float32]

OPTIONAL = re.compile(
    r"(?<!ssm_dt)(?<!ssm_conv1d)(?<!exp_probs_b)\.bias$|\.(scale|scales|input_scale)$|^rope_|\.rope_|attn_[qk]_norm"
    r"|attn_sub_norm|ffn_sub_norm|norm_2\.|attn_sinks|\.nextn\.|^position_embd|^dense_2|ffn_gate_up_exps"
)
"""Tensors that a loader asks for, and that files have only where their recipe says so."""
SINGLE = re.compile(
    r"ffn_gate_inp|conv(?!.*proj)|time_mix_(w[12]|lerp)|channel_mix_lerp|altup_\w+_coef|\.indexer\.|_norm\.weight$"
    r"|(?<!\.weight)$"
)
"""Matrices that are F32 in every file."""

_GAINS = {r"^token_embd|^output": 4.0, "attn_[qk]": 1.5, "ffn_gate_inp": 2.0, "altup": 0.5}
"""How large the products of these matrices are; those of others are about 1."""


def write(name: str, folder: Path, layers: int | None = None, **sizes: Any) -> Path:
    """Writes a model by the recipe `name`, with F16 matrices and the bundled target's vocabulary.

    Args:
        name: of `RECIPES`.
        folder: where the file goes.
        layers: None = as the recipe has it.
        sizes: metadata in place of the recipe's, with "__" for a dot.

    Raises:
        RuntimeError: llama.cpp does not make a model of the metadata.
    """
    recipe = RECIPES[name]
    metadata = {**recipe.metadata, **{key.replace("__", "."): value for key, value in sizes.items()}}
    recipe = replace(recipe, metadata=metadata, layers=layers or recipe.layers)
    path = folder / f"{name}.gguf"
    architecture = recipe.architecture or name
    _write(path, architecture, recipe, [])
    tensors = [(tensor, values(tensor, shape)) for tensor, shape in _tensors(recipe, dict(_wanted(path))).items()]
    _write(path, architecture, recipe, tensors)
    return path


def values(name: str, shape: Shape) -> Values:
    """Random numbers that a tensor of this name could have; the same for the same name and shape.

    They make some logits and attention weights much larger than others, so that a difference shows.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    normal: npt.NDArray[np.float32] = random.standard_normal(shape).astype(np.float32)
    if "rope_f" in name:  # divisors of frequencies
        return normal**2 + 1
    if name.endswith("ssm_a"):  # how fast states fade
        return -(normal**2) - 0.1
    if name.endswith("ssm_dt.bias"):  # how long a step is: about a quarter
        return 0.5 * normal - 1
    if "_lerp" in name:  # shares of the token before
        return (0.5 + 0.25 * normal).clip(0, 1)
    if name.endswith(".bias"):
        return 0.2 * normal
    if max(shape) == math.prod(shape) or name.endswith("_norm.weight"):
        return 1 + 0.15 * normal
    gain = next((gain for pattern, gain in _GAINS.items() if re.search(pattern, name)), 1.0)
    matrix: npt.NDArray[np.float32] = normal * np.float32(gain / math.sqrt(shape[-1]))
    return matrix if SINGLE.search(name) else matrix.astype(np.float16)


def _tensors(recipe: Recipe, wanted: Mapping[str, Shape]) -> dict[str, Shape]:
    """Those that files of this recipe have, of all that the loader asks for."""
    if recipe.fused:
        wanted = _fused(wanted)
    if not re.search(recipe.keeps, "ffn_gate_up_exps"):
        wanted = _split(wanted)
    return {
        tensor: shape
        for tensor, shape in wanted.items()
        if (not OPTIONAL.search(tensor) or re.search(recipe.keeps, tensor))
        and not re.search(recipe.lacks, tensor)
        and not (recipe.tied and tensor == "output.weight")
    }


def _write(path: Path, architecture: str, recipe: Recipe, tensors: Iterable[tuple[str, Values]]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value, kind, inner in _tokenizer():
        writer.add_key_value(key, value, kind, inner)
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in {**SIZES, "block_count": recipe.layers, **recipe.metadata}.items():
        add[type(value)](f"{architecture}.{key}", value)
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
        sizes = list(GgmlTensor.from_address(tensor).ne)
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


def _split(wanted: Mapping[str, Shape]) -> dict[str, Shape]:
    """The same with two matrices, gates and others, in place of the one that holds both for each expert."""
    found: dict[str, Shape] = {}
    for name, shape in wanted.items():
        if "ffn_gate_up_exps" in name:
            experts, rows, columns = shape
            for half in ("gate", "up"):
                found[name.replace("gate_up", half)] = (experts, rows // 2, columns)
        else:
            found[name] = shape
    return found
