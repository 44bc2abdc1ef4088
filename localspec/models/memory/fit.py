"""How much memory a pair will take on each device, from headers alone, and what to give up so that it fits.

Weights are counted once: llama.cpp maps the file and may reorder a copy for its CPU kernels, whose originals the
system can drop. Caches of sliding-window layers are counted at full size, because that is how contexts are made
(llama/cache/context.py). Compute buffers are the peak of one pass of `grid` prompt rows. What goes on the CPU is
compared with llama.cpp's own figures (tests/models/test_fit.py); what goes on GPUs never was, and `MemoryPlan.doubt`
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from rich.filesize import decimal

from localspec.config import LONGEST_DRAFT, GpuLayers
from localspec.errors import UsageError
from localspec.gguf import ROLLS_BACK, TENSOR_TYPES, TYPE_NUMBERS, Header
from localspec.gguf.spread import spread_of
from localspec.machine import Place, total_ram
from localspec.models.facts.shape import HeadShape, ModelShape, default_context, own_heads, shape_of

MIB = 1 << 20
MARGINS = {"cpu": 512 * MIB, "gpu": 1024 * MIB}  # left for Python and llama.cpp; on a GPU for other programs
UNIFIED_SHARE = 0.75  # of the CPU's memory, what a GPU without its own may take: as macOS has it from 64 GB on
SMALLEST_CONTEXT = 4096  # `choose` does not go below this many tokens, unless the model was trained for fewer
_LEAST_ROWS = 64
_TAKEN_ALONG = 16

Headers = Header | Sequence[Header]


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How the pair will run; names and defaults are those of `EngineSettings` and `ContextSettings`."""

    context: int | None = None  # tokens a slot can hold; None = by files and memory (`shape.default_context`)
    slots: int = 1
    type_k: str = "f16"  # number format of the target's keys; the draft model's cache is F16
    type_v: str = "f16"
    flash_attention: bool = True
    max_draft_tokens: int = LONGEST_DRAFT
    rollback: int | None = None
    branches: int = 1
    override_tensor: str | None = None  # REGEX=DEVICE, with commas: tensors that go to a device of their own
    cpu_moe: int = 0  # layers of the target whose experts stay on the CPU; -1 = all
    gpu_layers: GpuLayers = "auto"  # of the target; -1 = all, "auto" = as many as fit (see `layers`)
    draft_gpu_layers: GpuLayers = "auto"
    grid: int = 512  # prompt tokens per pass
    heads: tuple[HeadShape, ...] = ()  # those that are trained for the target
    nextn: bool = True  # whether multi-token prediction drafts, where the target's own file has it

    def __post_init__(self) -> None:
        for name in (self.type_k, self.type_v):
            if name.upper() not in TYPE_NUMBERS:
                raise UsageError(f"There is no cache type {name!r}; use f16, bf16, q8_0 or f32.")
        if self.context is not None and self.context < 1:
            raise UsageError(f"context is {self.context}; it must be 1 or more.")
        if self.slots < 1:
            raise UsageError(f"slots is {self.slots}; it must be 1 or more.")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    context: int  # tokens a slot can hold
    type_k: str
    type_v: str
    gpu_layers: int  # layers of the target on GPUs, the output matrix counted as one
    draft_gpu_layers: int
    shares: tuple[Share, ...]
    places: tuple[Place, ...]
    guessed: bool = False  # whether the estimate rests on parts the headers do not spell out

    @property
    def total_bytes(self) -> int:
        return sum(share.total for share in self.shares)

    def needed(self, place: str) -> int:
        return sum(share.total for share in self.shares if share.place == place)

    def missing(self, place: Place) -> int:
        """Bytes a device lacks, its margin included; 0 where what is free is unknown. What is put on GPUs without
        memory of their own is missing on the CPU."""
        needed = self.needed(place.name)
        if place.kind == "cpu":
            needed += sum(self.needed(other.name) for other in self.places if other.unified)
        return max(0, needed + MARGINS[place.kind] - place.free_bytes) if needed and place.free_bytes else 0

    @property
    def fits(self) -> bool:
        """Whether every device has what is asked of it, with a margin."""
        return not any(self.missing(place) for place in self.places)

    def sentence(self) -> str:
        parts = []
        for place in self.places:
            if needed := self.needed(place.name):
                free = f" of {decimal(place.free_bytes)} free" if place.free_bytes else ""
                short = f" ({decimal(missing)} too little, with a margin)" if (missing := self.missing(place)) else ""
                parts.append(f"{decimal(needed)}{free} on {place.name}{short}")
        kind = self.type_k.upper() if self.type_k == self.type_v else f"{self.type_k.upper()}/{self.type_v.upper()}"
        word = "fits" if self.fits else "does not fit"
        return f"A context of {self.context} tokens with {kind} cache {word}: {', '.join(parts)}."

    @property
    def doubt(self) -> str:
        """What the plan cannot be sure of; "" = nothing."""
        sentences = ["Recurrent or prediction layers are estimated."] if self.guessed else []
        if any(place.kind == "gpu" and self.needed(place.name) for place in self.places):
            sentences.append("The GPU's share is worked out from the headers and was never compared with a GPU.")
        return " ".join(sentences)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"fits": self.fits, "total_bytes": self.total_bytes, "doubt": self.doubt}


