"""Any bytes at all lead to a header or to one clear sentence."""

from __future__ import annotations

import contextlib
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localspec.errors import ModelFileError
from localspec.gguf import Array, read_header
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, string, tiny_tensors, value, write

WHOLE = gguf_bytes()


def test_facts_of_the_bundled_target(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    assert header.architecture == "llama"
    assert header.quantisation == "Q8_0"
    assert header.n_layers == 6
    assert header.context_length == 2048
    assert header.chat_template
    assert header.parameters > 5_000_000
    assert header.file_bytes == tiny_target.stat().st_size
    assert header.tensor_bytes < header.file_bytes
    tokens = header.tokens
    assert isinstance(header.metadata["tokenizer.ggml.tokens"], Array), "long arrays stay in the file"
    assert len(tokens) == len(header.token_types) == 4096
    assert header.merges
    assert header.array("no.such.key") == []
    assert header.number("no.such.key") == 0
    last = max(header.tensors, key=lambda tensor: tensor.offset)
    assert last.offset + last.size <= header.file_bytes < last.offset + last.size + 32


def test_facts_of_a_written_file(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "tiny.gguf", WHOLE))
    assert header.name == "tiny"
    assert header.quantisation == "F32"
    assert header.tokens == TINY_METADATA["tokenizer.ggml.tokens"]
    assert header.chat_template is None
    assert [tensor.name for tensor in header.tensors] == [name for name, _ in tiny_tensors()]
    assert header.tensors[0].shape == (32, 260)


def test_missing_directory_empty_and_foreign(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        read_header(tmp_path)
    with pytest.raises(ModelFileError, match="is empty"):
        read_header(write(tmp_path / "empty.gguf", b""))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        read_header(write(tmp_path / "page.gguf", b"<!DOCTYPE html>"))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        read_header(write(tmp_path / "short.gguf", b"GG"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_header("nul\0byte.gguf")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=9), "version 9"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "do not fit"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 62) + b"x" * 40, "corrupt"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<I", 99) + b"x" * 40, "unknown type 99"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1) + b"x" * 40, "array of"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 1 << 50), "elements"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + (string("k") + value(1)) * 2 + b"x" * 40, "the name 'k' of another"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("") + value(1) + b"x" * 40, "no name"),
        (gguf_bytes({**TINY_METADATA, "general.alignment": 7}), "alignment is 7"),
        (gguf_bytes(tensors=[("a", (1, 1, 1, 1, 1))]), "5 dimensions"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("a") + struct.pack("<IIQ", 0, 14, 0), "have 1 elements"),
        (gguf_bytes(tensors=[("a", (4,)), ("a", (4,))]), "a repeat"),
        (gguf_bytes(tensors=[("a" * 64, (4,))]), "too long"),
        (WHOLE.replace(struct.pack("<IQQIQ", 2, 32, 260, 0, 0), struct.pack("<IQQIQ", 2, 32, 260, 77, 0)), "type 77"),
        (WHOLE.replace(struct.pack("<IQQIQ", 2, 32, 260, 0, 0), struct.pack("<IQQIQ", 2, 32, 260, 14, 0)), "multiple"),
        (WHOLE.replace(struct.pack("<IQQIQ", 2, 32, 260, 0, 0), struct.pack("<IQQIQ", 2, 32, 260, 0, 64)), "instead"),
        (WHOLE.replace(struct.pack("<IQQIQ", 2, 32, 260, 0, 0), struct.pack("<IQQIQ", 2, 32, 1 << 62, 0, 0)), "claims"),
    ],
)
def test_corrupt_in_one_place(tmp_path: Path, data: bytes, words: str) -> None:
    path = write(tmp_path / "bad.gguf", data)
    with pytest.raises(ModelFileError, match=words) as caught:
        read_header(path)
    assert str(path) in caught.value.message


def test_truncated_anywhere(tmp_path: Path) -> None:
    """Every length shorter than the whole is noticed, and past the header the missing bytes are counted."""
    path = tmp_path / "cut.gguf"
    data_start = len(WHOLE) - sum(t.size for t in read_header(write(path, WHOLE)).tensors)
    for length in [*range(1, data_start, 13), *range(data_start, len(WHOLE), 997), len(WHOLE) - 1]:
        write(path, WHOLE[:length])
        with pytest.raises(ModelFileError) as caught:
            read_header(path)
        if length >= data_start:
            assert f" {len(WHOLE) - length} bytes are missing" in caught.value.message


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_never_do_worse(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, 7000))] = data.draw(st.sampled_from([0, 1, 7, 8, 9, 127, 128, 255]))
    with contextlib.suppress(ModelFileError):
        header = read_header(write(tmp_path / "flip.gguf", bytes(damaged)))
        header.tokens, header.quantisation, header.name, header.parameters, header.context_length  # noqa: B018


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=400))
@example(b"\x03\x00\x00\x00" + b"\xff" * 40)
def test_any_bytes_behind_the_mark(tmp_path: Path, rest: bytes) -> None:
    with contextlib.suppress(ModelFileError):
        read_header(write(tmp_path / "any.gguf", b"GGUF" + rest))


def test_long_arrays_are_read_only_when_asked(tmp_path: Path) -> None:
    metadata = {**TINY_METADATA, "long.numbers": list(range(100_000)), "short": ["a", "b"]}
    header = read_header(write(tmp_path / "long.gguf", gguf_bytes(metadata)))
    assert isinstance(header.metadata["long.numbers"], Array)
    assert header.array("long.numbers")[-1] == 99_999
    assert header.metadata["short"] == ["a", "b"]
    write(header.path, WHOLE[:500])
    with pytest.raises(ModelFileError):
        header.array("long.numbers")


def test_is_a_leaf_module() -> None:
    assert "llama_cpp" not in vars(sys.modules["localspec.gguf"])
