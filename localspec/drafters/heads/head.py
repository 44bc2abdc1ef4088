"""A trained head: a file that guesses from the hidden states of the one target it was trained for.

Each method has a function `(path, target) -> Head` (`methods.ROWS`); `find` finds the one for a file, and `find_all`
those that go with a target. It reads headers only, and compares them with those of the model whose text is emitted. It
raises a ModelFileError where a file is damaged or lacks something, and a PairError where it is no such head, or made
for another model: the message names the first fact that differs. What llama.cpp would end the process over is refused
there.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from localspec.config import EngineSettings
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.setup import code_of
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, History, Request
from localspec.errors import DecodeError, LocalspecError, ModelError, ModelFileError, PairError, UsageError
from localspec.gguf import Header, Tensor, read_header, read_parts
from localspec.llama.cache.context import Context
from localspec.llama.exact.wide import Kernels
from localspec.llama.library.batch import common_prefix
from localspec.llama.library.settings import SHOWS_LAYERS, SHOWS_NEXTN, Tap
from localspec.llama.model import Model, TensorRows, check_text_model, file_sha256
from localspec.methods import HEADS, OF_ITS_OWN
from localspec.models.facts import heads as formats
from localspec.models.facts.heads import DraftKind, draft_kind, is_checkpoint, nextn_layers
from localspec.models.facts.pairing import MOST_SIZE_DIFFERENCE
from localspec.models.facts.shape import HeadShape, head_shape
from localspec.native.library import Int8Matrix
from localspec.types import Feed, LogitRows, Noise, SamplingParams, Tokens

ONE_MTP_LAYER = frozenset(
    {
        "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen3next",
    }
)  # fmt: skip
"""Architectures whose MTP layer llama.cpp runs if there is exactly one; with more it ends the process."""
SEVERAL_MTP_LAYERS = frozenset({"hy_v3", "mimo2", "step35"})
"""Architectures of which llama.cpp runs several MTP layers."""


def runs(architecture: str, heads: int) -> bool:
    """Whether llama.cpp runs so many MTP layers of a model; asked to run others, it ends the process."""
    return (heads == 1 and architecture in ONE_MTP_LAYER) or (heads >= 1 and architecture in SEVERAL_MTP_LAYERS)


@dataclass(eq=False)
class Head:
    """One file that guesses for one target."""

    name: str
    """The method: one of `methods.HEADS`; the drafter's name everywhere."""
    path: Path
    """File or folder of the head; the target's file if that contains the head."""
    tap: Tap
    """States of the target that the head reads, by position. Ask for their span by name (`States.span(slot, tokens,
    FINAL)`): the target's context may keep more, for another head."""
    load: Callable[[Context], Any]
    """Loads, when a drafter is first made, what all its drafters share; None = nothing."""
    context: Callable[[Any, Context], Any]
    """Makes a drafter's `DraftContext`, as `kind` needs it, of the weights and the target."""
    kind: type[DraftModel] = DraftModel
    """Of its drafters."""
    _weights: Any = None
    _drafters: WeakSet[DraftModel] = field(default_factory=WeakSet)

    def attach(self, target: Context, branches: int) -> DraftModel:
        """Makes a drafter with a cache of its own, beside a target made with (at least) `tap`. The weights stay loaded
        until `close`. May be called again, when settings change: the drafter made before is closed after the new one
        was made, so a drafter's own `close` frees nothing that another one uses. Raises ModelFileError: the file is
        damaged; ModelError: llama.cpp refuses it, or there is no memory."""
        if self._weights is None:
            self._weights = self.load(target)
        context = self.context(self._weights, target)
        drafter = self.kind(context, target.model.end_tokens, branches, self.name, context.close)
        self._drafters.add(drafter)
        return drafter

    def close(self) -> None:
        """Frees drafters and weights; a second call does nothing."""
        for drafter in self._drafters:
            drafter.close()
        weights, self._weights = self._weights, None
        if hasattr(weights, "close"):  # arrays need none
            weights.close()


