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
from dataclasses import replace
from pathlib import Path

import numpy as np

from localspec.drafters.models.draft_model import DraftContext, DraftModel, DraftModelSettings
from localspec.engine.interfaces import Draft, DraftRequest
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.exact import choice
from localspec.llama.library.batch import common_prefix
from localspec.llama.library.settings import NO_TAP, ContextSettings
from localspec.llama.model import Model, check_text_model
from localspec.models.facts import pairing
from localspec.models.facts.heads import draft_kind, keeps_state
from localspec.types import NO_TOKENS, Feed, LogitRows, Tokens

MOST_LEVELS = 16
"""Most tokens guessed in one pass: published models were trained for 8 to 16. A longer draft takes another pass."""
_PUBLISHED_MASKS = {"llama": 128020, "qwen2": 151665, "qwen3": 151670}
"""Mask tokens by architecture, as amd/PARD-* were trained (`pard_token` in config.json): ids without a use."""
_UNUSED_NAME = re.compile(r"\[PAD\d+\]|<\|reserved_special_token_\d+\|>")
"""Names of tokens without a use: those that converters give to ids beyond the tokenizer, and Llama 3's reserve."""


def load(path: Path, target: Header) -> PardHead:
    """Reads the header of a PARD file.

    Args:
        path: the GGUF file.
        target: of the model it should guess for.

    Raises:
        PairError: it does not share the target's tokenizer, or its passes cannot be taken back.
    """
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method != "pard":
        raise PairError(f"{path.name} is {kind.sentence}, not a PARD draft model.")
    pairing.check(target, header)
    if keeps_state(header):
        raise PairError(f"{path.name} has recurrent layers ({header.architecture}), which cannot forget masks.")
    return PardHead(path, mask_token(header))


def mask_token(header: Header) -> int:
    """The mask token of a PARD file: as it says itself, as the config.json beside it does (`pard_token`), or as it was
    published for that family.

    Raises:
        ModelFileError: the file does not say, or it is not in the vocabulary.
    """
    size = header.count("tokenizer.ggml.tokens")
    stated = header.metadata.get("tokenizer.ggml.mask_token_id", _configured(header.path))
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


def _configured(path: Path) -> object:
    """`pard_token` of the config.json that converters leave beside their file; None = there is none."""
    try:
        config = json.loads(path.with_name("config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.get("pard_token") if isinstance(config, dict) else None


class PardHead:
    """One PARD file; see `drafters.head.Head`."""

    name = "pard"
    tap = NO_TAP

    def __init__(self, path: Path, mask: int) -> None:
        self.path, self.mask = path, mask
        self._model: Model | None = None
        self._context: Context | None = None

    def attach(self, target: Context, branches: int) -> PardDrafter:
        """Loads the model, on the GPU if the target has layers there, and makes its drafter.

        A second drafter shares model and cache with the first; they are freed with the head.
        """
        if self._context is None:
            self._context = self._load(target)
        parallel = ParallelContext(self._context, self.mask)
        return PardDrafter(parallel, target.model.end_tokens, DraftModelSettings(branches))

    def _load(self, target: Context) -> Context:
        shape = ContextSettings(
            n_ctx=target.n_ctx,
            n_slots=target.settings.n_slots,
            threads=target.settings.threads,
            grid_prefill=False,
            max_rows=max(64, target.settings.n_slots * MOST_LEVELS),
        )
        like, gpu_layers = target.model, -1 if target.model.gpu_layers else 0
        kernels = choice.kernels_beside(like, gpu_layers)
        self._model = choice.load(self.path, kernels, gpu_layers, like.device, role="PARD model")
        context = Context(self._model, shape)
        context.n_vocab = min(self._model.n_vocab, target.n_vocab)  # no guess beyond these
        return context

    def close(self) -> None:
        for part in (self._context, self._model):
            if part is not None:
                part.close()
        self._context = self._model = None


class PardDrafter(DraftModel):
    """The draft model's way to draw a draft, from rows that one pass computes."""

    one_pass = True
    """The plan takes the first level to cost all and the others nothing (`planning.passes`)."""

    def __init__(self, context: ParallelContext, end_tokens: frozenset[int], settings: DraftModelSettings) -> None:
        super().__init__(context, end_tokens, settings, PardHead.name)

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if isinstance(self._context, ParallelContext):  # None once it is closed
            self._context.begin({request.slot: len(request.history) + self._levels(request) for request in requests})
        return super().draft(requests)

    def _levels(self, request: DraftRequest) -> int:
        return min(request.max_depth, -(-request.max_nodes // self.settings.branches))


class ParallelContext:
    """A `DraftContext` over that of a model with a mask token: one pass computes the rows of a whole draft."""

    def __init__(self, context: DraftContext, mask: int) -> None:
        """`context`: takes drafts, for `MOST_LEVELS` rows a slot; the caller frees it."""
        self.n_ctx, self.n_vocab = context.n_ctx, context.n_vocab
        self._context, self._mask = context, mask
        self._ends: dict[int, int] = {}
        self._rows: dict[int, tuple[Tokens, LogitRows]] = {}
        """{slot: (history, rows after it by level)}; rows are valid until the next pass."""

    def begin(self, ends: dict[int, int]) -> None:
        """A draft begins, with passes from the real tokens: what was computed after others is not used any more.

        Args:
            ends: by slot, the length that history and draft may reach together.
        """
        self._ends = ends
        self._rows.clear()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after each feed's last token: out of the last pass, where that has it for all of them."""
        found = self._computed(feeds)
        if len(found) < len(feeds):
            self._rows.clear()
            asked = [self._masked(feed) for feed in feeds]
            for feed, rows in zip(asked, self._context.decode(asked), strict=True):
                self._rows[feed.slot] = (feed.tokens.copy(), rows)
            found = self._computed(feeds)
        return found

    def _computed(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """Rows there are; fewer than feeds where some are not."""
        found = []
        for feed in feeds:
            tokens, rows = self._rows.get(feed.slot, (NO_TOKENS, None))
            level = len(feed.tokens) - len(tokens)
            if rows is not None and 0 <= level < len(rows) and common_prefix(tokens, feed.tokens) == len(tokens):
                found.append(LogitRows(rows.pointers[level : level + 1], self.n_vocab, rows))
        return found

    def _masked(self, feed: Feed) -> Feed:
        length = len(feed.tokens)
        end = min(self._ends.get(feed.slot, 0), self.n_ctx)
        masks = max(0, min(end - length, MOST_LEVELS) - 1)
        chain = np.arange(-1, masks - 1, dtype=np.int32)
        return replace(
            feed, prompt_length=length, draft_tokens=np.full(masks, self._mask, dtype=np.int32), draft_parents=chain
        )

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One pass towards a cache of all tokens but the last."""
        self._rows.clear()
        return self._context.prefill_chunk(slot, tokens, prompt_length)

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that are cached."""
        return self._context.reusable(slot, tokens, prompt_length)
