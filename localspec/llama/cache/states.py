"""Hidden states of the target's passes, for heads that were trained on them: how the last pass's rows are read
(`Outputs`), and what is kept of them token by token (`States`); `Tap` says what is asked of llama.cpp.

llama.cpp may cut a pass of several slots into others and reorder their rows; what it hands out is in the order of the
batch again, rows without logits included. Where final states are on, every row of the pass is an output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelError, UsageError
from localspec.llama.library import lib
from localspec.llama.library.batch import Cells, common_prefix
from localspec.llama.library.handle import Handle
from localspec.llama.library.settings import FINAL, NEXTN, Tap
from localspec.llama.model import Model
from localspec.types import Float32Array, Tokens

_LARGEST_HALF = float(np.finfo(np.float16).max)


class Outputs:
    """Rows of the last pass of one llama.cpp context."""

    def __init__(self, handle: Handle, model: Model, tap: Tap) -> None:
        """Switches on what `tap` asks for, which was checked (`check_tap`)."""
        api, pointer = lib.api(), handle.pointer
        self.tap = tap
        self.n_embd = int(api.llama_model_n_embd(model.handle))
        self.n_final = int(api.llama_model_n_embd_out(model.handle))
        """Numbers of a layer's input; of a final state, and of what an MTP layer starts from."""
        self.n_cells = int(api.llama_n_ctx(pointer))  # most tokens that the caches of all slots hold together
        self._handle = handle
        self._switch_final: Callable[[int | None, bool], None] = api.llama_set_embeddings
        self._final_on = tap.final == "all"
        self._read: dict[int, tuple[Callable[..., Any], tuple[int | None, ...], int]] = {}
        if tap.final != "no":
            self._switch_final(pointer, self._final_on)
            self._read[FINAL] = (api.llama_get_embeddings, (pointer,), self.n_final)
        if tap.nextn:
            extension = lib.extension()
            extension.llama_set_embeddings_nextn(pointer, True, False)
            self._read[NEXTN] = (extension.llama_get_embeddings_nextn, (pointer,), self.n_final)
        for layer in tap.layers:
            lib.c_function(lib.SET_LAYER)(pointer, layer, True)
            self._read[layer] = (lib.c_function(lib.GET_LAYER), (pointer, layer), self.n_embd)

    def before(self, decodes: bool) -> bool:
        """To be called before a pass, which `decodes` or reads a prompt; whether every row of it will be an output."""
        on = self.tap.final == "all" or (self.tap.final == "decoded" and decodes)
        if on != self._final_on:
            self._switch_final(self._handle.pointer, on)
            self._final_on = on
        return on

    def keep(self, tap: Tap) -> None:
        """Switches off what `tap` does not ask for; of what it was made with, the rest stays on."""
        pointer, old, self.tap = self._handle.pointer, self.tap, tap
        self.before(decodes=False)  # final states are on again before the next pass that wants them
        if old.nextn and not tap.nextn:
            lib.extension().llama_set_embeddings_nextn(pointer, False, False)
        for layer in set(old.layers) - set(tap.layers):
            lib.c_function(lib.SET_LAYER)(pointer, layer, False)
        self._read = {what: how for what, how in self._read.items() if what in tap.everything}

    @property
    def shown(self) -> tuple[int, ...]:
        return tuple(what for what in self._read if what != FINAL or self._final_on)

    def rows(self, what: int, count: int) -> Float32Array:
        """float32[count, n], the first rows of the last pass in batch order; a view that is valid until the next."""
        get, arguments, width = self._read[what]
        found: Float32Array = np.ctypeslib.as_array(get(*arguments), shape=(count, width))
        return found


@dataclass(slots=True)
class _Run:
    rows: npt.NDArray[np.float16]  # float16[capacity, n]; row 0 is position `start`
    start: int = 0
    stop: int = 0

    def cut(self, length: int) -> None:
        self.stop = min(self.stop, length)
        self.start = min(self.start, self.stop)

    def put(self, position: int, states: Float32Array) -> None:
        """States from `position` on; what is held and does not lead up to them is dropped."""
        self.cut(position)
        if self.stop < position:
            self.start = self.stop = position
        begin = position - self.start
        np.clip(states, -_LARGEST_HALF, _LARGEST_HALF, out=self.rows[begin : begin + len(states)], casting="unsafe")
        self.stop = position + len(states)


class States:
    """What a context keeps of its passes: a row a token of the cache, in float16, for each slot and each thing tapped.
    Held exactly where the KV is and was computed by this context with the tap on: a cache that came from a file has
    none, and final states of "decoded" rows leave prompts out. Memory for whole slots is set aside, of which systems
    take what rows have come for."""

    def __init__(self, outputs: Outputs, cells: Sequence[Cells]) -> None:
        """`cells`: of every slot, which the context goes on changing. Raises ModelError: there is no memory."""
        self.tap = outputs.tap
        self._outputs, self._cells = outputs, cells
        widths = {what: outputs.n_embd if what >= 0 else outputs.n_final for what in self.tap.everything}
        rows = outputs.n_cells // len(cells)
        try:
            self._slots = [
                {what: _Run(np.empty((rows, width), dtype=np.float16)) for what, width in widths.items()} for _ in cells
            ]
        except MemoryError:
            numbers = len(cells) * rows * sum(widths.values())
            raise ModelError(
                f"There is no memory for the hidden states that heads read: {2 * numbers / 2**20:.0f} MiB.",
                "A shorter context needs less memory.",
            ) from None

    def span(self, slot: int, tokens: Tokens, what: int | None = None) -> tuple[int, int]:
        """(start, stop): the positions of `tokens` whose states are held, one run, possibly empty. `start` is above 0
        after a cache that came from a file, or after a prompt of which final states were not asked for. The last token
        of a history is not evaluated yet, as a rule. `what` is a layer, `FINAL` or `NEXTN`; None = everything tapped,
        which may be more than one head needs."""
        shared = common_prefix(self._cells[slot].tokens, tokens)
        wanted = [run for held, run in self._slots[slot].items() if what in (None, held)]
        if not wanted:
            return 0, 0
        stop = min(shared, *(run.stop for run in wanted))
        return min(stop, max(run.start for run in wanted)), stop

    def read(self, slot: int, what: int, start: int, stop: int) -> Float32Array:
        """float32[stop - start, n]: states at these positions. Raises UsageError: not held, or not tapped."""
        run = self._slots[slot].get(what)
        if run is None or not run.start <= start <= stop <= run.stop:
            held = "not tapped" if run is None else f"held from {run.start} to {run.stop}"
            raise UsageError(f"states {what} of positions {start} to {stop} are {held}.")
        return run.rows[start - run.start : stop - run.start].astype(np.float32)

    def keep(self, tap: Tap) -> None:
        """Frees what `tap` does not ask for; heads that read the rest go on with this object."""
        self.tap = tap
        for runs in self._slots:
            for what in runs.keys() - set(tap.everything):
                del runs[what]

    def cut(self, slot: int, length: int) -> None:
        for run in self._slots[slot].values():
            run.cut(length)

    def take(self, slot: int, position: int, row: int, count: int) -> None:
        """Rows [row, row + count) of the last pass are the slot's tokens from `position` on, the end of its cache."""
        shown, runs = self._outputs.shown, self._slots[slot]
        for what, run in runs.items():
            if what in shown:
                run.put(position, self._outputs.rows(what, row + count)[row:])
            else:
                run.cut(position)
