"""Heads that guess a whole block of tokens in one pass, from what layers of the target saw.

DFlash (Chen, Liang, Liu 2026, arXiv 2602.06036) guesses each token by itself; DSpark adds a bias for the token before,
and DFlash2 a choice among a few candidates. A draft is drawn level by level from the rows of one pass, with the
request's own noise, so that a bias or a choice follows the token that was drawn. Files are GGUF of llama.cpp's
architecture `dflash`, as its own conversion writes them; llama.cpp would end the process over most of what is refused
here (src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localspec.drafters.heads.block import BlockDrafter, BlockShape, DFlashContext, DraftBlock, OnePassContext
from localspec.drafters.heads.head import Head, beside, check_held, check_rows, guessed_ids, read_head, tapped_layers
from localspec.drafters.heads.head_cache import HeadModel
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import Tap
from localspec.llama.model import Model, TensorRows
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_forgets, draft_kind
from localspec.native import kernels
from localspec.types import Feed, Float32Array, LogitRows

_REBIASED_TOKENS = 256
"""Tokens of a DSpark row whose bias is computed again after a guess that is not the row's own; other tokens are not
guessed. Chosen, not tuned: the bias of all tokens of a large vocabulary costs as much as a pass of the head."""


class BlockRows(Protocol):
    """Turns a block into logits, level by level. `previous` is the token before a level: the last one of the history at
    level 0, and a guess after that."""

    levels: int
    """Number of tokens that a block guesses."""

    def row(self, block: DraftBlock, level: int, previous: int) -> Float32Array:
        """float32[vocabulary of the target]: logits of the token at a level, -inf for what it cannot be."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a model does to its logits at the end."""

    scale: float = 1.0
    """Factor of all logits."""
    cap: float = 0.0
    """Logits approach this number and never reach it; 0 = no limit."""

    def of(self, logits: Float32Array) -> Float32Array:
        """The logits of one row, scaled."""
        if self.scale != 1.0:
            logits = logits * np.float32(self.scale)
        if self.cap:
            logits = np.float32(self.cap) * np.tanh(logits / np.float32(self.cap))
        return logits


class IndependentRows:
    """DFlash: row 1 + level says what the token is, whatever the tokens before it turn out to be."""

    def __init__(self, rows: int, scaling: Scaling) -> None:
        """`rows`: of a block."""
        self.levels = rows - 1
        self._scaling = scaling

    def row(self, block: DraftBlock, level: int, previous: int) -> Float32Array:
        said: Float32Array = block.rows[1 + level]
        return self._scaling.of(said)


class MarkovRows:
    """DSpark: a row is the sum of what the context says and a bias for the token before.

    llama.cpp adds the bias of the tokens that each row likes best. For another token before it the one bias is taken
    away and the other added. `markov_w1` has a row for every token of the target, `markov_w2` one for every token that
    the head can guess.
    """

    def __init__(
        self,
        rows: int,
        from_anchor: bool,
        before: TensorRows,
        after: TensorRows,
        ids: npt.NDArray[np.int64] | None,
        scaling: Scaling,
    ) -> None:
        """Of a block with `rows` rows, the first of which guesses, too, if `from_anchor`. `before` is `markov_w1`,
        `after` `markov_w2`, whose rows are of the tokens `ids`; None = of all. `scaling` is that of logits before
        the bias."""
        self._first = 0 if from_anchor else 1
        self.levels = rows - self._first
        self._before, self._after, self._scaling = before, after, scaling
        self._places = None
        if ids is not None:
            self._places = np.zeros(int(ids.max(initial=0)) + 1, dtype=np.int64)
            self._places[ids] = np.arange(len(ids))

    def row(self, block: DraftBlock, level: int, previous: int) -> Float32Array:
        said: Float32Array = block.rows[self._first + level]
        # the token before, as llama.cpp took it: what the row before likes best
        assumed = int(block.rows[self._first + level - 1].argmax()) if level else int(block.tokens[-1])
        if assumed == previous and self._scaling == Scaling():
            return said
        likeliest, _ = kernels.top_log_probs(LogitRows.from_matrix(said[None, :]), 0, min(_REBIASED_TOKENS, len(said)))
        likeliest = likeliest[np.isfinite(said[likeliest])]
        wanted, taken = self._before.read(np.array([previous, assumed]))
        after = self._after.read(likeliest if self._places is None else self._places[likeliest])
        row = np.full(len(said), -np.inf, dtype=np.float32)
        row[likeliest] = self._scaling.of(said[likeliest] - after @ taken) + after @ wanted
        return row


