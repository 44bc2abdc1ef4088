"""A target each of whose passes that decode has the same number of rows, whatever is drafted.

llama.cpp chooses its kernels by the width of a pass, so a row's bits depend on the width. In passes of one width they
do not: a row has the same bits at every place of such a pass, whatever the other rows hold. A pass with fewer rows
is filled up with tokens that count for nothing. GPUs gain from it, too: their graphs are captured once.
Attention also depends on how many blocks of 256 cells a pass reads, so a draft ends where its pass would read a block
that the pass of its last token alone would not, or the other way round (docs/design.md, "Exact by construction").
Slots are served one after the other: a pass that several share would be wider, and its rows of one slot would read as
many cells as the longest of them has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from localspec.errors import Cancelled, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library.batch import Layout, checked_layout
from localspec.llama.library.settings import NO_TAP, ContextSettings, Tap
from localspec.llama.model import Model
from localspec.types import Feed, LogitRows, Tokens

_ATTENTION_BLOCK = 256  # llama.cpp's attention reads a multiple of this number of cells
_SHORT_HISTORY = 40  # tokens of a history that is well within the first block of attention


class ConstantWidth(Context):
    """A `Context` that takes chains."""

    def __init__(
        self, model: Model, settings: ContextSettings, width: int, tap: Tap = NO_TAP, *, keep_states: bool = True
    ) -> None:
        """Every pass that decodes has `width` rows; the last `width` - 1 cells are kept free for those that count for
        nothing. Raises UsageError: several leaves, a model whose cache cannot be trimmed, or a width that does not
        fit."""
        if settings.max_leaves > 1 or not model.can_trim:
            raise UsageError("Passes of one width need chains, and a cache that can be trimmed.")
        if not 1 < width <= min(settings.max_rows, _ATTENTION_BLOCK // 2) or settings.n_ctx <= width:
            raise UsageError(
                f"A pass of {width} rows does not fit; 2 to {min(settings.max_rows, _ATTENTION_BLOCK // 2)} do."
            )
        in_place = replace(settings, logits="in place")  # the sampler is called once, and few of the rows are read
        super().__init__(model, in_place, tap=tap, keep_states=keep_states)
        self.width = width
        self._chain = np.arange(-1, width - 2, dtype=np.int32)
        self.n_ctx = settings.n_ctx - (width - 1)
        self._done: list[LogitRows] = []
        """Logits rows of all feeds of a `launch` but the last: passes of these feeds are over while the last runs."""

    def launch(self, feeds: Sequence[Feed]) -> None:
        """See `Context.launch`. What a pass would take along besides the last token is decoded before, token by token.
        Every feed has a pass of its own: that of the last one is begun, the others are over then. Raises UsageError:
        a draft with more nodes than a pass has room for."""
        self._done, self._launched = [], []
        for feed in feeds:
            most = self.longest_draft(len(feed.tokens))
            if len(feed.draft_tokens) > most:
                raise UsageError(f"a draft has {len(feed.draft_tokens)} tokens; this pass takes {most}.")
            self._layout(feed)
        for feed in feeds:
            for rows in self._finish():  # which the next pass writes over
                self._done.append(LogitRows.from_matrix(np.stack([rows[row] for row in range(len(rows))])))
            self.prefill(feed.slot, feed.tokens, feed.prompt_length)
            self._launch_filled(feed)

    def collect(self) -> list[LogitRows]:
        """See `Context.collect`. Rows that count for nothing are not read, and their cells are dropped."""
        rows = self._finish()
        done, self._done = self._done, []
        return [*done, *rows]

    def _finish(self) -> list[LogitRows]:
        """`Context.collect`, and drops what counts for nothing."""
        kept = [(part.feed.slot, len(part.feed.tokens) + part.wanted - 1) for part in self._launched]
        try:
            return super().collect()
        finally:
            for slot, length in kept:
                self.forget(slot, length)

    def pending(self, slot: int, tokens: Tokens) -> int:
        """Always 1: nothing joins a pass."""
        return 1

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        """Rows that count; all of them up to the width have the same bits."""
        return list(rows.values())

    def longest_draft(self, length: int) -> int:
        """Nodes that a draft may have: no row may see another block of cells than in a pass of its own."""
        return min(self.width - 1, -(length - 1 + self.width) % _ATTENTION_BLOCK)

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        """See `Context.prefill_chunk`. Generated tokens are decoded one by one, in passes as wide as all others."""
        self._check(slot, tokens)
        start, total = self._sync(slot, tokens, prompt_length), len(tokens) - 1
        if start == total or start < min(prompt_length - 1, total):
            return super().prefill_chunk(slot, tokens, prompt_length, cancel, most)
        if cancel is not None and cancel():
            raise Cancelled("Stopped while reading the prompt.")
        self._launch_filled(Feed(slot, tokens[: start + 1], prompt_length))
        self._finish()
        return start + 1

    def same_bits(self) -> bool:
        """Whether every row of a full pass has the bits of its own pass here: tried at a few lengths, before and after
        the step at 256 cells, in the first slot and in the last. The cache is empty then."""
        tokens = np.random.default_rng(1).integers(0, self.n_vocab, self.n_ctx).astype(np.int32)
        for length in (_SHORT_HISTORY, _ATTENTION_BLOCK - self.width, _ATTENTION_BLOCK + 1):
            nodes = self.longest_draft(length)
            if length + nodes > self.n_ctx:
                continue
            own = [self._pass_bits(tokens[: length + row], length) for row in range(1 + nodes)]
            self.forget(0, length - 1)
            draft = tokens[length : length + nodes]
            for slot in {0, self.settings.n_slots - 1}:
                (rows,) = self.decode([Feed(slot, tokens[:length], length, draft, self._chain[:nodes])])
                if any(rows[row].tobytes() != bits for row, bits in enumerate(own)):
                    return False
                self.forget(slot)
        return True

    def _pass_bits(self, tokens: Tokens, prompt_length: int) -> bytes:
        (rows,) = self.decode([Feed(0, tokens, prompt_length)])
        return rows[0].tobytes()

    def _launch_filled(self, feed: Feed) -> None:
        """A pass over the last token of a feed and its draft; all tokens before it are cached."""
        fill = np.full(self.width - 1 - len(feed.draft_tokens), feed.tokens[-1], dtype=np.int32)
        drafted = np.concatenate([feed.draft_tokens, fill])
        super().launch([replace(feed, draft_tokens=drafted, draft_parents=self._chain)])
        self._launched[0].wanted = 1 + len(feed.draft_tokens)

    def _layout(self, feed: Feed) -> Layout | None:
        """Rows that count for nothing may stand in the cells that are kept free for them."""
        return checked_layout(feed, self.settings.n_ctx, 1)
