"""How a target runs: whose kernels, which cache, and which widths are exact; nothing is timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelError, ModelFileError, UsageError
from localspec.kept import FactStore
from localspec.llama.exact import choice, wide, widths
from localspec.llama.exact.choice import Mode, choose
from localspec.llama.exact.wide import CACHE_NAMES, Kernels
from localspec.llama.library.settings import ContextSettings
from tests.llama.keys import key
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, gguf_bytes, write

SETTINGS = ContextSettings(n_ctx=640, threads=1)
needs_wide = pytest.mark.skipif(not wide.available(), reason=wide.status().reason)


@pytest.fixture
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An examination is a fault."""

    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("it was examined")

    monkeypatch.setattr(widths, "examine", never)


@needs_wide
@pytest.mark.parametrize("mode", ["auto", "strict"])
@pytest.mark.parametrize("shape", [{}, {"n_slots": 4}, {"max_leaves": 8}], ids=str)
def test_the_bundled_target_is_exact_by_construction(
    tiny_target: Path, no_passes: None, mode: Mode, shape: dict[str, int]
) -> None:
    settings = replace(SETTINGS, reuse="chunks", **shape)  # type: ignore[arg-type]
    chosen = choose(tiny_target, settings, exact=mode, widest=32)
    assert chosen.context.exact_widths is not None
    assert chosen.proof == choice.Exactness(True, True, "")
    assert chosen.model.kernels == "wide"
    assert chosen.context.settings.reuse == "all"
    assert chosen.context.exact_widths == frozenset(range(1, 65))
    assert chosen.description == "exact: F16 cache, wide kernels (every width, by construction)"
    chosen.model.close()


@needs_wide
def test_off_claims_nothing(tiny_target: Path, no_passes: None) -> None:
    chosen = choose(tiny_target, SETTINGS, exact="off")
    assert chosen.context.exact_widths is None
    assert chosen.description == "inexact: F16 cache, wide kernels (exactness is off)"
    chosen.model.close()


@pytest.mark.parametrize(
    ("kernels", "cache", "words"),
    [
        ("repacked", "q8_0", "Q8_0 cache, repacked weights"),
        ("plain", "f16", "F16 cache, plain weights"),
        ("repacked", "unfused", "F16 cache, no flash attention, repacked weights"),
        pytest.param("wide", "bf16", "F16 keys, BF16 values, wide kernels", marks=needs_wide),
    ],
)
def test_wishes_are_kept(tiny_target: Path, no_passes: None, kernels: Kernels, cache: str, words: str) -> None:
    chosen = choose(tiny_target, SETTINGS, kernels=kernels, cache=CACHE_NAMES[cache])
    assert str(chosen.configuration) == words
    assert (chosen.context.exact_widths is not None) == (kernels == "wide"), chosen.description
    chosen.model.close()


def test_an_inexact_model_says_why(tiny_target: Path, no_passes: None) -> None:
    chosen = choose(tiny_target, replace(SETTINGS, reuse="chunks"), kernels="repacked")
    assert chosen.context.exact_widths is None
    assert chosen.context.settings.reuse == "chunks"
    assert chosen.description.startswith("inexact: F16 cache, repacked weights (the product ")
    assert chosen.description.endswith(" is llama.cpp's)")
    chosen.model.close()


def test_strict_examines_what_is_not_proved_and_remembers_it(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, said = replace(SETTINGS, n_ctx=320), list[str]()
    options: dict[str, Any] = {"exact": "strict", "kernels": "repacked", "cache": CACHE_NAMES["bf16"]}
    for _ in range(2):
        chosen = choose(
            tiny_target, settings, facts=FactStore(tmp_path), progress=lambda what, share: said.append(what), **options
        )
        assert chosen.context.exact_widths == frozenset(range(1, 9))
        assert chosen.description.endswith("(bits of real passes were compared)")
        chosen.model.close()
        monkeypatch.setattr(widths, "examine", None)
    assert any(what.startswith("checking bits, about ") and what.endswith(" s left") for what in said)


def test_strict_refuses_what_could_not_be_examined_in_time(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_EXAMINATION_SECONDS", 0.0)
    with pytest.raises(ModelError, match="could not be shown to be exact") as caught:
        choose(tiny_target, SETTINGS, exact="strict", kernels="repacked")
    assert caught.value.hint == "Use --exact auto."


def test_auto_does_not_use_what_strict_examined(tiny_target: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, n_ctx=320)
    modes: list[tuple[Mode, bool]] = [("auto", False), ("strict", True), ("auto", False)]
    for mode, exact in modes:
        chosen = choose(tiny_target, settings, exact=mode, kernels="repacked", facts=FactStore(tmp_path))
        assert (chosen.context.exact_widths is not None) == exact
        chosen.model.close()


def test_a_context_too_short_to_examine_has_exact_single_rows(tiny_target: Path) -> None:
    chosen = choose(tiny_target, replace(SETTINGS, n_ctx=16), exact="strict", kernels="repacked")
    assert chosen.context.exact_widths == frozenset({1})
    chosen.model.close()


def test_a_model_that_takes_no_drafts_is_exact(tmp_path: Path) -> None:
    path = write(tmp_path / "mamba.gguf", gguf_bytes(MAMBA_METADATA, MAMBA_TENSORS))
    modes: list[Mode] = ["auto", "strict"]
    for mode in modes:
        chosen = choose(path, ContextSettings(n_ctx=64, threads=1), exact=mode)
        assert chosen.context.exact_widths == frozenset({1})
        assert "nothing is drafted" in chosen.description
        chosen.model.close()


def test_a_model_on_a_gpu_is_llama_cpps(tiny_target: Path) -> None:
    chosen = choose(tiny_target, ContextSettings(n_ctx=64, threads=1), exact="off", gpu_layers=1)
    assert chosen.model.kernels == "repacked"
    chosen.model.close()


def test_what_cannot_be_is_refused(tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="exact is 'never'"):
        choose(tiny_target, SETTINGS, exact="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="kernels is 'wider'"):
        choose(tiny_target, SETTINGS, kernels="wider")  # type: ignore[arg-type]
    with pytest.raises(ModelFileError):
        choose(tmp_path / "none.gguf", SETTINGS)
    monkeypatch.setattr(wide, "available", lambda: False)
    with pytest.raises(ModelError, match="wide"):
        choose(tiny_target, SETTINGS, kernels="wide")
    chosen = choose(tiny_target, SETTINGS)
    assert chosen.model.kernels == "repacked"
    chosen.model.close()


def test_keys_of_examinations_name_what_decides(tiny_target: Path) -> None:
    by_weights: list[dict[str, Any]] = [{}, {"kernels": "plain"}, {"gpu_layers": 1}, {"device": "X"}]
    assert len({key(tiny_target, SETTINGS, 8, **where) for where in by_weights}) == 4


def test_another_driver_of_the_gpu_is_another_key_on_the_gpu_alone(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "_NVIDIA_VERSION", tmp_path / "version")
    found = []
    for text in ("", "NVRM version: 580.95\nGCC", "NVRM version: 580.105\nGCC"):
        (tmp_path / "version").write_text(text)
        found.append([key(tiny_target, SETTINGS, 8, gpu_layers=layers) for layers in (0, 99)])
    assert len({on_gpu for _, on_gpu in found}) == 3
    assert len({on_cpu for on_cpu, _ in found}) == 1
