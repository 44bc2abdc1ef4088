"""Stopping a pass under way: llama.cpp asks after every node of its graph (on CPUs)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from localspec.errors import Cancelled
from localspec.llama.library import lib


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
