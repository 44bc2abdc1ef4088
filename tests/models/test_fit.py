"""Memory plans: within 5 % of what llama.cpp allocates, and the right thing is given up when there is too little."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelFileError, UsageError
from localspec.gguf import Header, read_header
from localspec.gguf.spread import spread_of
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.machine import Place
from localspec.models.facts.shape import default_context, shape_of
from localspec.models.memory.fit import MIB, FitSettings, MemoryPlan, choose, layers, plan
from tests.models.made_models import Made, write_model
from tests.quantised import quantize

CPU = Place("CPU", "cpu", 64 << 30, 64 << 30)
BUFFER = re.compile(r"(?:model|KV|RS|compute|output) buffer size = *([\d.]+) MiB")
HEADS: Any = [("attn_q_norm.weight", (32,)), ("attn_k_norm.weight", (32,))]
AROUND: Any = [("post_attention_norm.weight", (256,)), ("post_ffw_norm.weight", (256,))]
WIDE_HEADS: Any = [("attn_q_norm.weight", (128,)), ("attn_k_norm.weight", (128,))]

SHAPES = {
    "llama": Made(),
    "own output matrix": Made(tied=False, vocabulary=32000),
    "qwen3": Made("qwen3", more_layer=HEADS),
    "one layer of Qwen3 0.6B": Made("qwen3", 1024, 3072, 16, 8, 128, 1, 151936, more_layer=WIDE_HEADS),
    "gemma3, sliding windows": Made(
        "gemma3", layers=7, more_layer=HEADS + AROUND, metadata={"attention.sliding_window": 512}
    ),
    "phi3, fused matrices": Made("phi3", fused=True),
    "qwen3moe": Made(
        "qwen3moe", experts=8, feed_forward=512, more_layer=HEADS, metadata={"expert_feed_forward_length": 512}
    ),
}
SETTINGS = (
    ContextSettings(n_ctx=512),
    ContextSettings(n_ctx=4096),
    ContextSettings(n_ctx=4096, flash_attention=False),
    ContextSettings(n_ctx=8192, type_k="q8_0", type_v="q8_0", flash_attention=True),
    ContextSettings(n_ctx=2048, n_slots=4),
    ContextSettings(n_ctx=2048, max_leaves=4),
)


@pytest.fixture
def long_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp says a lot when it makes a context."""
    monkeypatch.setattr(lib, "log", lib.Log(100_000))


def allocated(mark: int) -> float:
    """Bytes that llama.cpp reported after a log position."""
    sizes = (BUFFER.search(line) for _, line in lib.log.since(mark))
    return sum(float(found[1]) for found in sizes if found) * MIB


def same_settings(context: ContextSettings) -> FitSettings:
    """What a context of these settings allocates before its first pass."""
    trees = context.max_leaves > 1
    return FitSettings(
        context=context.n_ctx,
        slots=context.n_slots,
        type_k=context.type_k,
        type_v=context.type_v,
        flash_attention=context.flash_attention is not False,
        max_draft_tokens=context.max_leaves - 1 if trees else 0,
        branches=2 if trees else 1,
    )


def check_against_llama(path: Path, contexts: tuple[ContextSettings, ...]) -> None:
    header, mark = read_header(path), lib.log.mark()
    with Model.load(path, kernels="plain") as model:
        weights = allocated(mark)
        for settings in contexts:
            mark = lib.log.mark()
            Context(model, settings).close()
            real = weights + allocated(mark)
            (share,) = plan(header, None, same_settings(settings), [CPU]).shares
            assert share.weights == pytest.approx(weights, rel=0.01, abs=MIB / 50)
            assert share.total == pytest.approx(real, rel=0.05), settings


@pytest.mark.usefixtures("long_log")
@pytest.mark.parametrize("name", SHAPES)
def test_made_models_take_what_was_planned(name: str, tmp_path: Path) -> None:
    check_against_llama(write_model(tmp_path / "made.gguf", SHAPES[name]), SETTINGS)


@pytest.mark.usefixtures("long_log")
@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q4_0", "IQ4_NL", "F16"])
def test_the_bundled_pair_takes_what_was_planned(
    kind: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path
) -> None:
    for bundled in (tiny_target, tiny_draft):
        path = bundled if kind == "Q8_0" else quantize(bundled, tmp_path / "other.gguf", kind, threads=1)
        check_against_llama(path, SETTINGS)


