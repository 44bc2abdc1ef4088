"""What drafters search: n-grams of one history, suffixes of many sequences, successors of tokens; in C or its twin
(`kernels`).
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec import kernels
from localspec.errors import KernelError
from localspec.native.successors import MOST_NODES
from localspec.native.successors import SUCCESSORS as SUCCESSORS
from localspec.native.successors import Guess as Guess
from localspec.native.suffix import Continuation as Continuation
from localspec.native.suffix import Followed as Followed
from localspec.types import LogitRows, Noise, Tokens


class NgramIndex:
    """Knows where the last n tokens of a history (min_ngram <= n <= max_ngram) stood before.

    Memory and time per new token do not depend on the length of the history.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """Raises KernelError unless 1 <= min_ngram <= max_ngram <= 64."""
        if not 1 <= min_ngram <= max_ngram <= 64:
            raise KernelError(f"n-grams of {min_ngram} to {max_ngram} tokens; 1 <= min <= max <= 64 is needed.")
        self._index = kernels.backend().NgramIndex(min_ngram, max_ngram)

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the index that of int32[n] `tokens`, the whole history: truncates to the common prefix, appends.

        The first `unchanged` tokens are not looked at: the caller knows that they are those of the last call.
        """
        if not 0 <= unchanged <= len(tokens):
            raise KernelError(f"{unchanged} of {len(tokens)} tokens cannot be unchanged.")
        self._index.sync(tokens, unchanged)

    def lookup(self, max_tokens: int) -> tuple[Tokens, int]:
        """What followed the longest matching suffix where it stood last before, and the length of the match.

        int32[max_tokens]; a copy that reaches the end of the history goes on with what it has copied. Empty and 0
        if nothing matches.
        """
        if max_tokens < 0:
            raise KernelError(f"{max_tokens} tokens were asked for.")
        return self._index.lookup(max_tokens)

    def check_integrity(self) -> str:
        """ "", or what is wrong. Rebuilds everything: for tests and doctors."""
        return self._index.check_integrity()

    def memory_bytes(self) -> int:
        """Memory held."""
        return self._index.memory_bytes()

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and a later sync starts anew."""
        self._index.close()


class SuffixIndex:
    """Knows what followed, wherever the longest end of a context stood in many sequences of tokens (0 or more).

    A token comes or goes in O(depth + log n) and takes 16 bytes. Not thread-safe.
    """

    def __init__(self, depth: int = 64) -> None:
        """`depth`: longest match that is told from longer ones. Raises KernelError unless it is 1 to 64."""
        if not 1 <= depth <= 64:
            raise KernelError(f"a suffix index {depth} tokens deep; it must be 1 to 64.")
        self._index = kernels.backend().SuffixIndex(depth)

    def add(self, sequences: Sequence[Tokens]) -> int:
        """Adds int32[n] sequences, called by the number returned and those after it.

        Raises:
            KernelError: a negative token, or no memory.
        """
        return self._index.add(sequences)

    def remove(self, sequence: int) -> None:
        """Takes a sequence out. Raises KernelError if there is none of that number."""
        self._index.remove(sequence)

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        """Makes the newest sequence (begun if there is none) int32[n] `tokens`: truncates to what is the same, appends.

        The first `unchanged` tokens are not looked at, as for `NgramIndex`. Raises KernelError as `add` does.
        """
        if not 0 <= unchanged <= len(tokens):
            raise KernelError(f"{unchanged} of {len(tokens)} tokens cannot be unchanged.")
        self._index.sync(tokens, unchanged)

    def guess(
        self, context: Tokens, max_nodes: int, max_depth: int, *, tree: bool = False, runs_on: bool = False
    ) -> Continuation:
        """What followed the longest end of int32[n] `context`: at most 64 nodes, best first; a chain unless `tree`.

        The places of the longest match vote for what comes next, up to 32 of them, evenly spaced among all; of equals
        the one seen last wins.

        Args:
            context: all that matters of it is its end, `depth` tokens.
            max_nodes: of the guess.
            max_depth: most tokens in a row.
            tree: best first by the product of chances; else the most likely token each time.
            runs_on: what reaches the end of its sequence goes on with what is guessed; for an index of one sequence,
                whose end the context is.
        """
        if max_nodes < 0 or max_depth < 0:
            raise KernelError(f"{max_nodes} nodes of depth {max_depth} were asked for.")
        return self._index.guess(context, max_nodes, max_depth, tree, runs_on)

    def follow(
        self,
        tokens: Tokens,
        unchanged: int,
        max_nodes: int,
        max_depth: int,
        *,
        tree: bool = False,
        other: SuffixIndex | None = None,
    ) -> Followed:
        """All that a drafter does in a pass: `sync` to int32[n] `tokens`, then the better of two guesses after them.

        Args:
            tokens: a conversation, whole; the newest sequence.
            unchanged: the first so many are not looked at.
            max_nodes: of the guess; 0 = only `sync`.
            max_depth: most tokens in a row.
            tree: as in `guess`.
            other: searched, too, and preferred where it promises more; its sequences do not run on.

        Raises:
            KernelError: as `sync` and `guess`.
        """
        if not 0 <= unchanged <= len(tokens) or max_nodes < 0 or max_depth < 0:
            raise KernelError(f"{unchanged} of {len(tokens)} tokens, {max_nodes} nodes of depth {max_depth}.")
        return self._index.follow(
            tokens, unchanged, max_nodes, max_depth, tree, None if other is None else other._index
        )

    def check_integrity(self) -> str:
        """ "", or what is wrong. Looks at everything: for tests and doctors."""
        return self._index.check_integrity()

    def tokens_held(self) -> int:
        """Tokens of all sequences."""
        return self._index.tokens_held()

    def memory_bytes(self) -> int:
        """Memory held."""
        return self._index.memory_bytes()

    def close(self) -> None:
        """Frees the memory; a second call does nothing, and what is asked later sees an empty index."""
        self._index.close()


