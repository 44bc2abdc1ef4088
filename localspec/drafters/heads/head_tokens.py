"""Which tokens a head in a GGUF file reads and guesses: what would end the process is refused from its header."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor

_TOKENS_KEY = "tokenizer.ggml.tokens"


def check_rows(header: Header, tensors: Mapping[str, Tensor], target: Header) -> None:
    """Every token needs its embedding, and every row of the output matrix its token.

    Args:
        header: of the head.
        tensors: of the head, by name.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: it has embeddings of too few tokens.
        PairError: it guesses through the target's output matrix, which has another number of tokens.
    """
    tokens, targets = header.count(_TOKENS_KEY), target.count(_TOKENS_KEY)
    own = tensors.get("token_embd.weight")
    rows = tokens if own is None else (*own.shape, 1)[1]
    if rows < tokens:
        raise ModelFileError(f"{header.path.name} is corrupt: it has embeddings of {rows} tokens, and {tokens} tokens.")
    if not tensors.keys() & {"output.weight", "d2t"} and tokens != targets:
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: it brings no output matrix, and there are"
            f" {targets} tokens in the target and {tokens} in the head."
        )


def guessed_ids(header: Header, tensors: Mapping[str, Tensor], target: Header) -> npt.NDArray[np.int64] | None:
    """int64[n]: the tokens that the head can guess, in the order of its output matrix; None = all, in their own order.

    Raises:
        ModelFileError: the list has no output matrix of its size, or names a token twice.
        PairError: it names a token that the target does not have.
    """
    ids, output = tensors.get("d2t"), tensors.get("output.weight")
    if ids is None:
        return None
    if ids.type != "I64" or output is None or output.shape[-1:] != ids.shape:
        raise ModelFileError(
            f"{header.path} is corrupt: d2t is {ids.type}{list(ids.shape)}, which no output matrix fits."
        )
    found = np.frombuffer(header.read(ids.offset, ids.size), dtype="<i8").astype(np.int64)
    size = min(target.count(_TOKENS_KEY), header.count(_TOKENS_KEY))
    if len(found) and (found.min() < 0 or found.max() >= size):
        wrong = int(found[(found < 0) | (found >= size)][0])
        raise PairError(f"{header.path.name} guesses token {wrong}; {target.path.name} has 0 to {size - 1}.")
    if len(np.unique(found)) != len(found):
        raise ModelFileError(f"{header.path} is corrupt: d2t names a token twice.")
    return found
