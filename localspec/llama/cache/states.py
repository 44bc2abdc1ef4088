"""Hidden states of the target's passes, for heads that were trained on them: what is asked of llama.cpp (`Tap`), how
the last pass's rows are read (`Outputs`), and what is kept of them token by token (`States`).

llama.cpp may cut a pass of several slots into others and reorder their rows; what it hands out is in the order of the
batch again, rows without logits included. Where final states are on, every row of the pass is an output.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from localspec.errors import ModelError, UsageError
from localspec.gguf import Header
from localspec.llama.cache.cells import Cells, common_prefix
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.model import Model
from localspec.types import Float32Array, Tokens

FINAL, NEXTN = -1, -2
"""Names of states besides layer inputs: the normed final state, and the state that an MTP layer starts from."""

SHOWS_LAYERS = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
        "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3",
        "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip
"""Architectures whose layer inputs this llama.cpp hands out; asked for those of another it ends the process."""
SHOWS_NEXTN = frozenset(
    {
        "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "gemma4", "glm-dsa", "glm4moe", "gpt-oss", "hy_v3",
        "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
"""Architectures whose passes set the state that an MTP layer starts from; of another, nothing would ever come."""
Final = Literal["no", "decoded", "all"]
_FINAL_ORDER: tuple[Final, ...] = ("no", "decoded", "all")
_SET_LAYER_SYMBOL = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_LAYER_SYMBOL = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
"""C++ names: llama.cpp declares these outside its C interface."""
_LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Tap:
    """What a context hands out of its passes besides logits."""

    layers: tuple[int, ...] = ()
    """Inputs of these layers, of every row of every pass, prompts included."""
    final: Final = "no"
    """The final state after the norm: of decoded rows only ("decoded"; prompts cost nothing more), or of prompts
    too ("all"; every prompt row then is an output, which costs the output matrix)."""
    nextn: bool = False
    """Whether to read the state that an MTP layer starts from, of every row, prompts included."""

    def __or__(self, other: Tap) -> Tap:
        final = max(self.final, other.final, key=_FINAL_ORDER.index)
        return Tap(tuple(sorted({*self.layers, *other.layers})), final, self.nextn or other.nextn)

    def __bool__(self) -> bool:
        return self != NO_TAP

    @property
    def everything(self) -> tuple[int, ...]:
        """What can be read: layers, `FINAL`, `NEXTN`."""
        return (*self.layers, *([FINAL] if self.final != "no" else []), *([NEXTN] if self.nextn else []))


NO_TAP = Tap()


def union(taps: Iterable[Tap]) -> Tap:
    """What all of them ask for."""
    found = NO_TAP
    for tap in taps:
        found |= tap
    return found


def check_tap(header: Header, n_layers: int, tap: Tap) -> Tap:
    """The tap with its layers each once, in order; to be asked before llama.cpp, which would end the process.

    Args:
        header: of the model.
        n_layers: how many it has.

    Raises:
        UsageError: no such layer, or an architecture that does not show what is asked for.
    """
    for layer in tap.layers:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 0 <= layer < n_layers:
            raise UsageError(f"There is no layer {layer!r}; {header.path.name} has layers 0 to {n_layers - 1}.")
    if tap.layers and header.architecture not in SHOWS_LAYERS:
        raise UsageError(
            f"llama.cpp does not show what goes into layers of the architecture {header.architecture}.",
            "Ask for no layers: the final states are there for every model.",
        )
    if tap.nextn and header.architecture not in SHOWS_NEXTN:
        raise UsageError(f"llama.cpp shows no state for MTP layers of the architecture {header.architecture}.")
    return Tap(tuple(sorted({int(layer) for layer in tap.layers})), tap.final, tap.nextn)


def sizes(model: Model) -> tuple[int, int]:
    """Size of a layer input and size of a final state, in numbers a token."""
    api = lib.api()
    return int(api.llama_model_n_embd(model.handle)), int(api.llama_model_n_embd_out(model.handle))


class Outputs:
    """Rows of the last pass of one llama.cpp context."""

    def __init__(self, handle: Handle, model: Model, tap: Tap) -> None:
        """Switches on what `tap` asks for, which was checked (`check_tap`)."""
        api, pointer = lib.api(), handle.pointer
        self.tap = tap
        self.n_embd, self.n_final = sizes(model)
        """Numbers of a layer's input; of a final state, and of what an MTP layer starts from."""
        self.n_cells = int(api.llama_n_ctx(pointer))
        """Most tokens that the caches of all slots hold together."""
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
        if tap.layers:
            switch = lib.c_function(_SET_LAYER_SYMBOL, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool)
            get = lib.c_function(_GET_LAYER_SYMBOL, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_uint32)
            for layer in tap.layers:
                switch(pointer, layer, True)
                self._read[layer] = (get, (pointer, layer), self.n_embd)

    def before(self, decodes: bool) -> bool:
        """To be called before a pass; whether every row of it will be an output.

        Args:
            decodes: whether logits are wanted; a pass over a prompt wants none.
        """
        on = self.tap.final == "all" or (self.tap.final == "decoded" and decodes)
        if on != self._final_on:
            self._switch_final(self._handle.pointer, on)
            self._final_on = on
        return on

    def keep(self, tap: Tap) -> None:
        """Switches off what `tap` does not ask for; of what it was made with, the rest stays on."""
        pointer = self._handle.pointer
        if self._final_on and tap.final != "all":  # before the next pass it is on again where that wants it
            self._switch_final(pointer, False)
            self._final_on = False
        if self.tap.nextn and not tap.nextn:
            lib.extension().llama_set_embeddings_nextn(pointer, False, False)
        gone = [layer for layer in self.tap.layers if layer not in tap.layers]
        if gone:
            switch = lib.c_function(_SET_LAYER_SYMBOL, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool)
            for layer in gone:
                switch(pointer, layer, False)
        self.tap = tap
        self._read = {what: how for what, how in self._read.items() if what in tap.everything}

    @property
    def shown(self) -> tuple[int, ...]:
        """What the last pass can be read for."""
        return tuple(what for what in self._read if what != FINAL or self._final_on)

    def rows(self, what: int, count: int) -> Float32Array:
        """float32[count, n], the first rows of the last pass in batch order; a view that is valid until the next."""
        get, arguments, width = self._read[what]
        found: Float32Array = np.ctypeslib.as_array(get(*arguments), shape=(count, width))
        return found