def beside(path: Path, kind: type[Model], target: Context, kernels: Kernels = "repacked", nextn: bool = False) -> Model:
    """The model of a head's file, on the devices of its target; `kernels` and `nextn` as in `Model.load`."""
    like = target.model
    return kind.load(path, gpu_layers=like.gpu_layers, device=like.device, kernels=kernels, nextn=nextn)


# -- what a header must say ------------------------------------------------------------------------------------------


def read_head(path: Path, methods: Collection[str], noun: str) -> Header:
    """The header of a GGUF file that holds a head of these methods, which people call `noun`. Raises ModelFileError: it
    is in the form in which models are published for Python; PairError: it is something else."""
    if is_checkpoint(path):
        raise ModelFileError(
            f"{path.name} is {noun} as published for Python; localspec reads it as GGUF.",
            "Convert it with llama.cpp: convert_hf_to_gguf.py PATH --target-model-dir TARGET.",
        )
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method not in methods:
        raise PairError(f"{path.name} is {kind.sentence}, not {noun}.")
    return header


def check_equal(path: Path, target: Header, facts: Iterable[tuple[str, object, object]]) -> None:
    """Compares a head with its target by (fact, of the target, of the head). Raises PairError: names the first fact
    that differs."""
    for fact, ours, theirs in facts:
        if ours != theirs:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )


def check_sizes(path: Path, target: Header, hidden: int, vocabulary: int) -> None:
    """Compares the sizes of states and tokens of a head's matrices with its target's."""
    tokens = target.count(_TOKENS_KEY)
    wide = target.number("embedding_length_out") or target.number("embedding_length")
    check_equal(path, target, [("hidden size", wide, hidden)])
    if abs(tokens - vocabulary) > MOST_SIZE_DIFFERENCE:  # families pad differently
        check_equal(path, target, [("vocabulary", tokens, vocabulary)])


_LAYER_TENSORS = ("attn_norm", "attn_q", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


def check_held(header: Header, names: Iterable[str], *parts: str) -> None:
    """Raises ModelFileError: it lacks a tensor of these names, or one that each layer has in any head, or one of these
    `parts` of each layer. Without them llama.cpp refuses the file."""
    held = {tensor.name for tensor in header.tensors}
    each = (f"blk.{layer}.{part}" for layer in range(header.n_layers) for part in (*_LAYER_TENSORS, *parts))
    for name in (*names, *(f"{part}.weight" for part in each)):
        if name not in held:
            raise ModelFileError(f"{header.path} lacks the tensor {name}.")


def key_sizes(header: Header) -> tuple[int, int, int]:
    """Numbers in a key, in a value, and those of a key that tell its position; what is not stated as llama.cpp takes
    it to be."""

    def stated(key: str, usual: int) -> int:
        return header.number(key) if f"{header.architecture}.{key}" in header.metadata else usual

    heads = header.numbers("attention.head_count")[0]
    usual = header.number("embedding_length") // heads if heads > 0 else 0
    key = stated("attention.key_length", usual)
    return key, stated("attention.value_length", usual), stated("rope.dimension_count", key)


def check_keys(header: Header, key: int, value: int, turned: int) -> None:
    """Numbers over which llama.cpp ends the process: those of a key, of a value, and of a key that rotary positions
    turn."""
    name = header.path.name
    if key != value or key < 1:
        raise ModelFileError(f"{name} is corrupt: keys have {key} numbers, and values {value}.")
    if not 0 < turned <= key or turned % 2:
        raise ModelFileError(f"{name} is corrupt: it turns {turned} of {key} numbers of a key.")


def tapped_layers(header: Header, target: Header, three: bool = False) -> tuple[tuple[int, ...], int]:
    """The target's layers whose inputs a head reads, and how many it has, those of multi-token prediction not counted.
    A head that reads `three` may also read what follows the last. Raises ModelFileError: it does not name them;
    PairError: the target has too few, or this llama.cpp does not show them."""
    layers, count = header.array(f"{header.architecture}.target_layers"), target.n_layers - nextn_layers(target)
    sound = all(isinstance(layer, int) and layer >= 0 for layer in layers)
    if not layers or not sound or (three and len(layers) != 3):
        named = f"{list(layers)}, not three" if three else list(layers)[:8]
        raise ModelFileError(f"{header.path.name} is corrupt: it names target layers {named}.")
    if max(layers) >= count + three:
        counted = "" if three else ", counted from 0"
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: number of layers is {count} in the target, and"
            f" the head reads layer {max(layers)}{counted}."
        )
    found, architecture = tuple(map(int, layers)), target.architecture
    if architecture not in SHOWS_LAYERS or (count in found and architecture not in SHOWS_NEXTN):
        raise PairError(
            f"llama.cpp does not show what goes into layers of the architecture {architecture}, which"
            f" {header.path.name} reads."
        )
    return found, count