class LatticeRows:
    """DFlash2: each row names a few candidates, and what each is worth after each candidate of the row before."""

    def __init__(self, rows: int, candidates: int, n_vocab: int) -> None:
        """Of a block with `rows` rows, each of which has so many `candidates`."""
        self.levels = rows - 1
        self._count, self._n_vocab = candidates, n_vocab

    def row(self, block: DraftBlock, level: int, previous: int) -> Float32Array:
        count, said = self._count, block.rows[1 + level]
        found = np.full(self._n_vocab, -np.inf, dtype=np.float32)
        before = np.zeros(1, dtype=np.int64)
        if level:
            before = np.flatnonzero(block.rows[level, :count].astype(np.int64) == previous)
        if len(before):
            scores = said[count : count + count * count].reshape(count, count)
            found[said[:count].astype(np.int64)] = scores[before[0]]
        return found


KINDS = ("dflash", "dflash2", "dspark")
MOST_BLOCK_ROWS = 8
"""Most rows of a block: wider passes of the target cost much more on most GPUs and on CPUs (issue 48). A head that was
trained for longer blocks may guess worse in these, since its rows depend on the length of a block."""
_DEFAULT_BLOCK_ROWS = 16
"""Rows of a block if a DFlash file does not say: llama.cpp's default."""
_LAYER_TENSORS = (
    "attn_norm", "attn_q", "attn_k", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down",
)  # fmt: skip
"""Tensors of each layer, without which llama.cpp refuses the file."""
_SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def load(path: Path, target: Header) -> Head:
    """Reads a GGUF file of the architecture `dflash`; see `head`."""
    header = read_head(path, KINDS, "a DFlash or DSpark head")
    kind = draft_kind(header).method
    check_forgets(target)
    pairing.check(target, header)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    layers, _ = tapped_layers(header, target)
    _check_attention(header)
    check_held(header, _needed(header, kind))
    check_rows(header, tensors, target)
    ids = guessed_ids(header, tensors, target)
    from_anchor = kind == "dspark" and header.flag("dflash.sample_from_anchor") is not False
    if kind == "dflash2":
        _check_selector(header)
    if kind == "dspark":
        _check_markov(header, tensors, ids)
    causal = header.flag("dflash.attention.causal") is True
    shape = BlockShape(_rows(header, kind, from_anchor), _mask(header), causal, logits=kind != "dflash2")
    # llama.cpp applies them for DFlash2 only
    scaling = Scaling(header.real("logit_scale") or 1.0, header.real("final_logit_softcapping"))

    def rows(n_vocab: int) -> BlockRows:
        if kind == "dflash":
            return IndependentRows(shape.rows, scaling)
        if kind == "dflash2":
            return LatticeRows(shape.rows, header.number("selector_top_k"), n_vocab)
        before, after = (TensorRows(header, tensors[f"markov_{table}.weight"]) for table in ("w1", "w2"))
        return MarkovRows(shape.rows, from_anchor, before, after, ids, scaling)

    def context(model: Model, target: Context) -> BlockContext:
        cells = DFlashContext(model, target, layers, shape)
        return BlockContext(cells, rows(cells.n_vocab), target.max_leaves)

    tap = Tap(tuple(sorted(set(layers))))
    return Head(kind, path, tap, lambda target: beside(path, HeadModel, target), context, BlockDrafter)


def _rows(header: Header, kind: str, from_anchor: bool) -> int:
    """Rows of a block."""
    stated = header.metadata.get("dflash.block_size", None if kind != "dflash" else _DEFAULT_BLOCK_ROWS)
    least = 1 if from_anchor else 2
    if not isinstance(stated, int) or stated < least:
        said = "does not say how long its blocks are" if stated is None else f"has blocks of {stated} tokens"
        raise ModelFileError(f"{header.path.name} {said}; localspec needs dflash.block_size of at least {least}.")
    return min(stated, MOST_BLOCK_ROWS)


def _mask(header: Header) -> int:
    size, mask = header.count("tokenizer.ggml.tokens"), header.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or not 0 <= mask < size:
        said = "does not say which token is its mask" if mask is None else f"names {mask} as its mask token"
        raise ModelFileError(
            f"{header.path.name} {said}; its vocabulary has {size} tokens.",
            "Convert it again with a newer llama.cpp, which writes tokenizer.ggml.mask_token_id.",
        )
    return mask


