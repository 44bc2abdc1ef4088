"""A draft model that is cut from its target: layers and weights of the target, and a part of its vocabulary.

Most of a small draft model's work would be its output matrix, and answers use few of its rows (FR-Spec, Zhao et al.
2025, arXiv 2502.14856). So a draft model has the tokens that answers use, and every token that these are merged from.
The part is closed: byte-pair merges that make a token of the part make tokens of the part only. So the part's own
merges write a text as the target's do, wherever its tokens are in the part.

A trained draft model is an ordinary GGUF file: the target's metadata, its part of the vocabulary, and the trained
weights in Q8_0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from localspec import paths
from localspec.errors import ModelError, UsageError, explained
from localspec.gguf import Header
from localspec.llama.model import TensorRows
from localspec.types import Float32Array, Tokens

_NORMS = frozenset(("attn_norm.weight", "ffn_norm.weight"))
_MATRICES = frozenset(
    f"{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
)
_BIASES = frozenset(("attn_q.bias", "attn_k.bias", "attn_v.bias"))
_HEAD_NORMS = frozenset(("attn_q_norm.weight", "attn_k_norm.weight"))
SLOWER = "rope_freqs.weight"
"""Tensor of what rotary positions are divided by, in models whose context was extended (Llama 3)."""
ARCHITECTURES = {"llama": False, "qwen2": True, "qwen3": True}
"""Those whose layers are known: whether rotary positions turn the two halves of a head (else neighbours in pairs)."""


@dataclass(frozen=True, slots=True)
class Shape:
    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    rope_base: float
    epsilon: float

    @property
    def halves(self) -> bool:
        """Whether rotary positions turn the two halves of a head."""
        return ARCHITECTURES[self.architecture]

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.feed_forward


def read_shape(header: Header) -> Shape:
    """The shape of a target that a draft model can be cut from. Raises ModelError: its layers are of a kind that is not
    known here; the sentence names what is in the way."""
    if fault := _fault(header):
        raise ModelError(
            f"No draft model can be cut from {header.path.name}: {fault}.",
            f"Its layers must be plain ones of {', '.join(ARCHITECTURES)}.",
        )
    heads, hidden = header.number("attention.head_count"), header.number("embedding_length")
    embedding = next(tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    return Shape(
        header.architecture,
        header.n_layers,
        hidden,
        header.number("feed_forward_length"),
        heads,
        header.number("attention.head_count_kv") or heads,
        header.number("attention.key_length") or hidden // heads,
        embedding.shape[1],
        float(header.real("rope.freq_base") or 10_000.0),
        float(header.real("attention.layer_norm_rms_epsilon")),
    )


def _fault(header: Header) -> str:
    """Why no draft model can be cut from it: a clause; "" = one can."""
    if header.architecture not in ARCHITECTURES:
        return f"its architecture is {header.architecture or 'not stated'}"
    if header.metadata.get("split.count"):
        return "it is split into several files"
    names = {tensor.name: tensor for tensor in header.tensors}
    known = _NORMS | _MATRICES | _BIASES | _HEAD_NORMS
    for number in range(header.n_layers):
        own = {name.split(".", 2)[2] for name in names if name.startswith(f"blk.{number}.")}
        if odd := sorted(own - known):
            return f"layer {number} has {odd[0]}"
        if gone := sorted((_NORMS | _MATRICES) - own):
            return f"layer {number} has no {gone[0]}"
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in names:
            return f"it has no {name}"
    stated = {key.removeprefix(f"{header.architecture}."): value for key, value in header.metadata.items()}
    factors = (stated.get(name, 1.0) for name in ("rope.scaling.factor", "rope.scale_linear"))
    if stated.get("rope.scaling.type", "none") != "none" or any(factor not in (0.0, 1.0) for factor in factors):
        return "its positions are scaled"
    if not isinstance(stated.get("attention.head_count_kv", 0), int):
        return "its layers differ in heads"
    heads, hidden = header.number("attention.head_count"), header.number("embedding_length")
    if not header.n_layers or not heads or not hidden or not header.number("feed_forward_length"):
        return "its header does not state its sizes"
    size = header.number("attention.key_length") or hidden // heads
    if stated.get("attention.scale") or (header.number("attention.value_length") or hidden // heads) != size:
        return "its attention is of another kind"
    if header.number("rope.dimension_count") not in (0, size):
        return "only a part of each head has positions"
    return ""


def cut_layers(layers: int, kept: int) -> list[int]:
    """Which layers of a target a draft model is made of: the first ones and the last ones, half of each."""
    kept = min(kept, layers)
    first = math.ceil(kept / 2)
    return [*range(first), *range(layers - (kept - first), layers)]


class Weights:
    """Tensors of a target's file, unpacked when they are asked for."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._tensors = {tensor.name: tensor for tensor in header.tensors}

    def layer(self, number: int) -> dict[str, Float32Array]:
        """float32 arrays of a layer by their names in it, such as "attn_q.weight" [rows, columns]."""
        start = f"blk.{number}."
        names = (name for name in self._tensors if name.startswith(start))
        return {name.removeprefix(start): self.whole(name) for name in names}

    def whole(self, name: str) -> Float32Array:
        """float32[rows, columns] or float32[n]."""
        tensor = self._tensors[name]
        if len(tensor.shape) > 1:
            return TensorRows(self._header, tensor).read(slice(None))
        if tensor.type not in ("F32", "F16"):
            raise ModelError(f"{tensor.name} of {self._header.path.name} is in {tensor.type}, which is not read here.")
        kind = np.float32 if tensor.type == "F32" else np.float16
        found = np.fromfile(self._header.path, dtype=kind, count=tensor.shape[0], offset=tensor.offset)
        return found.astype(np.float32)

    def rows(self, name: str, rows: Sequence[int] | np.ndarray) -> Float32Array:
        """float32[n, columns]: these rows of a matrix."""
        return TensorRows(self._header, self._tensors[name]).read(np.asarray(rows))

    @property
    def slower(self) -> Float32Array | None:
        """float32[head_size / 2]: by what the turns of rotary positions are divided (Llama 3); None = by nothing."""
        return self.whole(SLOWER) if SLOWER in self._tensors else None

    @property
    def output(self) -> str:
        """The name of the output matrix: where a file has none, the embedding is it."""
        return "output.weight" if "output.weight" in self._tensors else "token_embd.weight"


