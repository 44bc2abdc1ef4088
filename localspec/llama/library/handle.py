"""One llama_context: made of our settings, run and freed in the same way by every cache that sits on one; and what is
read of a pass where it left it: logits (`LogitsTap`), and intermediate results (`Observer`).

llama.cpp builds the samplers of a context into the graph of a pass, and copies the logits of those sequences only that
have no sampler. The sampler here adds nothing to the graph: it notes which tensor its input is a view of, and gives no
result. A graph that is used again keeps its tensors, so llama.cpp calls the sampler when it builds a graph, and in no
pass of the shape of the last one. It serves passes that llama.cpp computes in one piece: of one slot.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from localspec.errors import Cancelled, DecodeError, DeviceError, KernelError, LocalspecError, ModelError
from localspec.gguf import ROLLS_BACK
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.llama.library.lib import GgmlTensor
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model
from localspec.native.gpu import METAL, REASON_ROOM, Gpu
from localspec.native.library import THROWN, open_library
from localspec.types import Float32Array

_LOG = logging.getLogger("localspec")
_CUDA_SWITCH, _METAL_SWITCH = "LOCALSPEC_CUDA_KERNEL", "LOCALSPEC_METAL_KERNEL"
"""Environment variables: 1 = the kernel is used on such devices. It never ran on any, so it is not used unasked."""


def ordinal_of(name: str) -> int | None:
    """What `Gpu` opens for llama.cpp's device of this name; None where no kernel is to be used."""
    cuda = re.fullmatch(r"CUDA(\d+)", name)
    if cuda is not None and os.environ.get(_CUDA_SWITCH) == "1":
        return int(cuda[1])
    return METAL if re.match(r"MTL|Metal", name) and os.environ.get(_METAL_SWITCH) == "1" else None


def open_gpu(name: str) -> Gpu | None:
    """The GPU that llama.cpp calls so, after its self-test; None where it does not serve. The log says why not."""
    ordinal = ordinal_of(name)
    if ordinal is None:
        return None
    try:
        return Gpu(ordinal)
    except KernelError as error:
        if error.message:
            _LOG.warning("%s Logits are copied from %s and verified on the CPU.", error.message, name)
        return None


_guards = functools.cache(open_library)  # opening it declares all its functions: not for each pass


def guarded(name: str, function: Any, *arguments: int | None) -> int:
    """What a function of llama.cpp returns. Raises DeviceError: it threw, as Vulkan's backend does at a lost device."""
    reason = ctypes.create_string_buffer(REASON_ROOM)
    address = ctypes.cast(function, ctypes.c_void_p).value
    code = int(getattr(_guards(), name)(address, *arguments, ctypes.addressof(reason)))
    if code == THROWN:
        Model.device_lost = True
        raise DeviceError(f"llama.cpp could not evaluate a pass: {reason.value.decode('utf-8', 'replace')}.")
    return code


