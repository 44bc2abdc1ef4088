"""One llama_context: made of our settings, run and freed in the same way by every cache that sits on one; and where its
last pass left its logits."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from localspec.errors import Cancelled, ModelError
from localspec.gguf import ROLLS_BACK
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.batch import Part
from localspec.llama.library.contention import cpus
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.library.taps import LogitsTap, Observer
from localspec.llama.model import Model
from localspec.native.gpu import DeviceRows
from localspec.types import LogitRows


class Handle:
    """Owns a llama_context; closed with its model, at the latest."""

    def __init__(
        self,
        model: Model,
        params: Any,
        what: str,
        hint: str = "",
        rows: int = wide.MOST_ROWS,
        logits_tap: LogitsTap | None = None,
    ) -> None:
        """
        Args:
            what: what is made, as an error names it after "llama.cpp could not make"; `hint` says what to do about it.
            rows: most rows of a pass that decodes.
            logits_tap: whose samplers are in `params`, a llama_context_params.

        Raises:
            ModelError: llama.cpp refuses the parameters for this model, or there is no memory.
        """
        self._api, self._open = lib.api(), model.contexts
        self.wide_rows = rows if model.kernels == "wide" else 0  # see `wide.set_switch`
        self._threads = self._used = int(params.n_threads)
        """Threads that a pass should have, and those of the last one."""
        self.logits_tap = logits_tap
        """Reads logits where passes leave them; None = llama.cpp copies them. Closed with this."""
        self.pointer: int | None = None  # the address of the llama_context; None once it is freed
        mark, earlier = lib.log.mark(), wide.newest_context()
        with wide.switched(self.wide_rows):
            pointer = self._api.llama_init_from_model(model.handle, params)
        if not pointer:
            raise ModelError(f"llama.cpp could not make {what}: {lib.log.reason(mark) or 'it gave no reason'}.", hint)
        self.pointer, newest = int(pointer), wide.newest_context()
        self._number = newest if newest != earlier else 0  # 0 = without our library
        self._turned = params.flash_attn_type == lib.FLASH_ATTENTION[False]
        self.memory: Any = self._api.llama_get_memory(self.pointer)  # its llama_memory_t
        self._open[self.pointer] = weakref.ref(self)

    def give_back(self, slot: int, cell: int) -> int:
        """`wide.give_back` from a cell of a slot on: nothing after it may be in use. Not during a pass."""
        return wide.give_back(self._number, slot, cell, self._turned)

    def call(self, function: Callable[[int | None, Any], int], batch: Any) -> None:
        """One pass: `function` is `llama_decode` or `llama_encode`, `batch` a llama_batch."""
        mark = lib.log.total  # `mark` would run code of llama.cpp that is cold between two passes
        wide.set_switch(self.wide_rows)  # passes are built in the call, on this thread
        with cpus.passing(self._threads if self.wide_rows else 0):
            if self.wide_rows:
                self._give_way()
            code = function(self.pointer, batch)
        if code:
            lib.raise_for_code(code, mark)

    def _give_way(self) -> None:
        """Leaves CPUs to other programs: the bits of passes on our kernels do not depend on their threads."""
        threads = cpus.threads(self._threads)
        if threads != self._used:
            self._used = threads
            self._api.llama_set_n_threads(self.pointer, threads, threads)

    def close(self) -> None:
        """Frees the llama_context with all that its passes left there. A second call does nothing."""
        pointer, self.pointer = getattr(self, "pointer", None), None
        if pointer is not None and self._open.pop(pointer, None) is not None:  # else the model has freed it
            self._api.llama_free(pointer)
        if (tap := getattr(self, "logits_tap", None)) is not None:
            tap.close()

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def abortable(handle: int | None, cancel: Callable[[], bool] | None) -> Iterator[None]:
    """While it lasts, passes of the llama_context end with `Cancelled` as soon as `cancel` says so: llama.cpp asks
    after every node of a graph (on CPUs). Raises whatever `cancel` raised."""
    if cancel is None:
        yield
        return
    api, raised = lib.api(), list[BaseException]()

    def poll(_: object) -> bool:
        try:
            return cancel()
        except BaseException as error:  # noqa: BLE001 - must not cross C; raised again below
            raised.append(error)
            return True

    callback = api.ggml_abort_callback(poll)
    api.llama_set_abort_callback(handle, callback, None)
    try:
        yield
    except Cancelled:
        if raised:
            raise raised[0] from None
        raise
    finally:
        api.llama_set_abort_callback(handle, api.ggml_abort_callback(), None)


class Logits:
    """Of one context: rows of its last pass."""

    def __init__(self, handle: Handle, n_vocab: int, most_rows: int) -> None:
        self._api, self._handle = lib.api(), handle
        self._offsets = np.arange(most_rows, dtype=np.uintp) * np.uintp(4 * n_vocab)
        self._first = np.uintp(0)

    def collect(self, count: int) -> None:
        """Waits for the pass that was launched last; its first `count` rows with logits can be read then."""
        tap, buffer = self._handle.logits_tap, lib.pointer_value(self._api.llama_get_logits(self._handle.pointer))
        self._first = np.uintp(buffer if tap is None else tap.rows(count, buffer))

    def of(self, part: Part, n_vocab: int, keep: object) -> LogitRows:
        """Rows of a part of the pass that was collected: the last history token's, then the nodes' in draft order, as
        many as are wanted; until the next pass. `keep` owns the memory."""
        first = part.first_output
        pointers = self._offsets[first : first + part.wanted] + self._first
        if part.tree is not None:
            pointers[1:][part.tree.order] = pointers[1:].copy()
        tap = self._handle.logits_tap
        if tap is not None and tap.gpu is not None:
            return DeviceRows(pointers, n_vocab, tap.fetch, tap.gpu, keep)
        return LogitRows(pointers, n_vocab, keep)


EXTRA_ROWS = 16
"""A pass takes at most this many missing tokens along besides the last; more are computed in passes of their own."""


def most_rows(settings: ContextSettings) -> int:
    return max(settings.grid, settings.max_rows + settings.n_slots * EXTRA_ROWS)


def most_nodes(model: Model, settings: ContextSettings) -> int:
    """Nodes of the longest draft that the cache can drop again; 0 = it takes no drafts."""
    if model.can_trim:
        return settings.max_rows - 1
    return settings.rollback if settings.n_slots == 1 and model.header.architecture in ROLLS_BACK else 0


def context_parameters(model: Model, settings: ContextSettings, threads: int, tap: Tap) -> Any:
    api = lib.api()
    params = api.llama_context_default_params()
    trees = settings.max_leaves > 1 and model.can_trim
    params.n_ctx = (settings.n_ctx + (settings.max_rows if trees else 0)) * settings.n_slots
    params.n_batch = params.n_ubatch = most_rows(settings)
    params.n_seq_max = settings.max_leaves if trees else settings.n_slots
    outputs = settings.max_rows + (settings.n_slots * EXTRA_ROWS if tap.final == "decoded" else 0)
    if tap.final == "all":  # every row of a pass has logits where final states are wanted
        outputs = most_rows(settings)
    params.n_outputs_max = max(outputs, params.n_seq_max)
    params.n_rs_seq = 0 if model.can_trim else most_nodes(model, settings)
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = lib.FLASH_ATTENTION[settings.flash_attention]
    params.type_k, params.type_v = lib.GGML_TYPES[settings.type_k], lib.GGML_TYPES[settings.type_v]
    params.kv_unified = settings.n_slots == 1
    params.op_offload = model.gpu_layers != 0
    params.swa_full = True  # a small ring would break the order of cells and lose old ones
    params.no_perf = True
    if tap.final != "no":
        params.embeddings = True
        params.pooling_type = api.LLAMA_POOLING_TYPE_NONE
    return params


def make_handle(model: Model, settings: ContextSettings, threads: int, tap: Tap, observer: Observer | None) -> Handle:
    params = context_parameters(model, settings, threads, tap)
    if observer is not None:
        params.cb_eval = observer.callback
    # of several slots, and of recurrent models, llama.cpp may cut a pass; of prompts with final states it is too long
    whole = settings.n_slots == 1 and model.can_trim and tap.final != "all"
    logits_tap = LogitsTap(params, model.n_vocab) if settings.logits == "in place" and whole else None
    rows = settings.max_rows + settings.n_slots * EXTRA_ROWS
    size = f"{settings.n_ctx} tokens and {settings.n_slots} slots"
    hint = "A shorter context or a smaller cache type needs less memory."
    return Handle(model, params, f"a context of {size} for {model.path.name}", hint, rows, logits_tap)