class SuccessorIndex:
    """Knows the likeliest tokens after each token (`SUCCESSORS` of them), as rows of logits said last.

    64 bytes a token of the vocabulary: 9.7 MB for 151,936, and never more; memory is taken only as tokens are met.
    """

    def __init__(self) -> None:
        self._index = kernels.backend().SuccessorIndex()

    def clear(self) -> None:
        """Keeps nothing, and frees the memory."""
        self._index.clear()

    def learn(self, rows: LogitRows, indices: Sequence[int], tokens: Sequence[int]) -> None:
        """rows[indices[i]] follows tokens[i], one after the other: what it says takes the place of what was kept.

        Kept are the likeliest tokens and their shares of the 32 likeliest. Rows that hold NaN or +inf or exclude every
        token, and tokens outside the vocabulary, are passed over. Rows of another length make it forget everything.

        Raises:
            KernelError: not as many tokens as indices, no such row, or no memory.
        """
        if len(indices) != len(tokens) or not all(0 <= index < len(rows) for index in indices):
            raise KernelError(f"rows {list(indices)} of {len(rows)} came with {len(tokens)} tokens.")
        self._index.learn(rows, indices, tokens)

    def guess(
        self,
        token: int,
        temperature: float,
        noise: Noise,
        position: int,
        max_nodes: int,
        max_depth: int,
        breadth: int = 1,
    ) -> Guess:
        """A tree of guesses after a token: the next is always the one that is likeliest to be reached.

        Args:
            token: the last one there is.
            temperature: 0 or more; above 0 the noise (Purpose.SAMPLE) ranks what is kept, as the target will rank it.
            noise: of the request.
            position: absolute, of the first guess.
            max_nodes: of the tree; 64 at most.
            max_depth: most guesses in a row.
            breadth: most guesses after a token, from 1 (a chain) to `SUCCESSORS`.

        Raises:
            KernelError: a number is out of range.
        """
        if max_nodes < 0 or max_depth < 0 or not 1 <= breadth <= SUCCESSORS:
            raise KernelError(f"{max_nodes} nodes of depth {max_depth} and {breadth} after each were asked for.")
        if not temperature >= 0.0:
            raise KernelError(f"the temperature is {temperature}; it must be 0 or more.")
        max_nodes, max_depth = min(max_nodes, MOST_NODES), min(max_depth, MOST_NODES)
        return self._index.guess(token, temperature, noise, position, max_nodes, max_depth, breadth)

    def memory_bytes(self) -> int:
        """Memory held."""
        return self._index.memory_bytes()
