"""The bundled pair in several quantisations, for the trials of exactness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec import Engine
from localspec.config import EngineSettings
from localspec.llama.exact import wide
from localspec.runtime.loading import load_models
from tests.quantised import quantize

THREADS = 2
QUANTISATIONS = ("Q8_0", "Q4_0", "Q4_K_M")
KERNELS = ("llama.cpp's", "wide")

Load = Callable[..., Engine]


@pytest.fixture(scope="session")
def quantised(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled target in every quantisation."""
    folder = tmp_path_factory.mktemp("quantised")
    paths = {"Q8_0": tiny_target}
    for name in QUANTISATIONS[1:]:
        paths[name] = folder / f"target-{name}.gguf"
        quantize(tiny_target, paths[name], name)
    return paths


@pytest.fixture(scope="module")
def load(quantised: dict[str, Path], tiny_draft: Path) -> Iterator[Load]:
    """Loads the pair with a target of some quantisation, kernels, slots and branches, strictly exact; keeps one."""
    held: list[tuple[tuple[str, str, int, int], Engine]] = []

    def get(name: str, kernels: str = KERNELS[0], slots: int = 1, branches: int = 2) -> Engine:
        wanted = (name, kernels, slots, branches)
        if kernels == "wide" and not wide.available():
            pytest.skip(f"no wide kernels here: {wide.status().reason}")
        if not held or held[0][0] != wanted:
            while held:
                held.pop()[1].close()
            settings = EngineSettings(
                quantised[name],
                tiny_draft,
                exact="strict",
                threads=THREADS,
                max_draft_tokens=7,
                branches=branches,
                slots=slots,
                drafter="none",
                kernels="wide" if kernels == "wide" else "repacked",
                cache="f16" if kernels == "wide" else "bf16",  # each with one that is exact
            )
            held.append((wanted, Engine(load_models(settings))))
        return held[0][1]

    yield get
    while held:
        held.pop()[1].close()
