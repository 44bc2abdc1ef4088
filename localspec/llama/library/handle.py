"""One llama_context: made, run and freed in the same way by every cache that sits on one.

Stopping a pass under way: llama.cpp asks after every node of its graph (on CPUs).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from localspec.errors import Cancelled, ModelError
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.llama.library.logits_tap import LogitsTap
from localspec.llama.model import Model


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
            model: whose kernels compute its passes.
            params: a llama_context_params.
            what: what is made, as an error names it after "llama.cpp could not make".
            hint: what to do about such an error.
            rows: most rows of a pass that decodes.
            logits_tap: whose samplers are in `params`.

        Raises:
            ModelError: llama.cpp refuses the parameters for this model, or there is no memory.
        """
        self._api, self._open = lib.api(), model.contexts
        self.wide_rows = rows if model.kernels == "wide" else 0
        """See `wide.set_switch`."""
        self._threads = self._used = int(params.n_threads)
        """Threads that a pass should have, and those of the last one."""
        self.logits_tap = logits_tap
        """Reads logits where passes leave them; None = llama.cpp copies them. Closed with this."""
        self.pointer: int | None = None
        """The address of the llama_context; None once it is freed."""
        mark, earlier = lib.log.mark(), wide.newest_context()
        with wide.switched(self.wide_rows):
            pointer = self._api.llama_init_from_model(model.handle, params)
        if not pointer:
            raise ModelError(f"llama.cpp could not make {what}: {lib.log.reason(mark) or 'it gave no reason'}.", hint)
        self.pointer, newest = int(pointer), wide.newest_context()
        self._number = newest if newest != earlier else 0  # 0 = without our library
        self._turned = params.flash_attn_type == lib.FLASH_ATTENTION[False]
        self.memory: Any = self._api.llama_get_memory(self.pointer)
        """Its llama_memory_t."""
        self._open[self.pointer] = weakref.ref(self)

    def give_back(self, slot: int, cell: int) -> int:
        """Bytes of the cache, from a cell of a slot on, that take no memory any more: nothing of it may be in use. Not
        during a pass."""
        return wide.give_back(self._number, slot, cell, self._turned)

    def call(self, function: Callable[[int | None, Any], int], batch: Any) -> None:
        """One pass.

        Args:
            function: `llama_decode` or `llama_encode`.
            batch: a llama_batch.
        """
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
    """While it lasts, passes of the llama_context end with `Cancelled` as soon as `cancel` says so.

    Raises:
        Whatever `cancel` raised.
    """
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
