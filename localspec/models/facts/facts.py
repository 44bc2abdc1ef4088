"""What `localspec show` says about a model: everything its header tells, what it costs, and what can draft for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from localspec.gguf import Header
from localspec.gguf.formats import ROLLS_BACK
from localspec.models.facts import packing
from localspec.models.facts.context_length import default_context
from localspec.models.facts.heads import draft_kind, keeps_state, nextn_layers, reads, trained_for
from localspec.models.facts.pairing import template_marks
from localspec.models.facts.shape import shape_of
from localspec.models.facts.vocabulary import vocabulary
from localspec.models.memory.fit import FitSettings, plan
from localspec.models.memory.memory import Place, total_ram

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LANGUAGE_MODEL = "a language model"
"""`Facts.kind` of what can be a target."""
_LAYER_INPUTS = frozenset((
    "llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "nemotron_h", "lfm2",
    "minimax-m2", "deepseek4",
))  # fmt: skip
"""Architectures whose hidden states llama.cpp hands out, which EAGLE-3 needs (those that set `t_layer_inp`)."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory at one context length, nothing but this model loaded."""

    context: int
    cache_bytes: int
    total_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft for a model."""

    name: str
    fits: bool
    why: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A model file, explained."""

    name: str
    file: str
    bytes: int
    parts: int
    gguf_version: int
    kind: str
    """What it is in a pair: see `heads.DraftKind`."""
    made_for: str
    """sha256 of the file it was trained for, where it is a head and says so; "" where not."""
    reads: str
    """What it takes from its target, where it is a head and says so; "" where not."""
    architecture: str
    parameters: int
    layers: int
    embedding: int
    quantisation: str
    tensor_bytes: dict[str, int]
    """Bytes per tensor type, most first."""
    unpacked_bytes: dict[str, int]
    """Of them, those of matrices that our kernels do not pack (`packing.unpacked`)."""
    unpacked: str
    """The same in words, with what it costs; "" if all is packed."""
    context: int
    """Tokens it was trained for; 0 = not stated."""
    default_context: int
    """Tokens that a conversation with it alone holds here, unless told otherwise."""
    licence: str
    tokenizer: dict[str, Any]
    template: dict[str, Any] | None
    memory: tuple[Need, ...]
    methods: tuple[Method, ...]
    memory_guessed: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def describe(parts: Sequence[Header], settings: FitSettings, places: Sequence[Place]) -> Facts:
    """Everything about a model.

    Args:
        parts: headers of its files, see `localspec.gguf.split.read_parts`.
        settings: how it would run; `context` adds a length to the table of memory.
        places: what memory there is.

    Raises:
        ModelFileError: a header no model has.
    """
    header, shape = parts[0], shape_of(parts)
    whole = any(part.tensors for part in parts)
    sizes: Counter[str] = Counter()
    for part in parts:
        for tensor in part.tensors:
            sizes[tensor.type] += tensor.size
    return Facts(
        name=header.name,
        file=str(header.path),
        bytes=sum(part.file_bytes for part in parts),
        parts=len(parts),
        gguf_version=header.version,
        kind=_kind(header, whole),
        made_for=trained_for(header),
        reads=reads(header),
        architecture=header.architecture,
        parameters=sum(part.parameters for part in parts),
        layers=shape.n_layers,
        embedding=shape.embedding,
        quantisation=header.quantisation,
        tensor_bytes=dict(sizes.most_common()),
        unpacked_bytes=packing.unpacked(parts),
        unpacked=packing.words(parts),
        context=shape.train_context,
        default_context=default_context(shape, total_bytes=total_ram(places)),
        licence=header.text("general.license"),
        tokenizer=_tokenizer(header),
        template=_template(header),
        memory=_needs(parts, settings, places) if whole else (),
        methods=tuple(_methods(parts)) if whole else (),
        memory_guessed=shape.guessed,
    )


def _kind(header: Header, whole: bool) -> str:
    found = draft_kind(header)
    if found.method != "draft":
        return found.sentence
    return LANGUAGE_MODEL if whole else "a vocabulary, without weights"


def _tokenizer(header: Header) -> dict[str, Any]:
    found = vocabulary(header)
    special = {}
    for name in ("bos", "eos"):
        token = getattr(found, name)
        special[name] = {"id": token, "text": found.text(token)} if token is not None else None
    return {
        "kind": found.kind,
        "tokens": found.size,
        "pre_tokenizer": found.pre,
        "merges": found.merge_count,
        **special,
        "add_bos": found.add_bos,
        "add_eos": found.add_eos,
    }


def _template(header: Header) -> dict[str, Any] | None:
    text = header.chat_template
    return None if text is None else {"characters": len(text), "marks": sorted(template_marks(text))}


def _needs(parts: Sequence[Header], settings: FitSettings, places: Sequence[Place]) -> tuple[Need, ...]:
    longest = max(0, parts[0].context_length) or CONTEXTS[1]
    lengths = {length for length in CONTEXTS if longest <= 64 * length < 64 * longest} | {min(longest, 1 << 24)}
    if settings.context is not None:
        lengths.add(settings.context)
    found = []
    for length in sorted(lengths):
        one = FitSettings(
            context=length,
            slots=settings.slots,
            type_k=settings.type_k,
            type_v=settings.type_v,
            gpu_layers=settings.gpu_layers,
            cpu_moe=settings.cpu_moe,
        )
        made = plan(parts, None, one, places)
        found.append(Need(length, sum(share.cache for share in made.shares), made.total_bytes, made.fits))
    return tuple(found)


def _methods(parts: Sequence[Header]) -> list[Method]:
    header = parts[0]
    kind = draft_kind(header)
    if not kind.drafts or kind.is_head:
        return [Method(kind.method, False, f"it is {kind.sentence}, not a target")]
    if keeps_state(header) and header.architecture not in ROLLS_BACK:
        no = "its recurrent layers cannot take guesses back: nothing is drafted for it"
        return [Method(name, False, no) for name in ("lookup", "suffix", "recycling", "draft")]
    found = [
        Method("lookup", True, "needs nothing but the text so far"),
        Method("suffix", True, "the same; past answers help where they are kept (--corpus)"),
        Method("recycling", True, "the same; it keeps what the model thought of saying before"),
        Method("draft", True, "any small model with the same tokenizer; `localspec suggest` names some"),
    ]
    own = nextn_layers(parts)
    found.append(
        Method("mtp", own > 0, f"carries {own} layer(s) of its own" if own else "the file has no prediction layers")
    )
    reads = header.architecture in _LAYER_INPUTS
    why = (
        "a head trained for it, as GGUF" if reads else f"llama.cpp hands out no hidden states of {header.architecture}"
    )
    found += [Method("eagle3", reads, why), Method("dflash", reads, f"{why}; so for dflash2 and dspark")]
    if header.architecture == "gemma4":
        found.append(Method("assistant", True, "the assistant published with it, as GGUF"))
    return found