def plan(target: Headers, draft: Headers | None, settings: FitSettings, places: Sequence[Place]) -> MemoryPlan:
    """What target and draft take, by a header, or the headers of all parts of a split file, the first part first.
    `places` are the CPU, and the GPUs in llama.cpp's order; models are spread over GPUs by their free memory."""
    main, small, settings = _read(target, draft, settings)
    on_gpu, draft_on_gpu = _decided(main, small, settings, places)
    return _plan(main, small, replace(settings, gpu_layers=on_gpu, draft_gpu_layers=draft_on_gpu), places)


def layers(target: Headers, draft: Headers | None, settings: FitSettings, places: Sequence[Place]) -> tuple[int, int]:
    """Layers of target and draft on GPUs, -1 = all: numbers in place of "auto"; arguments are those of `plan`. The
    target's come first: as many as fit, caches counted. The draft goes beside them whole if they leave room, else not
    at all. Devices count with all their memory, not with what is free, so the same files have the same layers at every
    start."""
    return _decided(*_read(target, draft, settings), places)


def _decided(main: ModelShape, small: ModelShape | None, one: FitSettings, places: Sequence[Place]) -> tuple[int, int]:
    """See `layers`."""
    given, beside = one.gpu_layers, one.draft_gpu_layers
    most, whole = int(UNIFIED_SHARE * total_ram(places)), list[Place]()  # what models may take; 0 = unknown
    for place in places:
        unified = place.unified and most > 0
        whole.append(replace(place, free_bytes=min(place.total_bytes, most) if unified else place.total_bytes))
    if not any(place.kind == "gpu" for place in places):
        given, beside = (0 if number == "auto" else number for number in (given, beside))
    if given == "auto":
        alone = replace(one, draft_gpu_layers=0 if beside == "auto" else beside)
        everything = _plan(main, small, replace(alone, gpu_layers=-1), whole)
        given = -1 if _gpus_fit(everything) else _most(main, small, alone, whole)
    if beside == "auto":
        both = replace(one, gpu_layers=given, draft_gpu_layers=-1)
        beside = -1 if given and small is not None and _gpus_fit(_plan(main, small, both, whole)) else 0
    return given, beside


def _read(
    target: Headers, draft: Headers | None, settings: FitSettings
) -> tuple[ModelShape, ModelShape | None, FitSettings]:
    """The shapes of both, the target's tensors where overrides put them; and the settings with its file's own head."""
    main = shape_of(target, spread=spread_of("layer", settings.override_tensor, settings.cpu_moe))
    own = own_heads(target) if settings.nextn else ()
    return main, None if draft is None else shape_of(draft), replace(settings, heads=(*settings.heads, *own))


def choose(
    target: Headers,
    draft: Headers | None,
    settings: FitSettings,
    places: Sequence[Place],
    cache_types: Sequence[str] = ("q8_0",),
) -> MemoryPlan:
    """The best plan that fits, the draft counted in: `--fit`; if none does, the smallest one tried. With a GPU
    everything goes there if it can; a shorter context and other formats of keys and values (`cache_types`, in order)
    are tried before layers are left on the CPU. A `settings.context` is kept; without one it is halved from what the
    target was trained for."""
    main, small, settings = _read(target, draft, settings)
    gpus = any(place.kind == "gpu" for place in places)
    layers = -1 if gpus else 0
    everything = replace(settings, gpu_layers=layers, draft_gpu_layers=layers)
    plans = [partial(_plan, main, small, one, places) for one in _smaller(everything, main, cache_types)]
    if gpus:
        smallest_first = reversed([*_smaller(settings, main, cache_types)])
        plans += [partial(_most_layers, main, small, one, places) for one in smallest_first]
    for make in plans:
        best = make()
        if best.fits:
            break
    return best


