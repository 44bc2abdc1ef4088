"""What trained heads take of memory beside their target, as far as their files tell: never less than they will."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.gguf import Header
from localspec.gguf.split import read_parts
from localspec.methods import OF_ITS_OWN, ROWS
from localspec.models.facts import checkpoint
from localspec.models.facts.heads import nextn_layers
from localspec.models.facts.shape import ModelShape, shape_of


@dataclass(frozen=True, slots=True)
class HeadShape:
    """One head."""

    model: ModelShape | None = None
    """What llama.cpp runs, in a context of its own; None = localspec computes it."""
    weights: int = 0
    """Bytes of the matrices that localspec computes with."""
    token_bytes: int = 0
    """Kept of each token of a slot: the target's hidden states in F16, and keys and values that localspec keeps."""
    all_rows: bool = False
    """Whether the target computes logits of whole prompts for it."""


def head_shape(path: Path, method: str, target: Header) -> HeadShape:
    """Of a file or folder.

    Args:
        path: of the head.
        method: one of `methods.HEADS`.
        target: of the model it goes with.

    Raises:
        ModelFileError: missing or damaged.
    """
    if not checkpoint.is_checkpoint(path):
        return gguf_head(read_parts(path), method, target)
    weights, width = sum(file.stat().st_size for file in checkpoint.weights_of(path)), _width(target)
    if method != "eagle":
        return HeadShape(None, weights, _state_bytes(method, target))
    weights += target.count("tokenizer.ggml.tokens") * (width + 4)  # the target's output matrix in 8 bits
    return HeadShape(None, weights, _state_bytes(method, target) + 2 * 4 * width, all_rows=True)


def gguf_head(parts: Sequence[Header], method: str, target: Header) -> HeadShape:
    """Of the headers of a GGUF file, the first part first; see `head_shape`."""
    listed = len(parts[0].array(f"{parts[0].architecture}.target_layers"))
    states = _state_bytes(method, target, listed)
    return HeadShape(shape_of(parts, nextn=nextn_layers(parts) > 0), token_bytes=states)


def own_heads(target: Header | Sequence[Header]) -> tuple[HeadShape, ...]:
    """Of the layers of multi-token prediction in the target's own file, if it has some: their weights are the target's.

    Raises:
        ModelFileError: layer numbers that no model has.
    """
    parts = [target] if isinstance(target, Header) else target
    if not nextn_layers(parts):
        return ()
    head = gguf_head(parts, OF_ITS_OWN, parts[0])
    assert head.model is not None
    layers = tuple(replace(layer, weights=0) for layer in head.model.layers)
    return (replace(head, model=replace(head.model, layers=layers, input_bytes=0, output_bytes=0)),)


def _state_bytes(method: str, target: Header, listed: int = 0) -> int:
    """`listed`: layers whose inputs the head's file says that it reads."""
    states = 0 if method in ROWS and ROWS[method].needs == "tokenizer" else 1
    return 2 * (listed or states) * _width(target)


def _width(target: Header) -> int:
    """Elements of a hidden state."""
    return max(0, target.number("embedding_length"), target.number("embedding_length_out"))
