"""Choosing a configuration where settings leave some kernels or number formats out."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.llama.choice import Mode, choose
from localspec.llama.configuration import CACHE_NAMES, Kernels
from localspec.llama.settings import ContextSettings

SETTINGS = ContextSettings(n_ctx=256, threads=1)


@pytest.mark.parametrize("exact", ["off", "auto"])
@pytest.mark.parametrize(
    ("kernels", "cache", "words"),
    [
        (("repacked",), "q8_0", "Q8_0 cache, repacked weights"),
        (("plain",), "f16", "F16 cache, plain weights"),
        (("wide", "repacked"), "unfused", "F16 cache, no flash attention, repacked weights"),
    ],
)
def test_only_what_is_allowed_is_chosen(
    tiny_target: Path, tmp_path: Path, exact: Mode, kernels: tuple[Kernels, ...], cache: str, words: str
) -> None:
    for _ in range(2):  # measured, and remembered
        chosen = choose(
            tiny_target,
            SETTINGS,
            exact=exact,
            kernels=kernels,
            caches=(CACHE_NAMES[cache],),
            cache_dir=tmp_path,
            budget=4.0,
        )
        try:
            assert str(chosen.configuration) == words
        finally:
            chosen.close()


def test_what_cannot_be_is_refused(tiny_target: Path) -> None:
    with pytest.raises(UsageError, match="wide kernels keep an f16 cache"):
        choose(tiny_target, SETTINGS, kernels=("wide",), caches=(CACHE_NAMES["q8_0"],))
    with pytest.raises(UsageError, match="No configuration"):
        choose(tiny_target, SETTINGS, caches=())
