"""The shipped DSpark and DFlash heads are laid out as llama.cpp's architecture `dflash` reads them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from localspec import paths
from localspec.gguf import Header, read_header
from localspec.models.facts.heads import TARGET_SHA256, draft_kind

HEADS = Path(__file__).resolve().parents[1] / "data" / "heads"
HIDDEN, FEED_FORWARD, QUERIES, KEYS, HEAD_SIZE, VOCABULARY, RANK = 256, 384, 256, 128, 64, 4096, 32
LAYER = {
    "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q_norm": (HEAD_SIZE,), "attn_k_norm": (HEAD_SIZE,),
    "attn_q": (HIDDEN, QUERIES), "attn_k": (HIDDEN, KEYS), "attn_v": (HIDDEN, KEYS), "attn_output": (QUERIES, HIDDEN),
    "ffn_gate": (HIDDEN, FEED_FORWARD), "ffn_up": (HIDDEN, FEED_FORWARD), "ffn_down": (FEED_FORWARD, HIDDEN),
}  # fmt: skip
EVERY_KIND = {
    "fc.weight": (3 * HIDDEN, HIDDEN), "enc.output_norm.weight": (HIDDEN,), "output_norm.weight": (HIDDEN,),
    **{f"blk.{layer}.{name}.weight": shape for layer in range(2) for name, shape in LAYER.items()},
}  # fmt: skip
MARKOV = {
    "markov_w1.weight": (RANK, VOCABULARY), "markov_w2.weight": (RANK, VOCABULARY),
    "conf_proj.weight": (HIDDEN + RANK, 1), "conf_proj.bias": (1,),
}  # fmt: skip


@pytest.fixture(scope="module", params=["dspark", "dflash"])
def head(request: pytest.FixtureRequest) -> Header:
    return read_header(HEADS / f"tiny-{request.param}-q8_0.gguf")


def test_tensors_are_all_there(head: Header) -> None:
    expected = EVERY_KIND | (MARKOV if draft_kind(head).method == "dspark" else {})
    shapes = {tensor.name: tensor.shape for tensor in head.tensors}
    assert {name: shape + (1,) * (len(shapes[name]) - len(shape)) for name, shape in expected.items()} == shapes
    for tensor in head.tensors:
        assert tensor.type == ("F32" if len(expected[tensor.name]) == 1 else "Q8_0")


def test_seven_guesses_from_the_layers_it_was_trained_on(head: Header) -> None:
    spark = draft_kind(head).method == "dspark"
    assert draft_kind(head).is_head
    assert head.number("block_size") == (7 if spark else 8)
    assert head.array("dflash.target_layers") == [1, 3, 5]
    assert head.flag("dflash.attention.causal") is False
    assert head.flag("dflash.sample_from_anchor") is (True if spark else None)
    assert head.flag("dflash.has_confidence_head") is (True if spark else None)


def test_belongs_to_the_bundled_target(head: Header) -> None:
    path = paths.bundled("tiny-target-q8_0.gguf")
    target = read_header(path)
    assert head.text(TARGET_SHA256) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert head.tokens == target.tokens
    assert head.metadata["tokenizer.ggml.mask_token_id"] == target.tokens.index("<|mask|>")