def _smaller(settings: FitSettings, shape: ModelShape, cache_types: Sequence[str]) -> Iterator[FitSettings]:
    """The settings, then ever more modest ones: another cache type at each length, then half the context."""
    # attention is fused, and rows of keys divide into blocks
    takes_q8_0 = settings.flash_attention and all(layer.key % 32 == 0 for layer in shape.layers)
    contexts = [settings.context or shape.train_context or SMALLEST_CONTEXT]
    while settings.context is None and contexts[-1] > SMALLEST_CONTEXT:
        contexts.append(max(SMALLEST_CONTEXT, contexts[-1] // 2))
    for context in contexts:
        yield replace(settings, context=context)
        for kind in cache_types:
            if (settings.type_k, settings.type_v) != (kind, kind) and (kind != "q8_0" or takes_q8_0):
                yield replace(settings, context=context, type_k=kind, type_v=kind)


def _most_layers(main: ModelShape, small: ModelShape | None, one: FitSettings, places: Sequence[Place]) -> MemoryPlan:
    """The plan with the most layers of the target on GPUs that fits; the draft goes to the GPU whole, or not at all."""

    def tried(draft_layers: int) -> MemoryPlan:
        beside = replace(one, draft_gpu_layers=draft_layers)
        return _plan(main, small, replace(beside, gpu_layers=_most(main, small, beside, places)), places)

    whole = tried(-1)
    return whole if whole.fits else tried(0)


def _most(main: ModelShape, small: ModelShape | None, one: FitSettings, places: Sequence[Place]) -> int:
    """Most layers of the target, but all, with which GPUs have what is asked of them."""
    low, high = 0, main.n_layers
    while low < high:
        middle = (low + high + 1) // 2
        tried = _plan(main, small, replace(one, gpu_layers=middle), places)
        low, high = (middle, high) if _gpus_fit(tried) else (low, middle - 1)
    return low


def _gpus_fit(found: MemoryPlan) -> bool:
    return not any(found.missing(place) for place in found.places if place.kind == "gpu")


def _plan(main: ModelShape, small: ModelShape | None, settings: FitSettings, places: Sequence[Place]) -> MemoryPlan:
    """The plan for settings with numbers of layers."""
    on_gpu, draft_on_gpu = settings.gpu_layers, settings.draft_gpu_layers
    assert on_gpu != "auto"
    assert draft_on_gpu != "auto"
    element = (element_bytes(settings.type_k) + element_bytes(settings.type_v)) / 2.0
    context = settings.context or default_context(main, small, settings.slots, total_ram(places), element)
    rows = settings.slots * (1 + settings.max_draft_tokens)
    most_rows = max(_LEAST_ROWS, rows)
    trees = settings.branches > 1 and settings.slots == 1
    use = ContextUse(
        cells=context + (most_rows if trees else 0),
        slots=settings.slots,
        rows=max(settings.grid, most_rows + settings.slots * _TAKEN_ALONG),
        outputs=most_rows,
        logits=rows,
        key_bytes=element_bytes(settings.type_k),
        value_bytes=element_bytes(settings.type_v),
        flash_attention=settings.flash_attention,
        states=1 + (rollback(main, total_ram(places), settings.rollback) if settings.slots == 1 else 0),
    )
    if any(head.all_rows for head in settings.heads):
        use = replace(use, outputs=use.rows, logits=use.rows)
    shares = list(shares_of("target", main, use, on_gpu, places))
    layers, draft_layers = offloaded(main, on_gpu, places), 0
    if small is not None:
        most = max(settings.grid, _LEAST_ROWS + settings.slots * _TAKEN_ALONG)
        draft_use = replace(use, cells=context, rows=most, outputs=_LEAST_ROWS, logits=settings.slots, states=1)
        draft_use = replace(draft_use, key_bytes=2.0, value_bytes=2.0, flash_attention=True)
        shares += shares_of("draft", small, draft_use, draft_on_gpu, places)
        draft_layers = offloaded(small, draft_on_gpu, places)
    shares += _head_shares(settings, use, context * settings.slots, places)
    guessed = main.guessed or (small is not None and small.guessed)
    kinds = settings.type_k, settings.type_v
    return MemoryPlan(context, *kinds, layers, draft_layers, tuple(shares), tuple(places), guessed)


def _head_shares(settings: FitSettings, use: ContextUse, tokens: int, places: Sequence[Place]) -> Iterator[Share]:
    """Those of every head; llama.cpp runs them where layers of the target are."""
    use = replace(use, cells=use.cells + use.outputs, logits=use.outputs, states=1)
    use = replace(use, key_bytes=max(2.0, use.key_bytes), value_bytes=max(2.0, use.value_bytes))
    cpu = next((place.name for place in places if place.kind == "cpu"), "CPU")
    layers = -1 if settings.gpu_layers else 0
    for head in settings.heads:
        *on_gpus, rest = shares_of("heads", head.model, use, layers, places) if head.model else [Share(cpu, "heads")]
        yield from on_gpus
        yield replace(rest, weights=rest.weights + head.weights, cache=rest.cache + head.token_bytes * tokens)


# What one model takes on each device, in bytes: weights by layer, caches, and the peak of a pass.

_PAD = 256  # cells by which llama.cpp makes caches longer


@dataclass(frozen=True, slots=True)
class Share:
    place: str
    model: str  # "target", "draft" or "heads"
    weights: int = 0
    cache: int = 0
    compute: int = 0  # intermediate results of a pass, and its logits

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class ContextUse:
    """How a context is used, in llama.cpp's terms."""

    cells: int  # tokens a slot can hold
    slots: int
    rows: int  # most rows of a pass
    outputs: int  # most rows with logits a pass may have
    logits: int  # rows with logits that passes do have, kept in a buffer that grows with them
    key_bytes: float  # of an element
    value_bytes: float
    flash_attention: bool
    states: int = 1  # of a recurrent layer, that a slot keeps: the last one, and one for each token that can be dropped

    @property
    def padded(self) -> int:
        return -(-self.cells // _PAD) * _PAD


def element_bytes(name: str) -> float:
    _, block, size = TENSOR_TYPES[TYPE_NUMBERS[name.upper()]]
    return size / block


def offloaded(shape: ModelShape, layers: int, places: Sequence[Place]) -> int:
    """Layers on GPUs, the output matrix counted as one (llama.cpp's n_gpu_layers)."""
    if not any(place.kind == "gpu" for place in places):
        return 0
    return shape.n_layers + 1 if layers < 0 else min(layers, shape.n_layers + 1)


def shares_of(who: str, shape: ModelShape, use: ContextUse, layers: int, places: Sequence[Place]) -> Iterator[Share]:
    """A model's share of each GPU that has layers of it (llama.cpp's n_gpu_layers, -1 = all), then of the CPU."""
    gpus = [place for place in places if place.kind == "gpu"]
    cpu = next((place.name for place in places if place.kind == "cpu"), "CPU")
    count = offloaded(shape, layers, places)
    start = shape.n_layers + 1 - count
    on_gpu: dict[str, list[int]] = {gpu.name: [] for gpu in gpus}
    parts = [gpu.part or gpu.free_bytes or 1 for gpu in gpus]  # as was asked for, else by free memory
    ends = [*accumulate(part / sum(parts) for part in parts)][:-1]
    for index in range(count):
        on_gpu[gpus[sum(index / count >= end for end in ends)].name].append(start + index)
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


def _weights(shape: ModelShape, index: int, tied: bool = True) -> int:
    """Bytes of a layer; the one after the last is the output matrix, on a GPU a copy if tied."""
    if index < shape.n_layers:
        return shape.layers[index].weights
    return 0 if shape.tied and not tied else shape.output_bytes


def _cache(shape: ModelShape, use: ContextUse, layers: Sequence[int]) -> int:
    found = 0.0
    for layer in (shape.layers[index] for index in layers if index < shape.n_layers):
        found += (layer.key * use.key_bytes + layer.value * use.value_bytes) * use.padded * use.slots
        found += 4 * layer.state * use.slots * use.states
    return int(found)


def compute_bytes(shape: ModelShape, use: ContextUse) -> int:
    """The peak of one pass: masks and the wider of feed-forward and attention, or the logits. The factors are those of
    llama.cpp's graphs as its allocator packs them, measured over shapes and settings (tests/models/test_fit.py)."""
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


# How many tokens the cache of a model with recurrent layers can drop again, which is the longest draft for it.
# llama.cpp keeps a whole state for each such token besides the last one, whatever is drafted: 19 MB of a 0.8 B, 151 MB
# of a 27 B. One to four tokens are what drafting gains most from there.

_MOST_STATES = 4
_MEMORY_DIVISOR = 32  # states may take this part of memory


def rollback(shape: ModelShape, total_bytes: int, wanted: int | None = None) -> int:
    """Tokens that can be dropped: what is wanted, else 1 to 4; 0 if the target keeps no state, or llama.cpp no
    snapshots of it. `total_bytes`: all the memory there is (0 = unknown), so that it is the same at every start."""
    if shape.architecture not in ROLLS_BACK:
        return 0
    if wanted is not None:
        return wanted
    state = 4 * sum(layer.state for layer in shape.layers)
    if not (state and total_bytes):
        return _MOST_STATES
    return max(1, min(_MOST_STATES, total_bytes // _MEMORY_DIVISOR // state))
