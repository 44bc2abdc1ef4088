"""Our settings as llama.cpp's parameters of a context, and the context that they make."""

from __future__ import annotations

from typing import Any

from localspec.gguf.formats import ROLLS_BACK
from localspec.llama.cache.states import Tap
from localspec.llama.exact.observe import Observer
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.library.logits_tap import LogitsTap
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model

EXTRA_ROWS = 16
"""A pass takes at most this many missing tokens along besides the last; more are computed in passes of their own."""


def most_rows(settings: ContextSettings) -> int:
    """Rows of the largest pass."""
    return max(settings.grid, settings.max_rows + settings.n_slots * EXTRA_ROWS)


def _most_outputs(settings: ContextSettings, tap: Tap) -> int:
    """Rows with logits of the largest pass; where final states are wanted, every row of a pass has some."""
    if tap.final == "all":
        return most_rows(settings)
    return settings.max_rows + (settings.n_slots * EXTRA_ROWS if tap.final == "decoded" else 0)


def most_nodes(model: Model, settings: ContextSettings) -> int:
    """Nodes of the longest draft that the cache can drop again; 0 = it takes no drafts."""
    if model.can_trim:
        return settings.max_rows - 1
    return settings.rollback if settings.n_slots == 1 and model.header.architecture in ROLLS_BACK else 0


def context_parameters(model: Model, settings: ContextSettings, threads: int, tap: Tap) -> Any:
    """A llama_context_params."""
    api = lib.api()
    params = api.llama_context_default_params()
    trees = settings.max_leaves > 1 and model.can_trim
    params.n_ctx = (settings.n_ctx + (settings.max_rows if trees else 0)) * settings.n_slots
    params.n_batch = params.n_ubatch = most_rows(settings)
    params.n_seq_max = settings.max_leaves if trees else settings.n_slots
    params.n_outputs_max = max(_most_outputs(settings, tap), params.n_seq_max)
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
    """The llama_context of these settings."""
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