_TOKENS_KEY = "tokenizer.ggml.tokens"


def guessed_ids(header: Header, tensors: Mapping[str, Tensor], target: Header) -> npt.NDArray[np.int64] | None:
    """int64[n]: the tokens that the head can guess, in the order of its output matrix; None = all, in their own order.
    Raises ModelFileError: there are embeddings of too few tokens; or the list has no output matrix of its size, or
    names a token twice; PairError: it guesses through the target's output matrix of another size, or names a token that
    the target does not have."""
    tokens, targets = header.count(_TOKENS_KEY), target.count(_TOKENS_KEY)
    own, ids, output = (tensors.get(name) for name in ("token_embd.weight", "d2t", "output.weight"))
    rows = tokens if own is None else (*own.shape, 1)[1]
    if rows < tokens:
        raise ModelFileError(f"{header.path.name} is corrupt: it has embeddings of {rows} tokens, and {tokens} tokens.")
    if ids is None:
        if output is None and tokens != targets:
            raise PairError(
                f"{header.path.name} cannot draft for {target.path.name}: it brings no output matrix, and there are"
                f" {targets} tokens in the target and {tokens} in the head."
            )
        return None
    if ids.type != "I64" or output is None or output.shape[-1:] != ids.shape:
        raise ModelFileError(
            f"{header.path} is corrupt: d2t is {ids.type}{list(ids.shape)}, which no output matrix fits."
        )
    found = np.frombuffer(header.read(ids.offset, ids.size), dtype="<i8").astype(np.int64)
    size = min(tokens, targets)
    if len(found) and (found.min() < 0 or found.max() >= size):
        wrong = int(found[(found < 0) | (found >= size)][0])
        raise PairError(f"{header.path.name} guesses token {wrong}; {target.path.name} has 0 to {size - 1}.")
    if len(np.unique(found)) != len(found):
        raise ModelFileError(f"{header.path} is corrupt: d2t names a token twice.")
    return found


def output_matrix(header: Header) -> Int8Matrix:
    """The output matrix of the model in a file, in 8 bits; the embeddings if one matrix serves as both. Raises
    ModelFileError: it has neither, or in a number format that ggml does not unpack."""
    held = {tensor.name: (part, tensor) for part in read_parts(header.path) for tensor in part.tensors}
    found = held.get("output.weight", held.get("token_embd.weight"))
    if found is None:
        raise ModelFileError(f"{header.path} has no output matrix.")
    rows = TensorRows(*found)
    return Int8Matrix.in_parts((rows.rows, rows.columns), lambda start, stop: rows.read(slice(start, stop)))


# -- heads that guess a whole draft in one pass --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """The result of one pass for the tokens after a history; valid until the next pass."""

    tokens: Tokens
    """int32[n], the history."""
    rows: Any
    """float32[rows, n], logits of the head's vocabulary or the states of DFlash2; of PARD the LogitRows by level."""


