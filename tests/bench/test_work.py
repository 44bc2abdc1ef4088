"""Bytes and operations of a pass, reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.pass_times import Work, pass_work, per_layer, prefill_work
from localspec.gguf import Header, read_header
from tests.llama.tiny_gguf import gguf_bytes, write

KV_BYTES_PER_CELL = 2 * 2 * 16  # K and V, two bytes a value, one KV head of 16

EMBEDDING = ("token_embd.weight", (32, 100))
NORM = ("output_norm.weight", (32,))
QUERY = ("blk.0.attn_q.weight", (32, 32))
DOWN = ("blk.0.ffn_down.weight", (64, 32))
OUTPUT = ("output.weight", (32, 100))
EXPERTS = ("blk.0.ffn_up_exps.weight", (32, 64, 8))

Make = Callable[..., Header]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A file of float32 tensors: two heads of 16 values that share a KV head, one layer."""

    def make_header(*tensors: tuple[str, Sequence[int]], facts: dict[str, Any] | None = None) -> Header:
        own = {
            "block_count": 1,
            "embedding_length": 32,
            "attention.head_count": 2,
            "attention.head_count_kv": 1,
            **(facts or {}),
        }
        metadata = {"general.architecture": "x", **{f"x.{key}": value for key, value in own.items()}}
        return read_header(write(tmp_path / "x.gguf", gguf_bytes(metadata, tensors)))

    return make_header


def test_a_row_reads_all_weights_and_the_cache_once(make: Make) -> None:
    work = pass_work(make(EMBEDDING, NORM, QUERY, OUTPUT), 10, 1)
    assert work.read_bytes == 4 * (32 * 32 + 32 * 100) + 10 * KV_BYTES_PER_CELL
    assert work.operations == 2 * (32 * 32 + 32 * 100) + 2 * 2 * (16 + 16) * 10


def test_rows_share_what_is_read_and_see_one_another(make: Make) -> None:
    work = pass_work(make(EMBEDDING, NORM, QUERY, OUTPUT), 10, 3)
    assert work.read_bytes == 4 * (32 * 32 + 32 * 100) + 12 * KV_BYTES_PER_CELL
    assert work.operations == 3 * 2 * (32 * 32 + 32 * 100) + 2 * 2 * (16 + 16) * (10 + 11 + 12)


def test_tied_embeddings_are_the_output_matrix(make: Make) -> None:
    assert pass_work(make(EMBEDDING, NORM, QUERY), 0, 1).read_bytes == 4 * (32 * 32 + 32 * 100)


def test_prefill_leaves_out_what_only_logits_need(make: Make) -> None:
    work = prefill_work(make(EMBEDDING, QUERY, DOWN, OUTPUT), 5, 4)
    first = Work(4 * 32 * 32 + 4 * KV_BYTES_PER_CELL, 4 * 2 * 32 * 32 + 2 * 2 * 32 * (1 + 2 + 3 + 4))
    second = Work(4 * 32 * 32 + 5 * KV_BYTES_PER_CELL, 2 * 32 * 32 + 2 * 2 * 32 * 5)
    assert work == first + second


def test_a_row_uses_some_experts(make: Make) -> None:
    header = make(EXPERTS, facts={"expert_count": 8, "expert_used_count": 2})
    one, two = (pass_work(header, 1, width) for width in (1, 2))
    assert one.read_bytes == 4 * 32 * 64 * 2 + KV_BYTES_PER_CELL
    assert two.read_bytes == round(4 * 32 * 64 * 8 * (1 - 0.75**2)) + 2 * KV_BYTES_PER_CELL
    assert one.operations == 2 * 32 * 64 * 2 + 2 * 2 * 32


def test_layers_may_differ(make: Make) -> None:
    mixed = make(QUERY, facts={"block_count": 3, "attention.head_count_kv": [1, 0, 1]})
    assert per_layer(mixed, "attention.head_count_kv") == [1, 0, 1]
    assert pass_work(mixed, 10, 1).read_bytes == 4 * 32 * 32 + 2 * 10 * KV_BYTES_PER_CELL


def test_without_a_word_on_kv_heads_every_head_has_its_own(make: Make) -> None:
    assert per_layer(make(QUERY, facts={"attention.head_count_kv": 0}), "attention.head_count_kv") == [2]


def test_the_bundled_target(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    matrices = [tensor for tensor in header.tensors if len(tensor.shape) == 2]
    assert pass_work(header, 0, 1).read_bytes == sum(tensor.size for tensor in matrices)
    assert pass_work(header, 0, 1).operations == 2 * sum(t.shape[0] * t.shape[1] for t in matrices)