class LogitsTap:
    """The samplers of one context: made before it, and freed after it."""

    def __init__(self, params: Any, n_vocab: int) -> None:
        """Gives every sequence of a context that is to be made a sampler, in `params`, its llama_context_params."""
        self._chains: list[Any] = []
        self.gpu: Gpu | None = None  # preselects where the rows are; None = they are read whole
        _check_layout()
        self.calls = 0  # how often llama.cpp called a sampler: once for each row with logits of a graph that it built
        self._api = api = lib.api()
        self._row_bytes = 4 * n_vocab
        self._is_host = lib.c_function("ggml_backend_buffer_is_host")
        self._get = lib.c_function("ggml_backend_tensor_get")
        self._type_of = lib.c_function("ggml_backend_buffer_get_type")
        self._device_of = lib.c_function("ggml_backend_buft_get_device")
        self._name_of = lib.c_function("ggml_backend_dev_name")
        self._gpu_wanted = True
        self._tensor = 0  # the ggml_tensor with the logits of the last graph that has any; 0 = there was none
        self._error: BaseException | None = None
        self._interface = api.llama_sampler_i(
            backend_init=api.llama_sampler_i_backend_init(lambda *_: True),
            backend_apply=api.llama_sampler_i_backend_apply(self._called),
        )  # llama.cpp points to it
        count = params.n_seq_max
        for _ in range(count):
            chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
            api.llama_sampler_chain_add(chain, api.llama_sampler_init(ctypes.byref(self._interface), None))
            self._chains.append(chain)
        self._configs = (api.llama_sampler_seq_config * count)(*enumerate(map(lib.pointer_value, self._chains)))
        params.samplers, params.n_samplers = self._configs, count
        params.n_outputs_max_per_seq = params.n_outputs_max

    def _called(self, sampler: object, context: object, graph: object, data: Any) -> None:
        """llama.cpp builds a graph. No exception, not even Ctrl-C, may cross C: `rows` raises it."""
        try:
            view = GgmlTensor.from_address(data.contents.logits)  # of one row of the logits, to which it added one row
            data.contents.logits = None
            if view.view_src:  # else llama.cpp tries the sampler out
                found = GgmlTensor.from_address(view.view_src).src[0]
                if GgmlTensor.from_address(found).ne[1]:  # else the pass has no row with logits
                    self._tensor = found
                    self.calls += 1
        except BaseException as error:  # noqa: BLE001 - see above
            self._error = error

    def rows(self, count: int, buffer: int) -> int:
        """The address of the logits of the last pass, which must be over: float32[count, n_vocab], until the next. It
        is an address of the device `gpu`, if there is one after the call; then `fetch` copies from there. Raises
        DecodeError: the pass has fewer rows.

        `buffer` is the address of llama.cpp's own buffer for logits. Rows are copied there from a device that does not
        preselect and has a memory of its own; where llama.cpp takes no samplers, it has copied them itself.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._tensor:
            return buffer
        tensor = GgmlTensor.from_address(self._tensor)
        if tensor.ne[1] < count:
            raise DecodeError(f"The last pass left {tensor.ne[1]} rows of logits; {count} were asked for.")
        self._find_gpu(tensor.buffer)
        if self.gpu is not None or self._is_host(tensor.buffer):
            return int(tensor.data)
        guarded("ls_guard_get", self._get, self._tensor, buffer, 0, count * self._row_bytes)
        return buffer

    def fetch(self, address: int, out: Float32Array) -> None:
        """Copies logits of the last pass to the host: as many as `out` has, from this address of the device on."""
        offset = address - GgmlTensor.from_address(self._tensor).data
        guarded("ls_guard_get", self._get, self._tensor, out.ctypes.data, offset, out.nbytes)

    def _find_gpu(self, buffer: int) -> None:
        """At the first pass opens what preselects on the device of its logits; closes it after a failure."""
        if self._gpu_wanted:
            self._gpu_wanted = False
            device = self._device_of(self._type_of(buffer))
            self.gpu = open_gpu(self._name_of(device).decode()) if device else None
        if self.gpu is not None and self.gpu.failure:
            _LOG.warning("%s", self.gpu.failure)
            self.gpu.close()
            self.gpu = None

    def close(self) -> None:
        """Frees the samplers, and what is held on a GPU; a second call does nothing."""
        if self.gpu is not None:
            self.gpu.close()
            self.gpu = None
        while self._chains:
            self._api.llama_sampler_free(self._chains.pop())

    def __del__(self) -> None:
        self.close()


@functools.cache
def _check_layout() -> None:
    """Tries `GgmlTensor` out on tensors of ggml's own. Raises LocalspecError: they are laid out otherwise."""
    context = lib.c_function("ggml_init")(lib.InitParams(1 << 14, None, True))
    logits = lib.c_function("ggml_new_tensor_2d")(context, 0, 5, 3)
    padded = lib.c_function("ggml_pad")(context, logits, 0, 1, 0, 0)
    view = lib.c_function("ggml_view_1d")(context, padded, 5, 40)
    cpu = lib.c_function("ggml_backend_cpu_buffer_type")()
    buffer = lib.c_function("ggml_backend_alloc_ctx_tensors_from_buft")(context, cpu)
    tensor, seen = GgmlTensor.from_address(logits), GgmlTensor.from_address(view)
    right = (
        tensor.buffer == buffer
        and list(tensor.ne) == [5, 3, 1, 1]
        and tensor.data == lib.c_function("ggml_get_data")(logits)
        and GgmlTensor.from_address(padded).src[0] == logits
        and (seen.view_src, seen.view_offs) == (padded, 40)
    )
    lib.c_function("ggml_backend_buffer_free")(buffer)
    lib.c_function("ggml_free")(context)
    if not right:
        raise LocalspecError("This llama.cpp lays out its tensors otherwise than localspec declares them.")


WATCHED = re.compile(r"(kqv_out|ffn_out|ffn_moe_out|l_out)-\d+|result_norm").fullmatch
"""Graph nodes whose rows are tokens: attention, feed-forward and layer outputs, the final norm."""


