"""Which weights of a model our own kernels do not pack, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from localspec.gguf import Header, packs

COST = "there a pass of 8 rows takes about 5 passes of one row, so drafts gain little"
"""SmolLM2-135M in Q4_1 before that format was packed, 2 cores with AVX2: 4.84 passes."""


def unpacked(parts: Sequence[Header]) -> dict[str, int]:
    """Bytes by format, most first, of the matrices that a pass multiplies with and our kernels do not pack. Experts and
    small float32 matrices are llama.cpp's, and not counted.

    Args:
        parts: headers of a model's files.
    """
    left: Counter[str] = Counter()
    for kind, columns, rows, size in _matrices(parts):
        if not packs(kind, columns, rows):
            left[kind] += size
    return dict(left.most_common())


def words(parts: Sequence[Header]) -> str:
    """One sentence without its full stop; "" if all is packed."""
    left = unpacked(parts)
    if not left:
        return ""
    all_bytes = sum(size for *_, size in _matrices(parts))
    shares = ", ".join(f"{kind} ({max(1, round(100 * size / all_bytes))} %)" for kind, size in left.items())
    return f"localspec's kernels do not pack {shares} of what a pass multiplies: {COST}"


def _matrices(parts: Sequence[Header]) -> list[tuple[str, int, int, int]]:
    """Type, columns, rows and bytes of each."""
    tensors = [tensor for part in parts for tensor in part.tensors]
    looked_up = "token_embd.weight" if any(tensor.name == "output.weight" for tensor in tensors) else ""
    return [
        (tensor.type, *tensor.shape[:2], tensor.size)
        for tensor in tensors
        if len(tensor.shape) == 2 and tensor.type != "F32" and tensor.name != looked_up
    ]
