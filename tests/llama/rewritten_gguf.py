"""A GGUF file written anew: without some of its metadata, or in several files."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import gguf


def rewritten(source: Path, path: Path, *, without: Container[str] = (), files: int = 1, **more: str) -> Path:
    """The same model at another path; with several files, `path` is their common name.

    Args:
        source: the file.
        path: what is written, NAME.gguf.
        without: keys of metadata that are left out.
        files: how many.
        more: texts for the tokenizer's metadata, by the end of their names.
    """
    reader = gguf.GGUFReader(source)
    per_file = -(-len(reader.tensors) // files) if files > 1 else 0
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=per_file)
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF.") or field.name in without:
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    for name, text in more.items():
        writer.add_string(f"tokenizer.{name}", text)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