@pytest.mark.usefixtures("long_log")
def test_weights_that_llama_reorders_are_counted_once(tiny_target: Path, tmp_path: Path) -> None:
    path, mark = quantize(tiny_target, tmp_path / "q4.gguf", "Q4_0", threads=1), lib.log.mark()
    with Model.load(path):
        copied = sum(
            float(found[1]) * MIB
            for _, line in lib.log.since(mark)
            if (found := re.search(r"REPACK model buffer size = *([\d.]+) MiB", line))
        )
    assert copied <= shape_of(read_header(path)).weight_bytes


def header(folder: Path, made: Made) -> Header:
    return read_header(write_model(folder / f"{made.architecture}-{made.layers}-{made.embedding}.gguf", made))


@pytest.fixture
def big(tmp_path: Path) -> Header:
    """64 MiB in 8 layers, 8 MiB of KV per 1,024 tokens."""
    return header(tmp_path, Made(embedding=512, heads=16, kv_heads=16, layers=8, context=32768))


@pytest.fixture
def small(tmp_path: Path) -> Header:
    return header(tmp_path, Made(layers=2))


def gpu(free: int, name: str = "CUDA0") -> Place:
    return Place(name, "gpu", free, 80 << 30)


def test_the_draft_counts(big: Header, small: Header) -> None:
    alone, both = (plan(big, draft, FitSettings(), [CPU]) for draft in (None, small))
    assert both.total_bytes > alone.total_bytes
    assert [share.model for share in both.shares] == ["target", "draft"]
    assert both.shares[0] == alone.shares[0]
    tight = replace(CPU, free_bytes=alone.needed("CPU") + 512 * MIB)
    assert plan(big, None, FitSettings(), [tight]).fits
    short = plan(big, small, FitSettings(), [tight])
    assert not short.fits
    assert short.missing(tight) == both.shares[1].total
    assert "does not fit" in short.sentence()
    assert "too little" in short.sentence()


def test_context_none_is_what_the_engine_takes(big: Header, small: Header) -> None:
    assert plan(big, None, FitSettings(), [CPU]).context == default_context(shape_of(big), total_bytes=CPU.total_bytes)
    assert plan(small, None, FitSettings(context=100), [CPU]).context == 100


def test_layers_go_to_the_gpu_from_the_last(big: Header) -> None:
    places = [CPU, gpu(8 << 30)]
    whole = plan(big, None, FitSettings(gpu_layers=-1), places)
    half = plan(big, None, FitSettings(gpu_layers=4), places)
    none = plan(big, None, FitSettings(gpu_layers=0), places)
    shape = shape_of(big)
    by_place = {share.place: share for share in whole.shares}
    assert (whole.gpu_layers, half.gpu_layers, none.gpu_layers) == (9, 4, 0)
    assert by_place["CUDA0"].weights == sum(layer.weights for layer in shape.layers) + shape.output_bytes
    assert by_place["CPU"].weights == shape.input_bytes
    assert by_place["CPU"].cache == 0
    copy = shape.output_bytes  # of the embeddings, as the output matrix
    assert sum(share.weights for share in half.shares) == shape.weight_bytes + copy
    assert none.needed("CUDA0") == 0
    assert sum(share.cache for share in half.shares) == sum(share.cache for share in none.shares)


def test_two_gpus_share_by_what_is_free(big: Header) -> None:
    found = plan(big, None, FitSettings(gpu_layers=-1), [CPU, gpu(6 << 30), gpu(2 << 30, "CUDA1")])
    weights = {share.place: share.weights for share in found.shares}
    assert weights["CUDA0"] > 2 * weights["CUDA1"] > 0
    asked = [CPU, replace(gpu(6 << 30), part=1.0), replace(gpu(2 << 30, "CUDA1"), part=3.0)]
    weights = {share.place: share.weights for share in plan(big, None, FitSettings(gpu_layers=-1), asked).shares}
    assert weights["CUDA1"] > 1.9 * weights["CUDA0"] > 0


def room_for(plans: MemoryPlan) -> int:
    """All the memory of a GPU that holds just this."""
    return plans.needed("CUDA0") + 1024 * MIB


