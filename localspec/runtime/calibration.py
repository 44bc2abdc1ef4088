"""Times what no probe has timed yet, once at load, and runs the largest pass there will be: what fails, fails now.

At most some 20 passes and two seconds; everything else is learned from the passes of real answers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from localspec.engine.costs import DraftCosts
from localspec.types import Feed, LogitRows, Tokens

_SECONDS = 2.0
_PROMPT = 48
_LEVELS = 5
_DENSE = 8
"""Widths up to this are timed one by one."""
_LARGEST_TIMES, _LARGEST_SECONDS = 3, 0.5
"""Of the largest pass: the quickest of so many counts, or of those that fit into these seconds."""


class Cache(Protocol):
    """What is timed (`llama.context.Context`)."""

    n_ctx: int
    n_vocab: int

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass."""
        ...

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drops what the slot's cache holds."""
        ...


def draft_costs(context: Cache, slots: int, clock: Callable[[], float] = perf_counter) -> DraftCosts:
    """Seconds of a level and of a token read in bulk, of a draft model."""
    length = min(_PROMPT, context.n_ctx - _LEVELS - 2)
    if length < 4:
        return DraftCosts(slots=slots)
    tokens = _tokens(context.n_vocab, length + _LEVELS)
    read = 0.0
    for _ in range(2):  # the first pass of a kind builds its graph
        context.forget(0)
        read = _timed(context, [Feed(0, tokens[:length], length)], clock)
    levels = [_timed(context, [Feed(0, tokens[: length + more], length)], clock) for more in range(1, _LEVELS + 1)]
    context.forget(0)
    level = statistics.median(levels)
    return DraftCosts({length: {1: level}}, max(0.0, read - level) / (length - 1), slots)


def pass_costs(context: Cache, widest: int, clock: Callable[[], float] = perf_counter) -> dict[int, dict[int, float]]:
    """{cached length: {width: seconds}} of a target nobody has timed.

    One row and the widest pass always, then what lies between, as far as time allows: a width that was not timed counts
    as the next wider one that was, so a slow machine or a large model still gets a curve.
    """
    length = min(_PROMPT, context.n_ctx - widest - 2)
    if length < 4:
        return {}
    tokens = _tokens(context.n_vocab, context.n_ctx)
    found: dict[int, list[float]] = {}
    context.decode([_chain(0, tokens, length, 1)])  # reads what all others stand behind
    end, at = clock() + _SECONDS, length
    for _ in range(2):
        for width in _spread(min(widest, _DENSE), widest):
            if clock() > end and len(found) > 1:
                break
            found.setdefault(width, []).append(_timed(context, [_chain(0, tokens, at + 1, width)], clock))
            # Behind the last one, as if all of it was right: not every cache can drop a whole pass.
            at = at + width if at + width + widest < context.n_ctx else length
    context.forget(0)
    return {length: {width: min(times) for width, times in found.items()}}


def _spread(dense: int, widest: int) -> list[int]:
    """1, `widest` and `dense`, then what lies between 1 and `dense`: ever smaller gaps halved."""
    order, gaps = list(dict.fromkeys((1, widest, dense))), [(1, dense)]
    for low, high in gaps:  # grows as it goes
        middle = (low + high) // 2
        if low < middle < high:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def largest_pass(context: Cache, slots: int, rows: int, clock: Callable[[], float] = perf_counter) -> float:
    """Runs a pass of so many rows in every slot, and returns its seconds; 0 = it does not fit the context.

    Raises:
        DecodeError: there is no memory for it.
    """
    length = min(8, context.n_ctx - rows - 1)
    if length < 1:
        return 0.0
    tokens = _tokens(context.n_vocab, length + rows)
    feeds = [_chain(slot, tokens, length, rows) for slot in range(slots)]
    context.decode(feeds)  # reads what the next ones stand behind
    times, end = [_timed(context, feeds, clock)], clock() + _LARGEST_SECONDS
    while len(times) < _LARGEST_TIMES and clock() < end:
        times.append(_timed(context, feeds, clock))
    for slot in range(slots):
        context.forget(slot)
    return min(times)


def with_width(known: dict[int, dict[int, float]], width: int, seconds: float) -> dict[int, dict[int, float]]:
    """Costs of passes with those of a wider one, timed at a short length: it grows with the length as the widest known
    one does. Widths between the two count as the wider one until they run."""
    if not known or not seconds:
        return known
    short = known[min(known)]
    widest = max(short)
    if widest >= width:
        return known
    return {
        length: {**row, width: max(seconds, short[widest]) * row[widest] / short[widest]} if widest in row else row
        for length, row in known.items()
    }


def _tokens(n_vocab: int, count: int) -> Tokens:
    return (np.arange(count) * 7919 % n_vocab).astype(np.int32)


def _chain(slot: int, tokens: Tokens, length: int, width: int) -> Feed:
    parents = np.arange(-1, width - 2, dtype=np.int32)
    return Feed(slot, tokens[:length], length, tokens[length : length + width - 1], parents)


def _timed(context: Cache, feeds: Sequence[Feed], clock: Callable[[], float]) -> float:
    start = clock()
    context.decode(feeds)
    return clock() - start
