"""Hostile headers: any bytes, from any source, end in facts or in one sentence, in bounded time and memory."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.cli.commands.show import describe
from localspec.errors import ModelError, ModelFileError
from localspec.gguf import Header, read_header, read_header_from
from localspec.machine import Place
from localspec.models.facts.pairing import match
from localspec.models.memory.fit import FitSettings, choose
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, TINY_METADATA, gguf_bytes, string, tiny_tensors
from tests.models.made_models import Made, metadata_of, tensors_of

PLACES = [Place("CPU", "cpu", 8 << 30, 16 << 30), Place("CUDA0", "gpu", 4 << 30, 8 << 30)]
WHOLE = gguf_bytes()


def seeds() -> list[bytes]:
    """Sound files of several kinds, as short as they can be."""
    small: dict[str, Any] = {
        "vocabulary": 260,
        "embedding": 32,
        "feed_forward": 32,
        "heads": 2,
        "head": 16,
        "layers": 2,
    }
    made = [
        Made("gemma3", **small, metadata={"attention.sliding_window": 8}),
        Made("qwen3moe", **small, experts=2),
        Made("phi3", **small, fused=True),
    ]
    odd = {
        **TINY_METADATA,
        "general.architecture": "eagle3",
        "eagle3.target_hidden_size": 32,
        "eagle3.target_layers": [0, 0, 1],
        "eagle3.attention.head_count_kv": [1, 2, 3],
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m }}{% endfor %}",
    }
    written = [gguf_bytes(metadata_of(one), tensors_of(one)) for one in made]
    return [WHOLE, gguf_bytes(odd), gguf_bytes(MAMBA_METADATA, MAMBA_TENSORS), gguf_bytes(version=2), *written]


def source(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


REFERENCE = read_header_from(source(WHOLE), len(WHOLE), "reference.gguf")


def survives(data: bytes, size: int | None = None) -> bool:
    """Whether the bytes are a header; everything that is made of headers is made of it."""
    try:
        header = read_header_from(source(data), len(data) if size is None else size, "fuzz.gguf")
    except ModelFileError:
        return False
    with contextlib.suppress(ModelError):
        match(REFERENCE, header)
        match(header, REFERENCE)
        describe([header], FitSettings(), PLACES)
        choose(header, REFERENCE, FitSettings(), PLACES).sentence()
    return True


EXTREMES = [0, 1, 2, 7, 8, 9, 127, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1]


def damaged(data: bytes, chance: random.Random, header_bytes: int) -> bytes:
    """One to four mutations in and behind the header."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(min(header_bytes, len(found)) + 1)
        match chance.randrange(7):
            case 0:
                found[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                found[place : place + 8] = struct.pack("<Q", chance.choice(EXTREMES))
            case 2:
                found[place : place + 4] = struct.pack("<I", chance.choice(EXTREMES) & 0xFFFFFFFF)
            case 3:
                del found[place : place + chance.randint(1, 40)]
            case 4:
                start = chance.randrange(header_bytes)
                found[place:place] = found[start : start + chance.randint(1, 40)]
            case 5:
                start = chance.randrange(header_bytes)
                found[place : place + 24] = found[start : start + 24]
            case _:
                found[place : place + 1] = bytes([found[min(place, len(found) - 1)] ^ (1 << chance.randrange(8))])
    return bytes(found[: chance.randrange(len(found) + 1)] if chance.random() < 0.1 else found)


def header_end(data: bytes) -> int:
    header = read_header_from(source(data), len(data), "seed.gguf")
    return min((tensor.offset for tensor in header.tensors), default=len(data))


def cases(count: int, seed: int) -> Iterator[bytes]:
    """Mutated sound files; the tensor data, which nobody reads, is left out of sight behind the header."""
    chance, files = random.Random(seed), [(data, header_end(data)) for data in seeds()]
    for _ in range(count):
        data, end = chance.choice(files)
        yield damaged(data, chance, end)


def test_the_seeds_are_sound() -> None:
    assert all(survives(data) for data in seeds())


def test_mutated_files_fast() -> None:
    outcomes = [survives(data) for data in cases(2_000, seed=1)]
    assert 100 < sum(outcomes) < 1_900, "mutations that break nothing, or everything, test nothing"


@pytest.mark.trial
@pytest.mark.parametrize("seed", range(10))
def test_100_000_mutated_files(seed: int) -> None:
    outcomes = [survives(data) for data in cases(9_500, seed=1000 + seed)]
    assert any(outcomes)
    assert not all(outcomes)


@pytest.mark.trial
def test_mutations_of_the_bundled_file(tiny_target: Path) -> None:
    data, chance = tiny_target.read_bytes(), random.Random(5)
    end = header_end(data)
    early = len(data[: data.index(b"tokenizer.ggml.tokens")]) + 4_000
    for round_ in range(2_500):
        survives(damaged(data[: end + 64], chance, end if round_ % 2 else early), len(data))


@pytest.mark.trial
@settings(max_examples=2_500)
@given(st.binary(max_size=300), st.sampled_from([0, 1, 3, 1 << 40]), st.sampled_from([0, 1, 2, 1 << 40]))
def test_any_bytes_behind_counts(rest: bytes, tensors: int, values: int) -> None:
    survives(struct.pack("<4sIQQ", b"GGUF", 3, tensors, values) + rest)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.text(max_size=12), st.sampled_from(range(14)), st.binary(max_size=24)), max_size=6))