MOST_DRAFTED = 6144
"""Tokens that are chosen by how much answers use them: 99.5 % of all that SmolLM2 said of maths and code. With those
that they are merged from they are some 8,200."""
_NORMAL, _UNKNOWN, _USER_DEFINED, _BYTE = 1, 2, 4, 6
"""llama.cpp's types of tokens."""
_SCORES = "tokenizer.ggml.scores"
_ONE_LETTER = 256
"""Tokens of a BPE vocabulary that are one letter: one for each byte."""

Merge = Callable[[str, str], float | None]
"""How early two pieces become one, smaller first; None = never."""


@dataclass(frozen=True, slots=True)
class VocabPart:
    """Tokens of a target that its draft model has, too."""

    ids: Tokens
    """int32[n], ascending: the target's ids. The draft model's id of a token is its place here."""
    merges: tuple[str, ...]
    """Byte-pair merges between them, best first; () where scores decide."""
    places: Tokens
    """int32[tokens of the target]: the place of a token in `ids`; -1 = not in the part."""
    pieces: Callable[[int], list[int]]
    """Places of the tokens of the part that write the text of a token of the target."""


def choose(header: Header, weight: Float32Array, size: int = MOST_DRAFTED) -> VocabPart:
    """The part of a target's vocabulary for its draft model: the `size` tokens that its answers use most by `weight`,
    float32[tokens of the target], and those they are merged from; single letters, bytes, and tokens that the header
    names by purpose."""
    kind, texts, types = check_tokenizer(header), header.tokens, header.token_types or [_NORMAL] * len(header.tokens)
    ids, scores = {text: token for token, text in reversed(list(enumerate(texts)))}, header.array(_SCORES)
    merge = _by_rank(header.merges) if kind == "gpt2" else _by_score(ids, scores)
    used = [int(token) for token in np.argsort(-weight, kind="stable")[:size] if weight[token] > 0.0]
    kept = set(used)
    for key, value in header.metadata.items():
        named = key.startswith("tokenizer.ggml.") and key.endswith("_token_id")
        if named and isinstance(value, int) and 0 <= value < len(texts):
            kept.add(value)
    for token, (text, its) in enumerate(zip(texts, types, strict=False)):
        if its in (_BYTE, _UNKNOWN) or (its == _NORMAL and len(text) == 1 and ord(text) < 2 * _ONE_LETTER):
            kept.add(token)
    for token in used:
        if types[token] == _NORMAL:
            _, made = _merged(texts[token], merge)
            kept |= {ids[text] for text in (*made, *texts[token]) if text in ids}
    order = np.array(sorted(kept), dtype=np.int32)
    places = np.full(len(texts), -1, dtype=np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    names = {texts[token] for token in kept}
    left = tuple(one for one in header.merges if {one.replace(" ", "", 1), *one.split(" ", 1)} <= names)
    inner = _by_rank(left) if kind == "gpt2" else _by_score({name: ids[name] for name in names}, scores)

    def pieces(token: int) -> list[int]:
        if places[token] >= 0:
            return [int(places[token])]
        parts, _ = _merged(texts[token], inner)
        found = [int(places[ids[part]]) for part in parts if part in ids and places[ids[part]] >= 0]
        return found or [int(places[order[0]])]

    return VocabPart(order, left, places, pieces)


def check_tokenizer(header: Header) -> str:
    """The kind of a target's tokenizer. Raises ModelError: it is none whose merges are known here."""
    kind = header.text("tokenizer.ggml.model")
    fault = "" if kind in ("gpt2", "llama") else f"its tokenizer is {kind or 'not stated'}"
    if kind == "llama" and len(header.array(_SCORES)) != len(header.tokens):
        fault = "its tokens have no scores"
    if fault:
        raise ModelError(
            f"No draft model can be cut from {header.path.name}: {fault}.",
            "Tokenizers of the kinds gpt2 (BPE) and llama (SentencePiece) can be cut.",
        )
    return kind


def _by_rank(merges: Iterable[str]) -> Merge:
    ranks: dict[tuple[str, str], float] = {}
    for rank, merge in enumerate(merges):
        first, _, second = merge.partition(" ")
        ranks.setdefault((first, second), rank)
    return lambda first, second: ranks.get((first, second))


def _by_score(ids: dict[str, int], scores: list[float]) -> Merge:
    def early(first: str, second: str) -> float | None:
        token = ids.get(first + second)
        return None if token is None else -scores[token]

    return early


def _merged(text: str, merge: Merge) -> tuple[list[str], set[str]]:
    """The pieces a text ends as, and every piece that was made on the way."""
    parts, made = list(text), set()
    while len(parts) > 1:
        ranks = [(merge(*pair), place) for place, pair in enumerate(pairwise(parts))]
        _, place = min(((rank, place) for rank, place in ranks if rank is not None), default=(0.0, -1))
        if place < 0:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        made.add(parts[place])
    return parts, made


TEXTS, TOKENS = "localspec.training.texts", "localspec.training.tokens"
_BLOCK = 32
"""Weights of a block of Q8_0."""
_ADDS: tuple[tuple[type, str], ...] = (
    (bool, "add_bool"), (str, "add_string"), (int, "add_uint32"), (float, "add_float32"),
)  # fmt: skip
"""How a fact of a type is written; a truth value is an int, too."""


def gguf_package() -> Any:
    """The package that writes GGUF files. Raises UsageError: it is not installed."""
    try:
        import gguf
    except ImportError:
        raise UsageError(
            "Draft models are written with the package gguf, which is not installed.",
            'Install it with: pip install "localspec[train]"',
        ) from None
    return gguf


def export(
    path: Path,
    target: Header,
    part: VocabPart,
    layers: Sequence[Mapping[str, Float32Array]],
    rest: Mapping[str, Float32Array],
    name: str,
    facts: Mapping[str, str | int],
) -> None:
    """Writes a draft model; what is at `path` is replaced when the new file is whole. Matrices are in Q8_0 where their
    rows allow it, vectors as they are.

    `target`: the header of the model it drafts for. `layers`: float32 arrays of each layer by their names in it, `rest`
    those of the other tensors: embedding, output, norm. `name`: what it calls itself. `facts`: for its metadata: which
    target, which texts. Raises LocalspecError: the disk is full or read-only."""
    gguf = gguf_package()
    tensors = [(f"blk.{number}.{one}", array) for number, layer in enumerate(layers) for one, array in layer.items()]
    kind = gguf.GGMLQuantizationType.Q8_0
    with explained(f"{path} cannot be written"), paths.replacing(path) as half:
        writer = gguf.GGUFWriter(half, target.architecture)
        _describe(writer, target, part, len(layers), name, facts)
        for title, array in (*rest.items(), *tensors):
            array = np.ascontiguousarray(array, dtype=np.float32)
            if array.ndim >= 2 and array.shape[1] % _BLOCK == 0:
                writer.add_tensor(title, gguf.quants.quantize(array, kind), raw_dtype=kind)
            else:
                writer.add_tensor(title, array if array.ndim < 2 else array.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _describe(
    writer: Any, target: Header, part: VocabPart, layers: int, name: str, facts: Mapping[str, str | int]
) -> None:
    own, texts, types = f"{target.architecture}.", target.tokens, target.token_types
    stated: dict[str, Any] = dict(facts)
    for key, value in target.metadata.items():
        if key.startswith("tokenizer.") and key.endswith("_token_id") and isinstance(value, int):
            if 0 <= value < len(part.places):  # one beyond the vocabulary means nothing
                stated[key] = int(part.places[value])
        elif key.startswith((own, "tokenizer.")):
            stated[key] = {f"{own}block_count": layers, f"{own}vocab_size": len(part.ids)}.get(key, value)
    writer.add_name(name)
    if licence := target.text("general.license"):
        writer.add_license(licence)
    for key, value in stated.items():
        add = next((add for kind, add in _ADDS if isinstance(value, kind)), None)
        if add is not None:  # arrays are of the whole vocabulary
            getattr(writer, add)(key, value)
    writer.add_token_list([texts[token] for token in part.ids])
    if types:
        writer.add_token_types([types[token] for token in part.ids])
    if scores := target.array(_SCORES):
        writer.add_token_scores([scores[token] for token in part.ids])
    if part.merges:
        writer.add_token_merges(list(part.merges))
