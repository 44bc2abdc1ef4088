"""PARD: a small model that guesses K tokens in one pass, from K - 1 mask tokens after the last token.

An, Bai, Liu et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation": the row of
the last token predicts the next one, the row of each mask the token one further on, none of them knowing what the ones
before it guessed. The files are ordinary models of the target's family with one token set apart as the mask, so they
run in an ordinary context: the masks are a draft that it drops by itself when the real tokens come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import BlockDrafter, DraftBlock, Head, OnePassContext, read_head
from localspec.drafters.models.draft_model import DraftContext
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.exact import choice
from localspec.llama.library.settings import NO_TAP, ContextSettings
from localspec.models.facts import pairing
from localspec.models.facts.heads import keeps_state
from localspec.types import Feed, LogitRows

MOST_LEVELS = 16
"""Most tokens guessed in one pass: published models were trained for 8 to 16. A longer draft takes another pass."""
_PUBLISHED_MASKS = {"llama": 128020, "qwen2": 151665, "qwen3": 151670}
"""Mask tokens by architecture, as amd/PARD-* were trained (`pard_token` in config.json): ids without a use."""
_UNUSED_NAME = re.compile(r"\[PAD\d+\]|<\|reserved_special_token_\d+\|>")
"""Names of tokens without a use: those that converters give to ids beyond the tokenizer, and Llama 3's reserve."""


def load(path: Path, target: Header) -> Head:
    header = read_head(path, ("pard",), "a PARD draft model")
    pairing.check(target, header)
    if keeps_state(header):
        raise PairError(f"{path.name} has recurrent layers ({header.architecture}), which cannot forget masks.")
    mask = mask_token(header)
    return Head(
        "pard",
        path,
        NO_TAP,
        lambda target: _Loaded(path, target),
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


class _Loaded:
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
