"""How a target can run: whose kernels compute its passes, and how keys and values are kept.

See docs/exactness.md, "Same bytes".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from localspec.llama.library.settings import CacheType, ContextSettings

Kernels = Literal["wide", "repacked", "plain"]
"""Kernels of passes on the CPU: our own library (native/wide), llama.cpp with weights reordered for speed, or llama.cpp
with the weights as they are in the file. Weights that our library does not support use llama.cpp's, reordered."""

LLAMA_KERNELS: tuple[Kernels, ...] = ("repacked", "plain")
ALL_KERNELS: tuple[Kernels, ...] = ("wide", *LLAMA_KERNELS)

_KERNEL_WORDS: dict[Kernels, str] = {"wide": "wide kernels", "repacked": "repacked weights", "plain": "plain weights"}


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How keys and values are kept, and whether attention is fused."""

    name: str
    type_k: CacheType
    type_v: CacheType
    flash_attention: bool | Literal["auto"]


DEFAULT_CACHE = CacheFormat("F16 cache", "f16", "f16", "auto")
CACHES = (
    DEFAULT_CACHE,
    CacheFormat("F16 keys, BF16 values", "f16", "bf16", True),
    CacheFormat("Q8_0 cache", "q8_0", "q8_0", True),
    CacheFormat("F16 cache, no flash attention", "f16", "f16", False),
)
CACHE_NAMES: dict[str, CacheFormat] = dict(zip(("f16", "bf16", "q8_0", "unfused"), CACHES, strict=True))
"""{name in `EngineSettings.cache`: format}."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to run a target."""

    kernels: Kernels
    cache: CacheFormat = DEFAULT_CACHE

    def __str__(self) -> str:
        return f"{self.cache.name}, {_KERNEL_WORDS[self.kernels]}"

    def apply(self, settings: ContextSettings) -> ContextSettings:
        """`settings` with this cache."""
        cache = self.cache
        return replace(settings, type_k=cache.type_k, type_v=cache.type_v, flash_attention=cache.flash_attention)

    @classmethod
    def named(cls, kernels: str, cache: str) -> Configuration:
        """The configuration of these names.

        Raises:
            ValueError: there is none.
        """
        for known in ALL_KERNELS:
            for form in CACHES:
                if (known, form.name) == (kernels, cache):
                    return cls(known, form)
        raise ValueError(f"no configuration has {cache!r} and {kernels!r}")
