"""The sizes that decide how much memory a model takes, read from the tensors its header lists.

Which layers keep keys and values, and how wide they are, is taken from the tensors rather than from architecture
names, so hybrids, per-layer head counts and layers that share a cache need no table. Split files: pass all headers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf import Header, Tensor, packs, read_parts
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.methods import OF_ITS_OWN, ROWS
from localspec.models.facts import heads
from localspec.models.facts.heads import nextn_layers

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_MOST_LAYERS = 4096
_SHARED_FROM = {"gemma3n": 20}  # from this layer on they use an earlier one's cache, though the header does not say so
_MIB = 1 << 20


@dataclass(slots=True)
class LayerShape:
    """One layer; widths are elements of a row."""

    weights: int = 0  # bytes, without tensors that overrides move
    key: int = 0  # keys a token leaves in the cache; 0 = none
    value: int = 0
    query: int = 0
    heads: int = 0
    feed_forward: int = 0  # intermediate rows alive at once: gate, up and their product, of every expert in use
    state: int = 0  # elements of recurrent state a slot keeps


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a memory plan needs to know."""

    name: str
    architecture: str
    layers: tuple[LayerShape, ...] = field(repr=False)
    embedding: int  # elements of a hidden row
    vocabulary: int
    input_bytes: int  # token embeddings and what else stays on the CPU
    output_bytes: int  # output matrix and norm, or the copy of the embeddings that serves as one on a GPU
    tied: bool  # whether the token embeddings are the output matrix too
    windows: bool  # whether some layers attend to a sliding window (a cache and a mask of their own)
    train_context: int  # tokens it was trained for; 0 = not stated
    guessed: bool  # whether parts are taken from experience: recurrent layers, multi-token prediction
    moved: Mapping[str, int] = field(default_factory=dict)  # {device: bytes of tensors that overrides put there}

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def weight_bytes(self) -> int:
        """Of all tensors, each once."""
        kept = self.input_bytes + sum(layer.weights for layer in self.layers) + (0 if self.tied else self.output_bytes)
        return kept + sum(self.moved.values())


def shape_of(headers: Header | Sequence[Header], *, nextn: bool = False, spread: Spread = BY_LAYER) -> ModelShape:
    """Sizes of a model from its header, or from the headers of all parts of a split one (first part first). `nextn`: as
    the context of its multi-token prediction has it, in which those layers alone have a cache; else they alone have
    none. The overrides of `spread` move tensors. Raises ModelFileError: layer numbers that no model has."""
    parts = [headers] if isinstance(headers, Header) else list(headers)
    header, tensors = parts[0], [tensor for part in parts for tensor in part.tensors]
    layers: list[dict[str, Tensor]] = []
    others: dict[str, Tensor] = {}
    for tensor in tensors:
        if (found := _LAYER.match(tensor.name)) is None:
            others[tensor.name] = tensor
            continue
        index = int(found[1]) if len(found[1]) < 6 else _MOST_LAYERS
        if index >= _MOST_LAYERS:
            raise ModelFileError(f"{header.path} is corrupt: it names a layer {found[1][:12]}.")
        layers += [{} for _ in range(index + 1 - len(layers))]
        layers[index][found[2]] = tensor
    embedded, output = others.get("token_embd.weight"), others.get("output.weight")
    output_bytes = sum(tensor.size for name, tensor in others.items() if name.startswith("output"))
    tied = output is None and embedded is not None
    shared = header.number("attention.shared_kv_layers")  # the last layers, which keep no keys of their own
    shared_from = max(0, len(layers) - shared) if shared > 0 else _SHARED_FROM.get(header.architecture, len(layers))
    read = [_layer(header, index, parts, index < shared_from, nextn) for index, parts in enumerate(layers)]
    moved = Counter[str]()  # out of the layers, by the device that overrides give them
    for tensors_of, layer in zip(layers, read, strict=True):
        for tensor in tensors_of.values():
            if (device := spread.device_of(tensor.name)) is not None:
                moved[device] += tensor.size
                layer.weights -= tensor.size
    in_layers = sum(layer.weights for layer in read) + sum(moved.values())
    return ModelShape(
        name=header.name,
        architecture=header.architecture,
        layers=tuple(read),
        embedding=min(header.number("embedding_length"), _MIB) or _rows(embedded, 0),
        vocabulary=_rows(output) or _rows(embedded),
        input_bytes=sum(tensor.size for tensor in tensors) - in_layers - (0 if tied else output_bytes),
        output_bytes=output_bytes + (embedded.size if tied and embedded is not None else 0),
        tied=tied,
        windows=header.number("attention.sliding_window") > 0,
        train_context=max(0, header.context_length),
        guessed=any(layer.state for layer in read) or any(".nextn." in tensor.name for tensor in tensors),
        moved=dict(moved),
    )