def with_gpu(total: int, free: int = 0) -> list[Place]:
    return [CPU, Place("CUDA0", "gpu", free or total, total, "a card")]


def test_auto_is_nothing_without_a_gpu(big: Header, small: Header) -> None:
    assert layers(big, small, FitSettings(), [CPU]) == (0, 0)
    assert plan(big, small, FitSettings(), [CPU]) == plan(big, small, FitSettings(gpu_layers=0), [CPU])


def test_auto_puts_the_target_first_and_the_draft_beside_it(big: Header, small: Header) -> None:
    roomy = with_gpu(80 << 30)
    target = plan(big, small, FitSettings(gpu_layers=-1, draft_gpu_layers=0), roomy)
    both = plan(big, small, FitSettings(gpu_layers=-1, draft_gpu_layers=-1), roomy)
    assert layers(big, small, FitSettings(), roomy) == (-1, -1)
    assert layers(big, small, FitSettings(), with_gpu(room_for(both))) == (-1, -1)
    assert layers(big, small, FitSettings(), with_gpu(room_for(both) - 1)) == (-1, 0)
    assert layers(big, small, FitSettings(), with_gpu(room_for(target))) == (-1, 0)
    some, draft = layers(big, small, FitSettings(), with_gpu(room_for(target) - 1))
    assert 0 < some <= 8
    assert draft == -1  # it fits into what is too little for another layer
    full = plan(big, small, FitSettings(gpu_layers=some, draft_gpu_layers=0), roomy)
    assert layers(big, small, FitSettings(), with_gpu(room_for(full))) == (some, 0)
    assert layers(big, small, FitSettings(), with_gpu(1 << 20)) == (0, 0)


@pytest.mark.parametrize("some", range(9))
def test_auto_takes_as_many_layers_as_fit(big: Header, some: int) -> None:
    told = plan(big, None, FitSettings(gpu_layers=some), with_gpu(80 << 30))
    assert layers(big, None, FitSettings(), with_gpu(room_for(told)))[0] == some


def test_auto_counts_caches(big: Header) -> None:
    room = with_gpu(room_for(plan(big, None, FitSettings(gpu_layers=-1, context=4096), with_gpu(80 << 30))))
    assert layers(big, None, FitSettings(context=4096), room)[0] == -1
    assert 0 < layers(big, None, FitSettings(context=8192), room)[0] < 9
    assert 0 < layers(big, None, FitSettings(context=4096, slots=2), room)[0] < 9


def test_auto_looks_at_all_memory_and_not_at_what_is_free(big: Header, small: Header) -> None:
    free = [layers(big, small, FitSettings(), with_gpu(80 << 30, free)) for free in (1, 1 << 30, 80 << 30)]
    assert free == [(-1, -1)] * 3
    busy = [replace(CPU, free_bytes=1), *with_gpu(80 << 30)[1:]]
    assert layers(big, small, FitSettings(), busy) == (-1, -1)


def test_auto_keeps_the_numbers_that_are_given(big: Header, small: Header) -> None:
    roomy = with_gpu(80 << 30)
    assert layers(big, small, FitSettings(gpu_layers=3), roomy) == (3, -1)
    assert layers(big, small, FitSettings(gpu_layers=0), roomy) == (0, 0)
    assert layers(big, small, FitSettings(draft_gpu_layers=0), roomy) == (-1, 0)
    assert layers(big, small, FitSettings(gpu_layers=0, draft_gpu_layers=2), roomy) == (0, 2)


