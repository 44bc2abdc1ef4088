"""A real draft model with another vocabulary, made of the bundled one: its tokens in another order, some of them gone.

Embedding rows, token texts, merges and the ids of control tokens move together, so that the model says what it always
said, in other numbers; a merge that is gone makes its tokenizer write some words in more tokens than the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

_IDS = ("bos", "eos", "eot", "padding", "mask", "fim_pre", "fim_suf", "fim_mid")
EVERY = 9
"""Of the tokens made by merges, one in so many is dropped."""


def write_other_vocabulary(source: Path, path: Path, seed: int = 1) -> Path:
    """Writes the model at `source` with another vocabulary to `path`."""
    reader = gguf.GGUFReader(str(source))
    contents = {field.name: field.contents() for field in reader.fields.values()}
    tokens, merges = contents["tokenizer.ggml.tokens"], contents["tokenizer.ggml.merges"]
    order, kept_merges = _order(tokens, merges, contents["tokenizer.ggml.token_type"], seed)
    place = {int(old): new for new, old in enumerate(order)}
    changed: dict[str, Any] = {
        "tokenizer.ggml.tokens": [tokens[old] for old in order],
        "tokenizer.ggml.token_type": [contents["tokenizer.ggml.token_type"][old] for old in order],
        "tokenizer.ggml.merges": kept_merges,
        "llama.vocab_size": len(order),
        **{key: place[contents[key]] for name in _IDS if (key := f"tokenizer.ggml.{name}_token_id") in contents},
    }
    writer = gguf.GGUFWriter(str(path), contents["general.architecture"])
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, changed.get(field.name, contents[field.name]), field.types[0], sub_type)
    for tensor in reader.tensors:
        rows = tensor.data[order] if tensor.name in ("token_embd.weight", "output.weight") else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(rows), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _order(tokens: list[str], merges: list[str], types: list[int], seed: int) -> tuple[list[int], list[str]]:
    """The old ids in their new order, and the merges that are left: those that need no dropped token."""
    made = [merge.replace(" ", "", 1) for merge in merges]
    dropped = set(made[EVERY::EVERY])
    left = [merge for merge in merges if not dropped & {merge.replace(" ", "", 1), *merge.split(" ", 1)}]
    gone = set(made) - {merge.replace(" ", "", 1) for merge in left}
    kept = [old for old, text in enumerate(tokens) if text not in gone]
    assert all(types[old] != 3 for old in set(range(len(tokens))) - set(kept))
    return np.random.default_rng(seed).permutation(kept).tolist(), left
