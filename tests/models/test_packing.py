"""What of a model's weights our kernels do not pack, in bytes and in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.checks.doctor import examine_kernels
from localspec.gguf import read_header
from localspec.llama.exact import wide
from localspec.llama.model import Model
from localspec.models.facts.shape import unpacked
from tests.quantised import quantize


def test_a_file_whose_formats_are_all_packed(tiny_target: Path) -> None:
    parts = [read_header(tiny_target)]
    assert unpacked(parts) == ({}, "")


@pytest.mark.skipif(not wide.available(), reason=wide.status().reason)
def test_a_file_with_a_format_that_is_not(tiny_target: Path, tmp_path: Path) -> None:
    path = quantize(tiny_target, tmp_path / "tq1.gguf", "TQ1_0", threads=1)
    header = read_header(path)
    expected = sum(tensor.size for tensor in header.tensors if tensor.type == "TQ1_0")
    assert unpacked([header])[0] == {"TQ1_0": expected}
    all_bytes = sum(tensor.size for tensor in header.tensors if len(tensor.shape) == 2)
    share = f"TQ1_0 ({round(100 * expected / all_bytes)} %)"
    assert share in unpacked([header])[1]
    with Model.load(path, kernels="wide") as model:
        finding = examine_kernels(model)
        assert finding.value.startswith(f"wide; localspec's kernels do not pack {share}")
        assert "Q4_K_M" in finding.advice
    with Model.load(path, kernels="plain") as model:
        assert examine_kernels(model).value == "plain"
