"""Heads that guess a whole block of tokens in one pass.

DFlash (Chen, Liang, Liu 2026, arXiv 2602.06036) reads what layers of the target saw and guesses each token by itself;
DSpark adds a bias for the token before, and DFlash2 a choice among a few candidates. A draft is drawn level by level
from the rows of one pass, with the request's own noise, so that a bias or a choice follows the token that was drawn.

Each layer of such a head attends to *cells*: keys and values made from what layers of the target saw. Cell p is of
position p, and there is one for every token but the last. A block pass then reads the last token of a history and mask
tokens after it, each of which sees all cells and the whole block; its own cells are dropped after the pass. Files are
GGUF of llama.cpp's architecture `dflash`, as its own conversion writes them; llama.cpp would end the process over most
of what is refused here (src/models/dflash.cpp).

PARD (An, Bai, Liu et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation"): a
small model guesses K tokens, from K - 1 mask tokens after the last token. The row of the last token predicts the next
one, the row of each mask the token one further on, none of them knowing what the ones before it guessed. The files are
ordinary models of the target's family with one token set apart as the mask, so they run in an ordinary context: the
masks are a draft that it drops by itself when the real tokens come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.drafters.draft_model import DraftContext
from localspec.drafters.heads.head import (
    BlockDrafter,
    DraftBlock,
    Head,
    OnePassContext,
    beside,
    check_held,
    check_keys,
    guessed_ids,
    key_sizes,
    read_head,
    tapped_layers,
)
from localspec.drafters.heads.head_cache import MOST_PASS_ROWS, HeadModel, HeadPasses, TrunkCache, own_cache
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor
from localspec.llama.cache.context import Context
from localspec.llama.exact import choice
from localspec.llama.library import lib
from localspec.llama.library.settings import NO_TAP, ContextSettings, Tap
from localspec.llama.model import Model, TensorRows
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_forgets, draft_kind, keeps_state
from localspec.native import kernels
from localspec.types import Feed, Float32Array, LogitRows, Tokens

_REBIASED_TOKENS = 256
"""Tokens of a DSpark row whose bias is computed again after a guess that is not the row's own; other tokens are not
guessed. Chosen, not tuned: the bias of all tokens of a large vocabulary costs as much as a pass of the head."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The block passes of a head, as its file states them."""

    rows: int
    """Rows of a block: the last token and the masks. All passes have this width, on which a row's bits depend."""
    mask: int
    causal: bool = False
    """Whether a row attends only to rows before it."""
    logits: bool = True
    """Whether passes return logits; otherwise they return states, which hold the candidates of DFlash2."""


