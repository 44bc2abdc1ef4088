"""What heads share that guess from the target's last final state alone (Medusa, MLP speculators).

They have no cache: the state of the last evaluated token is there or it is not (right after a prompt, whose states
were not asked for, it is not), so there is nothing to read and nothing to forget.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from localspec.errors import PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import FINAL, Tap
from localspec.models.facts.pairing import MOST_SIZE_DIFFERENCE
from localspec.types import Float32Array, LogitRows, Tokens

TAP = Tap(final="decoded")


class FinalState:
    """The part of a `draft_model.DraftContext` that does not depend on the method, but for `decode`."""

    def __init__(self, target: Context) -> None:
        """`target`: made with `TAP` at least."""
        assert target.states is not None
        self.n_ctx, self.n_vocab = target.n_ctx, target.n_vocab
        self.n_paths = target.max_leaves
        """Most paths of a slot (`best_first.TreeContext`); here more paths cost nothing."""
        self._states, self._threads = target.states, target.threads
        self._nothing = np.full((1, self.n_vocab), -np.inf, dtype=np.float32)

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """There is nothing to read."""
        return len(tokens) - 1

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """All but the last token."""
        return len(tokens) - 1

    def _last(self, slot: int, tokens: Tokens) -> tuple[int, Float32Array] | None:
        """How many of the tokens the target has evaluated, at most all but the last, and float32[n_embd], the final
        state of the last of those; None where it is not held, or is no number.
        """
        start, stop = self._states.span(slot, tokens, FINAL)
        stop = min(stop, len(tokens) - 1)
        if stop <= start:
            return None
        state = self._states.read(slot, FINAL, stop - 1, stop)[0]
        return (stop, state) if np.isfinite(state).all() else None

    def _row(self, scores: Float32Array | None) -> LogitRows:
        """A head's scores as a row of the target's vocabulary; None = nothing to guess."""
        if scores is None:
            return LogitRows.from_matrix(self._nothing)
        if len(scores) == self.n_vocab and scores.flags.c_contiguous:
            return LogitRows.from_matrix(scores[None])
        row = self._nothing.copy()
        row[0, : len(scores)] = scores[: self.n_vocab]
        return LogitRows.from_matrix(row)


def check_sizes(path: Path, target: Header, hidden: int, vocabulary: int) -> None:
    """Whether a head's matrices go with the target's states and tokens.

    Raises:
        PairError: they do not; names the fact that differs.
    """
    width = target.number("embedding_length_out") or target.number("embedding_length")
    tokens = target.count("tokenizer.ggml.tokens")
    for fact, ours, theirs, most in (
        ("hidden size", width, hidden, 0),
        ("vocabulary", tokens, vocabulary, MOST_SIZE_DIFFERENCE),  # families pad differently
    ):
        if abs(ours - theirs) > most:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )
