"""The examination tells exact widths from inexact ones and keeps what it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.errors import Cancelled
from localspec.llama.exact import wide, widths
from localspec.llama.exact.wide import ALL_KERNELS
from localspec.llama.exact.widths import Bench, tile
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from tests import plain_decode
from tests.llama.keys import key

SETTINGS = ContextSettings(n_ctx=640, threads=2, type_v="bf16", flash_attention=True)


def test_finds_exact_widths(model: Model) -> None:
    found = widths.examine(model, replace(SETTINGS, threads=1), widest=4)
    assert found == frozenset({1, 2, 3, 4})
    assert {250, 508} < set(widths.probe_lengths(SETTINGS.n_ctx))


def test_finds_what_logits_hide(model: Model) -> None:
    """Without flash attention the attention output depends on the width, though logits mostly hide it."""
    settings = replace(SETTINGS, threads=1, flash_attention=False, type_v="f16")
    found = widths.examine(model, settings, widest=3)
    assert found == frozenset({1})


def test_trees_and_slots_are_examined_too(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, threads=1, n_ctx=320)
    assert widths.examine(model, replace(settings, max_leaves=2), widest=4) == frozenset({1, 2, 3, 4})
    assert widths.examine(model, replace(settings, n_slots=2), widest=4) == frozenset({1, 2, 3, 4})
    monkeypatch.setattr(Bench, "tree_equals", lambda self, length, width: width < 4)
    assert widths.examine(model, replace(settings, max_leaves=2), widest=4) == frozenset({1, 2, 3})
    monkeypatch.setattr(Bench, "slots_equal", lambda self, length, slots, rows_each, other_length=0: False)
    assert widths.examine(model, replace(settings, n_slots=2), widest=4) == frozenset({1})


def test_a_gap_ends_the_exact_widths(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "chain_equals", lambda self, length, width: width != 3)
    assert widths.examine(model, replace(SETTINGS, threads=1), widest=5) == frozenset({1, 2})


def test_a_budget_that_runs_out_is_no_verdict(model: Model) -> None:
    late = widths.examine(model, replace(SETTINGS, threads=1), widest=4, budget=0.0)
    assert late is None


def test_progress_goes_to_the_end_and_may_give_up(model: Model) -> None:
    seen: list[float] = []
    settings = replace(SETTINGS, threads=1, n_ctx=320)
    widths.examine(model, settings, widest=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0

    def give_up(share: float) -> None:
        raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        widths.examine(model, settings, widest=2, progress=give_up)


def test_key_names_everything_that_changes_bits(model: Model) -> None:
    keys = {
        key(model.path, settings, widest)
        for settings, widest in (
            (SETTINGS, 8),
            (SETTINGS, 4),
            (replace(SETTINGS, threads=1), 8),
            (replace(SETTINGS, type_k="bf16"), 8),
            (replace(SETTINGS, type_v="q8_0"), 8),
            (replace(SETTINGS, flash_attention=False), 8),
            (replace(SETTINGS, grid=256), 8),
            (replace(SETTINGS, n_ctx=512), 8),
            (replace(SETTINGS, max_leaves=2), 8),
            (replace(SETTINGS, n_slots=2), 8),
        )
    }
    keys |= {key(model.path, SETTINGS, 8, kernels=kernels) for kernels in ALL_KERNELS}
    assert len(keys) == 12
    assert key(model.path, SETTINGS, 8) == key(model.path, replace(SETTINGS), 8)


def test_tiling_a_state_it_does_not_know() -> None:
    assert tile(b"", 5) is None
    assert tile(b"\0" * 11, 5) is None
    assert tile(b"\1" * 5000, 5) is None


def test_plain_decoding_is_that_of_the_independent_script(model: Model) -> None:
    """Token ids of the engine's building blocks equal those of a script that knows nothing of localspec."""
    from localspec.llama.cache.context import Context
    from localspec.types import Feed

    prompt = model.tokenize("Sort these numbers: 9, 3, 7, 1. " * 30, special=False, add_bos=True)[:560]
    for settings in (replace(SETTINGS, threads=1), replace(SETTINGS, threads=1, type_v="f16")):
        options = {"threads": 1, "type_v": settings.type_v, "flash_attention": True, "n_ctx": 640}
        with wide.switched(0):
            expected = plain_decode.decode(model.path, prompt.tolist(), 12, **options)  # type: ignore[arg-type]
        context, history = Context(model, settings), prompt
        while len(history) < len(prompt) + len(expected):
            row = context.decode([Feed(0, history, len(prompt))])[0][0]
            history = np.append(history, np.int32(row.argmax()))
        assert history[len(prompt) :].tolist() == expected
        context.close()