def _rows(tensor: Tensor | None, axis: int = 1) -> int:
    """Rows of a matrix; of axis 0 its columns; 0 = there is none."""
    return tensor.shape[axis] if tensor is not None and len(tensor.shape) > axis else 0


def _per_layer(header: Header, key: str, index: int) -> int:
    """A number of the header that may be given once or per layer; never negative, never absurd."""
    values = header.numbers(key)
    value = values[index] if index < len(values) else header.number(key)
    return min(max(value, 0), _MIB)


def _layer(header: Header, index: int, parts: dict[str, Tensor], own_cache: bool, nextn: bool) -> LayerShape:
    used = any(name.startswith("nextn.") for name in parts) == nextn
    queries = _per_layer(header, "attention.head_count", index)
    embedding = min(header.number("embedding_length"), _MIB)
    head = _per_layer(header, "attention.key_length", index) or embedding // max(queries, 1)
    head_value = _per_layer(header, "attention.value_length", index) or head
    kv_heads = _per_layer(header, "attention.head_count_kv", index) or queries
    layer = LayerShape(
        weights=sum(tensor.size for tensor in parts.values()),
        heads=queries,
        query=_rows(parts.get("attn_q.weight")) or queries * head,
        feed_forward=_feed_forward(header, index, parts),
        state=_state(header, parts) if used else 0,
    )
    if not (used and own_cache):
        return layer
    latent = parts.get("attn_kv_a_mqa.weight")
    if latent is not None:
        layer.key = _rows(latent)  # the compressed cache holds keys only
    elif "attn_k.weight" in parts:
        layer.key = _rows(parts["attn_k.weight"])
        layer.value = _rows(parts.get("attn_v.weight")) or layer.key * head_value // max(head, 1)
    elif "attn_qkv.weight" in parts and not layer.state:
        layer.key, layer.value = kv_heads * head, kv_heads * head_value
    return layer


def _feed_forward(header: Header, index: int, parts: dict[str, Tensor]) -> int:
    dense = _rows(parts.get("ffn_up.weight")) or _rows(parts.get("ffn_up_shexp.weight"))
    gated = "ffn_gate.weight" in parts or "ffn_gate_shexp.weight" in parts
    rows = 3 * dense if gated else dense + _rows(parts.get("ffn_down.weight"), 0)  # gate and up may be one matrix
    experts = parts.get("ffn_up_exps.weight") or parts.get("ffn_gate_up_exps.weight")
    if experts is not None:
        used = _per_layer(header, "expert_used_count", index)
        embedding = min(header.number("embedding_length"), _MIB)
        rows = max(rows, used * max(3 * _rows(experts), _rows(experts) + 2 * embedding))
    return rows


def _state(header: Header, parts: dict[str, Tensor]) -> int:
    """Elements of recurrent state per slot, after llama.cpp's `n_embd_r` and `n_embd_s`."""
    width = min(header.number("embedding_length"), _MIB)
    if any(name.startswith("ssm_") for name in parts):
        inner, size = _per_layer(header, "ssm.inner_size", 0), _per_layer(header, "ssm.state_size", 0)
        groups, kernel = _per_layer(header, "ssm.group_count", 0), _per_layer(header, "ssm.conv_kernel", 0)
        return size * inner + max(kernel - 1, 0) * (inner + 2 * groups * size)
    if any(name.startswith("time_mix_") for name in parts):
        return width * (_per_layer(header, "wkv.head_size", 0) + 2)
    if any(name.startswith("shortconv.") for name in parts):
        return width * max(_per_layer(header, "shortconv.l_cache", 0) - 1, 0)
    return 0


# How many tokens a conversation can hold, where nothing is asked for.
#
# A cache may come to take memory for all of them. The answer must not change from one start to the next, because
# saved caches depend on it; so it follows from the files and from all the memory there is, not from what is free.

LONGEST_DEFAULT = 32_768  # tokens at most: enough for a long chat with files in it
LEAST_DEFAULT = 8_192  # tokens at least, where weights and cache fit memory at all
FALLBACK_LENGTH = 2_048  # tokens where not even that fits
MEMORY_DIVISOR = 8  # caches take at most this part of memory, or what `LEAST_DEFAULT` takes
PROCESS_BYTES = 512 << 20  # bytes that Python and llama.cpp need besides weights and caches (`fit.MARGINS`)
_CELL_STEP = 256  # llama.cpp makes caches of whole multiples of this


