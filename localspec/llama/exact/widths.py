"""Which widths give the bits of one-row passes, found by comparing them: for models of which nothing is proved.

A width counts as exact only if every row it computed, at every length tried, had the same bits as decoding one token at
a time: logits and all intermediate results in an observed context (see `Observer`), and then logits in an ordinary one,
short and long. Chains, trees where the context takes them, and slots sharing a pass where it has several; and what
follows rejected drafts, where a recurrent state is taken back.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from localspec.errors import Cancelled
from localspec.llama.cache.context import Context
from localspec.llama.library.batch import layout
from localspec.llama.library.handle import Observer, most_nodes
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import NO_TOKENS, Feed, LogitRows, Tokens

_U32 = struct.Struct("<I")
_F32 = 0  # ggml's number of the type


def tile(state: bytes, cells: int) -> bytes | None:
    """The state of a sequence of `cells` cells, made of a `Context.save` of fewer or more by repeating them, so that a
    probe need not prefill thousands of tokens; None if it is not of a plain attention cache, with or without recurrent
    states after it. What a cell holds does not matter for the cost of a pass or the order in which it adds numbers; how
    many there are does. A recurrent state is the same size after any number of tokens."""
    try:
        return _Tiler(state, cells).tiled()
    except (ValueError, struct.error):
        return None


class _Tiler:
    def __init__(self, state: bytes, cells: int) -> None:
        self._state, self._cells, self._at, self._out = state, cells, 0, list[bytes]()

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._state) - self._at:
            raise ValueError("another layout")
        self._at += count
        return self._state[self._at - count : self._at]

    def _copy(self, form: str = "<I") -> int:
        """A number that is the same in the copy."""
        data = self._take(struct.calcsize(form))
        self._out.append(data)
        return int(struct.unpack(form, data)[0])

    def _rows(self, count: int, size: int) -> None:
        data, (whole, rest) = self._take(count * size), divmod(self._cells, count)
        self._out.append(data * whole + data[: rest * size])

    def _table(self, count: int) -> None:
        """Per cell: position, number of ids (1), maybe 12 bytes more, the id. Positions are numbered anew."""
        for words in (3, 6):
            data = self._state[self._at : self._at + 4 * words * count]
            if len(data) < 4 * words * count:
                raise ValueError("another layout")
            table = np.frombuffer(data, dtype="<i4").reshape(count, words)
            if (table[:, 0] == np.arange(count)).all() and (table[:, 1] == 1).all():
                longer = table[np.arange(self._cells) % count]
                longer[:, 0] = np.arange(self._cells)
                self._take(len(data))
                self._out.append(longer.astype("<i4").tobytes())
                return
        raise ValueError("another layout")

    def tiled(self) -> bytes:
        self._copy("<Q")  # magic, sequence id
        length = 0
        for _ in range(self._copy()):  # streams
            (count,) = _U32.unpack(self._take(4))
            self._out.append(_U32.pack(self._cells if count else 0))
            if not count:
                continue
            self._table(count)
            length, transposed, layers = count, self._copy(), self._copy()
            for _ in range(layers):
                self._copy()
                self._rows(count, self._copy("<Q"))
            for _ in range(layers):
                self._copy()
                size, width = (self._copy(), self._copy()) if transposed else (self._copy("<Q"), 1)
                for _ in range(width):
                    self._rows(count, size)
        if self._at < len(self._state):
            # one cell at the last position, without ids; then transposed, layers, and a row of F32 of each tensor
            if self._copy() != 1 or int.from_bytes(self._take(4), "little") != length - 1:
                raise ValueError("another layout")
            self._out.append(_U32.pack(self._cells - 1))
            if self._copy() or self._copy():
                raise ValueError("another layout")
            self._copy()
            while self._at < len(self._state):
                if self._copy() != _F32:
                    raise ValueError("another layout")
                self._out.append(self._take(self._copy("<Q")))
        return b"".join(self._out)


_SEED_LENGTH = 128
_Row: TypeAlias = tuple[bytes, dict[str, bytes]]  # logits of a row of a pass and what was watched, bit for bit


class Bench:
    """A context full of random tokens, at any length, cheaply."""

    def __init__(
        self, model: Model, settings: ContextSettings, observed: bool, seed: int = 0, state: bytes = b""
    ) -> None:
        """Makes a context and prefills its first tokens, unless the `state` of another bench with the same model and
        settings is given. `observed`: intermediate results are compared, too (slow passes); otherwise logits only."""
        self._observer = Observer() if observed else None
        self._watching = contextlib.nullcontext if self._observer is None else self._observer.watching
        self.settings = replace(settings, reuse="all", grid_prefill=True)
        self.context = Context(model, self.settings, self._observer)
        self.close = self.context.close
        random = np.random.default_rng(seed)
        longest = settings.n_ctx + 1
        types: Sequence[int] = model.header.token_types
        pool = np.arange(model.n_vocab, dtype=np.int32)
        if len(types) == model.n_vocab and 1 in types:  # of ordinary tokens, so that the text is like any to the model
            pool = np.flatnonzero(np.array(types) == 1).astype(np.int32)
        self._tokens: Tokens = random.choice(pool, longest).astype(np.int32)
        self._tokens[:_SEED_LENGTH] = pool[np.arange(min(_SEED_LENGTH, longest)) * 7919 % len(pool)]
        self._wrong: Tokens = random.choice(pool, longest).astype(np.int32)
        self.state = state  # the saved cache of the first tokens, which are the same in every bench
        self._kept: tuple[int, bytes | memoryview | None] = 0, None
        self._references: dict[int, list[_Row]] = {}
        if not state:
            count = min(_SEED_LENGTH, self.settings.n_ctx // 2)
            self._prefill(0, self._tokens[: count + 1], count + 1)
            self.state = bytes(self.context.save(0))

    def go_to(self, length: int, slot: int = 0, cancel: Callable[[], bool] | None = None) -> None:
        """The slot holds exactly the first `length` - 1 tokens."""
        context, tokens = self.context, self._tokens[:length]
        context.forget(slot, length - 1)
        if context.cached(slot) == length - 1:
            return
        if context.can_trim:
            state: bytes | memoryview | None = tile(self.state, length - 1)
        else:  # a pass cannot be dropped whole, so this comes before every one
            if self._kept[0] != length:
                self._kept = length, tile(self.state, length - 1)
            state = self._kept[1]
        if state is None or not context.restore(slot, state, tokens[:-1], length):
            self._prefill(slot, tokens, length, cancel)
            if not context.can_trim:
                self._kept = length, context.save(slot)

    def _decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        with self._watching():
            return self.context.decode(feeds)

    def _pass(
        self, end: int, length: int, nodes: Tokens = NO_TOKENS, parents: Sequence[int] | None = None
    ) -> LogitRows:
        """A pass after the first `end` tokens, `length` of them prompt, over a draft: a chain, unless `parents`."""
        below = np.array(range(-1, len(nodes) - 1) if parents is None else parents, dtype=np.int32)
        return self._decode([Feed(0, self._tokens[:end], length, nodes, below)])[0]

    def _prefill(self, slot: int, tokens: Tokens, prompt_length: int, cancel: Callable[[], bool] | None = None) -> None:
        with self._watching():
            self.context.prefill(slot, tokens, prompt_length, cancel)

    def reference(self, length: int, count: int, cancel: Callable[[], bool] | None = None) -> None:
        """Decodes `count` tokens one by one after `length` and keeps their rows for comparison."""
        self.context.forget(0)
        self.go_to(length, cancel=cancel)
        self._references[length] = [self._row(self._pass(length + done, length), 0, 0) for done in range(count)]

    def chain_equals(self, length: int, width: int) -> bool:
        """Whether chains of `width` rows give the reference's bits: one, or one after the other over a step of 256, at
        which llama.cpp shows attention more cells. Passes that catch up on tokens are tried too."""
        expected = self._references[length]
        self.go_to(length)
        steps = length // 256 != (length + len(expected)) // 256
        for start in range(0, len(expected) - width + 1 if steps else 1, width):
            end = length + start
            rows = self._pass(end, length, self._tokens[end : end + width - 1])
            if any(self._row(rows, i, i) != expected[start + i] for i in range(width)):
                return False
        if self._observer is not None:
            return True
        self.go_to(length)  # a pass that catches up on `width` - 1 tokens, without their logits
        return self._pass(length + width - 1, length)[0].tobytes() == expected[width - 1][0]

    def rollback_equals(self, length: int, width: int) -> bool:
        """Whether rows after rejected drafts have the reference's bits, where snapshots of a state bring it back: a
        chain that is wrong from its first node on, one that is from its middle on, then one row."""
        expected, end = self._references[length], length
        self.go_to(length)
        for right, nodes in ((0, width - 1), ((width - 1) // 2, width - 1), (0, 0)):
            draft = self._wrong[:nodes].copy()
            draft[:right] = self._tokens[end : end + right]
            rows = self._pass(end, length, draft)
            if any(self._row(rows, i, i) != expected[end - length + i] for i in range(right + 1)):
                return False
            end += right + 1
        return True

    def tree_equals(self, length: int, width: int) -> bool:
        """Whether trees of `width` rows, the true chain beside wrong ones, give the reference's bits: beside one, row
        after row; and, where the context takes it, beside one row and in turn with another chain, as where the
        likeliest node comes next whichever chain it is in."""
        if not self._side_equals(length, *beside(width - 1)):
            return False
        return self.context.max_leaves < 3 or width < 5 or self._side_equals(length, *in_turn(width - 1))

    def _side_equals(self, length: int, parents: list[int], true: list[int]) -> bool:
        """Whether these nodes, a chain, and the row before them have the reference's bits, and the next pass, which
        takes accepted siblings of the main chain along once more."""
        expected = self._references[length]
        self.go_to(length)
        nodes = self._wrong[: len(parents)].copy()
        nodes[true] = self._tokens[length : length + len(true)]
        rows = self._pass(length, length, nodes, parents)
        row_of = {node: 1 + row for row, node in enumerate(layout(parents).order)}
        places = [(0, 0)] + [(1 + node, row_of[node]) for node in true]
        same = all(self._row(rows, *place) == expected[depth] for depth, place in enumerate(places))
        again = self._pass(length + len(true) + 1, length)
        extra = self.context.cached(0) - length - len(true)
        return same and extra == 1 and again[0].tobytes() == expected[len(true) + 1][0]

    def comb_equals(self, length: int, width: int) -> bool:
        """Whether the true chain with a wrong leaf beside each node, as many as the context takes, gives the
        reference's bits, and the next pass, after the accepted chain."""
        parents = comb(width - 1, self.context.max_leaves)
        tree = layout(parents)
        return self._side_equals(length, parents, tree.order[: tree.main_length])

    def slots_equal(self, length: int, slots: int, rows_each: int, other_length: int = 0) -> bool:
        """Whether `slots` slots sharing a pass, `rows_each` rows each, all get the reference's bits; with
        `other_length` the first slot is that long instead (a reference must exist for it too)."""
        lengths = [other_length or length] + [length] * (slots - 1)
        for slot, own in enumerate(lengths):
            self.context.forget(slot)
            self.go_to(own, slot)
        parents = np.arange(-1, rows_each - 2, dtype=np.int32)
        feeds = [
            Feed(slot, self._tokens[:own], own, self._tokens[own : own + rows_each - 1], parents)
            for slot, own in enumerate(lengths)
        ]
        results = self._decode(feeds)
        return all(
            self._row(rows, i, slot * rows_each + i) == self._references[own][i]
            for slot, (own, rows) in enumerate(zip(lengths, results, strict=True))
            for i in range(rows_each)
        )

    def _row(self, rows: LogitRows, index: int, batch_row: int) -> _Row:
        watched = {}
        if self._observer is not None:
            watched = {name: values[batch_row].tobytes() for name, values in self._observer.rows.items()}
        return rows[index].tobytes(), watched

    def seconds(self, length: int, width: int) -> float:
        """Time of one pass of `width` rows whose last history token is number `length`."""
        self.go_to(length)
        draft = self._tokens[length : length + min(width - 1, self.context.most_nodes)]
        start = time.perf_counter()
        self._pass(length, length, draft)
        return time.perf_counter() - start


