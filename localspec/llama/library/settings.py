"""How a context is set up, and what it hands out besides logits. All but `logits` can change the bits of a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from localspec.errors import UsageError
from localspec.gguf import Header
from localspec.llama.library.batch import MAX_IDS, Reuse

GPU_WIDTH = 8  # rows of a pass on a GPU: from 9 rows on most GPUs use kernels that cost much more (issue 49)

CacheType = Literal["f16", "bf16", "q8_0", "f32"]
_RANGES = {
    "n_ctx": (8, 1 << 24), "n_slots": (1, MAX_IDS), "max_leaves": (1, MAX_IDS), "grid": (16, 1 << 16),
    "threads": (0, 512), "max_rows": (1, 4096), "rollback": (0, 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContextSettings:
    n_ctx: int = 4096  # tokens a slot can hold
    n_slots: int = 1  # conversations served side by side; each gets a stream of its own and drafts chains
    max_leaves: int = 1  # most leaves of a draft tree; above 1 needs `n_slots` = 1 (one cache shared by all leaves)
    grid: int = 512  # prompt tokens per prefill pass, counted from position 0; also llama.cpp's n_batch and n_ubatch
    threads: int = 0  # of every pass (their number changes the bits); 0 = one per physical core
    flash_attention: bool | Literal["auto"] = "auto"  # "auto": on, wherever it is supported
    type_k: CacheType = "f16"  # number format of the keys in the cache
    type_v: CacheType = "f16"  # number format of the values; q8_0 needs flash attention
    reuse: Reuse = "all"
    """What a new history may keep of the cache: "all" = the longest common prefix; "chunks" = only what a fresh run
    would have computed in the same passes, so that a text never depends on what was asked before."""
    grid_prefill: bool = True  # False for draft models: a few missing tokens ride along in the next pass
    max_rows: int = 64  # most rows with logits in a pass over all slots; bounds llama.cpp's output buffer
    rollback: int = 0
    """Of a model with recurrent layers, tokens that can be dropped from the end of its cache, which is the longest
    draft: llama.cpp keeps so many states besides the last. One slot only; other models drop what they like."""
    logits: Literal["copied", "in place"] = "copied"
    """How rows of logits are read: from the buffer that llama.cpp copies them to, or where a pass left them (see
    `LogitsTap`), which takes memory for four times as many. The bits are the same. With several slots, a recurrent
    model, or final states of prompts they are always copied."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is {value}; it must be between {low} and {high}.")
        if self.max_leaves > 1 and self.n_slots > 1:
            raise UsageError(
                f"max_leaves is {self.max_leaves} with {self.n_slots} slots; trees need a context of one slot."
            )
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in ("f16", "bf16", "q8_0", "f32"):
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be f16, bf16, q8_0 or f32.")
        if self.flash_attention not in (True, False, "auto"):
            raise UsageError(f'flash_attention is {self.flash_attention!r}; it must be True, False or "auto".')
        if self.flash_attention is False and self.type_v == "q8_0":
            raise UsageError("type_v q8_0 needs flash attention, which is off.")
        if self.logits not in ("copied", "in place"):
            raise UsageError(f'logits is {self.logits!r}; it must be "copied" or "in place".')
        if self.reuse not in ("all", "chunks"):
            raise UsageError(f'reuse is {self.reuse!r}; it must be "all" or "chunks".')


FINAL, NEXTN = -1, -2  # states besides layer inputs: normed final, and what an MTP layer starts from

SHOWS_LAYERS = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
        "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3",
        "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip
"""Architectures whose layer inputs this llama.cpp hands out; asked for those of another it ends the process."""
SHOWS_NEXTN = frozenset(
    {
        "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "gemma4", "glm-dsa", "glm4moe", "gpt-oss", "hy_v3",
        "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
    }
)  # fmt: skip
"""Architectures whose passes set the state that an MTP layer starts from; of another, nothing would ever come."""
Final = Literal["no", "decoded", "all"]


@dataclass(frozen=True, slots=True)
class Tap:
    layers: tuple[int, ...] = ()  # inputs of these layers, of every row of every pass, prompts included
    final: Final = "no"
    """The final state after the norm: of decoded rows only ("decoded"; prompts cost nothing more), or of prompts
    too ("all"; every prompt row then is an output, which costs the output matrix)."""
    nextn: bool = False  # whether to read the state that an MTP layer starts from, of every row, prompts included

    def __bool__(self) -> bool:
        return self != NO_TAP

    @property
    def everything(self) -> tuple[int, ...]:
        """What can be read: layers, `FINAL`, `NEXTN`."""
        return (*self.layers, *([FINAL] if self.final != "no" else []), *([NEXTN] if self.nextn else []))


NO_TAP = Tap()


def union(taps: Iterable[Tap]) -> Tap:
    every = [NO_TAP, *taps]
    final = max((one.final for one in every), key=get_args(Final).index)
    layers = {layer for one in every for layer in one.layers}
    return Tap(tuple(sorted(layers)), final, any(one.nextn for one in every))


def check_tap(header: Header, n_layers: int, tap: Tap) -> Tap:
    """The tap with its layers each once, in order; to be asked before llama.cpp, which would end the process. Raises
    UsageError: no such layer, or an architecture that does not show what is asked for."""
    for layer in tap.layers:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 0 <= layer < n_layers:
            raise UsageError(f"There is no layer {layer!r}; {header.path.name} has layers 0 to {n_layers - 1}.")
    if tap.layers and header.architecture not in SHOWS_LAYERS:
        raise UsageError(
            f"llama.cpp does not show what goes into layers of the architecture {header.architecture}.",
            "Ask for no layers: the final states are there for every model.",
        )
    if tap.nextn and header.architecture not in SHOWS_NEXTN:
        raise UsageError(f"llama.cpp shows no state for MTP layers of the architecture {header.architecture}.")
    return Tap(tuple(sorted({int(layer) for layer in tap.layers})), tap.final, tap.nextn)