class DFlashContext(TrunkCache):
    """The cache of a head beside its target's. Every slot is a sequence of one unified cache."""

    def __init__(self, model: Model, target: Context, layers: Sequence[int], shape: BlockShape) -> None:
        """Beside a target that has a tap of `layers`, whose inputs the head reads in this order. Both models must
        stay open."""
        super().__init__(target, layers, model.n_vocab)
        self.shape, api = shape, lib.api()
        self.pass_rows = max(MOST_PASS_ROWS, self._n_slots * shape.rows)
        by_sections = (int(api.LLAMA_ROPE_TYPE_MROPE), int(api.LLAMA_ROPE_TYPE_IMROPE))
        self._passes = HeadPasses(
            model,
            own_cache(model, target, shape.rows, self.pass_rows),
            int(api.llama_model_n_embd(model.handle)),
            sections=int(api.llama_model_rope_type(model.handle)) in by_sections,
            states="none" if shape.logits else "all",
        )
        api.llama_set_causal_attn(self._passes.handle.pointer, shape.causal)

    def _fill(self, slot: int, tokens: Tokens, start: int, stop: int) -> None:
        states, ids = self._read_states(slot, start, stop), [(slot, 1)] * (stop - start)
        with self._passing((slot,)):
            self._passes.decode(self._passes.batch(range(start, stop), ids, False, states=states))

    def blocks(self, histories: Mapping[int, Tokens]) -> dict[int, DraftBlock]:
        """One pass over a block for each slot, after int32[n] tokens of which the target has evaluated all but the
        last. Slots are left out for which the target's states are not there."""
        ready = []
        for slot, tokens in sorted(histories.items()):
            start, stop = self._sync(slot, tokens)
            if start < stop and stop >= len(tokens) - 1:
                self._read(slot, tokens, max(self._trunks[slot].stop, start), stop)
                ready.append(slot)
        if not ready:
            return {}
        rows, logits = self.shape.rows, self.shape.logits
        tokens = np.full((len(ready), rows), self.shape.mask, dtype=np.int32)
        tokens[:, 0] = [histories[slot][-1] for slot in ready]
        positions = np.concatenate([np.arange(rows) + len(histories[slot]) - 1 for slot in ready]).astype(np.int32)
        ids = [(slot, 1) for slot in ready for _ in range(rows)]
        with self._passing(ready):
            self._passes.decode(self._passes.batch(positions, ids, logits, tokens=tokens.reshape(-1)))
        for slot in ready:
            self._remove(slot, len(histories[slot]) - 1)
        found = self._passes.logits(len(ids)) if logits else self._passes.states(len(ids))
        found = found.reshape(len(ready), rows, -1)
        if logits:
            found = found[:, :, : self.n_vocab]
        return {slot: DraftBlock(histories[slot].copy(), found[index]) for index, slot in enumerate(ready)}


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


@dataclass(frozen=True, slots=True)
class Scaling:
    """The last step of a model: its logits are scaled."""

    scale: float = 1.0
    """Factor of all logits."""
    cap: float = 0.0
    """Logits approach this number and never reach it; 0 = no limit."""

    def of(self, logits: Float32Array) -> Float32Array:
        if self.scale != 1.0:
            logits = logits * np.float32(self.scale)
        if self.cap:
            logits = np.float32(self.cap) * np.tanh(logits / np.float32(self.cap))
        return logits


class BlockRows:
    """Turns a block into logits, level by level. Of DFlash, row 1 + level says what the token is, whatever the tokens
    before it turn out to be."""

    def __init__(self, rows: int, scaling: Scaling | None = None, first: int = 1) -> None:
        """Of a block with `rows` rows, of which the `first` one guesses the first token."""
        self._scaling, self._first = scaling or Scaling(), first
        self.levels = rows - first  # number of tokens that a block guesses

    def row(self, block: DraftBlock, level: int, previous: int) -> Float32Array:
        """float32[vocabulary of the target]: logits of the token at a level, -inf for what it cannot be. `previous` is
        the token before the level: the last one of the history at level 0, and a guess after that."""
        return self._scaling.of(block.rows[self._first + level])


class MarkovRows(BlockRows):
    """DSpark: a row is the sum of what the context says and a bias for the token before.

    llama.cpp adds the bias of the tokens that each row likes best. For another token before it the one bias is taken
    away and the other added. `markov_w1` has a row for every token of the target, `markov_w2` one for every token that
    the head can guess."""

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
        super().__init__(rows, scaling, 0 if from_anchor else 1)
        self._before, self._after = before, after
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


