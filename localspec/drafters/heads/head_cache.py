"""A llama_context and a cache for heads that guess step by step from states of their target.

Cell p of the cache pairs the target's state at position p with the token at p + 1, and its row says what comes at
p + 2. After the last state that the target has given (the *trunk*) the head's own state takes the place of the
target's: such cells are guesses, and are computed anew as soon as the target's states of their positions are known.
Guesses may branch; each path that goes its own way has a *sequence*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.batch import BatchArrays, common_prefix
from localspec.llama.library.handle import Handle
from localspec.llama.model import Model
from localspec.types import NO_TOKENS, Feed, Float32Array, LogitRows, Tokens


class HeadModel(Model):
    """Loaded like any model; llama.cpp cannot run it without its target."""

    is_head = True  # llama.cpp takes the matrix that fuses the target's states for an encoder


_POSITION_SECTIONS = 4
"""Position numbers of one row for models that rotate keys by sections (M-RoPE). Three are equal, the last is 0."""


class HeadPasses(BatchArrays):
    """A head's llama_context beside its target's, the arrays that it reads, and what a pass leaves."""

    def __init__(
        self,
        model: Model,
        params: Any,
        width: int,
        *,
        sections: bool = False,
        states: Literal["all", "outputs", "none"] = "outputs",
        what: str = "a context for {name}",
    ) -> None:
        """For passes of a model that stays open as long as this is used. `params`: a llama_context_params. `width`:
        numbers of one of the head's own states. `sections`: whether the model turns keys by sections, so that rows of
        states need four position numbers each. `states`: of which rows llama.cpp returns them. `what`: what it is, as
        an error names it. Raises ModelError: llama.cpp refuses it, or there is no memory."""
        super().__init__(params.n_batch, params.n_seq_max, _POSITION_SECTIONS)
        self._api, extension = lib.api(), lib.extension()
        self.width, self._vocabulary, self._sections = width, model.n_vocab, sections
        self.handle = Handle(model, params, what.format(name=model.path.name))
        self.memory = self.handle.memory
        if states != "none":
            extension.llama_set_embeddings_nextn(self.handle.pointer, True, states == "outputs")
        self._states_address: Callable[[int | None], Any] = extension.llama_get_embeddings_nextn
        self._states = np.zeros(0, dtype=np.float32)

    def batch(
        self,
        positions: Sequence[int] | Tokens,
        ids: Sequence[tuple[int, int]],
        output: bool | npt.NDArray[np.bool_],
        *,
        tokens: Sequence[int] | Tokens | None = None,
        states: Float32Array | None = None,
    ) -> Any:
        """The llama_batch of one row for each position, with a token, a state (float32[n, width]) or both, valid until
        the next call. `ids`: of each row, its first sequence id and how many follow one another. `output`: whether it
        is one; for all or each."""
        count = len(positions)
        self.position[:count] = positions
        if self._sections and tokens is None:
            self.position[count : 3 * count] = np.tile(self.position[:count], 2)
            self.position[3 * count : 4 * count] = 0
        for row, (first, many) in enumerate(ids):
            self.id_pointer[row], self.id_count[row] = self._first_id + 4 * first, many
        self.output[:count] = output
        if tokens is not None:
            self.token[:count] = tokens
        if states is not None:
            self._states = np.ascontiguousarray(states, dtype=np.float32)
        self._point(token=None if tokens is None else self.token, embd=None if states is None else self._states)
        return self.of(count)

    def decode(self, batch: Any) -> None:
        self.handle.call(self._api.llama_decode, batch)

    def logits(self, rows: int) -> Float32Array:
        """float32[rows, the head's n_vocab], a view that is valid until the next pass."""
        return np.ctypeslib.as_array(self._api.llama_get_logits(self.handle.pointer), shape=(rows, self._vocabulary))

    def states(self, rows: int) -> Float32Array:
        """float32[rows, width], a view that is valid until the next pass."""
        return np.ctypeslib.as_array(self._states_address(self.handle.pointer), shape=(rows, self.width))

    def remove(self, sequence: int, start: int) -> None:
        """Drops the cells of a sequence from a position on; -1 = of all sequences."""
        self._api.llama_memory_seq_rm(self.memory, sequence, start, -1)


def own_cache(model: Model, target: Context, room: int, rows: int, paths: int = 1) -> Any:
    """llama_context_params of a unified cache beside the target's, with `room` cells more for each slot, for passes of
    at most `rows` rows, all of which may be outputs, and `paths` sequences for each slot."""
    params, slots = lib.api().llama_context_default_params(), target.settings.n_slots
    params.n_ctx = (target.n_ctx + room) * slots
    params.n_batch = params.n_ubatch = params.n_outputs_max = rows
    params.n_seq_max = slots * paths
    params.n_threads = params.n_threads_batch = target.threads
    params.kv_unified = True  # nothing relies on its bits, and paths need it
    params.op_offload = model.gpu_layers != 0
    params.no_perf = True
    params.ctx_other = target.handle.pointer  # whose embeddings and output matrix serve a head without its own
    return params


MOST_PASS_ROWS = 64
"""Most rows of a pass: a head computes logits for every row, even if they are not wanted."""
_CHUNK_TOKENS = 512  # most tokens that one `prefill_chunk` reads
Path: TypeAlias = tuple[int, ...]
"""Tokens guessed after the trunk."""


@dataclass(slots=True)
class HeadGuess:
    sequence: int
    """Sequence of the cells from the first one to that of this guess."""
    state: Float32Array
    """float32[n_embd]: takes the place of the target's state in the next cell."""
    row: Float32Array
    """float32[n_vocab], logits of the token after the path."""
    followed: bool = False
    """Whether a longer path has taken over the sequence of this guess."""


@dataclass(slots=True)
class Trunk:
    """A slot's cells that were computed from the target's states."""

    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[stop + ahead], what the cells were computed from; empty if there are no cells."""
    start: int = 0
    """The first cell's position; above 0 if the target's states began there."""
    stop: int = 0  # the position after the last cell
    guesses: dict[Path, HeadGuess] = field(default_factory=dict)
    """{path: guess after it}; () stands for the last cell of the trunk."""
    sequences: int = 1  # how many the trunk and the guesses use


class TrunkCache(ABC):
    """Cells that are computed from what a tap of the target says, in passes; a method says how."""

    ahead = 0
    """Tokens after its own that a cell is computed from. With one the last cell is left for the pass that guesses,
    which asks what it says."""
    pass_rows = MOST_PASS_ROWS
    """Most rows of a pass that only fills the cache."""
    _passes: HeadPasses

    def __init__(self, target: Context, tapped: Sequence[int], n_vocab: int) -> None:
        """`target` has a tap of what the head reads, `tapped` in its own order, and stays open: layers (their inputs),
        `FINAL` or `NEXTN`, all held of the same positions. `n_vocab`: most tokens it may guess among."""
        assert target.states is not None
        self.n_ctx, self.n_vocab = target.n_ctx, min(n_vocab, target.n_vocab)
        self.n_paths = target.max_leaves
        """Most paths of a slot that go different ways."""
        self._states, self._tapped, self._n_slots = target.states, tuple(tapped), target.settings.n_slots
        self._trunks = [Trunk() for _ in range(self._n_slots)]

    def _span(self, slot: int, tokens: Tokens) -> tuple[int, int]:
        """(start, stop): the positions of all of `tokens` but the last whose states are held. Raises UsageError."""
        if not 0 <= slot < self._n_slots:
            raise UsageError(f"slot {slot} does not exist; the context has {self._n_slots}.")
        start, stop = self._states.span(slot, tokens, self._tapped[0])
        stop = min(len(tokens) - 1, stop)
        return min(start, stop), stop

    def _read_states(self, slot: int, start: int, stop: int) -> Float32Array:
        """float32[stop - start, n]: states at these positions, within `_span`, one thing tapped after another."""
        return np.concatenate([self._states.read(slot, what, start, stop) for what in self._tapped], axis=1)

    @abstractmethod
    def _fill(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        """A pass over cells [start, stop) of the trunk, asking nothing of them."""

    def _remove(self, slot: int, start: int) -> None:
        """Drops the slot's cells from a position on, of all sequences."""
        self._passes.remove(-1 if self._n_slots == 1 else slot, start)

    def close(self) -> None:
        """Frees the cache. A second call does nothing."""
        self._passes.handle.close()

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        """Makes up to 512 of the missing cells, fewer with several slots; how many tokens count as cached then (see
        `reusable`)."""
        start, stop = self._sync(slot, tokens)
        begin = max(self._trunks[slot].stop, start)
        self._read(slot, tokens, begin, min(stop - self.ahead, begin + _CHUNK_TOKENS // self._n_slots))
        return self.reusable(slot, tokens)

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int = 0) -> int:
        """Tokens less those that must be read: one for each cell to compute, at least the last one."""
        start, stop = self._span(slot, tokens)
        return len(tokens) - max(1, stop - max(self._kept(slot, tokens, start, stop), start))

    def _kept(self, slot: int, tokens: Tokens, start: int, stop: int) -> int:
        """Where the cells end that can stay: those of the same tokens, if the new ones follow them without a gap."""
        trunk = self._trunks[slot]
        kept = min(max(0, common_prefix(trunk.tokens, tokens) - self.ahead), stop)
        return kept if trunk.start <= start <= kept and trunk.start < kept else 0

    def _sync(self, slot: int, tokens: Tokens) -> tuple[int, int]:
        """Drops what does not serve `tokens`, guesses included unless they follow the whole trunk; the span of the
        target's states."""
        start, stop = self._span(slot, tokens)
        kept, trunk = self._kept(slot, tokens, start, stop), self._trunks[slot]
        if not kept or kept < trunk.stop or (trunk.guesses and kept < stop):
            self._remove(slot, kept)
            self._trunks[slot] = (
                Trunk(trunk.tokens[: kept + self.ahead], trunk.start, kept) if kept else Trunk(start=start)
            )
        return start, stop

    def _read(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        for begin in range(start, stop, self.pass_rows):
            end = min(begin + self.pass_rows, stop)
            self._fill(slot, tokens, begin, end)
            trunk = self._trunks[slot]
            trunk.tokens, trunk.stop = tokens[: end + self.ahead].copy(), end

    @contextmanager
    def _passing(self, slots: Iterable[int]) -> Iterator[None]:
        """A pass that fails leaves these slots without cells."""
        try:
            yield
        except BaseException:
            for slot in slots:
                self._remove(slot, 0)
                self._trunks[slot] = Trunk()
            raise


@dataclass(slots=True)
class HeadRow:
    slot: int
    token: int
    position: int
    sequence: int | None
    """Sequence of the cell; None = a cell of the trunk, which belongs to all sequences of the slot."""
    state: Float32Array
    """float32[n], the target's tapped states one after the other, or the head's own state after a guess."""
    path: Path | None
    """Path after which the row guesses; None = the row's logits are not wanted."""


class HeadCache(TrunkCache):
    """A `DraftContext` with paths; a method says how cells are computed."""

    ahead = 1
    most_guesses = 2**31
    """Most guesses that follow the trunk on a path, one after the other."""

    @abstractmethod
    def _compute(self, rows: Sequence[HeadRow], wanted: Sequence[int]) -> Iterable[tuple[Float32Array, Float32Array]]:
        """A pass over at most `MOST_PASS_ROWS` rows, of the trunk or of guesses, each of a cell after those of its
        sequence; returns float32[n_embd] states and float32[at least n_vocab] logits of the rows with the `wanted`
        indices, valid until the next pass."""

    def _fork(self, slot: int, source: int, sequence: int, start: int, stop: int) -> None:
        """The cells [start, stop) of the sequence `source` belong to another one, too."""

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed, in the target's vocabulary: -inf for what the head cannot say,
        and for all where the target has given no states. Feeds of one slot begin with the same history."""
        common: dict[int, Tokens] = {}
        for feed in feeds:
            shorter = common.setdefault(feed.slot, feed.tokens)
            common[feed.slot] = shorter[: common_prefix(shorter, feed.tokens)]
        stops: dict[int, int] = {}  # where each trunk will end; 0 = there are no states
        for slot, tokens in sorted(common.items()):
            start, stop = self._sync(slot, tokens)
            if start < stop:  # what is more than a pass takes is read at once
                self._read(slot, tokens, max(self._trunks[slot].stop, start), stop - MOST_PASS_ROWS // self._n_slots)
            stops[slot] = stop if start < stop else 0
        self._finish_trunks({slot: common[slot][: stop + 1] for slot, stop in stops.items() if stop})
        paths = [(feed.slot, tuple(feed.tokens[stops[feed.slot] + 1 :].tolist())) for feed in feeds]
        for slot, stop in stops.items():
            if stop:
                self._make_room(slot, {path for its_slot, path in paths if its_slot == slot})
        reached = sorted(path for path in paths if stops[path[0]] and len(path[1]) < self.most_guesses)
        while rows := self._next_guesses(reached):
            self._run(rows)
        nothing = np.full(self.n_vocab, -np.inf, dtype=np.float32)
        said = [self._trunks[slot].guesses.get(path) for slot, path in paths]
        return [LogitRows.from_matrix((nothing if one is None else one.row)[None, :]) for one in said]

    def _fill(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        self._run(self._trunk_rows(slot, tokens, start, stop))

    def _finish_trunks(self, ends: Mapping[int, Tokens]) -> None:
        """One pass over what is still missing of trunks that end with these tokens (by slot), up to what they say."""
        rows: list[HeadRow] = []
        for slot, tokens in ends.items():
            trunk, stop = self._trunks[slot], len(tokens) - 1
            if () in trunk.guesses:
                continue
            begin = max(trunk.stop, trunk.start)
            if begin == stop:  # it was read by a longer history, which asked nothing of this cell
                begin -= 1
                self._remove(slot, begin)
            rows += self._trunk_rows(slot, tokens, begin, stop)
            rows[-1].path = ()
        if rows:
            self._run(rows)
            for slot in {row.slot for row in rows}:
                trunk = self._trunks[slot]
                trunk.tokens, trunk.stop = ends[slot].copy(), len(ends[slot]) - 1

    def _trunk_rows(self, slot: int, tokens: Tokens, start: int, stop: int) -> list[HeadRow]:
        states = self._read_states(slot, start, stop)
        return [
            HeadRow(slot, int(tokens[position + 1]), position, None, states[position - start], None)
            for position in range(start, stop)
        ]

    def _next_guesses(self, paths: Sequence[tuple[int, Path]]) -> list[HeadRow]:
        """One row for every path (with its slot) that is not guessed to its end yet: the first that is missing."""
        rows: dict[tuple[int, Path], HeadRow] = {}
        for slot, path in paths:
            guesses = self._trunks[slot].guesses
            known = next(length for length in range(len(path), -1, -1) if path[:length] in guesses)
            new = path[: known + 1]
            if known < len(path) and len(rows) < MOST_PASS_ROWS and (slot, new) not in rows:
                rows[slot, new] = self._after(slot, new)
        return list(rows.values())

    def _make_room(self, slot: int, paths: set[Path]) -> None:
        """Drops guesses of old where there are too few sequences for these paths beside them."""
        trunk = self._trunks[slot]
        if paths <= trunk.guesses.keys() or _ways(paths | trunk.guesses.keys()) <= self.n_paths:
            return
        if _ways(paths) > self.n_paths:
            raise UsageError(f"a draft goes {_ways(paths)} ways, but the context was made for {self.n_paths}.")
        root = trunk.guesses[()]
        root.followed = False
        self._remove(slot, trunk.stop)
        trunk.guesses, trunk.sequences = {(): root}, 1

    def _after(self, slot: int, path: Path) -> HeadRow:
        """The row of a path whose last token is new."""
        trunk = self._trunks[slot]
        position = trunk.stop + len(path) - 1
        before = trunk.guesses[path[:-1]]
        sequence = before.sequence
        if before.followed:
            sequence = trunk.sequences
            trunk.sequences += 1
            self._fork(slot, before.sequence, sequence, trunk.stop, position)
        before.followed = True
        return HeadRow(slot, path[-1], position, sequence, before.state, path)

    def _run(self, rows: Sequence[HeadRow]) -> None:
        """A pass; keeps what it says after every row whose path is asked for."""
        wanted = [index for index, row in enumerate(rows) if row.path is not None]
        with self._passing({row.slot for row in rows}):
            found = self._compute(rows, wanted)
        for index, (state, said) in zip(wanted, found, strict=True):
            row = rows[index]
            guess = HeadGuess(row.sequence or 0, state.copy(), said[: self.n_vocab].copy())
            self._trunks[row.slot].guesses[row.path or ()] = guess


def _ways(paths: Set[Path]) -> int:
    """Number of paths that no other path continues: each needs a sequence."""
    inner = {path[:length] for path in paths for length in range(len(path))}
    return len(paths - inner)
