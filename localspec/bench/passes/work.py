"""What a pass has to read and to compute, from a model file's header alone."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.gguf import Header, Tensor

_LOOKED_UP = ("token_embd", "position_embd", "per_layer_token_embd", "token_types")
"""Tables of which a pass reads a row per token; they are not multiplied."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a pass cannot do without."""

    read_bytes: int
    """Weights, and keys and values of the tokens in the cache."""
    operations: int
    """Multiplications and additions of the matrix products and of attention."""

    def __add__(self, other: Work) -> Work:
        return Work(self.read_bytes + other.read_bytes, self.operations + other.operations)


def pass_work(header: Header, length: int, width: int) -> Work:
    """A pass of `width` rows, logits for each, whose first is token number `length` (its own K and V included)."""
    matrices = [(tensor, width) for tensor in _multiplied(header)]
    return _products(header, matrices) + _attention(header, length, width)


def prefill_work(header: Header, count: int, chunk: int) -> Work:
    """A prompt of `count` tokens in passes of `chunk`, without logits.

    The last layer's feed-forward part and the output matrix are left out: no logits need them.
    """
    last = f"blk.{header.n_layers - 1}.ffn"
    tensors = [tensor for tensor in _multiplied(header) if not tensor.name.startswith((last, "output", "token_embd"))]
    total = Work(0, 0)
    for start in range(0, count, chunk):
        rows = min(chunk, count - start)
        total += _products(header, [(tensor, rows) for tensor in tensors]) + _attention(header, start + 1, rows)
    return total


def _multiplied(header: Header) -> list[Tensor]:
    """Weight matrices that rows are multiplied with; tied embeddings are the output matrix too."""
    names = {tensor.name for tensor in header.tensors}
    tied = "output.weight" not in names
    return [
        tensor
        for tensor in header.tensors
        if len(tensor.shape) > 1
        and tensor.name.endswith(".weight")
        and "conv1d" not in tensor.name
        and (not tensor.name.startswith(_LOOKED_UP) or (tied and tensor.name == "token_embd.weight"))
    ]


def _products(header: Header, matrices: list[tuple[Tensor, int]]) -> Work:
    """Products of (matrix, rows). Of experts, a row uses a few; how many distinct ones is what chance would give."""
    experts = header.number("expert_count")
    used = header.number("expert_used_count") / experts if experts else 1.0
    read, operations = 0.0, 0.0
    for tensor, rows in matrices:
        elements = 1
        for size in tensor.shape:
            elements *= size
        expert = experts and len(tensor.shape) == 3
        read += tensor.size * (1 - (1 - used) ** rows if expert else 1)
        operations += 2 * elements * rows * (used if expert else 1)
    return Work(round(read), round(operations))


def _attention(header: Header, length: int, rows: int) -> Work:
    """Attention over an F16 cache, every layer over all tokens (sliding windows are not known here)."""
    heads, kv_heads = per_layer(header, "attention.head_count"), per_layer(header, "attention.head_count_kv")
    size = header.number("embedding_length") // max(1, *heads)
    both = (header.number("attention.key_length") or size) + (header.number("attention.value_length") or size)
    seen = rows * length + rows * (rows - 1) // 2
    cells = length + rows - 1
    attending = [(own, theirs) for own, theirs in zip(heads, kv_heads, strict=False) if theirs]
    return Work(
        sum(2 * both * theirs * cells for _, theirs in attending),
        sum(2 * both * own * seen for own, _ in attending),
    )


def per_layer(header: Header, key: str) -> list[int]:
    """A number of the architecture for each layer, whether the file gives one or a list."""
    listed = header.array(f"{header.architecture}.{key}")
    if listed:
        return [int(value) for value in listed]
    number = header.number(key)
    if not number and key == "attention.head_count_kv":
        return per_layer(header, "attention.head_count")
    return [number] * header.n_layers
