"""A trained draft model as an ordinary GGUF file, which llama.cpp reads: the target's metadata, its part of the
vocabulary, and the trained weights in Q8_0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec import paths
from localspec.drafters.cut.part import Part
from localspec.errors import LocalspecError, UsageError
from localspec.gguf import Header
from localspec.types import Float32Array

TEXTS, TOKENS = "localspec.training.texts", "localspec.training.tokens"
_BLOCK = 32
"""Weights of a block of Q8_0."""


def gguf_package() -> Any:
    """The package that writes GGUF files.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise UsageError(
            "Draft models are written with the package gguf, which is not installed.",
            'Install it with: pip install "localspec[train]"',
        ) from None
    return gguf


def export(
    path: Path,
    target: Header,
    part: Part,
    layers: Sequence[Mapping[str, Float32Array]],
    rest: Mapping[str, Float32Array],
    name: str,
    facts: Mapping[str, str | int],
) -> None:
    """Writes a draft model; what is at `path` is replaced when the new file is whole.

    Args:
        path: of the file.
        target: the header of the model it drafts for.
        part: its vocabulary.
        layers: float32 arrays of each layer by their names in it.
        rest: those of the other tensors by their names: embedding, output, norm.
        name: what it calls itself.
        facts: for its metadata: which target, which texts.

    Raises:
        LocalspecError: the disk is full or read-only.
    """
    gguf = gguf_package()
    tensors = [(f"blk.{number}.{one}", array) for number, layer in enumerate(layers) for one, array in layer.items()]
    try:
        with paths.replacing(path) as half:
            writer = gguf.GGUFWriter(half, target.architecture)
            _describe(writer, target, part, len(layers), name, facts)
            for title, array in (*rest.items(), *tensors):
                _add(gguf, writer, title, array)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
    except OSError as error:
        raise LocalspecError(f"{path} cannot be written: {error.strerror}.") from None


def _describe(writer: Any, target: Header, part: Part, layers: int, name: str, facts: Mapping[str, str | int]) -> None:
    own = f"{target.architecture}."
    writer.add_name(name)
    if licence := target.text("general.license"):
        writer.add_license(licence)
    for key, fact in facts.items():
        _add_fact(writer, key, fact)
    for key, value in target.metadata.items():
        if key.startswith("tokenizer.") and key.endswith("_token_id") and isinstance(value, int):
            if 0 <= value < len(part.places):  # one beyond the vocabulary means nothing
                writer.add_uint32(key, int(part.places[value]))
        elif key.startswith((own, "tokenizer.")):
            _add_fact(writer, key, {f"{own}block_count": layers, f"{own}vocab_size": len(part.ids)}.get(key, value))
    texts, types = target.tokens, target.token_types
    writer.add_token_list([texts[token] for token in part.ids])
    if types:
        writer.add_token_types([types[token] for token in part.ids])
    if scores := target.array("tokenizer.ggml.scores"):
        writer.add_token_scores([scores[token] for token in part.ids])
    if part.merges:
        writer.add_token_merges(list(part.merges))


def _add_fact(writer: Any, key: str, value: Any) -> None:
    """A text, truth value or number; arrays are of the whole vocabulary and are left out."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)


def _add(gguf: Any, writer: Any, title: str, array: Float32Array) -> None:
    """Matrices in Q8_0 where their rows allow it, vectors as they are."""
    array = np.ascontiguousarray(array, dtype=np.float32)
    if array.ndim < 2:
        writer.add_tensor(title, array)
    elif array.shape[1] % _BLOCK:
        writer.add_tensor(title, array.astype(np.float16))
    else:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(title, gguf.quants.quantize(array, kind), raw_dtype=kind)
