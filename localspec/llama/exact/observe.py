"""Looks at the intermediate results of a pass, so that a probe sees differences that later rounding would hide.

Activations are rounded to 8 bits before every product with quantised weights: a kernel that adds in another order at
another width changes the logits only now and then. In the attention and layer outputs themselves it shows at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator

import numpy as np

from localspec.llama.library import lib
from localspec.types import Float32Array

WATCHED = re.compile(r"(kqv_out|ffn_out|ffn_moe_out|l_out)-\d+|result_norm").fullmatch
"""Graph nodes whose rows are tokens: attention, feed-forward and layer outputs, the final norm."""

_SHAPE_OFFSET = 16  # ggml_tensor: type (4, padded to 8), buffer (8), ne[4]


class Observer:
    """Collects the rows of the watched nodes of the last pass. CPU and GPU; float32 nodes only."""

    def __init__(self) -> None:
        api = lib.api()
        self._name = lib.c_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._bytes = lib.c_function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
        self._get = lib.c_function(
            "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self.callback = api.ggml_backend_sched_eval_callback(self._called)
        self.rows: dict[str, Float32Array] = {}
        """Node -> float32[rows, size], as of the last pass; nodes of the last layer only have rows with logits."""
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around a pass: forgets the rows of earlier ones, and raises afterwards what was raised while looking."""
        self.rows.clear()
        self._error = None
        try:
            yield
        finally:
            error, self._error = self._error, None
            if error is not None:
                self.rows.clear()
                raise error

    def _called(self, tensor: int, asks: bool, data: object) -> bool:
        """The callback: no exception, not even Ctrl-C, may cross C. After one the pass runs on, unobserved."""
        try:
            return self._see(tensor, asks, data) if self._error is None else not asks
        except BaseException as error:  # noqa: BLE001 - raised again by `watching`
            self._error = error
            return not asks

    def _see(self, tensor: int, asks: bool, _: object) -> bool:
        name = self._name(tensor).decode("ascii", "replace")
        if not WATCHED(name):
            return not asks
        if not asks:
            kind = ctypes.c_int32.from_address(tensor).value
            shape = (ctypes.c_int64 * 4).from_address(tensor + _SHAPE_OFFSET)
            size = self._bytes(tensor)
            if kind == 0 and shape[2] == shape[3] == 1 and size == 4 * shape[0] * shape[1]:
                rows = np.empty((shape[1], shape[0]), dtype=np.float32)
                self._get(tensor, rows.ctypes.data, 0, size)
                self.rows[name] = rows
        return True
