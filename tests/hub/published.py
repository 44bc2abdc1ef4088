"""Small files with random weights and the headers of those that are published: models, and heads of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors

LAYERS = 4
WIDTH = 32
"""Of the models here and the heads made for them."""
Tensors = list[tuple[str, Sequence[int]]]


def model(*, nextn: int = 0, seed: int = 0, architecture: str = "llama", layers: int = LAYERS, **facts: Any) -> bytes:
    """A whole model, with layers of multi-token prediction after its own if there are to be some.

    Args:
        nextn: how many.
        seed: of another file with the same header, as another quantisation is.
        architecture: what its header says it is.
        layers: of the model proper.
        facts: metadata to set, dots written as two underscores; those of the architecture start with `own__`.
    """
    return gguf_bytes(*_model(nextn, seed, architecture, layers, facts))


def split_model(name: str, parts: int, **facts: Any) -> dict[str, bytes]:
    """A model in several files, by their names."""
    metadata, tensors = _model(0, 0, "llama", LAYERS, facts)
    found = {}
    for part in range(parts):
        count = {"split.no": part, "split.count": parts}
        some = tensors[part::parts]
        found[f"{name}-{part + 1:05d}-of-{parts:05d}.gguf"] = gguf_bytes(
            {**(metadata if not part else {}), **count}, some
        )
    return found


def mtp(**facts: Any) -> bytes:
    """The layers of multi-token prediction of `model` alone."""
    metadata, tensors = _model(1, 0, facts.pop("architecture", "llama"), facts.pop("layers", LAYERS), facts)
    last = f"blk.{metadata[_own(metadata, 'block_count')] - 1}."
    return gguf_bytes(metadata, [one for one in tensors if one[0].startswith((last, "token_embd", "output_norm"))])


def assistant(**facts: Any) -> bytes:
    """As Gemma 4's: a small model that reads the target's own cache."""
    return model(architecture="gemma4-assistant", layers=1, own__embedding_length_out=WIDTH, **facts)


def eagle3(**facts: Any) -> bytes:
    more = {"own__target_layers": [1, 2, 3], "own__target_hidden_size": WIDTH}
    return _head("eagle3", [("fc.weight", (3 * WIDTH, WIDTH))], more | facts)


def dflash(**facts: Any) -> bytes:
    return _head("dflash", _FUSED, {"own__block_size": 8, "own__target_layers": [1, 2, 3]} | facts)


def dspark(**facts: Any) -> bytes:
    more = {"own__block_size": 7, "own__target_layers": [1, 2, 3], "own__sample_from_anchor": True}
    return _head("dflash", [*_FUSED, ("markov_w1.weight", (8, 260)), ("markov_w2.weight", (8, 260))], more | facts)


_FUSED: Tensors = [("fc.weight", (3 * WIDTH, WIDTH)), ("enc.output_norm.weight", (WIDTH,))]


def _model(
    nextn: int, seed: int, architecture: str, layers: int, facts: dict[str, Any]
) -> tuple[dict[str, Any], Tensors]:
    count = {"own__block_count": layers + nextn} | ({"own__nextn_predict_layers": nextn} if nextn else {})
    first, layer = tiny_tensors()[:2], tiny_tensors()[2:]
    tensors: Tensors = list(first)
    for number in range(layers + nextn):
        tensors += [(name.replace("blk.0.", f"blk.{number}."), shape) for name, shape in layer]
        if number >= layers:
            tensors.append((f"blk.{number}.nextn.eh_proj.weight", (2 * WIDTH, WIDTH)))
    return _metadata(architecture, {"general__seed": seed} | count | facts), tensors


def _head(architecture: str, tensors: Tensors, facts: dict[str, Any]) -> bytes:
    return gguf_bytes(_metadata(architecture, facts), [*tensors, *tiny_tensors()[1:]])


def _metadata(architecture: str, facts: dict[str, Any]) -> dict[str, Any]:
    named = {key.replace("llama.", f"{architecture}."): value for key, value in TINY_METADATA.items()}
    changes = {key.replace("own__", f"{architecture}__").replace("__", "."): value for key, value in facts.items()}
    return named | {"general.architecture": architecture} | changes


def _own(metadata: dict[str, Any], key: str) -> str:
    return f"{metadata['general.architecture']}.{key}"