class LatticeRows(BlockRows):
    """DFlash2: each row names a few candidates, and what each is worth after each candidate of the row before."""

    def __init__(self, rows: int, candidates: int, n_vocab: int) -> None:
        super().__init__(rows)
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
_SELECTOR_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def load_dflash(path: Path, target: Header) -> Head:
    header = read_head(path, KINDS, "a DFlash or DSpark head")
    kind = draft_kind(header).method
    check_forgets(target)
    pairing.check(target, header)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    layers, _ = tapped_layers(header, target)
    _check_attention(header)
    check_held(header, _needed(header, kind), "attn_k", "attn_q_norm", "attn_k_norm")
    ids = guessed_ids(header, tensors, target)
    from_anchor = kind == "dspark" and header.flag("dflash.sample_from_anchor") is not False
    _check_kind(header, kind, tensors, ids)
    causal = header.flag("dflash.attention.causal") is True
    shape = BlockShape(_rows(header, kind, from_anchor), _mask(header), causal, logits=kind != "dflash2")
    # llama.cpp applies them for DFlash2 only
    scaling = Scaling(header.real("logit_scale") or 1.0, header.real("final_logit_softcapping"))

    def rows(n_vocab: int) -> BlockRows:
        if kind == "dflash":
            return BlockRows(shape.rows, scaling)
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
    check_keys(header, *key_sizes(header))
    if header.number("attention.sliding_window") > 0:
        pattern = header.array("dflash.attention.sliding_window_pattern")
        if len(pattern) != header.n_layers or not any(value is True for value in pattern):
            raise ModelFileError(f"{name} is corrupt: it does not say which of its layers have a sliding window.")


def _needed(header: Header, kind: str) -> Iterator[str]:
    """Names of the tensors without which llama.cpp refuses the file or localspec cannot read its rows."""
    yield from ("fc.weight", "enc.output_norm.weight", "output_norm.weight")
    if kind == "dspark":
        yield from ("markov_w1.weight", "markov_w2.weight")
    if kind == "dflash2":
        yield from ("selector_predecessor.weight", "selector_successor.weight", "selector_hidden.weight")
        for layer in range(header.n_layers):
            yield from (f"blk.{layer}.{part}_conv_base" for part in ("attn", "ffn"))
            yield from (f"blk.{layer}.{part}_conv_proj.weight" for part in ("attn", "ffn"))


def _check_kind(header: Header, kind: str, tensors: Mapping[str, Tensor], ids: npt.NDArray[np.int64] | None) -> None:
    """The selector, which only DFlash2 has, and two tables that only DSpark has, of which localspec reads rows, of
    one rank and of the head's tokens."""
    name = header.path.name
    if kind == "dflash2":
        hidden = header.number("embedding_length")
        for key in _SELECTOR_KEYS:
            if header.number(key) < 1:
                raise ModelFileError(f"{name} is corrupt: dflash.{key} is {header.number(key)}.")
        group, count = header.number("conv_group_size"), header.number("selector_top_k")
        if hidden % group or hidden < count * (count + 1):
            raise ModelFileError(
                f"{name} is corrupt: groups of {group} and {count} candidates do not fit {hidden} numbers."
            )
    if kind == "dspark":
        tokens = header.count("tokenizer.ggml.tokens")
        before, after = tensors["markov_w1.weight"].shape, tensors["markov_w2.weight"].shape
        if len(before) != 2 or len(after) != 2 or before[0] != after[0]:
            raise ModelFileError(f"{name} is corrupt: its Markov tables are {list(before)} and {list(after)}.")
        if before[1] < tokens or after[1] < (tokens if ids is None else len(ids)):
            raise ModelFileError(f"{name} is corrupt: its Markov tables have too few tokens.")


MOST_LEVELS = 16
"""Most tokens guessed in one pass: published models were trained for 8 to 16. A longer draft takes another pass."""
_PUBLISHED_MASKS = {"llama": 128020, "qwen2": 151665, "qwen3": 151670}
"""Mask tokens by architecture, as amd/PARD-* were trained (`pard_token` in config.json): ids without a use."""
_UNUSED_NAME = re.compile(r"\[PAD\d+\]|<\|reserved_special_token_\d+\|>")
"""Names of tokens without a use: those that converters give to ids beyond the tokenizer, and Llama 3's reserve."""


