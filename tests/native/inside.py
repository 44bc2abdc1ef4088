"""What an index holds inside: the C library is asked itself, the specification by its own methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from localspec.native.indexes import ContextCounts, NgramIndex, SuffixIndex


def intact(index: Any) -> bool:
    """Whether everything in an index is as its tokens have it."""
    if isinstance(index, NgramIndex):
        length, end = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int64)
        assert index._lib.ls_ngram_check(index._handle, length.ctypes.data, end.ctypes.data) == 0
        return int(length[0]) == 0
    if isinstance(index, SuffixIndex):
        return bool(index._lib.ls_suffix_check(index._handle) == 0)
    return bool(index.check_integrity() == "")


def tokens_held(index: Any) -> int:
    """Tokens of all sequences of a suffix index."""
    if isinstance(index, SuffixIndex):
        return int(index._lib.ls_suffix_tokens(index._handle))
    return int(index.tokens_held())


def memory_bytes(index: Any) -> int:
    """Memory that an index holds."""
    if isinstance(index, NgramIndex):
        return int(index._lib.ls_ngram_bytes(index._handle))
    if isinstance(index, SuffixIndex):
        return int(index._lib.ls_suffix_bytes(index._handle))
    if isinstance(index, ContextCounts):
        return int(index._lib.ls_counts_bytes(index._handle))
    return int(index.memory_bytes())
