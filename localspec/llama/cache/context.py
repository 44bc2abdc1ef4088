"""A KV cache that knows its own tokens: callers pass whole histories, it computes what is missing.

What the cache holds beyond the common prefix is dropped at the next call. Cells stay in position order, because the
order changes the bits (docs/design.md, "Facts about llama.cpp"). A context is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from localspec.errors import Cancelled, ContextOverflowError, DecodeError, UsageError
from localspec.llama.cache.states import Outputs, States
from localspec.llama.exact.wide import StepWatch
from localspec.llama.library import lib
from localspec.llama.library.batch import (
    Batch,
    Cells,
    Layout,
    Part,
    check_pass,
    checked_layout,
    common_prefix,
    split_equal,
)
from localspec.llama.library.handle import EXTRA_ROWS, Logits, abortable, make_handle, most_nodes, most_rows
from localspec.llama.library.settings import NO_TAP, ContextSettings, Tap, check_tap
from localspec.llama.library.taps import Observer
from localspec.llama.model import Model
from localspec.machine import default_threads
from localspec.types import Feed, LogitRows, Tokens

FEWEST_COPIED_TOKENS = 32  # fewest tokens for which another slot's cache is copied instead of computed
GIVEN_BACK_CELLS = 1024
"""Cells that must have become unused before a slot's memory after its tokens is given back: some MB, in 0.1 ms."""
CELLS_PER_TOKEN = 256
"""Cells that are copied while one token is computed: measured 900 (1 B in Q8_0) and 70 (bundled pair), 2 cores."""


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
        """Allocates the cache; the model must stay open as long as this is used.

        Args:
            observer: is shown intermediate results of every pass, which makes passes slow (for probes).
            tap: hidden states to hand out; they change no bit of a logits row.
            keep_states: keep them in `states`; else only the last pass's can be read, from `outputs`.

        Raises:
            UsageError: the model has no such states (see `check_tap`).
        """
        self.settings = settings = settings or ContextSettings()
        self.model = model
        self.n_ctx = settings.n_ctx  # tokens a slot can hold
        self.grid = settings.grid
        self.n_vocab = model.n_vocab
        self.exact_widths: frozenset[int] | None = None
        """Rows per pass whose bits equal those of one row, set by the caller that knows; None = unknown."""
        self.any_cut = False
        """Whether the bits of the cache do not depend on how a prompt is cut into passes; see `reuse_all`."""
        self.watch: StepWatch | None = None
        """Ends `exact_widths` after a pass in which our library computed fewer steps than proved; None = no watch."""
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
        self._logits = Logits(self.handle, self.n_vocab, self._most_rows)
        self._launched: list[Part] = []
        self.outputs = Outputs(self.handle, model, tap) if tap else None
        """Hidden states of the last pass; None = nothing is tapped."""
        self.states = States(self.outputs, self._cells) if self.outputs is not None and keep_states else None
        """Hidden states of the cached tokens; None = nothing is kept."""

    def reuse_all(self) -> None:
        """From now on a history reuses all tokens that are cached of it, since bits do not depend on passes."""
        self.settings, self.any_cut = replace(self.settings, reuse="all"), True
        for cells in self._cells:
            cells.reuse = "all"

    def prefill(self, slot: int, tokens: Tokens, prompt_length: int, cancel: Callable[[], bool] | None = None) -> None:
        """Brings the slot's cache to all tokens but the last, computing no logits; see `prefill_chunk`."""
        self._check(slot, tokens)
        done, total = self._sync(slot, tokens, prompt_length), len(tokens) - 1
        while done < total:
            done = self.prefill_chunk(slot, tokens, prompt_length, cancel)

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        """One pass of `prefill` over int32[n], the whole history; how many tokens the cache holds then, n - 1 when all
        is done.

        Prompt tokens go in chunks on a fixed grid from position 0, alone in their pass; the generated ones after them
        in passes of an exact width, so that their bits are those of decoding.

        Args:
            prompt_length: how many leading tokens are prompt.
            cancel: polled before and inside the pass; when it says so, the cache keeps the chunks that are done.
            most: prompt tokens of the pass, wherever the grid is; None = to the next line of the grid.

        Raises:
            Cancelled: `cancel` said so.
        """
        self._check(slot, tokens)
        start, total = self._sync(slot, tokens, prompt_length), len(tokens) - 1
        if start == total:
            return total
        if cancel is not None and cancel():
            raise Cancelled("Stopped while reading the prompt.")
        prompt_end = min(prompt_length - 1, total)
        if most is not None and start < prompt_end:
            end = min(start + min(most, self.grid), prompt_end)
        else:
            end = self._chunk_end(start, prompt_end, total)
        with abortable(self.handle.pointer, cancel):
            self._compute(slot, tokens[start:end], start)
        return end

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass over every feed's missing tokens and draft: `launch`, then `collect`, whose words hold here."""
        self.launch(feeds)
        return self.collect()

    def launch(self, feeds: Sequence[Feed]) -> None:
        """Begins a pass over every feed's missing tokens and draft; a GPU is not waited for. The next call must be
        `collect`.

        Logits are computed for the last history token and each node only. Tokens missing before them are prefilled
        first, except for up to `EXTRA_ROWS` generated ones (draft contexts: of any kind), which join the pass.
        """
        self._launched = []
        parts = [self._prepare(feed) for feed in feeds]
        in_order = sorted(parts, key=lambda part: part.feed.slot) if len(parts) > 1 else parts
        check_pass(in_order, self.settings.max_rows, self._most_rows)
        count = outputs = 0
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
        """Waits for the pass that `launch` began: `LogitRows` of each feed, the last history token, then each node in
        draft order. They point to where llama.cpp left them and are valid until the next call of this context."""
        parts, self._launched = self._launched, []
        for part in parts:  # first: the cells are there even if their rows cannot be read
            self._remember(part)
        if parts:
            self._logits.collect(max(part.first_output + part.wanted for part in parts))
        return [self._logits.of(part, self.n_vocab, self) for part in parts]

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
        llama.cpp copies whole caches only, so a short gain does not pay. Hidden states are not copied: a context
        that keeps them reads the prompt."""
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

    def _give_back(self) -> None:
        """Memory of cells that are not used any more goes back to the system."""
        for slot, cells in enumerate(self._cells):
            if self._written[slot] - cells.length >= GIVEN_BACK_CELLS:
                self.handle.give_back(slot, cells.length)
                self._written[slot] = cells.length

    def _prefills_first(self, cells: Cells, keep: int, length: int, prompt_length: int) -> bool:
        in_prompt = bool(cells.grid) and keep < min(prompt_length, length) - 1
        return in_prompt or length - 1 - keep > EXTRA_ROWS

    def _chunk_end(self, start: int, prompt_end: int, end: int) -> int:
        """Where a pass that begins to compute positions [start, end) ends."""
        grid = self.settings.grid
        if start < prompt_end and self.settings.grid_prefill:
            return min((start // grid + 1) * grid, prompt_end)
        return min(end, start + (grid if self.exact_widths is None else max(self.exact_widths | {1})))

    def _prepare(self, feed: Feed) -> Part:
        tokens, count = feed.tokens, len(feed.tokens)
        self._check(feed.slot, tokens)
        tree = self._layout(feed)
        keep = self._sync(feed.slot, tokens, feed.prompt_length)
        if self._prefills_first(self._cells[feed.slot], keep, count, feed.prompt_length):
            self.prefill(feed.slot, tokens, feed.prompt_length)
            keep = count - 1
        return Part(feed, keep, tree)

    def _layout(self, feed: Feed) -> Layout | None:
        nodes = len(feed.draft_tokens)
        if nodes > self.most_nodes and not self.can_trim:
            raise UsageError(f"{self.model.path.name} takes no drafts of more than {self.most_nodes} tokens.")
        return checked_layout(feed, self.n_ctx, self.max_leaves) if nodes else None

    def _compute(self, slot: int, tokens: Tokens, start: int) -> None:
        """A pass of one slot without logits; the cache then ends after `tokens`."""
        count = self._batch.add_history(slot, tokens, start, 0)
        if self.outputs is not None:
            self.outputs.before(decodes=False)
        self._run(count, [(slot, start)])
        self._put(slot, start, tokens, 0)

    def _run(self, count: int, starts: Sequence[tuple[int, int]]) -> None:
        """Runs the first `count` rows of the batch; on failure drops each slot's cells from its start on."""
        self._give_back()
        try:
            self.handle.call(self._api.llama_decode, self._batch.of(count))
        except (Cancelled, DecodeError):
            for slot, start in starts:
                self._cells[slot].cut(start + 1)  # so that the trim is not skipped
                self._trim(slot, start)
            raise
        finally:
            for slot in self._copied:  # the pass has copied all cells, used or not
                self._written[slot] = self.n_ctx
            self._copied.clear()

    def _remember(self, part: Part) -> None:
        """The cache holds a part of the last pass; of a tree only the main chain counts."""
        feed, cells, count, tree = part.feed, self._cells[part.feed.slot], len(part.feed.tokens), part.tree
        nodes = feed.draft_tokens if tree is None else feed.draft_tokens[tree.order[: tree.main_length]]
        self._put(feed.slot, part.start, np.concatenate([feed.tokens[part.start :], nodes]), part.first_row)
        if tree is not None:
            cells.branch = (count, 1 + self.max_leaves - tree.leaves)

    def _put(self, slot: int, start: int, tokens: Tokens, row: int) -> None:
        """The slot's cache holds `tokens` from position `start` on, which were the last pass's rows from `row` on."""
        self._cells[slot].put(start, tokens)
        if self.states is not None:
            self.states.take(slot, start, row, len(tokens))