def load_pard(path: Path, target: Header) -> Head:
    header = read_head(path, ("pard",), "a PARD draft model")
    pairing.check(target, header)
    if keeps_state(header):
        raise PairError(f"{path.name} has recurrent layers ({header.architecture}), which cannot forget masks.")
    mask = mask_token(header)
    return Head(
        "pard",
        path,
        NO_TAP,
        lambda target: _PardWeights(path, target),
        lambda loaded, _: ParallelContext(loaded.context, mask),
        BlockDrafter,
    )


def mask_token(header: Header) -> int:
    """The mask token of a PARD file: as it says itself, as the config.json beside it does (`pard_token`), or as it was
    published for that family. Raises ModelFileError: the file does not say, or it is not in the vocabulary."""
    size, configured = header.count("tokenizer.ggml.tokens"), None
    with suppress(OSError, ValueError):  # converters leave it beside their file
        config = json.loads(header.path.with_name("config.json").read_text(encoding="utf-8"))
        configured = config.get("pard_token") if isinstance(config, dict) else None
    stated = header.metadata.get("tokenizer.ggml.mask_token_id", configured)
    if stated is not None:
        if not isinstance(stated, int) or not 0 <= stated < size:
            raise ModelFileError(f"{header.path.name}: mask token {stated} is not in its vocabulary of {size} tokens.")
        return stated
    known = _PUBLISHED_MASKS.get(header.architecture)
    if known is not None and known < size and _UNUSED_NAME.fullmatch(header.tokens[known]):
        return known
    raise ModelFileError(
        f"{header.path.name} does not say which token is its mask.",
        "Put its config.json (with `pard_token`) beside it, or write the id into the file:"
        " gguf-new-metadata --special-token-by-id mask ID OLD NEW.",
    )


class _PardWeights:
    """The model and its cache, which all drafters share; on the GPU if the target has layers there."""

    def __init__(self, path: Path, target: Context) -> None:
        like, gpu_layers = target.model, -1 if target.model.gpu_layers else 0
        kernels = choice.kernels_beside(like, gpu_layers)
        self._model = choice.load(path, kernels, gpu_layers, like.device, role="PARD model")
        shape = ContextSettings(
            n_ctx=target.n_ctx,
            n_slots=target.settings.n_slots,
            threads=target.settings.threads,
            grid_prefill=False,
            max_rows=max(64, target.settings.n_slots * MOST_LEVELS),
        )
        self.context = Context(self._model, shape)
        self.context.n_vocab = min(self._model.n_vocab, target.n_vocab)  # no guess beyond these

    def close(self) -> None:
        self.context.close()
        self._model.close()


class ParallelContext(OnePassContext):
    """Rows of a model with a mask token. A draft that is longer than one pass takes another."""

    def __init__(self, context: DraftContext, mask: int) -> None:
        """`context`: takes drafts, for `MOST_LEVELS` rows a slot; the caller frees it."""
        super().__init__(context, n_paths=1)
        self._mask = mask

    def _level(self, feed: Feed) -> int | None:
        level = super()._level(feed)
        return None if level is None or level >= len(self._blocks[feed.slot].rows) else level

    def _compute(self, feeds: Sequence[Feed], new: Sequence[Feed]) -> dict[int, DraftBlock]:
        asked = []
        for feed in feeds:
            length = len(feed.tokens)
            end = min(self._ends.get(feed.slot, 0), self.n_ctx)
            masks = np.full(max(0, min(end - length, MOST_LEVELS) - 1), self._mask, dtype=np.int32)
            chain = np.arange(-1, len(masks) - 1, dtype=np.int32)
            asked.append(replace(feed, prompt_length=length, draft_tokens=masks, draft_parents=chain))
        rows = self._context.decode(asked)
        return {feed.slot: DraftBlock(feed.tokens.copy(), said) for feed, said in zip(asked, rows, strict=True)}

    def _row(self, feed: Feed, level: int) -> LogitRows:
        rows = self._blocks[feed.slot].rows
        return LogitRows(rows.pointers[level : level + 1], self.n_vocab, rows)