def default_context(
    target: ModelShape, draft: ModelShape | None = None, slots: int = 1, total_bytes: int = 0, element: float = 2.0
) -> int:
    """Tokens a slot can hold, at most as many as the target was trained for. Each of the `slots` has a cache of its
    own. `total_bytes`: of all memory; 0 = unknown. `element`: bytes of an element of the target's cache (the draft's
    have 2)."""
    token = slots * _token_bytes(target, draft, element)
    found = LONGEST_DEFAULT
    if token and total_bytes:
        found = min(LONGEST_DEFAULT, int(total_bytes / MEMORY_DIVISOR / token))
        if found < LEAST_DEFAULT:
            weights = target.weight_bytes + (draft.weight_bytes if draft is not None else 0)
            fits = weights + LEAST_DEFAULT * token + PROCESS_BYTES <= total_bytes
            found = LEAST_DEFAULT if fits else max(FALLBACK_LENGTH, found)
    return min(found // _CELL_STEP * _CELL_STEP, target.train_context or LEAST_DEFAULT)


def is_small(
    n_ctx: int, target: ModelShape, draft: ModelShape | None, slots: int, total_bytes: int, element: float = 2.0
) -> bool:
    """Whether caches of so many slots of `n_ctx` tokens take no more memory than `default_context` gives to caches."""
    return slots * n_ctx * _token_bytes(target, draft, element) <= total_bytes / MEMORY_DIVISOR


def _token_bytes(target: ModelShape, draft: ModelShape | None, element: float) -> float:
    """Of keys and values that a token leaves in the caches of both."""
    shapes = [(target, element)] if draft is None else [(target, element), (draft, 2.0)]
    return sum(size * sum(layer.key + layer.value for layer in shape.layers) for shape, size in shapes)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a trained head takes of memory beside its target, as far as its files tell: never less than it will."""

    model: ModelShape | None = None  # what llama.cpp runs, in a context of its own; None = localspec computes it
    weights: int = 0  # bytes of the matrices that localspec computes with
    token_bytes: int = 0  # of each token of a slot: hidden states in F16, and keys and values that localspec keeps
    all_rows: bool = False  # whether the target computes logits of whole prompts for it


def head_shape(path: Path, method: str, target: Header) -> HeadShape:
    """Of a head's file or folder that drafts by one of `methods.HEADS` for this target."""
    if not heads.is_checkpoint(path):
        return gguf_head(read_parts(path), method, target)
    weights, width = sum(file.stat().st_size for file in heads.weights_of(path)), _width(target)
    if method != "eagle":
        return HeadShape(None, weights, _state_bytes(method, target))
    weights += target.count("tokenizer.ggml.tokens") * (width + 4)  # the target's output matrix in 8 bits
    return HeadShape(None, weights, _state_bytes(method, target) + 2 * 4 * width, all_rows=True)


def gguf_head(parts: Sequence[Header], method: str, target: Header) -> HeadShape:
    """Of the headers of a GGUF file, the first part first; see `head_shape`."""
    listed = len(parts[0].array(f"{parts[0].architecture}.target_layers"))
    states = _state_bytes(method, target, listed)
    return HeadShape(shape_of(parts, nextn=nextn_layers(parts) > 0), token_bytes=states)


def own_heads(target: Header | Sequence[Header]) -> tuple[HeadShape, ...]:
    """Of the target's own layers of multi-token prediction, if it has some: their weights are the target's."""
    parts = [target] if isinstance(target, Header) else target
    if not nextn_layers(parts):
        return ()
    head = gguf_head(parts, OF_ITS_OWN, parts[0])
    assert head.model is not None
    layers = tuple(replace(layer, weights=0) for layer in head.model.layers)
    return (replace(head, model=replace(head.model, layers=layers, input_bytes=0, output_bytes=0)),)


def _state_bytes(method: str, target: Header, listed: int = 0) -> int:
    """`listed`: layers whose inputs the head's file says that it reads."""
    states = 0 if method in ROWS and ROWS[method].needs == "tokenizer" else 1
    return 2 * (listed or states) * _width(target)


def _width(target: Header) -> int:
    """Elements of a hidden state."""
    return max(0, target.number("embedding_length"), target.number("embedding_length_out"))


# Which weights of a model our own kernels do not pack, and what that costs.

COST = "there a pass of 8 rows takes about 5 passes of one row, so drafts gain little"
"""SmolLM2-135M in Q4_1 before that format was packed, 2 cores with AVX2: 4.84 passes."""


def unpacked(parts: Sequence[Header]) -> tuple[dict[str, int], str]:
    """Bytes by format, most first, of the matrices that a pass multiplies with and our kernels do not pack, and a
    sentence about them without its full stop; "" = all are packed. Experts and small float32 matrices are llama.cpp's,
    and not counted."""
    tensors = [tensor for part in parts for tensor in part.tensors]
    looked_up = "token_embd.weight" if any(tensor.name == "output.weight" for tensor in tensors) else ""
    found = [one for one in tensors if len(one.shape) == 2 and one.type != "F32" and one.name != looked_up]
    left: Counter[str] = Counter()
    for one in found:
        if not packs(one.type, *one.shape[:2]):
            left[one.type] += one.size
    if not left:
        return {}, ""
    most = sum(one.size for one in found)
    shares = ", ".join(f"{kind} ({max(1, round(100 * size / most))} %)" for kind, size in left.most_common())
    return dict(left.most_common()), f"localspec's kernels do not pack {shares} of what a pass multiplies: {COST}"