@example([("general.architecture", 8, struct.pack("<Q", 1 << 63))])
@example([("general.alignment", 10, struct.pack("<Q", 1 << 40))])
def test_any_values(rows: list[tuple[str, int, bytes]]) -> None:
    body = b"".join(string(key) + struct.pack("<I", kind) + data for key, kind, data in rows)
    survives(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(rows)) + body)


# -- lengths that lie ------------------------------------------------------------------------------------------------

HUGE = 1 << 42


def lying(kind: str, claim: int) -> bytes:
    """A header whose first value claims more than it has."""
    start = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
    match kind:
        case "name":
            return start + struct.pack("<Q", claim)
        case "text":
            return start + string("k") + struct.pack("<IQ", 8, claim)
        case "numbers":
            return start + string("k") + struct.pack("<IIQ", 9, 4, claim)
        case "texts":
            return start + string("k") + struct.pack("<IIQ", 9, 8, claim)
        case "text in texts":
            return start + string("k") + struct.pack("<IIQQ", 9, 8, 1000, claim)
        case "values":
            return struct.pack("<4sIQQ", b"GGUF", 3, 0, claim)
        case _:
            return struct.pack("<4sIQQ", b"GGUF", 3, claim, 0)


@pytest.mark.parametrize("kind", ["name", "text", "numbers", "texts", "text in texts", "values", "tensors"])
@pytest.mark.parametrize("claim", [1 << 33, 1 << 40, (1 << 64) - 1])
def test_a_lying_length_allocates_nothing(kind: str, claim: int, tmp_path: Path) -> None:
    """The file really is that large (a hole of 4 TiB), so its size does not give the lie away."""
    path = tmp_path / "lie.gguf"
    with path.open("wb") as file:
        file.write(lying(kind, claim))
        file.truncate(HUGE)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.trial
def test_a_header_without_end_is_given_up() -> None:
    """A server that makes up one metadata array of 8 MiB after the other."""
    asked: list[int] = []
    step = 1 << 23

    def read(offset: int, length: int) -> bytes:
        asked.append(length)
        first = max(0, (offset - 24) // step)
        out = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 16) if first == 0 and offset < 24 else b""
        for index in range(first, (offset + length) // step + 1):
            out += string(f"{index:08}") + struct.pack("<IIQ", 9, 0, step - 32) + bytes(step - 32)
        skip = offset - (24 + first * step if offset >= 24 else 0)
        return out[skip : skip + length]

    with pytest.raises(ModelFileError, match="ends beyond 256 MiB"):
        read_header_from(read, HUGE, "endless.gguf")
    assert sum(asked) <= 272 << 20


# -- other sources than files ----------------------------------------------------------------------------------------


def test_ranges_are_asked_front_to_back_in_growing_steps() -> None:
    metadata = {**TINY_METADATA, "long": list(range(1_500_000)), "texts": [f"text {i}" for i in range(300_000)]}
    data, asked = gguf_bytes(metadata), list[tuple[int, int]]()

    def read(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return data[offset : offset + length]

    header = read_header_from(read, len(data), "user/repo/file.gguf")
    steps = [length for _, length in asked]
    assert steps[:3] == [1 << 20, 1 << 21, 1 << 22]
    assert max(steps) <= 1 << 23
    assert [offset for offset, _ in asked] == [sum(steps[:i]) for i in range(len(steps))]
    assert sum(steps) <= len(data)
    count = len(asked)
    assert header.array("long")[-1] == 1_499_999
    assert header.array("texts")[-1] == "text 299999"
    assert header.tokens == TINY_METADATA["tokenizer.ggml.tokens"]
    assert len(asked) == count, "what came is kept"
    assert str(header.path) == "user/repo/file.gguf"


def test_a_remote_file_says_the_same_as_a_local_one(tiny_target: Path) -> None:
    data = tiny_target.read_bytes()
    remote, local = read_header_from(source(data), len(data), str(tiny_target)), read_header(tiny_target)
    assert remote == local
    assert remote.tokens == local.tokens
    assert remote.token_bytes == local.token_bytes == [token.encode() for token in local.tokens]


def test_a_source_that_fails_fails_as_it_likes() -> None:
    def read(offset: int, length: int) -> bytes:
        raise ConnectionError("cut")

    with pytest.raises(ConnectionError, match="cut"):
        read_header_from(read, 1000, "x.gguf")


@pytest.mark.parametrize("sends", [0, 3, 50, 500])
def test_a_source_that_ends_early_is_noticed(sends: int) -> None:
    with pytest.raises(ModelFileError, match="became shorter"):
        read_header_from(lambda offset, length: WHOLE[:sends][offset : offset + length], len(WHOLE), "x.gguf")


def test_a_source_that_sends_more_than_asked() -> None:
    header: Header = read_header_from(lambda offset, length: WHOLE[offset:] + b"x" * 100, len(WHOLE), "x.gguf")
    assert [tensor.name for tensor in header.tensors] == [name for name, _ in tiny_tensors()]


def test_a_size_that_is_not_that_of_the_file() -> None:
    with pytest.raises(ModelFileError, match="bytes are missing"):
        read_header_from(source(WHOLE), len(WHOLE) - 1, "x.gguf")