def test_auto_leaves_the_system_a_quarter_of_unified_memory(big: Header) -> None:
    def shared(ram: int) -> list[Place]:
        return [replace(CPU, total_bytes=ram), Place("MTL0", "gpu", ram, ram, "Apple M2 Pro", True)]

    wanted = FitSettings(context=4096)
    needed = plan(big, None, replace(wanted, gpu_layers=-1), shared(80 << 30)).needed("MTL0") + 1024 * MIB
    assert layers(big, None, wanted, shared(needed * 4 // 3 + 4))[0] == -1
    assert layers(big, None, wanted, shared(needed * 4 // 3 - 4))[0] != -1
    assert layers(big, None, wanted, shared(needed))[0] != -1


def test_unified_memory_is_taken_once(big: Header) -> None:
    def shared(unified: bool, room: int) -> MemoryPlan:
        apple = Place("MTL0", "gpu", 40 << 30, 48 << 30, "Apple M2 Pro", unified)
        return plan(big, None, FitSettings(gpu_layers=-1), [replace(CPU, free_bytes=room), apple])

    whole = shared(True, 64 << 30)
    enough = whole.total_bytes + 512 * MIB
    assert whole.fits
    assert shared(True, enough).fits
    assert not shared(True, enough - 1).fits
    assert shared(False, enough - 1).fits  # memory of its own


EXPERTS = {"expert_feed_forward_length": 512}


def test_experts_on_the_cpu_take_none_of_the_gpu(tmp_path: Path) -> None:
    found = header(tmp_path, Made("qwen3moe", layers=4, experts=8, metadata=EXPERTS))
    sizes = [tensor.size for tensor in found.tensors if "_exps" in tensor.name]
    room = [Place("CPU", "cpu", 0), gpu(1 << 34)]

    def weights(**given: Any) -> tuple[int, int]:
        made = plan(found, None, FitSettings(context=512, gpu_layers=-1, **given), room)
        on = {share.place: share.weights for share in made.shares}
        return on["CUDA0"], on["CPU"]

    on_gpu, on_cpu = weights()
    for layers_off, some in ((-1, sum(sizes)), (4, sum(sizes)), (1, sum(sizes) // 4)):
        assert weights(cpu_moe=layers_off) == (on_gpu - some, on_cpu + some)
    assert weights(override_tensor=r"blk\.[01]\..*_exps=CPU") == (on_gpu - sum(sizes) // 2, on_cpu + sum(sizes) // 2)
    whole = shape_of(found)
    assert shape_of(found, spread=spread_of("layer", None, -1)).weight_bytes == whole.weight_bytes


def test_tensors_that_move_to_a_gpu_without_layers_count_there(big: Header) -> None:
    rooms = [Place("CPU", "cpu", 0), gpu(1 << 34), gpu(1 << 34, "CUDA1")]
    made = plan(big, None, FitSettings(context=512, gpu_layers=1, override_tensor="blk.0.ffn_up=CUDA1"), rooms)
    (moved,) = [share for share in made.shares if share.place == "CUDA1"]
    (up,) = [tensor.size for tensor in big.tensors if tensor.name == "blk.0.ffn_up.weight"]
    assert (moved.weights, moved.cache) == (up, 0)


def test_more_layers_fit_without_their_experts(tmp_path: Path) -> None:
    found = header(tmp_path, Made("qwen3moe", layers=8, experts=16, metadata=EXPERTS))
    some = plan(found, None, FitSettings(context=512, gpu_layers=3), [Place("CPU", "cpu", 0), gpu(0)])
    room = with_gpu(room_for(some))
    assert layers(found, None, FitSettings(context=512), room) == (3, 0)
    assert layers(found, None, FitSettings(context=512, cpu_moe=-1), room) == (-1, 0)


def test_choosing_without_a_limit_takes_the_whole_context(big: Header, small: Header) -> None:
    found = choose(big, small, FitSettings(), [CPU])
    assert (found.context, found.type_k, found.fits) == (32768, "f16", True)


def needed(big: Header, small: Header, **settings: Any) -> int:
    return plan(big, small, FitSettings(**settings), [CPU]).needed("CPU") + 512 * MIB


def test_choosing_gives_up_the_cache_type_before_the_context(big: Header, small: Header) -> None:
    room = needed(big, small, context=32768, type_k="q8_0", type_v="q8_0")
    found = choose(big, small, FitSettings(), [replace(CPU, free_bytes=room)])
    assert (found.context, found.type_k, found.type_v) == (32768, "q8_0", "q8_0")
    found = choose(big, small, FitSettings(), [replace(CPU, free_bytes=room - 1)])
    assert (found.context, found.type_k) == (16384, "f16")
    assert found.fits
    found = choose(big, small, FitSettings(context=32768), [replace(CPU, free_bytes=room - 1)])
    assert (found.context, found.fits) == (32768, False)


def test_choosing_says_so_when_nothing_fits(big: Header, small: Header) -> None:
    found = choose(big, small, FitSettings(), [replace(CPU, free_bytes=MIB)])
    assert not found.fits
    assert (found.context, found.type_k) == (4096, "q8_0")


def test_choosing_uses_the_gpu_whole_then_in_part(big: Header, small: Header) -> None:
    def on(free: int) -> MemoryPlan:
        return choose(big, small, FitSettings(), [CPU, gpu(free)])

    roomy, tight, tiny = on(40 << 30), on(1024 * MIB + 130 * MIB), on(1024 * MIB + 60 * MIB)
    assert (roomy.context, roomy.gpu_layers, roomy.draft_gpu_layers) == (32768, 9, 3)
    assert (tight.context, tight.gpu_layers, tight.draft_gpu_layers) == (4096, 9, 3)
    assert 0 < tiny.gpu_layers < 9
    assert all(found.fits for found in (roomy, tight, tiny))
    nothing = on(1 << 20)
    assert (nothing.gpu_layers, nothing.needed("CUDA0"), nothing.fits) == (0, 0, True)


def test_unknown_memory_is_no_reason_to_refuse(big: Header) -> None:
    found = plan(big, None, FitSettings(), [Place("CPU", "cpu", 0)])
    assert found.fits
    assert "free" not in found.sentence()


def test_a_plan_as_plain_data(big: Header, small: Header) -> None:
    data = plan(big, small, FitSettings(), [CPU]).as_dict()
    assert data["fits"] is True
    assert data["total_bytes"] == sum(s["weights"] + s["cache"] + s["compute"] for s in data["shares"])
    assert data["places"][0]["name"] == "CPU"


def test_parts_of_a_split_model_count_together(big: Header) -> None:
    half = len(big.tensors) // 2
    parts = [replace(big, tensors=big.tensors[:half]), replace(big, tensors=big.tensors[half:])]
    assert plan(parts, None, FitSettings(), [CPU]).shares == plan(big, None, FitSettings(), [CPU]).shares


def test_shared_and_prediction_layers_keep_no_cache(tmp_path: Path) -> None:
    made = Made(layers=6, metadata={"attention.shared_kv_layers": 2})
    assert [layer.key > 0 for layer in shape_of(header(tmp_path, made)).layers] == [True] * 4 + [False] * 2
    latent = Made("deepseek2", more_layer=[("attn_kv_a_mqa.weight", (256, 576))])
    found = shape_of(header(tmp_path, latent)).layers[0]
    assert (found.key, found.value) == (576, 0)
    extra = Made("qwen3", more_layer=[("nextn.eh_proj.weight", (512, 256))])
    assert all(layer.key == 0 for layer in shape_of(header(tmp_path, extra)).layers)


def test_recurrent_layers_keep_a_state(tmp_path: Path) -> None:
    sizes = {"ssm.inner_size": 512, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.group_count": 1}
    made = Made("falcon-h1", more_layer=[("ssm_in.weight", (256, 1024))], metadata=sizes)
    shape = shape_of(header(tmp_path, made))
    assert shape.guessed
    assert {layer.state for layer in shape.layers} == {16 * 512 + 3 * (512 + 32)}
    assert all(layer.key for layer in shape.layers)


@pytest.mark.parametrize(("slots", "snapshots"), [(1, 4), (2, 0)])
def test_only_a_target_that_drafts_keeps_snapshots(tmp_path: Path, slots: int, snapshots: int) -> None:
    sizes = {"ssm.inner_size": 512, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.group_count": 1}
    made = header(tmp_path, Made("nemotron_h", more_layer=[("ssm_in.weight", (256, 1024))], metadata=sizes))
    target, draft = plan(made, made, FitSettings(context=512, slots=slots), [CPU]).shares
    state = 4 * sum(layer.state for layer in shape_of(made).layers)
    assert state > 0
    assert target.cache - draft.cache == snapshots * state


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cache type 'q9'"):
        FitSettings(type_k="q9")
    with pytest.raises(UsageError, match="context is 0"):
        FitSettings(context=0)
    found = header(tmp_path, Made(layers=1))
    wild = replace(found.tensors[2], name="blk.99999999999.attn_q.weight")
    with pytest.raises(ModelFileError, match="layer 99999999999"):
        shape_of(replace(found, tensors=(*found.tensors, wild)))