@dataclass(slots=True)
class _Run:
    """States of consecutive positions of one slot."""

    rows: npt.NDArray[np.float16]
    """float16[capacity, n]; row 0 is position `start`."""
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
    take what rows have come for.
    """

    def __init__(self, outputs: Outputs, cells: Sequence[Cells]) -> None:
        """`cells`: of every slot, which the context goes on changing.

        Raises:
            ModelError: there is no memory.
        """
        self.tap = outputs.tap
        self._outputs, self._cells = outputs, cells
        self.n_slots = len(cells)
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
        """(start, stop): the positions of `tokens` whose states are held, one run, possibly empty.

        `start` is above 0 after a cache that came from a file, or after a prompt of which final states were not
        asked for. The last token of a history is not evaluated yet, as a rule. What is not tapped is held nowhere.

        Args:
            slot: 0 to n_slots - 1.
            tokens: int32[n], a history or what is guessed to follow it.
            what: a layer, `FINAL` or `NEXTN`; None = everything tapped. Name it: beside another head more may be
                tapped than one needs.
        """
        shared = common_prefix(self._cells[slot].tokens, tokens)
        wanted = [run for held, run in self._slots[slot].items() if what in (None, held)]
        if not wanted:
            return 0, 0
        stop = min(shared, *(run.stop for run in wanted))
        return min(stop, max(run.start for run in wanted)), stop

    def read(self, slot: int, what: int, start: int, stop: int) -> Float32Array:
        """float32[stop - start, n]: states at these positions, within `span`.

        Args:
            what: a layer (its input), `FINAL` or `NEXTN`.

        Raises:
            UsageError: they are not held, or were not tapped.
        """
        run = self._slots[slot].get(what)
        if run is None or not run.start <= start <= stop <= run.stop:
            held = "not tapped" if run is None else f"held from {run.start} to {run.stop}"
            raise UsageError(f"states {what} of positions {start} to {stop} are {held}.")
        return run.rows[start - run.start : stop - run.start].astype(np.float32)

    # -- for the context ----------------------------------------------------------------------------------------

    def keep(self, tap: Tap) -> None:
        """Frees what `tap` does not ask for; heads that read the rest go on with this object."""
        self.tap = tap
        for runs in self._slots:
            for what in runs.keys() - set(tap.everything):
                del runs[what]

    def cut(self, slot: int, length: int) -> None:
        """The slot's cache now ends after `length` tokens."""
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


class Tapped:
    """What one head reads of its target's states, in the head's own order; all of it is held of the same positions."""

    def __init__(self, states: States, tapped: Sequence[int]) -> None:
        """`tapped`: layers (their inputs), `FINAL` or `NEXTN`."""
        self._states, self._tapped = states, tuple(tapped)

    def span(self, slot: int, tokens: Tokens) -> tuple[int, int]:
        """(start, stop): the positions of all of `tokens` but the last whose states are held.

        Raises:
            UsageError: no such slot.
        """
        count = self._states.n_slots
        if not 0 <= slot < count:
            raise UsageError(f"slot {slot} does not exist; the context has {count}.")
        start, stop = self._states.span(slot, tokens, self._tapped[0])
        stop = min(len(tokens) - 1, stop)
        return min(start, stop), stop

    def read(self, slot: int, start: int, stop: int) -> Float32Array:
        """float32[stop - start, n]: states at these positions, within `span`, one thing tapped after another."""
        return np.concatenate([self._states.read(slot, what, start, stop) for what in self._tapped], axis=1)