class Observer:
    """Collects the rows of the watched nodes of the last pass. CPU and GPU; float32 nodes only.

    Activations are rounded to 8 bits before every product with quantised weights: a kernel that adds in another order
    at another width changes the logits only now and then. In the outputs of attention and layers it shows at once."""

    def __init__(self) -> None:
        self._name = lib.c_function("ggml_get_name")
        self._bytes = lib.c_function("ggml_nbytes")
        self._get = lib.c_function("ggml_backend_tensor_get")
        self.callback = lib.api().ggml_backend_sched_eval_callback(self._called)
        self.rows: dict[str, Float32Array] = {}  # node -> float32[rows, size] of the last pass
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

    def _see(self, address: int, asks: bool, _: object) -> bool:
        name = self._name(address).decode("ascii", "replace")
        if not WATCHED(name):
            return not asks
        tensor = GgmlTensor.from_address(address)
        size, rows, *rest = tensor.ne
        if not asks and tensor.type == 0 and rest == [1, 1] and self._bytes(address) == 4 * size * rows:
            self.rows[name] = np.empty((rows, size), dtype=np.float32)
            self._get(address, self.rows[name].ctypes.data, 0, self.rows[name].nbytes)
        return True


_FAULTS = {
    1: "there is no room in its cache for the pass",
    -1: "it refused the batch",
    -2: "it could not allocate memory for the pass",
    -3: "the computation failed",
}
"""{return code of llama_decode: what it means}."""


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
        """`what` is made, as an error names it after "llama.cpp could not make"; `hint` says what to do about it.
        `rows`: most rows of a pass that decodes. `logits_tap`: whose samplers are in `params`, a llama_context_params.
        Raises ModelError: llama.cpp refuses them for this model, or there is no memory."""
        self._api, self._open = lib.api(), model.contexts
        self._on_gpu = model.gpu_layers != 0
        self.wide_rows = rows if model.kernels == "wide" else 0  # see `wide.set_switch`
        self._threads = self._used = int(params.n_threads)  # threads that a pass should have, and those of the last one
        self.logits_tap = logits_tap  # reads logits in place; None = llama.cpp copies them. Closed with this
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

    def call(self, function: Any, batch: Any, wait: bool = True) -> None:
        """One pass: `function` is `llama_decode` or `llama_encode`, `batch` a llama_batch; without `wait` a GPU may not
        be through with it. It leaves CPUs to other programs where it is on our kernels: the bits of such passes do not
        depend on their threads. Raises Cancelled, DeviceError: the computation failed; DecodeError."""
        mark = lib.log.total  # `mark` would run code of llama.cpp that is cold between two passes
        wide.set_switch(self.wide_rows)  # passes are built in the call, on this thread
        with cpus.passing(self._threads if self.wide_rows else 0):
            if self.wide_rows and (threads := cpus.threads(self._threads)) != self._used:
                self._used = threads
                self._api.llama_set_n_threads(self.pointer, threads, threads)
            if self._on_gpu:
                code = guarded("ls_guard_pass", function, self.pointer, ctypes.addressof(batch))
            else:
                code = function(self.pointer, batch)
        if wait and not code:
            self.wait()
        if code == 2:  # the abort callback
            raise Cancelled("Stopped.")
        if code:
            what, reason = _FAULTS.get(code, f"it returned {code}"), lib.log.reason(mark)
            kind = DeviceError if code == -3 else DecodeError
            raise kind(f"llama.cpp could not evaluate a pass: {what}{f' ({reason})' if reason else ''}.")

    def wait(self) -> None:
        """Until a GPU is through with the pass. Raises DeviceError."""
        if self._on_gpu:
            guarded("ls_guard_wait", self._api.llama_synchronize, self.pointer)

    def close(self) -> None:
        """Frees the llama_context with all that its passes left there. A second call does nothing."""
        pointer, self.pointer = getattr(self, "pointer", None), None
        if pointer is not None and self._on_gpu and Model.device_lost:
            self._open.pop(pointer, None)
            return
        if pointer is not None and self._open.pop(pointer, None) is not None:  # else the model has freed it
            self._api.llama_free(pointer)
        if (tap := getattr(self, "logits_tap", None)) is not None:
            tap.close()

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def abortable(handle: int | None, cancel: Callable[[], bool] | None) -> Iterator[None]:
    """While it lasts, passes of the llama_context end with `Cancelled` as soon as `cancel` says so: llama.cpp asks
    after every node of a graph (on CPUs). Raises what `cancel` raised."""
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


EXTRA_ROWS = 16  # missing tokens that a pass takes along besides the last; more have passes of their own


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