class OnePassContext(ABC):
    """A `DraftContext` whose rows, whichever paths they follow, come from one pass after each history.

    A *level* is the number of tokens guessed before: level 0 follows the history."""

    def __init__(self, context: Any, n_paths: int) -> None:
        """`context` runs the head, for at most `n_paths` paths of a slot that go different ways."""
        self._context: Any = context
        self.n_ctx, self.n_vocab, self.n_paths = context.n_ctx, context.n_vocab, n_paths
        self._ends: Mapping[int, int] = {}
        self._blocks: dict[int, DraftBlock] = {}

    def begin(self, ends: Mapping[int, int] | None = None) -> None:
        """A draft begins: the next feed of each slot is its history. `ends`: by slot, the length that history and draft
        may reach together."""
        self._ends = ends or {}
        self._blocks.clear()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after the last token of every feed; all -inf where the head has nothing to say."""
        if new := [feed for feed in feeds if self._level(feed) is None]:
            self._blocks = self._compute(feeds, new)
        rows = [None if (level := self._level(feed)) is None else self._row(feed, level) for feed in feeds]
        nothing = np.full((1, self.n_vocab if None in rows else 0), -np.inf, dtype=np.float32)
        return [LogitRows.from_matrix(nothing) if one is None else one for one in rows]

    def _level(self, feed: Feed) -> int | None:
        """Tokens guessed so far; None where there is no block of the feed's history."""
        block = self._blocks.get(feed.slot)
        if block is None or common_prefix(block.tokens, feed.tokens) < len(block.tokens):
            return None
        return len(feed.tokens) - len(block.tokens)

    @abstractmethod
    def _compute(self, feeds: Sequence[Feed], new: Sequence[Feed]) -> dict[int, DraftBlock]:
        """One pass for `feeds`, of which `new` have no block yet."""

    @abstractmethod
    def _row(self, feed: Feed, level: int) -> LogitRows | None:
        """The row of a level of the slot's block; None = the block says nothing of it."""

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        self._blocks.clear()
        return int(self._context.prefill_chunk(slot, tokens, prompt_length))

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        return int(self._context.reusable(slot, tokens, prompt_length))

    def close(self) -> None:
        self._blocks.clear()


class BlockDrafter(DraftModel):
    """Draws chains and trees from the rows that one pass computes."""

    one_pass = True
    """The plan takes the first level to cost all and the others nothing (`planning.passes`)."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if isinstance(self._context, OnePassContext):  # None once it is closed
            levels = [min(one.max_depth, -(-one.max_nodes // self.branches)) for one in requests]
            ends = {one.slot: len(one.history) + level for one, level in zip(requests, levels, strict=True)}
            self._context.begin(ends)
        return super().draft(requests)


_LOG = logging.getLogger("localspec")


def kind_of(path: Path) -> DraftKind:
    return formats.checkpoint_kind(path) if formats.is_checkpoint(path) else formats.draft_kind(read_header(path))


def is_head(path: Path) -> bool:
    """Whether a draft must be read by a method's own module; False for a draft model, and for what cannot be read."""
    try:
        return kind_of(path).method != "draft"
    except LocalspecError:
        return False


def apart(draft: Path | None, heads: Sequence[Path]) -> tuple[Path | None, tuple[Path, ...]]:
    """The draft model, and the heads; what was given as a draft and is a head goes to those."""
    if draft is None or not is_head(draft):
        return draft, tuple(heads)
    return None, (draft, *(one for one in heads if one != draft))


def find(path: Path, target: Header) -> Head:
    """The head in a file, read by its method's module from headers alone."""
    head: Head = code_of(_method(path))(path, target)
    meant = formats.trained_for(path)
    if meant and meant != (found := file_sha256(target.path)):
        _LOG.warning(
            "%s was trained for another file (sha256 %s...) than %s (%s...): it may be right less often.",
            path.name, meant[:12], target.path.name, found[:12],
        )  # fmt: skip
    return head


def find_all(settings: EngineSettings, target: Header) -> list[Head]:
    """The heads that settings name, and multi-token prediction where the target's own file has it and it may guess.
    Raises UsageError: two of one method, or the drafter's is missing; PairError, ModelFileError: as `find`."""
    found: dict[str, Head] = {}
    for path in settings.heads:
        head = find(path, target)
        if head.name in found:
            first = found[head.name].path.name
            raise UsageError(f"{first} and {path.name} are both drafters called {head.name}.", "Give one of them.")
        found[head.name] = head
    if OF_ITS_OWN not in found and may_predict(settings.drafter) and nextn_layers(target):
        try:
            found[OF_ITS_OWN] = code_of(OF_ITS_OWN)(target.path, target)
        except LocalspecError as error:
            if settings.drafter == OF_ITS_OWN:
                raise
            _LOG.info("%s", error)
    if settings.drafter in HEADS and settings.drafter not in found:
        raise missing(settings.drafter)
    return list(found.values())


