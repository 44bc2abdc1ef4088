"""Prompt lookup for many slots at once is ls_ngram_lookup on each: the kernel compiled for the host."""

from __future__ import annotations

import numpy as np

from localspec.native.ngrams import NgramIndex

from .host import Host


def test_2000_histories(host: Host) -> None:
    matched = 0
    for call in range(50):
        rng = np.random.default_rng(call)
        low, max_tokens = int(rng.integers(1, 4)), int(rng.integers(1, 12))
        high = low + int(rng.integers(0, 9))
        longest = 1500 if call % 10 == 0 else 90
        histories = [
            rng.integers(0, rng.integers(1, 9), size=int(rng.integers(0, longest))).astype(np.int32) for _ in range(40)
        ]
        out, match = host.lookup(histories, low, high, max_tokens)
        for history, copied, length in zip(histories, out, match, strict=True):
            index = NgramIndex(low, high)
            index.sync(history)
            found, wanted = index.lookup(max_tokens)
            index.close()
            assert length == wanted
            assert copied.tolist()[: len(found)] == found.tolist()
            matched += wanted > 0
    assert 1000 < matched < 2000
