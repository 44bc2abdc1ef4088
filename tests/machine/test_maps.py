"""Pages of mapped files are given back, only those, and nothing of what they hold is lost."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from localspec import machine
from localspec.llama.exact import wide
from localspec.llama.model import Model
from tests.machine.conftest import Plant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages of a file are in memory")

_CONTENT = os.urandom(1 << 20)


def _resident(path: Path) -> int:
    """KiB of a file's mappings that are in this process's memory."""
    name, total, ours = os.fsencode(path.resolve()).replace(b"\n", rb"\012"), 0, False
    for line in Path("/proc/self/smaps").read_bytes().split(b"\n")[:-1]:
        fields = line.split(maxsplit=5)
        if b"-" in fields[0]:
            ours = fields[5:] == [name]
        elif ours and fields[0] == b"Rss:":
            total += int(fields[1])
    return total


@pytest.mark.parametrize("name", ["weights.gguf", "with space\nand line.gguf", "with\rreturn.gguf", "part (1) ü.gguf"])
def test_pages_of_a_mapped_file_go_and_come_back(tmp_path: Path, name: str) -> None:
    path, other, link = tmp_path / name, tmp_path / "other.gguf", tmp_path / "link.gguf"
    link.symlink_to(path)
    for file in (path, other):
        file.write_bytes(_CONTENT)
    with path.open("rb") as first, other.open("rb") as second:
        mapped = mmap.mmap(first.fileno(), 0, prot=mmap.PROT_READ)
        left = mmap.mmap(second.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped[:] == left[:] == _CONTENT
        assert _resident(path) == _resident(other) == 1024
        assert machine.give_back([link]) == 1 << 20
        assert _resident(path) == 0
        assert _resident(other) == 1024
        assert mapped[:] == _CONTENT


def test_what_was_written_into_a_private_mapping_stays(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    path.write_bytes(_CONTENT)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    mapped[:4] = b"mine"
    assert machine.give_back([path]) == 0
    assert mapped[:4] == b"mine"


def test_nothing_is_mapped_nothing_is_done(tmp_path: Path) -> None:
    assert machine.give_back([tmp_path / "never.gguf"]) == 0
    assert machine.give_back([tmp_path / "never.gguf"], tmp_path) == 0
    assert machine.mapped_files(tmp_path) == []


def test_files_are_listed_once_and_what_is_no_file_is_left_out(plant: Plant) -> None:
    names = ("/a b/x.so", "/tmp/gone (deleted)", "[heap]", "/a b/x.so", "")
    lines = [f"7f{number}00-7f{number}10 r-xp 00000000 08:01 12   {name}" for number, name in enumerate(names)]
    assert machine.mapped_files(plant({"proc/self/maps": "\n".join(lines)})) == ["/a b/x.so", "/tmp/gone"]


def test_a_packed_model_leaves_no_pages_of_its_file(tiny_target: Path, tmp_path: Path) -> None:
    if not wide.available():
        pytest.skip(f"no wide kernels: {wide.status().reason}")
    path = tmp_path / "target.gguf"
    path.write_bytes(tiny_target.read_bytes())
    with Model.load(path, kernels="plain"):
        in_place = _resident(path)
    with Model.load(path, kernels="wide") as packed:
        assert _resident(path) < in_place / 2
        tokens = packed.tokenize("Maria bought 12 lanterns.", special=False, add_bos=True)
        assert packed.detokenize(tokens).strip() == "Maria bought 12 lanterns."


def test_a_model_that_loads_never_has_two_copies_of_its_weights(tiny_target: Path, tmp_path: Path) -> None:
    if not wide.available():
        pytest.skip(f"no wide kernels: {wide.status().reason}")
    path, found = tmp_path / "target.gguf", dict[float, int]()
    path.write_bytes(tiny_target.read_bytes())
    size = path.stat().st_size // 1024

    def told(share: float) -> bool:
        found[share] = _resident(path)
        return True

    with Model.load(path, kernels="wide", progress=told):
        late = [resident for share, resident in found.items() if share > 0.2]
    assert late
    assert max(late) < 0.8 * size, "what is packed has left; pages come back two megabytes at once"