def out_of_reach(target: Sequence[Header], head: Sequence[Header]) -> str:
    """Why llama.cpp cannot run a head on a target, by the headers of all their files alone (the target's own, for
    multi-token prediction inside it): a clause; "" = nothing is known."""
    kind, layers = head[0].architecture, nextn_layers(head)
    if layers and not (runs(kind, layers) and kind in SHOWS_NEXTN):
        return f"llama.cpp cannot draft with {layers} multi-token-prediction layers of the architecture {kind}"
    if head[0].array(f"{kind}.target_layers") and target[0].architecture not in SHOWS_LAYERS:
        return f"llama.cpp does not show what goes into layers of the architecture {target[0].architecture}"
    return ""


def may_have(method: str, settings: EngineSettings) -> bool:
    """Whether one of the files that settings name could hold a head of this method."""
    named = [_method(path) for path in settings.heads]
    return method in named or (method == OF_ITS_OWN and nextn_layers(read_header(settings.target)) > 0)


def missing(method: str) -> UsageError:
    """The error for a drafter that was asked for while its head is missing."""
    return UsageError(f"The drafter `{method}` needs a head trained for the target.", "Give its file with --head PATH.")


def is_asked_for(head: Head, settings: EngineSettings) -> bool:
    """False for one that merely came with the target's own file: if it fails, answers go on without it."""
    return head.path in settings.heads or head.name == settings.drafter


def attach(head: Head, target: Context, settings: EngineSettings) -> Drafter | None:
    """The drafter of a head; None if it cannot be made and came with the target's own file, unasked. Raises
    LocalspecError: a head that was asked for cannot be loaded."""
    try:
        try:
            return head.attach(target, settings.branches)
        except MemoryError:
            fault = f"There is no memory for {head.path.name}, which drafts as {head.name}."
            raise ModelError(fault, "A shorter context needs less memory.") from None
    except LocalspecError as error:
        if is_asked_for(head, settings):
            raise
        _LOG.warning("%s Answers go on without %s.", error, head.name)
        return None


def displace(drafters: Sequence[Drafter], target: Context, slots: Sequence[int]) -> dict[str, str]:
    """Has drafters guess after three tokens of no meaning in slots, so that no cache of theirs holds another text;
    returns {name of one that failed: why}."""
    failed: dict[str, str] = {}
    history = History(range(3))
    asked = Request(history.tokens, sampling=SamplingParams(temperature=0.0))
    read = any(drafter.name in HEADS for drafter in drafters)  # they read what the target thought of the text
    for slot in slots:
        if read:
            target.decode([Feed(slot, history.tokens[:2], 1)])
        request = DraftRequest(slot, history, 1, 1, asked, Noise(0))
        for drafter in drafters:
            try:
                drafter.draft([request])
            except (DecodeError, MemoryError) as error:
                failed[drafter.name] = str(error) or "out of memory"
    return failed


def identity(head: Head) -> list[Any]:
    """Facts that tell a head from others, for what is remembered of it: method, and size and time of change of its
    files."""
    path = head.path
    files = formats.weights_of(path) if path.is_dir() else [path]
    return [head.name, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files)]


def shapes(target: Header, paths: Sequence[Path]) -> tuple[HeadShape, ...]:
    return tuple(head_shape(path, kind_of(path).method, target) for path in paths)


def may_predict(drafter: str) -> bool:
    """Whether multi-token prediction in the target's own file is loaded for a drafter of this name."""
    return drafter in ("auto", OF_ITS_OWN)


def _method(path: Path) -> str:
    """Which method's head a file is; a whole model's MTP layers may be another one's, too."""
    kind = kind_of(path)
    if kind.method == "draft":
        if nextn_layers(read_header(path)):
            return OF_ITS_OWN
        raise UsageError(f"{path.name} is a whole model, not a head.", "Give it with --draft.")
    formats.check_supported(path, kind)
    return kind.method
