"""One llama_context: who frees it, and when."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np

from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed


def test_it_is_freed_with_its_last_owner_or_with_its_model(tiny_target: Path) -> None:
    with Model.load(tiny_target) as model:
        settings = ContextSettings(n_ctx=64, threads=1)
        dropped, closed, held = (Context(model, settings) for _ in range(3))
        assert len({context.handle.pointer for context in (dropped, closed, held)}) == 3
        rows = dropped.decode([Feed(0, np.array([1, 2, 3], dtype=np.int32), 3)])
        handle = dropped.handle
        del dropped, handle
        assert len(model.contexts) == 3, "rows point into its buffer"
        assert np.isfinite(rows[0][0]).all()
        del rows
        assert len(model.contexts) == 2
        closed.close()
        closed.close()
        assert closed.handle.pointer is None
        assert held.handle.pointer is not None
    assert held.handle.pointer is None


def test_of_garbage_contexts_go_before_their_model(tiny_target: Path) -> None:
    """A circle of both is found by the collector, which asks them in an order of its own."""

    class Recording:
        def __init__(self, api: Any) -> None:
            self._api = api

        def __getattr__(self, name: str) -> Any:
            if name in ("llama_free", "llama_model_free"):
                freed.append(name)
            return getattr(self._api, name)

    freed: list[str] = []
    gc.collect()
    gc.disable()
    try:
        model = Model.load(tiny_target)
        handles = [Context(model, ContextSettings(n_ctx=64, threads=1)).handle for _ in range(2)]
        api, circle = Recording(model._api), [model, *handles]
        for one in circle:
            vars(one).update(_api=api, circle=circle)
        del model, handles, one, circle
    finally:
        gc.enable()
    gc.collect()
    assert freed == ["llama_free", "llama_free", "llama_model_free"]
