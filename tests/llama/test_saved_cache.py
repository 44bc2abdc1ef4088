"""A cache that was saved comes back bit for bit, or not at all."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.runtime.kept import caches
from localspec.runtime.kept.caches import SavedCache
from localspec.types import Feed, Float32Array, Tokens
from tests.llama.conftest import MakeContext, chain, same_bits
from tests.llama.tiny_gguf import MAMBA_METADATA, MAMBA_TENSORS, TINY_METADATA, gguf_bytes, tiny_tensors, write

KEY = bytes(range(32))
ANY = b"k" * 32


def always(tokens: Tokens, prompt_length: int) -> bool:
    return True


def take(context: Context, slot: int = 0) -> SavedCache:
    """What a slot holds now."""
    tokens, prompt_length = context.held(slot)
    return SavedCache(tokens.copy(), prompt_length, context.save(slot))


def put(context: Context, saved: SavedCache, slot: int = 0) -> bool:
    return context.restore(slot, saved.state, saved.tokens, saved.prompt_length)


def through_a_file(path: Path, context: Context) -> SavedCache:
    caches.write(path, caches.key(context), take(context))
    found = caches.read(path, caches.key(context), always)
    assert found is not None
    return found


def rows_after(context: Context, prompt: Tokens, answer: Tokens) -> list[Float32Array]:
    """The last row of the prompt, one behind each token of the answer, and those of a draft."""
    found = []
    for count in range(len(answer) - 3):
        tokens = np.concatenate([prompt, answer[:count]])
        found.append(context.decode([Feed(0, tokens, len(prompt))])[0][0].copy())
    rows = context.decode([Feed(0, tokens, len(prompt), answer[-3:], chain(3))])[0]
    return [*found, *(rows[index].copy() for index in range(4))]


@pytest.fixture(scope="session")
def wide_model(tiny_target: Path) -> Iterator[Model]:
    if not wide.available():
        pytest.skip("no wide kernels here")
    with Model.load(tiny_target, kernels="wide") as loaded:
        yield loaded


# -- bits ------------------------------------------------------------------------------------------------------------

SETTINGS: list[dict[str, Any]] = [
    {},
    {"reuse": "chunks"},
    {"max_leaves": 4},
    {"threads": 2, "type_v": "f16"},
    {"type_k": "q8_0", "type_v": "q8_0"},
    {"flash_attention": False, "type_v": "f16"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_what_follows_has_the_bits_it_would_have_had(
    make: MakeContext, text: Tokens, tmp_path: Path, settings: dict[str, Any]
) -> None:
    went_on, resumed = make(**settings), make(**settings)
    check_resumed(went_on, resumed, text, tmp_path / "chat.kv")


@pytest.mark.parametrize("settings", [{"type_v": "f16"}, {"type_v": "f16", "reuse": "chunks"}], ids=str)
def test_bits_of_the_wide_kernels(wide_model: Model, text: Tokens, tmp_path: Path, settings: dict[str, Any]) -> None:
    one, other = (Context(wide_model, ContextSettings(n_ctx=1024, threads=1, **settings)) for _ in range(2))
    check_resumed(one, other, text, tmp_path / "chat.kv")


def check_resumed(went_on: Context, resumed: Context, text: Tokens, path: Path) -> None:
    """A chat of two turns: without a break, and with a break behind the first answer."""
    first, answer = text[:560], text[560:580]
    rows_after(went_on, first, answer)
    prompt, second = text[:640], text[640:650]
    saved = through_a_file(path, went_on)
    rows_after(resumed, text[700:800], text[800:810])  # another chat was there
    assert put(resumed, saved)
    assert resumed.reusable(0, prompt, 640) == went_on.reusable(0, prompt, 640) >= 512
    expected = rows_after(went_on, prompt, second)
    found = rows_after(resumed, prompt, second)
    assert all(same_bits(left, right) for left, right in zip(expected, found, strict=True))


def test_strict_reuse_gives_the_bits_of_a_fresh_run(make: MakeContext, text: Tokens, tmp_path: Path) -> None:
    before, fresh, resumed = (make(reuse="chunks") for _ in range(3))
    rows_after(before, text[:560], text[560:580])
    assert put(resumed, through_a_file(tmp_path / "chat.kv", before))
    assert resumed.reusable(0, text[:640], 640) == 512
    expected = rows_after(fresh, text[:640], text[640:650])
    found = rows_after(resumed, text[:640], text[640:650])
    assert all(same_bits(left, right) for left, right in zip(expected, found, strict=True))


def test_a_tree_behind_a_cache_that_came_back(make: MakeContext, text: Tokens, tmp_path: Path) -> None:
    one, other = make(max_leaves=4), make(max_leaves=4)
    tree = Feed(0, text[:301], 300, text[301:305], np.array([-1, 0, -1, 2], dtype=np.int32))
    one.decode([tree])
    assert put(other, through_a_file(tmp_path / "chat.kv", one))  # what no leaf may see any more is dropped
    left, right = (context.decode([tree])[0] for context in (one, other))
    assert all(same_bits(left[row], right[row]) for row in range(5))


def test_a_state_that_cannot_be_trimmed_comes_back_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "mamba.gguf", gguf_bytes(MAMBA_METADATA, MAMBA_TENSORS))
    tokens = np.arange(3, 63, dtype=np.int32)
    with Model.load(path) as model:
        one, other = (Context(model, ContextSettings(n_ctx=64, threads=1)) for _ in range(2))
        one.decode([Feed(0, tokens[:30], 30)])
        saved = through_a_file(tmp_path / "chat.kv", one)
        assert caches.usable(one, saved.tokens, 30, tokens[:40]) == 30
        assert caches.usable(one, saved.tokens, 30, tokens[:20]) == 0
        assert put(other, saved)
        rows = [context.decode([Feed(0, tokens[:40], 40)])[0][0].copy() for context in (one, other)]
        assert same_bits(*rows)


def windowed(path: Path, window: int) -> Path:
    """A model whose first layer sees `window` tokens and whose second sees all."""
    norms = [(f"blk.{layer}.post_{kind}.weight", (32,)) for layer in (0, 1) for kind in ("attention_norm", "ffw_norm")]
    second = [(name.replace("blk.0", "blk.1"), shape) for name, shape in tiny_tensors() if name.startswith("blk")]
    metadata = {key.replace("llama.", "gemma2."): value for key, value in TINY_METADATA.items()}
    metadata |= {"general.architecture": "gemma2", "gemma2.block_count": 2, "gemma2.attention.sliding_window": window}
    metadata |= {"gemma2.attention.key_length": 16, "gemma2.attention.value_length": 16}
    return write(path, gguf_bytes(metadata, [*tiny_tensors(), *second, *norms]))


@pytest.mark.parametrize(("window", "saved"), [(16, False), (63, False), (64, True), (4096, True)])
def test_windows_shorter_than_the_context_are_refused(tmp_path: Path, window: int, saved: bool) -> None:
    """llama.cpp saves what the window shows; trimmed back, such a cache would lack what it then must show."""
    tokens = np.arange(3, 63, dtype=np.int32)
    with Model.load(windowed(tmp_path / "windowed.gguf", window)) as model:
        one, other = (Context(model, ContextSettings(n_ctx=64, threads=1)) for _ in range(2))
        assert caches.can_save(one) is saved
        one.decode([Feed(0, tokens[:50], 50)])
        assert put(other, through_a_file(tmp_path / "chat.kv", one))
        rows = [context.decode([Feed(0, tokens[:40], 40)])[0][0].copy() for context in (one, other)]
        assert same_bits(*rows) is (saved or window == 63)


@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 0), (2, 2)])
def test_a_cache_comes_back_into_any_slot_beside_others(
    make: MakeContext, text: Tokens, tmp_path: Path, left: int, right: int
) -> None:
    one, other = make(n_slots=3), make(n_slots=3)
    one.prefill(left, text[:560], 560)
    caches.write(tmp_path / "a.kv", caches.key(one), take(one, left))
    for slot in range(3):  # what was there before, and what stays beside it
        other.prefill(slot, text[700 + slot : 900 + slot], 200)
    saved = caches.read(tmp_path / "a.kv", caches.key(other), always)
    assert saved is not None
    assert put(other, saved, right)
    for length in (560, 561, 600):
        (expected,) = one.decode([Feed(left, text[:length], 560)])
        bits = expected[0].copy()
        (found,) = other.decode([Feed(right, text[:length], 560)])
        assert same_bits(bits, found[0].copy())
    beside = (right + 1) % 3
    assert other.held(beside)[0].tolist() == text[700 + beside : 899 + beside].tolist()


# -- what must match -------------------------------------------------------------------------------------------------


def test_every_setting_is_part_of_the_key(make: MakeContext) -> None:
    changes: list[dict[str, Any]] = [
        *({"n_ctx": 512}, {"max_leaves": 2}, {"grid": 256}, {"threads": 2}, {"flash_attention": True}),
        *({"type_k": "bf16"}, {"type_v": "f16"}, {"reuse": "chunks"}, {"grid_prefill": False}, {"max_rows": 32}),
    ]
    keys = {caches.key(make(**change)) for change in ({}, *changes)}
    assert len(keys) == 1 + len(changes)
    assert caches.key(make()) in keys
    known = make()
    known.exact_widths = frozenset({1})
    assert caches.key(known) not in keys


def test_the_file_the_kernels_and_the_build_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tiny.gguf", gguf_bytes())

    def key(**options: Any) -> bytes:
        with Model.load(path, **options) as model:
            return caches.key(Context(model, ContextSettings(n_ctx=64, threads=1)))

    first = key()
    assert key() == first
    assert key(kernels="plain") != first
    with monkeypatch.context() as patch:
        patch.setattr(lib, "build_id", lambda: "another build")
        assert key() != first
    os.utime(path, (1, 1))
    assert key() != first


def test_another_key_is_refused(tmp_path: Path) -> None:
    caches.write(tmp_path / "a.kv", KEY, small())
    assert caches.read(tmp_path / "a.kv", KEY, always) is not None
    assert caches.read(tmp_path / "a.kv", ANY, always) is None


def test_the_state_is_read_only_if_it_is_wanted(tmp_path: Path) -> None:
    caches.write(tmp_path / "a.kv", KEY, small())
    asked: list[tuple[list[int], int]] = []

    def wanted(tokens: Tokens, prompt_length: int) -> bool:
        asked.append((tokens.tolist(), prompt_length))
        return False

    assert caches.read(tmp_path / "a.kv", KEY, wanted) is None
    assert asked == [([5, 6, 7], 2)]


# -- damage ----------------------------------------------------------------------------------------------------------


def small() -> SavedCache:
    return SavedCache(np.array([5, 6, 7], dtype=np.int32), 2, memoryview(bytes(range(200))))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "small.kv"
    caches.write(path, KEY, small())
    return path


def test_round_trip(file: Path) -> None:
    found = caches.read(file, KEY, always)
    assert found is not None
    assert found.tokens.dtype == np.int32
    assert (found.tokens.tolist(), found.prompt_length, bytes(found.state)) == ([5, 6, 7], 2, bytes(range(200)))


def test_only_the_owner_can_read_it(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def damaged(file: Path, change: Callable[[bytearray], None]) -> SavedCache | None:
    data = bytearray(file.read_bytes())
    change(data)
    copy = file.with_name("damaged.kv")
    copy.write_bytes(data)
    return caches.read(copy, KEY, always)


def test_every_truncation_is_refused(file: Path) -> None:
    size = file.stat().st_size
    for length in range(size):
        assert damaged(file, lambda data, length=length: data.__delitem__(slice(length, None))) is None  # type: ignore[misc]
    assert damaged(file, lambda data: data.extend(b"\0")) is None


def test_every_flipped_byte_is_refused(file: Path) -> None:
    for index in range(file.stat().st_size):
        assert damaged(file, lambda data, index=index: data.__setitem__(index, data[index] ^ 1)) is None  # type: ignore[misc]


@given(st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=40)), min_size=1, max_size=4))
def test_no_damage_raises(file: Path, changes: list[tuple[int, bytes]]) -> None:
    """Bytes overwritten, put in and cut off: nothing but what was written is ever believed."""
    whole = file.read_bytes()

    def change(data: bytearray) -> None:
        for at, new in changes:
            data[at : at + len(new) // 2] = new

    found = damaged(file, change)
    same = file.with_name("damaged.kv").read_bytes() == whole
    assert (found is not None) is same


@pytest.mark.parametrize("count", [0, 2**32 - 1])
def test_lengths_are_not_believed_before_they_are_checked(file: Path, count: int) -> None:
    assert damaged(file, lambda data: data.__setitem__(slice(44, 48), count.to_bytes(4, "little"))) is None


def test_what_is_no_file(tmp_path: Path) -> None:
    assert caches.read(tmp_path / "missing.kv", KEY, always) is None
    assert caches.read(tmp_path, KEY, always) is None


def test_llama_cpp_may_refuse_a_state(make: MakeContext, text: Tokens) -> None:
    context = make()
    context.prefill(0, text[:50], 50)
    assert not put(context, SavedCache(text[:9], 9, memoryview(b"nonsense" * 10)))
    assert context.cached(0) == 0


# -- disks -----------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.kv"
    caches.write(path, KEY, small())
    large = SavedCache(small().tokens, 2, memoryview(bytes(2**20)))
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
        with pytest.raises(OSError, match="large"):
            caches.write(path, KEY, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [found.name for found in tmp_path.iterdir()] == ["a.kv"]
    found = caches.read(path, KEY, always)
    assert found is not None
    assert len(found.state) == 200


WRITER = """
import sys
import numpy as np
from pathlib import Path
from localspec.runtime.kept import caches
for number in range(1, 100000):
    state = memoryview(bytes([number % 256]) * (4 * 2**20))
    saved = caches.SavedCache(np.full(100, number, dtype=np.int32), number, state)
    caches.write(Path(sys.argv[1]), bytes(range(32)), saved)
    print(number, flush=True)
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    """Whenever it dies, the file is the last one or the one before it, whole."""
    path = tmp_path / "a.kv"
    for trial in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.013 * trial)
            writer.kill()
            said = writer.stdout.read().split()
        found = caches.read(path, KEY, always)
        assert found is not None
        last = int(said[-1]) if said else 1
        assert found.prompt_length in (last, last + 1)
        assert bytes(found.state) == bytes([found.prompt_length % 256]) * (4 * 2**20)