def _check_attention(header: Header) -> None:
    """Numbers over which llama.cpp ends the process."""
    name = header.path.name
    if header.number("hyper_connection.count") > 0:
        raise PairError(f"{name} joins its layers by hyper-connections, which localspec cannot draft with yet.")
    if header.number("attention.head_count") < 1 or header.number("attention.head_count_kv") < 1:
        raise ModelFileError(f"{name} is corrupt: it has no attention heads.")
    usual = header.number("embedding_length") // header.number("attention.head_count")
    stated = [header.metadata.get(f"dflash.attention.{part}_length", usual) for part in ("key", "value")]
    if stated[0] != stated[1]:
        raise ModelFileError(f"{name} is corrupt: keys have {stated[0]} numbers, and values {stated[1]}.")
    size, turned = stated[0], header.metadata.get("dflash.rope.dimension_count", stated[0])
    if not isinstance(size, int) or not isinstance(turned, int) or not 0 < turned <= size or turned % 2:
        raise ModelFileError(f"{name} is corrupt: it turns {turned} of {size} numbers of a key.")
    if header.number("attention.sliding_window") > 0:
        pattern = header.array("dflash.attention.sliding_window_pattern")
        if len(pattern) != header.n_layers or not any(value is True for value in pattern):
            raise ModelFileError(f"{name} is corrupt: it does not say which of its layers have a sliding window.")


def _needed(header: Header, kind: str) -> Iterator[str]:
    """Names of the tensors without which llama.cpp refuses the file or localspec cannot read its rows."""
    yield from ("fc.weight", "enc.output_norm.weight", "output_norm.weight")
    for layer in range(header.n_layers):
        yield from (f"blk.{layer}.{part}.weight" for part in _LAYER_TENSORS)
        if kind == "dflash2":
            yield from (f"blk.{layer}.{part}_conv_base" for part in ("attn", "ffn"))
            yield from (f"blk.{layer}.{part}_conv_proj.weight" for part in ("attn", "ffn"))
    if kind == "dspark":
        yield from ("markov_w1.weight", "markov_w2.weight")
    if kind == "dflash2":
        yield from ("selector_predecessor.weight", "selector_successor.weight", "selector_hidden.weight")


def _check_selector(header: Header) -> None:
    hidden = header.number("embedding_length")
    for key in _SELECTOR_KEYS:
        if header.number(key) < 1:
            raise ModelFileError(f"{header.path.name} is corrupt: dflash.{key} is {header.number(key)}.")
    group, count = header.number("conv_group_size"), header.number("selector_top_k")
    if hidden % group or hidden < count * (count + 1):
        raise ModelFileError(
            f"{header.path.name} is corrupt: groups of {group} and {count} candidates do not fit {hidden} numbers."
        )


def _check_markov(header: Header, tensors: Mapping[str, Tensor], ids: npt.NDArray[np.int64] | None) -> None:
    """The two tables, of which localspec reads rows, must be of one rank and of the head's tokens."""
    tokens = header.count("tokenizer.ggml.tokens")
    before, after = tensors["markov_w1.weight"].shape, tensors["markov_w2.weight"].shape
    if len(before) != 2 or len(after) != 2 or before[0] != after[0]:
        raise ModelFileError(f"{header.path.name} is corrupt: its Markov tables are {list(before)} and {list(after)}.")
    if before[1] < tokens or after[1] < (tokens if ids is None else len(ids)):
        raise ModelFileError(f"{header.path.name} is corrupt: its Markov tables have too few tokens.")


class BlockContext(OnePassContext):
    """Blocks of a `DFlashContext`, read level by level."""

    def __init__(self, context: DFlashContext, rows: BlockRows, n_paths: int) -> None:
        """`context` is closed with this; `rows` reads its blocks."""
        super().__init__(context, n_paths)
        self._rows = rows

    def _compute(self, feeds: Sequence[Feed], new: Sequence[Feed]) -> dict[int, DraftBlock]:
        known = {slot: block.tokens for slot, block in self._blocks.items()}
        found: dict[int, DraftBlock] = self._context.blocks(known | {feed.slot: feed.tokens for feed in new})
        return found

    def _row(self, feed: Feed, level: int) -> LogitRows | None:
        if level >= self._rows.levels:
            return None
        return LogitRows.from_matrix(self._rows.row(self._blocks[feed.slot], level, int(feed.tokens[-1]))[None, :])

    def close(self) -> None:
        super().close()
        self._context.close()