def beside(nodes: int) -> tuple[list[int], list[int]]:
    """Parents of two chains after the same token, of two nodes or more in all, and the nodes of the second one."""
    main = nodes - nodes // 2
    return [*range(-1, main - 1), -1, *range(main, nodes - 1)], list(range(main, nodes))


def in_turn(nodes: int) -> tuple[list[int], list[int]]:
    """Parents of a leaf and two chains after the same token, whose nodes take turns, and those of the first chain."""
    return [-1 if node < 3 else node - 2 for node in range(nodes)], list(range(1, nodes, 2))


def comb(nodes: int, leaves: int) -> list[int]:
    """Parents of a chain with a leaf beside each node (-1, -1, 0, 0, 2, 2, ...), until there are `leaves` of them."""
    twins = 2 * (leaves - 1)  # nodes of which two have the same parent
    return [max(-1, node // 2 * 2 - 2) if node <= twins else node - 1 for node in range(nodes)]


Progress = Callable[[float], None]  # share done, 0 to 1; may raise to give up

WIDEST_PROBED = 8  # widest pass that is probed by default


def probe_lengths(n_ctx: int, reach: int = 16) -> list[int]:
    """History lengths to probe: across the steps at 256, 512 and 1,024 cells, and near the end."""
    wanted = (250, 508, 1020, n_ctx - reach - 2)
    return sorted({length for length in wanted if 8 < length <= n_ctx - reach - 2})


def examine(
    model: Model,
    settings: ContextSettings,
    *,
    widest: int = WIDEST_PROBED,
    budget: float = 80.0,
    progress: Progress | None = None,
) -> frozenset[int] | None:
    """Exact widths: 1, 2, ... up to the first that failed anywhere; None = the budget (seconds) ran out first. A pass
    may compute fewer rows of logits than it has rows, so no width is exact unless all smaller ones are."""
    rows = max(widest + 1, 8)
    end = time.monotonic() + budget
    lengths = probe_lengths(settings.n_ctx, rows)
    # the shortest, then from the longest down: where attention changes its path, most widths fail at once
    lengths = [*lengths[:1], *reversed(lengths[1:])]
    # without a length to try nothing is known about any width
    allowed = set(range(2, 1 + min(widest, 1 + most_nodes(model, settings)))) if lengths else set()
    state = b""
    for phase, observed in enumerate((True, False)):  # what logits hide shows first
        here = lengths if observed else lengths[:2]  # both ends
        with closing(Bench(model, settings, observed, 1 + phase, state)) as bench:
            state = bench.state
            for index, length in enumerate(here if allowed else []):
                try:
                    bench.reference(length, rows, lambda: time.monotonic() > end)
                except Cancelled:
                    return None
                for width in sorted(allowed):
                    if time.monotonic() > end:
                        return None
                    if not _equal(bench, length, width, settings, lengths[0]):
                        allowed.discard(width)
                if progress is not None:
                    progress((phase + (index + 1) / len(here)) / 2)
    failed = min(set(range(2, widest + 3)) - allowed)
    return frozenset(range(1, failed))


def _equal(bench: Bench, length: int, width: int, settings: ContextSettings, shortest: int) -> bool:
    """Whether a pass of `width` rows gives the bits of one-row passes, filled in each of the ways drafters fill it: a
    chain; where the context takes trees, two chains side by side or in turn (suffix decoding, habits) and a chain
    with a leaf beside each node (draft model); and in a context of several slots, equal chains of several slots.
    Where a rejected draft cannot just be trimmed, the rows after it count, too."""
    if not bench.chain_equals(length, width):
        return False
    if not bench.context.can_trim and not bench.rollback_equals(length, width):
        return False
    trees = settings.max_leaves > 1 and width > 2
    if trees and not (bench.tree_equals(length, width) and bench.comb_equals(length, width)):
        return False
    for slots in range(2, min(settings.n_slots, width) + 1):
        if width % slots == 0:
            if not bench.slots_equal(length, slots, width // slots):
                return False
            if length != shortest and not bench.slots_equal(length, slots, width // slots, shortest):
                return False
    return True
