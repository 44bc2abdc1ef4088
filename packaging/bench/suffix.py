"""Suffix decoding at the size of a large corpus: time to load, memory a token, time for each token that is emitted.

    python packaging/bench/suffix.py [--tokens 10000000] [--vocabulary 32000] [--emitted 20000] [--json]

The corpus is made of phrases that come back, words by Zipf's law between them, in texts of 500 tokens: many short
matches and some long ones, as in prose and code. What is emitted is half texts of the corpus, half new ones. `emitted`
is what the whole drafter takes for each token: its entry into the conversation's index and a guess of 8 from there and
from the corpus; `corpus` is a guess of 8 from the corpus alone, `append` the entry of a token into the corpus itself,
and `remove` its leaving. The aim is at most 20 microseconds for each emitted token of 10 M. Disk is not in it: `read`
is the time to read and check the same tokens from a corpus file. Times are the thread's own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from time import thread_time, time

import numpy as np

from localspec import kernels
from localspec.drafters.suffix import SuffixDecoding
from localspec.engine.interfaces import DraftRequest, History
from localspec.indexes import SuffixIndex
from localspec.runtime.corpus_file import CorpusFile, Sequence, name_of
from localspec.types import Noise, SamplingParams, Tokens

TEXT, NODES = 500, 8


def make_tokens(count: int, vocabulary: int, rng: np.random.Generator) -> Tokens:
    """Phrases of 4 to 40 tokens, some much more frequent than others, and single words between them."""
    words = 1.0 / np.arange(1, vocabulary + 1)
    words /= words.sum()
    phrases = [rng.choice(vocabulary, size=size, p=words).astype(np.int32) for size in rng.integers(4, 41, size=20_000)]
    often = 1.0 / np.arange(10, len(phrases) + 10)
    often /= often.sum()
    parts: list[Tokens] = []
    have = 0
    while have < count:
        for phrase in rng.choice(len(phrases), size=10_000, p=often).tolist():
            parts += [phrases[phrase], rng.choice(vocabulary, size=2).astype(np.int32)]
            have += len(phrases[phrase]) + 2
    return np.concatenate(parts)[:count]


class Filled:
    """A corpus that no thread works on."""

    def __init__(self) -> None:
        self.index = SuffixIndex()

    def borrow(self) -> SuffixIndex:
        return self.index

    def give_back(self) -> None:
        pass

    def used(self, sequence: int) -> None:
        pass


def emit(corpus: Filled, tokens: Tokens) -> tuple[float, float, float]:
    """Seconds a token of the drafter and of a guess from the corpus alone, and how many first guesses are right."""
    drafter, history = SuffixDecoding(corpus), History(tokens[:2])
    right, drafting, looked_up = 0, 0.0, 0.0
    for length in range(2, len(tokens)):
        request = DraftRequest(0, history, NODES, NODES, SamplingParams(), Noise(1))
        start = thread_time()
        (draft,) = drafter.draft([request])
        drafting += thread_time() - start
        right += bool(len(draft)) and int(draft.tokens[0]) == int(tokens[length])
        history.append(tokens[length : length + 1])
    for length in range(2, len(tokens)):
        start = thread_time()
        corpus.index.guess(tokens[:length], NODES, NODES)
        looked_up += thread_time() - start
    count = len(tokens) - 2
    return drafting / count, looked_up / count, right / count


def read_seconds(texts: list[Tokens]) -> float:
    """To read and check them from a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = CorpusFile(Path(folder) / "bench.tokens", 1 << 40)
        file.add([Sequence(name_of(text), text, time()) for text in texts])
        start = thread_time()
        file.read()
        return thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--emitted", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokens = make_tokens(options.tokens + options.emitted, options.vocabulary, np.random.default_rng(3))
    tokens, fresh = tokens[: options.tokens], tokens[options.tokens :]
    texts = [tokens[start : start + TEXT] for start in range(0, len(tokens), TEXT)]
    corpus = Filled()
    index = corpus.index
    start = thread_time()
    index.add(texts)
    load = thread_time() - start
    half = options.emitted // 2
    emitted, looked_up, right = emit(corpus, np.concatenate([tokens[len(tokens) // 2 :][:half], fresh[:half]]))
    pieces = [fresh[start : start + 50] for start in range(0, len(fresh), 50)]
    start = thread_time()
    numbers = [index.add([piece]) for piece in pieces]
    append = (thread_time() - start) / len(fresh)
    start = thread_time()
    for number in numbers:
        index.remove(number)
    remove = (thread_time() - start) / len(fresh)
    figures = {
        "backend": kernels.backend_name(),
        "tokens": len(tokens),
        "read_seconds": round(read_seconds(texts), 3),
        "load_seconds": round(load, 3),
        "bytes_per_token": round(index.memory_bytes() / len(tokens), 2),
        "corpus_us": round(looked_up * 1e6, 2),
        "emitted_us": round(emitted * 1e6, 2),
        "append_us": round(append * 1e6, 2),
        "remove_us": round(remove * 1e6, 2),
        "first_guess_right": round(right, 3),
        "sound": index.check_integrity() == "",
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:18} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
