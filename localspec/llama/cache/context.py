"""A KV cache that knows its own tokens: callers pass whole histories, it computes what is missing.

What the cache holds beyond the common prefix is dropped at the next call. Cells stay in position order, because the
order changes the bits (docs/design.md, "Facts about llama.cpp"). A context is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from localspec.errors import Cancelled, ContextOverflowError, DecodeError, UsageError
from localspec.llama.cache.states import Outputs, States
from localspec.llama.exact.wide import StepWatch
from localspec.llama.library import lib
from localspec.llama.library.batch import Batch, Cells, Layout, PassPart, checked_layout, common_prefix, split_equal
from localspec.llama.library.handle import EXTRA_ROWS, Observer, abortable, make_handle, most_nodes, most_rows
from localspec.llama.library.settings import NO_TAP, ContextSettings, Tap, check_tap
from localspec.llama.model import Model
from localspec.machine import default_threads
from localspec.native.gpu import DeviceRows
from localspec.types import Feed, LogitRows, Tokens

FEWEST_COPIED_TOKENS = 32  # fewest tokens for which another slot's cache is copied instead of computed
GIVEN_BACK_CELLS = 1024  # unused cells from which on a slot's memory is given back: some MB, in 0.1 ms
CELLS_PER_TOKEN = 256  # cells copied while one token is computed: measured 900 (1 B in Q8_0), 70 (bundled pair)


class Context:
    """Evaluates histories and drafts with one model; implements `engine.interfaces.Target`."""

    def __init__(
        self,
        model: Model,
        settings: ContextSettings | None = None,
        observer: Observer | None = None,
        *,
        tap: Tap = NO_TAP,
        keep_states: bool = True,
    ) -> None:
        """Allocates the cache; the model must stay open as long as this is used. `observer` is shown intermediate
        results of every pass, which makes passes slow (for probes); `tap`: hidden states to hand out, in `states` too
        if they are to be kept. Raises UsageError: the model has no such states (see `check_tap`)."""
        self.settings = settings = settings or ContextSettings()
        self.model = model
        self.n_ctx = settings.n_ctx  # tokens a slot can hold
        self.grid = settings.grid
        self.n_vocab, self.n_paths = model.n_vocab, 1  # a draft model's guesses go one way
        self.exact_widths: frozenset[int] | None = None  # rows a pass with the bits of one row; None = unknown
        self.any_cut = False  # whether the cache does not depend on how a prompt is cut into passes
        self.watch: StepWatch | None = None  # ends `exact_widths` when a pass has too few steps
        self.threads = settings.threads or default_threads()
        self.can_trim, self.most_nodes = model.can_trim, most_nodes(model, settings)
        self.max_leaves = settings.max_leaves if model.can_trim else 1
        self._most_rows = most_rows(settings)
        self._api, mark = lib.api(), lib.log.mark()
        self._observer = observer  # llama.cpp points to its callback
        if model.handle is None:
            raise UsageError(f"the model {model.path.name} is closed.")
        tap = check_tap(model.header, int(self._api.llama_model_n_layer(model.handle)), tap)
        self.handle = make_handle(model, settings, self.threads, tap, observer)
        """llama.cpp's own context, closed with this one."""
        self._written, self._copied = [0] * settings.n_slots, list[int]()
        self.kv_bytes = lib.cache_bytes(mark)  # size of the cache in memory, as llama.cpp reports it (to 0.01 MiB)
        self._memory = self.handle.memory
        capacity, grid = settings.n_ctx + 64, settings.grid if settings.grid_prefill else 0
        back = None if model.can_trim else self.most_nodes
        self._cells = [Cells(capacity, grid, settings.reuse, back) for _ in range(settings.n_slots)]
        self._batch = Batch(self._most_rows, capacity, self.n_vocab, self.max_leaves)
        self._offsets = np.arange(self._most_rows, dtype=np.uintp) * np.uintp(4 * self.n_vocab)
        self._launched: list[PassPart] = []
        self.outputs = Outputs(self.handle, model, tap) if tap else None  # of the last pass
        self.states = States(self.outputs, self._cells) if self.outputs is not None and keep_states else None
        """Hidden states of the cached tokens; None = nothing is kept."""

    def reuse_all(self) -> None:
        """From now on a history reuses all tokens that are cached of it, since bits do not depend on passes."""
        self.settings, self.any_cut = replace(self.settings, reuse="all"), True
        for cells in self._cells:
            cells.reuse = "all"

    def prefill(self, slot: int, tokens: Tokens, prompt_length: int, cancel: Callable[[], bool] | None = None) -> None:
        """Brings the slot's cache to all tokens but the last, computing no logits; see `prefill_chunk`."""
        while self.prefill_chunk(slot, tokens, prompt_length, cancel) < len(tokens) - 1:
            pass

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        """One pass of `prefill` over int32[n], the whole history; how many tokens the cache holds then, n - 1 when all
        is done. Prompt tokens go in chunks on a fixed grid from position 0, alone in their pass; the generated ones
        after them in passes of an exact width, so that their bits are those of decoding. `cancel` is polled before and
        inside the pass: the cache keeps the chunks that are done. `most`: prompt tokens of the pass, wherever the grid
        is; None = to the next line of the grid. Raises Cancelled."""
        self._check(slot, tokens)
        start, total = self._sync(slot, tokens, prompt_length), len(tokens) - 1
        if start == total:
            return total
        if cancel is not None and cancel():
            raise Cancelled("Stopped while reading the prompt.")
        prompt_end, grid = min(prompt_length - 1, total), self.grid
        if start >= prompt_end and self._decodes_one(slot, tokens[: start + 1], prompt_length):
            return start + 1
        if start < prompt_end and most is not None:
            end = min(start + min(most, grid), prompt_end)
        elif start < prompt_end and self.settings.grid_prefill:
            end = min((start // grid + 1) * grid, prompt_end)
        else:
            end = min(start + (grid if self.exact_widths is None else max(self.exact_widths | {1})), total)
        with abortable(self.handle.pointer, cancel):
            count = self._batch.add_history(slot, tokens[start:end], start, 0)
            if self.outputs is not None:
                self.outputs.before(decodes=False)
            self._run(count, [(slot, start)])
            self._put(slot, start, tokens[start:end], 0)
        return end

    def _decodes_one(self, slot: int, tokens: Tokens, prompt_length: int) -> bool:
        """Whether the last of these tokens, a generated one, has been computed now, by itself."""
        return False

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass over every feed's missing tokens and draft; see `launch` and `collect`."""
        self.launch(feeds)
        return self.collect()

    def launch(self, feeds: Sequence[Feed]) -> None:
        """Begins a pass over every feed's missing tokens and draft; a GPU is not waited for. The next call must be
        `collect`. Raises UsageError: they have too many rows, or a slot is fed twice.

        Logits are computed for the last history token and each node only. Tokens missing before them are prefilled
        first, except for up to `EXTRA_ROWS` generated ones (draft contexts: of any kind), which join the pass.
        """
        self._launched = []
        parts = []
        for feed in feeds:
            slot, tokens, prompt_length = feed.slot, feed.tokens, feed.prompt_length
            self._check(slot, tokens)
            tree = self._layout(feed)
            keep = self._sync(slot, tokens, prompt_length)
            if self._prefills_first(self._cells[slot], keep, len(tokens), prompt_length):
                self.prefill(slot, tokens, prompt_length)
                keep = len(tokens) - 1
            outputs = 1 + len(feed.draft_tokens)
            parts.append(PassPart(feed, keep, tree, outputs, outputs))
        in_order = sorted(parts, key=lambda part: part.feed.slot) if len(parts) > 1 else parts
        count = outputs = 0
        if (wanted := sum(part.outputs for part in parts)) > self.settings.max_rows:
            raise UsageError(f"a pass asks for {wanted} rows of logits; max_rows is {self.settings.max_rows}.")
        for left, right in pairwise(in_order):
            if left.feed.slot == right.feed.slot:
                raise UsageError(f"slot {left.feed.slot} is fed twice in one pass.")
        if (rows := sum(part.rows for part in parts)) > self._most_rows:
            raise UsageError(f"a pass has {rows} rows; at most {self._most_rows} fit.")
        for part in in_order:
            part.first_row, part.first_output = count, outputs
            count, outputs = self._batch.add(part, count), outputs + part.outputs
        if not count:
            return
        if self.outputs is not None and self.outputs.before(decodes=True):  # every row has logits
            for part in parts:
                part.first_output = part.first_row + part.rows - part.outputs
        if self.watch is not None:
            self.watch.begin(count)
        self._run(count, [(part.feed.slot, part.start) for part in parts])
        if self.watch is not None and self.watch.lacks(count):
            self.exact_widths = None
        self._launched = parts

    def collect(self) -> list[LogitRows]:
        """Waits for the pass that `launch` began; `LogitRows` of each feed: of the last history token, then of nodes in
        draft order, as many as are wanted. They point to where llama.cpp left them, until the next call of this."""
        parts, self._launched = self._launched, []
        for part in parts:  # first: the cells are there even if their rows cannot be read
            feed, tree, nodes = part.feed, part.tree, part.feed.draft_tokens
            nodes = nodes if tree is None else nodes[tree.order[: tree.main_length]]  # of a tree the main chain counts
            self._put(feed.slot, part.start, np.concatenate([feed.tokens[part.start :], nodes]), part.first_row)
            if tree is not None:
                self._cells[feed.slot].branch = (len(feed.tokens), 1 + self.max_leaves - tree.leaves)
        if not parts:
            return []
        self.handle.wait()
        tap, buffer = self.handle.logits_tap, lib.pointer_value(self._api.llama_get_logits(self.handle.pointer))
        count = max(part.first_output + part.wanted for part in parts)
        first = np.uintp(buffer if tap is None else tap.rows(count, buffer))
        found: list[LogitRows] = []
        for part in parts:
            pointers = self._offsets[part.first_output : part.first_output + part.wanted] + first
            if part.tree is not None:
                pointers[1:][part.tree.order] = pointers[1:].copy()  # from the batch's order
            if tap is not None and tap.gpu is not None:
                found.append(DeviceRows(pointers, self.n_vocab, tap.fetch, tap.gpu, self))
            else:
                found.append(LogitRows(pointers, self.n_vocab, self))
        return found

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that `prefill` would find cached."""
        keep = self._cells[slot].keep(tokens, prompt_length)
        return keep if self._cells[slot].may_keep(keep) else 0

    @property
    def copies(self) -> bool:
        """Whether `copy_prefix` may take over what another slot holds."""
        several = self.settings.reuse == "all" and self.settings.n_slots > 1
        return several and self.can_trim and self.states is None

    def copy_prefix(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Takes over another slot's cache if it holds much more of a history; how many tokens are cached then.
        llama.cpp copies whole caches only, so a short gain does not pay; hidden states are not copied."""
        held = self.reusable(slot, tokens, prompt_length)
        if not self.copies:
            return held
        shared = [min(common_prefix(cells.tokens, tokens), len(tokens) - 1) for cells in self._cells]
        source = max(range(len(shared)), key=shared.__getitem__)
        if shared[source] - held < max(FEWEST_COPIED_TOKENS, self.n_ctx // CELLS_PER_TOKEN):
            return held
        self.forget(slot)
        self._api.llama_memory_seq_cp(self._memory, source, slot, -1, -1)
        self._copied.append(slot)
        self._cells[slot].put(0, self._cells[source].tokens)
        return self._sync(slot, tokens, prompt_length)

    def pending(self, slot: int, tokens: Tokens) -> int:
        """Rows the next pass must spend on this history besides drafts: 1, or more when the end is not cached. What a
        pass does not take along (see `EXTRA_ROWS`) is computed before it and does not count."""
        cells = self._cells[slot]
        keep = self.reusable(slot, tokens, cells.prompt_length)
        return 1 if self._prefills_first(cells, keep, len(tokens), cells.prompt_length) else len(tokens) - keep

    def pass_widths(self, rows: Mapping[int, int]) -> list[int]:
        """Rows of the passes llama.cpp really runs for so many rows per slot (slot -> rows, all at least 1)."""
        if self.settings.n_slots == 1:
            return [sum(rows.values())] if rows else []
        return split_equal(rows, self.settings.grid)

    def longest_draft(self, length: int) -> int:
        """Most nodes of a draft after a history of `length` tokens, whatever room there is."""
        return self.most_nodes

    def cached(self, slot: int) -> int:
        return self._cells[slot].length

    def forget(self, slot: int, keep: int = 0) -> None:
        """Drops what the slot's cache holds beyond its first `keep` tokens."""
        if not 0 <= slot < self.settings.n_slots:
            raise UsageError(f"slot {slot} does not exist; the context has {self.settings.n_slots}.")
        self._trim(slot, min(max(keep, 0), self._cells[slot].length))

    def held(self, slot: int) -> tuple[Tokens, int]:
        """The tokens the slot's cache holds, int32[n] (a view), and the prompt length of the history they belong to."""
        return self._cells[slot].tokens, self._cells[slot].prompt_length

    def save(self, slot: int) -> memoryview:
        """The slot's cache as bytes, for `restore` in a context with the same model and settings."""
        self._trim(slot, self._cells[slot].length)
        state = np.empty(self._api.llama_state_seq_get_size(self.handle.pointer, slot), dtype=np.uint8)
        written = self._api.llama_state_seq_get_data(self.handle.pointer, lib.bytes_pointer(state), len(state), slot)
        return state.data[:written]

    def restore(self, slot: int, state: bytes | memoryview, tokens: Tokens, prompt_length: int) -> bool:
        """Puts a saved cache of `tokens` into the slot; False (and an empty slot) if llama.cpp refuses it."""
        self.forget(slot)
        source = lib.bytes_pointer(np.frombuffer(state, dtype=np.uint8))
        if not self._api.llama_state_seq_set_data(self.handle.pointer, source, len(state), slot):
            return False
        for leaf in range(1, self.max_leaves):
            self._api.llama_memory_seq_cp(self._memory, 0, leaf, -1, -1)
        self._cells[slot].put(0, tokens)
        self._cells[slot].cut(len(tokens))
        self._cells[slot].prompt_length = prompt_length
        return True

    def tap_only(self, tap: Tap) -> None:
        """Hands out no more hidden states than these, of those it was made to, and frees the others."""
        for part in (self.outputs, self.states):
            if part is not None and self.handle.pointer is not None:
                part.keep(tap)
        if not tap:
            self.outputs = self.states = None

    def close(self) -> None:
        """Frees the cache; logits rows become invalid. A second call does nothing."""
        self.handle.close()

    def _check(self, slot: int, tokens: Tokens) -> None:
        if self.handle.pointer is None:
            raise UsageError("the context is closed.")
        if not 0 <= slot < len(self._cells):
            raise UsageError(f"slot {slot} does not exist; the context has {self.settings.n_slots}.")
        if len(tokens) == 0:
            raise UsageError("the history is empty; it needs at least one token.")
        if len(tokens) > self.n_ctx:
            raise ContextOverflowError(
                f"The prompt has {len(tokens)} tokens, but the context holds {self.n_ctx}.",
                "Use a longer context (--context) or a shorter prompt.",
            )

    def _sync(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Drops the cells that do not serve `tokens`; returns how many are left."""
        cells = self._cells[slot]
        keep = self._trim(slot, cells.keep(tokens, prompt_length))
        cells.prompt_length = prompt_length
        return keep

    def _trim(self, slot: int, keep: int) -> int:
        """Keeps the first `keep` cells of a slot, or none if the model cannot drop only some. Returns how many."""
        cells = self._cells[slot]
        if keep == cells.length and cells.branch is None:
            return keep
        sequence = -1 if self.max_leaves > 1 else slot
        remove = self._api.llama_memory_seq_rm
        if not cells.may_keep(keep) or not remove(self._memory, sequence, keep, -1):
            keep = 0
            remove(self._memory, sequence, 0, -1)
        if cells.branch is not None:
            start, low = cells.branch
            for leaf in range(low, self.max_leaves if start < keep else 0):
                remove(self._memory, leaf, start, keep)
                self._api.llama_memory_seq_cp(self._memory, 0, leaf, start, keep)
            cells.branch = None
        self._written[slot] = max(self._written[slot], cells.length)
        cells.cut(keep)
        if self.states is not None:
            self.states.cut(slot, keep)
        return keep

    def _prefills_first(self, cells: Cells, keep: int, length: int, prompt_length: int) -> bool:
        in_prompt = bool(cells.grid) and keep < min(prompt_length, length) - 1
        return in_prompt or length - 1 - keep > EXTRA_ROWS

    def _layout(self, feed: Feed) -> Layout | None:
        nodes = len(feed.draft_tokens)
        if nodes > self.most_nodes and not self.can_trim:
            raise UsageError(f"{self.model.path.name} takes no drafts of more than {self.most_nodes} tokens.")
        return checked_layout(feed, self.n_ctx, self.max_leaves) if nodes else None

    def _run(self, count: int, starts: Sequence[tuple[int, int]]) -> None:
        """Runs the first `count` rows of the batch; on failure drops each slot's cells from its start on. Before it
        memory of cells that are not used any more goes back to the system."""
        for slot, cells in enumerate(self._cells):
            if self._written[slot] - cells.length >= GIVEN_BACK_CELLS:
                self.handle.give_back(slot, cells.length)
                self._written[slot] = cells.length
        try:
            self.handle.call(self._api.llama_decode, self._batch.of(count), wait=False)
        except (Cancelled, DecodeError):
            for slot, start in starts:
                self._cells[slot].cut(start + 1)  # so that the trim is not skipped
                self._trim(slot, start)
            raise
        finally:
            for slot in self._copied:  # the pass has copied all cells, used or not
                self._written[slot] = self.n_ctx
            self._copied.clear()

    def _put(self, slot: int, start: int, tokens: Tokens, row: int) -> None:
        """The slot's cache holds `tokens` from position `start` on, which were the last pass's rows from `row` on."""
        self._cells[slot].put(start, tokens)
        if self.states is not None:
            self.states.take(slot, start, row, len(tokens))


_ATTENTION_BLOCK = 256  # llama.cpp's attention reads a multiple of this number of cells
_SHORT_HISTORY = 40  # tokens of a history that is well within the first block of attention


class ConstantWidth(Context):
    """A `Context` each of whose passes that decode has the same number of rows, whatever is drafted; it takes chains.

    llama.cpp chooses its kernels by the width of a pass, so a row's bits depend on the width. In passes of one width
    they do not: a row has the same bits at every place of such a pass, whatever the other rows hold. A pass with fewer
    rows is filled up with tokens that count for nothing. GPUs gain from it, too: their graphs are captured once.
    Attention also depends on how many blocks of 256 cells a pass reads, so a draft ends where its pass would read a
    block that the pass of its last token alone would not, or the other way round (docs/design.md, "Exact by
    construction"). Slots are served one after the other: a pass that several share would be wider, and its rows of one
    slot would read as many cells as the longest of them has.
    """

    def __init__(self, model: Model, settings: ContextSettings, width: int, tap: Tap = NO_TAP) -> None:
        """Every pass that decodes has `width` rows; the last `width` - 1 cells are kept free for those that count for
        nothing. Raises UsageError: several leaves, a cache that cannot be trimmed, or a width that does not fit."""
        if settings.max_leaves > 1 or not model.can_trim:
            raise UsageError("Passes of one width need chains, and a cache that can be trimmed.")
        if not 1 < width <= min(settings.max_rows, _ATTENTION_BLOCK // 2) or settings.n_ctx <= width:
            raise UsageError(
                f"A pass of {width} rows does not fit; 2 to {min(settings.max_rows, _ATTENTION_BLOCK // 2)} do."
            )
        in_place = replace(settings, logits="in place")  # the sampler is called once, and few of the rows are read
        super().__init__(model, in_place, tap=tap)
        self.width = width
        self._chain = np.arange(-1, width - 2, dtype=np.int32)
        self.n_ctx = settings.n_ctx - (width - 1)
        self._done: list[LogitRows] = []  # of all feeds of a `launch` but the last: their passes are over

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

    def _decodes_one(self, slot: int, tokens: Tokens, prompt_length: int) -> bool:
        """Generated tokens are decoded one by one, in passes as wide as all others."""
        self._launch_filled(Feed(slot, tokens, prompt_length))
        self._finish()
        return True

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
