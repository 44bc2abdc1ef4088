"""Weights of published heads: every number format, and files that are none."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec.errors import ModelFileError
from localspec.models.facts.heads import Tensors
from localspec.native.library import Int8Matrix

Given = tuple[str, npt.NDArray[Any]]


def write(path: Path, given: Mapping[str, Given], cut: int = 0, **changes: Any) -> Path:
    """A safetensors file of (number format, array as it is stored); `cut` bytes short, with changes to the header's
    first tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, array) in given.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    if changes:
        header[next(iter(given))] |= changes
    text = json.dumps(header).encode()
    data = b"".join(array.tobytes() for _, array in given.values())
    path.write_bytes((len(text).to_bytes(8, "little") + text + data)[: -cut or None])
    return path


VALUES = np.array(
    [[1.0, -2.5], [0.0, 448.0], [-0.001953125, 0.4375]], dtype=np.float32
)  # each is exact in every format
STORED: dict[str, npt.NDArray[Any]] = {
    "F32": VALUES,
    "F16": VALUES.astype(np.float16),
    "BF16": (VALUES.view(np.uint32) >> 16).astype(np.uint16),
    "F8_E4M3": np.array([[0x38, 0xC2], [0x00, 0x7E], [0x81, 0x2E]], dtype=np.uint8),
}


@pytest.mark.parametrize("kind", STORED)
def test_floats_in_every_format(kind: str, tmp_path: Path) -> None:
    tensors = Tensors(write(tmp_path / "a.safetensors", {"x": ("I8", np.zeros(3, np.int8)), "w": (kind, STORED[kind])}))
    assert tensors.shapes == {"x": (3,), "w": (3, 2)}
    found = tensors.array("w")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, VALUES)
    matrix = tensors.matrix("w")
    np.testing.assert_allclose(matrix.rows(np.arange(3)), VALUES, atol=448 / 254)


def test_eight_bits_with_a_scale_a_row_stay_as_they_are(tmp_path: Path) -> None:
    values, scales = np.array([[1, -127], [3, 4]], dtype=np.int8), np.array([[0.5], [2.0]], dtype=np.float32)
    tensors = Tensors(write(tmp_path / "a.safetensors", {"w": ("I8", values), "w_scale": ("F32", scales)}))
    np.testing.assert_array_equal(tensors.array("w"), values * scales)
    matrix = tensors.matrix("w")
    np.testing.assert_array_equal(matrix.values, values)
    np.testing.assert_array_equal(matrix.scales, scales[:, 0])


def test_scales_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    path, values = tmp_path / "a.safetensors", np.zeros((3, 2), dtype=np.int8)
    for name, count, words in (
        ("w_scale", 2, r"w_scale has 2 numbers for a tensor of 3 rows"),
        ("w_scale_inv", 1, r"w_scale_inv scales a tensor in blocks, which localspec does not read"),
    ):
        with pytest.raises(ModelFileError, match=words):
            Tensors(write(path, {"w": ("I8", values), name: ("F32", np.ones(count, dtype=np.float32))}))
    one = Tensors(write(path, {"w": ("I8", values + 1), "w_scale": ("F32", np.array([0.5], dtype=np.float32))}))
    np.testing.assert_array_equal(one.array("w"), np.full((3, 2), 0.5))


def test_large_matrices_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, read = np.random.default_rng(3), list[int]()
    weights = rng.normal(size=(9000, 3)).astype(np.float16)
    scales = rng.uniform(0.5, 2.0, (9000, 1)).astype(np.float32)
    path = write(tmp_path / "a.safetensors", {"w": ("F16", weights), "w_scale": ("F32", scales)})
    fromfile = np.fromfile

    def counted(file: Path, dtype: Any, count: int, offset: int) -> npt.NDArray[Any]:
        read.append(count if dtype == np.float16 else 0)
        return fromfile(file, dtype, count, offset=offset)

    monkeypatch.setattr(np, "fromfile", counted)
    tensors = Tensors(path)
    found = tensors.matrix("w")
    assert max(read) <= 3 * 4096
    assert sum(read) == weights.size
    whole = Int8Matrix.of(tensors.array("w"))
    np.testing.assert_array_equal(found.values, whole.values)
    np.testing.assert_array_equal(found.scales, whole.scales)


def test_a_folder_may_hold_several_files(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", {"a": ("F32", VALUES)})
    write(tmp_path / "model-2.safetensors", {"b": ("I64", np.array([5, 2**40]))})
    tensors = Tensors(tmp_path)
    assert set(tensors.shapes) == {"a", "b"}
    assert tensors.stored("b").tolist() == [5, 2**40]
    with pytest.raises(ModelFileError, match=r"lacks the tensor c\."):
        tensors.array("c")
    with pytest.raises(ModelFileError, match=r"tensor a is \[3, 2\]; \[3, 4\] is needed"):
        tensors.need("a", 3, 4)


def test_files_that_are_none_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path, good = tmp_path / "a.safetensors", {"w": ("F32", VALUES)}
    damaged = r"a\.safetensors is truncated, or no safetensors file: "
    for cut in (1, 40):
        with pytest.raises(ModelFileError, match=damaged):
            Tensors(write(path, good, cut))
    for changes, text in (
        ({"dtype": "U32"}, "tensor w is in U32, which localspec does not read"),
        ({"dtype": "X9"}, damaged),
        ({"shape": [3, 3]}, damaged),
        ({"shape": [-3, -2]}, damaged),
        ({"data_offsets": [-24, 0]}, damaged),
        ({"data_offsets": 7}, damaged),
        ({"shape": [float("inf")]}, damaged),
    ):
        with pytest.raises(ModelFileError, match=text):
            Tensors(write(path, good, 0, **changes))
    for data in (b"", b"\x10\0\0\0\0\0\0\0[1, 2, 3]       ", b"\xff" * 50, b"\x05\0\0\0\0\0\0\0{\xff\xff\xff}"):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=damaged):
            Tensors(path)


def test_a_file_that_shrinks_meanwhile_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": ("F32", VALUES)})
    tensors = Tensors(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelFileError, match="truncated at the tensor w"):
        tensors.array("w")


def test_a_pickle_needs_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModelFileError, match="is a pickle, which only torch reads, and torch is not installed"
    ) as error:
        Tensors(path)
    assert "safetensors" in error.value.hint


@pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cpu", "a fork"])
def test_a_torch_that_would_run_a_pickle_is_not_asked(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    with pytest.raises(ModelFileError, match=f"torch {re.escape(version)} can be made to run what is in one") as error:
        Tensors(path)
    assert "torch 2.10 or newer" in error.value.hint


def test_a_pickle_is_read_without_running_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "medusa_lm_head.pt"
    torch.save({"0.1.weight": torch.tensor(VALUES).bfloat16()}, path)
    np.testing.assert_array_equal(Tensors(path).array("0.1.weight"), VALUES)
    path.unlink()  # the old one may be mapped
    torch.save({"0.1.weight": torch.nn.Parameter(torch.tensor(VALUES)), "n": torch.tensor(7)}, path)
    np.testing.assert_array_equal(Tensors(path).array("0.1.weight"), VALUES)
    assert Tensors(path).stored("n") == 7
    path.unlink()
    torch.save({"0.1.weight": Path}, path)
    with pytest.raises(ModelFileError, match="cannot be read as weights of torch's"):
        Tensors(path)
