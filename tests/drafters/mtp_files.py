"""Files made of the shipped MTP model: a companion of its layers alone, one with several layers, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parents[1] / "data" / "heads" / "tiny-mtp-q8_0.gguf"
LAYER = 4
"""Its MTP layer, behind 4 others."""
_SHARED = ("token_embd.weight", "output_norm.weight")


@cache
def shipped() -> tuple[list[tuple[str, Any, Any, Any]], list[Any]]:
    """(key, value, type, type of an array's elements) of its metadata, and its tensors."""
    import gguf

    reader = gguf.GGUFReader(SHIPPED)
    facts = [
        (name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.") and name != "general.architecture"
    ]
    return facts, list(reader.tensors)


def copy(
    out: Path,
    tensors: Callable[[str], list[str]] = lambda name: [name],
    facts: Mapping[str, Any] | None = None,
    architecture: str = "hy_v3",
    part: int = 0,
    norm: Callable[[str], float] = lambda name: 1.0,
) -> Path:
    """The shipped file with changes.

    Args:
        out: the new file.
        tensors: under which names each tensor is written.
        facts: metadata to set, by key without the architecture's name if it is the architecture's own.
        architecture: what the file says it is.
        part: tensors of each of several files; 0 = one file.
        norm: what each tensor in F32 is multiplied by.

    Returns:
        The file, or the first of several.
    """
    import gguf

    writer, changes = gguf.GGUFWriter(out, architecture, split_max_tensors=part), dict(facts or {})
    metadata, weights = shipped()
    for name, value, kind, inner in metadata:
        own = name.removeprefix("hy_v3.")
        key = name if own == name else f"{architecture}.{own}"
        writer.add_key_value(key, changes.pop(own, value), kind, inner)
    for own, value in changes.items():
        writer.add_uint32(f"{architecture}.{own}", value)
    for tensor in weights:
        for name in tensors(tensor.name):
            full = tensor.tensor_type == gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, tensor.data * norm(name) if full else tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(out.parent.glob(f"{out.stem}-00001-of-*")) if part else out


def companion(out: Path, without: str = "", **changes: Any) -> Path:
    """The MTP layer, embeddings and the last norm alone; see `copy` for `changes`."""

    def kept(name: str) -> list[str]:
        return [name] if (name in _SHARED or name.startswith(f"blk.{LAYER}.")) and name != without else []

    return copy(out, kept, **changes)


def chained(out: Path, heads: int) -> Path:
    """A model with its MTP layer several times over, each with norms of its own."""

    def repeated(name: str) -> list[str]:
        start = f"blk.{LAYER}."
        return [name.replace(start, f"blk.{LAYER + i}.") for i in range(heads)] if name.startswith(start) else [name]

    def norm(name: str) -> float:
        number = name.split(".")[1]
        if not number.isdecimal() or int(number) < LAYER or name.endswith("shared_head_norm.weight"):
            return 1.0
        return (1.0, 1.5, 0.6)[int(number) - LAYER]

    facts = {"block_count": LAYER + heads, "nextn_predict_layers": heads}
    return copy(out, repeated, facts, norm=norm)
