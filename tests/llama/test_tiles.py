"""Who decides about llama.cpp's tiled kernels, and what is said of experts where they are in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.llama.exact import wide
from tests.llama import architectures
from tests.quantised import quantize

_SCRIPT = """
import sys
from localspec.llama.exact import choice, wide
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings

with choice.load(sys.argv[1], "wide") as model:
    said = choice.by_construction(Context(model, ContextSettings(n_ctx=512)), 16)
    print(wide.tiles_in_use(), said.widths, said.reason)
"""


_IN = "from localspec.llama.exact import wide as t\n"


def run(code: str, *arguments: str, **variables: str) -> str:
    """What a fresh process prints."""
    kept = {name: value for name, value in os.environ.items() if name != wide.TILES_VARIABLE}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("value", "on"), [("0", False), ("1", True), ("", False), ("off", False), ("-1", True)])
def test_what_the_user_has_set_stays(value: str, on: bool) -> None:
    code = _IN + "t.turn_off_tiles()\nprint(t.tiles_in_use(), t.os.environ[t.TILES_VARIABLE])"
    assert run(code, GGML_CPU_TILED_MM=value) == f"{on} {value}".strip()


def test_else_we_decide_and_our_children_do_again() -> None:
    assert run(_IN + "print(t.tiles_in_use(), t.turn_off_tiles(), t.tiles_in_use())") == "True None False"
    assert run(_IN + "print(t.tiles_in_use())", GGML_CPU_TILED_MM=wide._TILES_OFF) == "True"


def test_after_a_pass_it_is_too_late(tiny_target: Path) -> None:
    code = """
import sys
from localspec import Engine
from localspec.llama.exact import wide
with Engine.load(sys.argv[1], kernels="repacked", tuned=False) as engine:
    engine.generate("The river", max_tokens=2).text()
wide.turn_off_tiles()
print(wide.tiles_in_use())
"""
    assert run(code, str(tiny_target)) == "True"


@pytest.mark.parametrize("name", ["q4_K", "q6_K", "iq4_xs", "iq2_xxs", "iq1_m"])
def test_formats_with_tiles(name: str) -> None:
    assert wide.TILED_TYPES.fullmatch(name)
    assert not wide.TILED_TYPES.fullmatch(name + "x" if name.startswith("q") else "iq4_nl")
    assert not any(wide.TILED_TYPES.fullmatch(other) for other in ("f16", "q8_0", "q4_0", "mxfp4", "q8_K"))


@pytest.mark.skipif(not wide.available(), reason=wide.status().reason)
def test_experts_of_k_quants_are_exact_without_tiles_only(tmp_path: Path) -> None:
    file = quantize(architectures.write("qwen3moe", tmp_path), tmp_path / "k.gguf", "Q4_K_M", threads=1)
    assert run(_SCRIPT, str(file)) == "False True"
    said = run(_SCRIPT, str(file), GGML_CPU_TILED_MM="1")
    assert said.startswith("True False the product ffn_moe_")
    assert "_K) is llama.cpp's" in said
