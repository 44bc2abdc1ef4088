"""Which widths give the bits of one-row passes, found by comparing them: for models of which nothing is proved.

A width counts as exact only if every row it computed, at every length tried, had the same bits as decoding one token
at a time: logits and all intermediate results in an observed context (see `observe`), and then logits in an ordinary
one, short and long. Chains, trees where the context takes them, and slots sharing a pass where it has several; and what
follows rejected drafts, where a recurrent state is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from localspec.errors import Cancelled
from localspec.llama.exact.passes import Bench
from localspec.llama.library.parameters import most_nodes
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model

Progress = Callable[[float], None]
"""Share done, 0 to 1; may raise to give up."""

WIDEST_PROBED = 8
"""Widest pass that is probed by default."""


def probe_lengths(n_ctx: int, reach: int = 16) -> list[int]:
    """History lengths to probe: across the steps at 256, 512 and 1,024 cells, and near the end."""
    wanted = (250, 508, 1020, n_ctx - reach - 2)
    return sorted({length for length in wanted if 8 < length <= n_ctx - reach - 2})


@dataclass(slots=True)
class Clock:
    """A time budget."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds; negative when it is used up."""
        return self.started + self.seconds - time.monotonic()

    def over(self) -> bool:
        """Whether it is used up."""
        return self.left() < 0


def examine(
    model: Model,
    settings: ContextSettings,
    *,
    widest: int = WIDEST_PROBED,
    budget: float = 80.0,
    progress: Progress | None = None,
) -> frozenset[int] | None:
    """Exact widths: 1, 2, ... up to the first that failed anywhere; None = the budget ran out first. A pass may compute
    fewer rows of logits than it has rows, so no width is exact unless all smaller ones are.

    Args:
        model: the target.
        settings: what the context in use has.
        widest: widths 2 to this are examined.
        budget: seconds.
        progress: see `Progress`.

    Raises:
        ModelError: llama.cpp refuses the settings.
    """
    rows = max(widest + 1, 8)
    clock = Clock(budget)
    lengths = _telling_first(probe_lengths(settings.n_ctx, rows))
    # without a length to try nothing is known about any width
    allowed = set(range(2, 1 + min(widest, 1 + most_nodes(model, settings)))) if lengths else set()
    state = b""
    for phase, observed in enumerate((True, False)):  # what logits hide shows first
        here = lengths if observed else lengths[:2]  # both ends
        with closing(Bench(model, settings, observed, 1 + phase, state)) as bench:
            state = bench.state
            for index, length in enumerate(here if allowed else []):
                try:
                    bench.reference(length, rows, clock.over)
                except Cancelled:
                    return None
                for width in sorted(allowed):
                    if clock.over():
                        return None
                    if not _equal(bench, length, width, settings, lengths[0]):
                        allowed.discard(width)
                if progress is not None:
                    progress((phase + (index + 1) / len(here)) / 2)
    exact = {1}
    while max(exact) + 1 in allowed:
        exact.add(max(exact) + 1)
    return frozenset(exact)


def _telling_first(lengths: Sequence[int]) -> list[int]:
    """The shortest, then from the longest down: where attention changes its path, most widths fail at once."""
    return [*lengths[:1], *reversed(lengths[1:])]


def _equal(bench: Bench, length: int, width: int, settings: ContextSettings, shortest: int) -> bool:
    """Whether a pass of `width` rows gives the bits of one-row passes, filled in each of the ways drafters fill it.

    These are a chain; where the context takes trees, two chains side by side or in turn (suffix decoding,
    habits) and a chain with a leaf beside each node (draft model); and in a context of several slots, equal chains
    of several slots. Where a rejected draft cannot just be trimmed, the rows after it count, too.
    """
    if not bench.chain_equals(length, width):
        return False
    if not bench.context.can_trim and not bench.rollback_equals(length, width):
        return False
    if settings.max_leaves > 1 and width > 2:
        if not bench.tree_equals(length, width):
            return False
        if not bench.comb_equals(length, width):
            return False
    for slots in range(2, min(settings.n_slots, width) + 1):
        if width % slots == 0:
            if not bench.slots_equal(length, slots, width // slots):
                return False
            if length != shortest and not bench.slots_equal(length, slots, width // slots, shortest):
                return False
    return True
