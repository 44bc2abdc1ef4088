"""The kernel's self-test, which a device must pass before it serves: it finds one comparison turned round."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .host import COMPILER, NATIVE, Host, compile_host

TURNED = [
    ("token, logit) >= limits[row]", "token, logit) > limits[row]"),
    ("best = rank > best ?", "best = rank < best ?"),
]
MORE_TURNED = [
    ("(counters + round) >= count", "(counters + round) < count"),
    ("reach += top >= wanted", "reach += top < wanted"),
    ("highest = top > highest ?", "highest = top < highest ?"),
    ("scaled > LS_LARGEST ?", "scaled < LS_LARGEST ?"),
    ("mode == LS_BY_NOISE ? t", "mode != LS_BY_NOISE ? t"),
    ("tops[row * stripes + tid] < limits[row]", "tops[row * stripes + tid] >= limits[row]"),
    ("place < room", "place >= room"),
]


def test_it_passes(host: Host) -> None:
    assert host.self_test() == 0


def turn(right: str, wrong: str, folder: Path) -> int:
    """The self-test's word on the kernel with one comparison turned round."""
    if COMPILER is None or sys.platform == "win32":
        pytest.skip("needs a C++ compiler")
    source = (NATIVE / "gpu" / "kernel.h").read_text(encoding="utf-8")
    assert source.count(right) == 1
    return Host(compile_host(folder, source.replace(right, wrong))).self_test()


@pytest.mark.parametrize(("right", "wrong"), TURNED, ids=[wrong for _, wrong in TURNED])
def test_one_comparison_turned_round_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    assert turn(right, wrong, tmp_path) > 0


@pytest.mark.trial
@pytest.mark.parametrize(("right", "wrong"), MORE_TURNED, ids=[wrong for _, wrong in MORE_TURNED])
def test_every_other_comparison_too(right: str, wrong: str, tmp_path: Path) -> None:
    assert turn(right, wrong, tmp_path) > 0
