"""The matrix that turns a model's final states into logits, for heads that guess through it."""

from __future__ import annotations

from localspec.errors import ModelFileError
from localspec.gguf import Header
from localspec.gguf.split import read_parts
from localspec.llama.library.unpack import TensorRows
from localspec.native.matrix import Int8Matrix


def output_matrix(header: Header) -> Int8Matrix:
    """The output matrix of the model in a file, in 8 bits; the embeddings if one matrix serves as both.

    Raises:
        ModelFileError: it has neither, or in a number format that ggml does not unpack.
    """
    held = [(part, tensor) for part in read_parts(header.path) for tensor in part.tensors]
    for name in ("output.weight", "token_embd.weight"):
        for part, tensor in held:
            if tensor.name == name:
                return _in_8_bits(TensorRows(part, tensor))
    raise ModelFileError(f"{header.path} has no output matrix.")


def _in_8_bits(matrix: TensorRows) -> Int8Matrix:
    return Int8Matrix.in_parts((matrix.rows, matrix.columns), lambda start, stop: matrix.read(slice(start, stop)))
