"""What one model takes on each device, in bytes: weights by layer, caches, and the peak of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.gguf import TENSOR_TYPES, TYPE_NUMBERS
from localspec.models.facts.shape import ModelShape
from localspec.models.memory.memory import Place

_PAD = 256
"""Cells by which llama.cpp makes caches longer."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one model takes on one device, in bytes."""

    place: str
    model: str
    """"target", "draft" or "heads"."""
    weights: int = 0
    cache: int = 0
    compute: int = 0
    """Intermediate results of a pass, and its logits."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class Use:
    """How a context is used, in llama.cpp's terms."""

    cells: int
    """Tokens a slot can hold."""
    slots: int
    rows: int
    """Most rows of a pass."""
    outputs: int
    """Most rows with logits a pass may have."""
    logits: int
    """Rows with logits that passes do have, kept in a buffer that grows with them."""
    key_bytes: float
    """Of an element."""
    value_bytes: float
    flash_attention: bool
    states: int = 1
    """Of a recurrent layer, that a slot keeps: the last one, and one for each token that can be dropped."""

    @property
    def padded(self) -> int:
        return -(-self.cells // _PAD) * _PAD


def element_bytes(name: str) -> float:
    """Bytes of an element in a number format."""
    _, block, size = TENSOR_TYPES[TYPE_NUMBERS[name.upper()]]
    return size / block


def offloaded(shape: ModelShape, layers: int, places: Sequence[Place]) -> int:
    """Layers on GPUs, the output matrix counted as one (llama.cpp's n_gpu_layers)."""
    if not any(place.kind == "gpu" for place in places):
        return 0
    return shape.n_layers + 1 if layers < 0 else min(layers, shape.n_layers + 1)


def shares_of(who: str, shape: ModelShape, use: Use, layers: int, places: Sequence[Place]) -> Iterator[Share]:
    """A model's share of each GPU that has layers of it, then of the CPU.

    Args:
        who: "target", "draft" or "heads".
        layers: on GPUs, as llama.cpp's n_gpu_layers; -1 = all.
        places: the CPU, and the GPUs in llama.cpp's order.
    """
    gpus = [place for place in places if place.kind == "gpu"]
    cpu = next((place.name for place in places if place.kind == "cpu"), "CPU")
    count = offloaded(shape, layers, places)
    start = shape.n_layers + 1 - count
    on_gpu: dict[str, list[int]] = {gpu.name: [] for gpu in gpus}
    for index in range(start, shape.n_layers + 1):
        on_gpu[_gpu_of(index - start, count, gpus)].append(index)
    peak = compute_bytes(shape, use)
    for gpu in gpus:
        mine, moved = on_gpu[gpu.name], shape.moved.get(gpu.name, 0)
        if mine or moved:
            weights = sum(_weights(shape, index) for index in mine) + moved
            yield Share(gpu.name, who, weights, _cache(shape, use, mine), peak)
    rest = list(range(start))
    weights = shape.input_bytes + sum(_weights(shape, index, tied=False) for index in rest) + shape.moved.get(cpu, 0)
    if count:  # inputs, results and what goes between devices
        peak = 0 if start == 0 else peak
        peak = max(peak, use.rows * (use.padded * 2 + 8 * shape.embedding))
    output = 4 * shape.vocabulary * use.logits
    yield Share(cpu, who, weights, _cache(shape, use, rest), peak + output)


def _gpu_of(place: int, count: int, gpus: Sequence[Place]) -> str:
    """The GPU of one of `count` offloaded layers: by the parts that were asked for, or by free memory, in order."""
    parts = [gpu.part or gpu.free_bytes or 1 for gpu in gpus]
    reached = 0.0
    for gpu, part in zip(gpus[:-1], parts, strict=False):
        reached += part / sum(parts)
        if place / count < reached:
            return gpu.name
    return gpus[-1].name


def _weights(shape: ModelShape, index: int, tied: bool = True) -> int:
    """Bytes of a layer; the one after the last is the output matrix, on a GPU a copy if tied."""
    if index < shape.n_layers:
        return shape.layers[index].weights
    return 0 if shape.tied and not tied else shape.output_bytes


def _cache(shape: ModelShape, use: Use, layers: Sequence[int]) -> int:
    found = 0.0
    for layer in (shape.layers[index] for index in layers if index < shape.n_layers):
        found += (layer.key * use.key_bytes + layer.value * use.value_bytes) * use.padded * use.slots
        found += 4 * layer.state * use.slots * use.states
    return int(found)


def compute_bytes(shape: ModelShape, use: Use) -> int:
    """The peak of one pass: masks and the wider of feed-forward and attention, or the logits.

    The factors are those of llama.cpp's graphs as its allocator packs them, measured over shapes and settings
    (tests/models/test_fit.py compares).
    """
    row, width, flash = 4 * use.rows, shape.embedding, use.flash_attention
    masks = (2 if shape.windows else 1) * use.padded * use.rows * (2 if flash else 4)
    peak = 0
    for layer in shape.layers:
        # what attention leaves free holds the three rows of a narrow feed-forward, and is lost beside a wide one
        feed = layer.feed_forward + width * (4 if layer.feed_forward > 3 * width else 2)
        attention = width * (2 if flash else 3) + 2 * layer.query + layer.key + layer.value
        scores = layer.heads * use.padded if layer.key and not flash else 0
        peak = max(peak, feed, attention + scores)
    logits = 4 * use.outputs * shape.vocabulary + 2 * row * shape.embedding
    return max(masks + row * peak, logits)
