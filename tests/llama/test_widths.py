"""The probe tells exact widths from inexact ones, keeps what it finds, and the choice follows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import Cancelled, ModelError, UsageError
from localspec.llama import probe as probes
from localspec.llama import wide, widths
from localspec.llama.bench import Bench
from localspec.llama.choice import choose
from localspec.llama.configuration import ALL_KERNELS, CACHES, LLAMA_KERNELS
from localspec.llama.model import Model
from localspec.llama.probe import Probe, token_seconds
from localspec.llama.settings import ContextSettings
from localspec.llama.tile import tile
from tests import plain_decode
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, gguf_bytes, write

SETTINGS = ContextSettings(n_ctx=640, threads=2, type_v="bf16", flash_attention=True)


def test_finds_exact_widths(model: Model) -> None:
    found = widths.examine(model, replace(SETTINGS, threads=1), Probe(), widest=4)
    assert found.exact == frozenset({1, 2, 3, 4})
    assert found.by_length is not None
    assert {250, 508} < found.by_length.keys()


def test_finds_what_logits_hide(model: Model) -> None:
    """Without flash attention the attention output depends on the width, though logits mostly hide it."""
    settings = replace(SETTINGS, threads=1, flash_attention=False, type_v="f16")
    found = widths.examine(model, settings, Probe(), widest=3)
    assert found.exact == frozenset({1})


def test_trees_and_slots_are_examined_too(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, threads=1, n_ctx=320)
    assert widths.examine(model, replace(settings, max_leaves=2), Probe(), widest=4).exact == frozenset({1, 2, 3, 4})
    assert widths.examine(model, replace(settings, n_slots=2), Probe(), widest=4).exact == frozenset({1, 2, 3, 4})
    monkeypatch.setattr(Bench, "tree_equals", lambda self, length, width: width < 4)
    assert widths.examine(model, replace(settings, max_leaves=2), Probe(), widest=4).exact == frozenset({1, 2, 3})
    monkeypatch.setattr(Bench, "slots_equal", lambda self, length, slots, rows_each, other_length=0: False)
    assert widths.examine(model, replace(settings, n_slots=2), Probe(), widest=4).exact == frozenset({1})


def test_a_gap_ends_the_exact_widths(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "chain_equals", lambda self, length, width: width != 3)
    assert widths.examine(model, replace(SETTINGS, threads=1), Probe(), widest=5).exact == frozenset({1, 2})


def test_budget_and_cancel(model: Model) -> None:
    settings = replace(SETTINGS, threads=1)
    late = widths.examine(model, settings, Probe(), widest=4, budget=0.0)
    assert late.exact is None
    assert late.gave_up == 1
    with pytest.raises(Cancelled):
        widths.probe(model, settings, widest=2, cancel=lambda: True)


def test_measures_costs(model: Model) -> None:
    seen: list[float] = []
    settings = replace(SETTINGS, threads=1)
    found = widths.measure([(model, settings)] * 2, widest=3, rounds=2, progress=seen.append)
    assert len(found) == 2
    for probe in found:
        assert set(probe.seconds) == set(widths.cost_lengths(640))
        assert all(set(row) == {1, 2, 3} and min(row.values()) > 0 for row in probe.seconds.values())
        assert probe.prefill_rate > 100
        assert probe.exact is None
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_probe_survives_disk_and_damage_does_not(tmp_path: Path) -> None:
    probe = Probe({100: {1: 0.5, 2: 0.75}}, 80.0, {230: (2, 3)}, frozenset({1, 2, 3}))
    for value in (probe, Probe(), replace(probe, by_length=None, exact=None, gave_up=2)):
        probes.store(tmp_path / "new" / "folder", "key", value)
        assert probes.load(tmp_path / "new" / "folder", "key") == value
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["key.json"]
    path = tmp_path / "bad.json"
    good = probe.to_json()
    for text in ("", "{", "[]", "null", json.dumps({**good, "exact": [2]}), json.dumps({**good, "seconds": {"x": 1}})):
        path.write_text(text)
        assert probes.load(tmp_path, "bad") is None
    assert probes.load(tmp_path, "none") is None
    assert probes.load(None, "none") is None
    probes.store(None, "none", probe)
    probes.store(path, "below-a-file", probe)


def test_key_names_everything_that_changes_bits(model: Model) -> None:
    keys = {
        probes.cache_key(model.path, settings, widest)
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
    keys |= {probes.cache_key(model.path, SETTINGS, 8, kernels=kernels) for kernels in ALL_KERNELS}
    assert len(keys) == 12
    assert probes.cache_key(model.path, SETTINGS, 8) == probes.cache_key(model.path, replace(SETTINGS), 8)


def test_tiling_a_state_it_does_not_know() -> None:
    assert tile(b"", 5) is None
    assert tile(b"\0" * 11, 5) is None
    assert tile(b"\1" * 5000, 5) is None


def test_cost_counts_only_widths_allowed() -> None:
    probe = Probe({100: {1: 1.0, 2: 1.1, 3: 1.2}, 900: {1: 2.0, 2: 2.0, 3: 9.0}})
    assert token_seconds(probe, frozenset({1})) == 1.5
    assert token_seconds(probe, frozenset({1, 2})) == pytest.approx((1.1 / 1.7 + 2.0 / 1.7) / 2)
    assert token_seconds(probe, frozenset({1, 2, 3})) == pytest.approx((1.2 / 2.19 + 2.0 / 1.7) / 2)
    assert token_seconds(Probe(), frozenset({1})) == float("inf")


COSTS = {"F16 cache": 1.0, "F16 keys, BF16 values": 1.05, "Q8_0 cache": 1.3, "F16 cache, no flash attention": 0.98}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> dict[str, frozenset[int] | None]:
    """Replaces measuring by `COSTS` and examining by the returned table: cache name (" plain" added) -> exact."""
    exact: dict[str, frozenset[int] | None] = {}
    names = {(c.type_k, c.type_v, c.flash_attention): c.name for c in CACHES}

    def name(settings: ContextSettings) -> str:
        return names[settings.type_k, settings.type_v, settings.flash_attention]

    def measure(pairs: list[tuple[Model, ContextSettings]], **_: object) -> list[Probe]:
        rows = [COSTS[name(settings)] * (1 if model.kernels == "repacked" else 1.2) for model, settings in pairs]
        return [Probe({100: {width: cost * (1 + width / 9) for width in range(1, 5)}}, 1.0) for cost in rows]

    def examine(model: Model, settings: ContextSettings, known: Probe, **_: object) -> Probe:
        found = exact.get(name(settings) + (" plain" if model.kernels == "plain" else ""))
        return known if found is None else known.with_exact({100: tuple(found)}, found)

    monkeypatch.setattr(widths, "measure", measure)
    monkeypatch.setattr(widths, "examine", examine)
    return exact


ALL = frozenset({1, 2, 3, 4})


@pytest.mark.parametrize(
    ("table", "mode", "exact", "words"),
    [
        ({"F16 cache": ALL}, "auto", ALL, "exact: F16 cache, repacked weights"),
        ({"F16 keys, BF16 values": ALL}, "auto", ALL, "exact: F16 keys, BF16 values"),
        ({"Q8_0 cache": ALL}, "auto", None, "inexact: F16 cache, no flash attention, repacked"),
        ({"Q8_0 cache": ALL}, "strict", ALL, "exact: Q8_0 cache"),
        ({"F16 cache": frozenset({1}), "Q8_0 cache": ALL}, "strict", ALL, "exact: Q8_0 cache"),
        ({"F16 cache": frozenset({1})}, "strict", frozenset({1}), "exact: F16 cache"),
        ({"Q8_0 cache": frozenset({1, 2}), "Q8_0 cache plain": ALL}, "strict", ALL, "Q8_0 cache, plain weights"),
        (
            {"Q8_0 cache": frozenset({1, 2}), "Q8_0 cache plain": frozenset({1, 2})},
            "strict",
            frozenset({1, 2}),
            "repacked",
        ),
        ({}, "auto", None, "no exact configuration was found in time"),
        ({"F16 cache": ALL}, "off", None, "inexact: F16 cache, repacked weights (exactness is off)"),
    ],
)
def test_choice(
    scripted: dict[str, frozenset[int] | None],
    tiny_target: Path,
    tmp_path: Path,
    table: dict[str, frozenset[int]],
    mode: str,
    exact: frozenset[int] | None,
    words: str,
) -> None:
    scripted.update(table)
    for _ in range(2):  # the second time from disk
        options: dict[str, Any] = {"exact": mode, "widest": 4, "cache_dir": tmp_path, "kernels": LLAMA_KERNELS}
        chosen = choose(tiny_target, SETTINGS, **options)
        assert words in chosen.description
        assert chosen.context.exact_widths == exact
        assert chosen.exact == (exact is not None)
        assert chosen.model.kernels == ("plain" if "plain" in chosen.description else "repacked")
        assert str(chosen.configuration) in chosen.description
        chosen.close()
        if mode != "off" and table:
            scripted.clear()


def test_strict_without_an_exact_configuration(scripted: dict[str, frozenset[int] | None], tiny_target: Path) -> None:
    assert scripted == {}
    with pytest.raises(ModelError, match="no configuration"):
        choose(tiny_target, SETTINGS, exact="strict", widest=4, kernels=LLAMA_KERNELS)
    with pytest.raises(UsageError):
        choose(tiny_target, SETTINGS, exact="never")  # type: ignore[arg-type]
    for kernels in ((), ("wider",)):
        with pytest.raises(UsageError):
            choose(tiny_target, SETTINGS, kernels=kernels)  # type: ignore[arg-type]


def test_plain_decoding_is_that_of_the_independent_script(model: Model) -> None:
    """Token ids of the engine's building blocks equal those of a script that knows nothing of localspec."""
    from localspec.llama.context import Context
    from localspec.types import Feed

    prompt = model.tokenize("Sort these numbers: 9, 3, 7, 1. " * 30, special=False, add_bos=True)[:560]
    for settings in (replace(SETTINGS, threads=1), replace(SETTINGS, threads=1, type_v="f16")):
        options = {"threads": 1, "type_v": settings.type_v, "flash_attention": True, "n_ctx": 640}
        with wide.switched(False):
            expected = plain_decode.decode(model.path, prompt.tolist(), 12, **options)  # type: ignore[arg-type]
        context, history = Context(model, settings), prompt
        while len(history) < len(prompt) + len(expected):
            row = context.decode([Feed(0, history, len(prompt))])[0][0]
            history = np.append(history, np.int32(row.argmax()))
        assert history[len(prompt) :].tolist() == expected
        context.close()


def test_a_model_that_takes_no_drafts_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "mamba.gguf", gguf_bytes(MAMBA_METADATA, MAMBA_TENSORS))
    chosen = choose(path, ContextSettings(n_ctx=64, threads=1), exact="strict")
    assert chosen.exact
    assert chosen.context.exact_widths == frozenset({1})
    chosen.close()
