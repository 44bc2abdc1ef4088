"""What tuning tries: settings by aspect, as far as the user has not decided and this machine offers a choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from localspec.llama.exact import wide
from localspec.machine.cpus import allowed, default_threads

ASPECTS = ("threads", "kernels", "cache", "ngram", "length")


class Challenger(NamedTuple):
    """Settings to try."""

    aspect: str
    words: str
    changes: dict[str, Any]
    """Fields of `EngineSettings`."""


def challengers(aspect: str, base: Mapping[str, Any], running: Mapping[str, Any]) -> list[Challenger]:
    """What there is to try of an aspect; nothing where the user has decided.

    Args:
        aspect: one of `ASPECTS`.
        base: settings that are given.
        running: what the best so far runs with (`Answering.about`).
    """
    found: list[dict[str, Any]] = []
    drafts = bool(running["drafts"])
    if aspect == "threads":
        usual = default_threads()
        found = [{"threads": count} for count in sorted({1, usual // 2, usual - 1, len(allowed())} - {0, usual})]
    elif aspect == "kernels" and base.get("gpu_layers") in (None, 0, "auto") and not running.get("gpu"):
        names = ["repacked", "plain"] if not base.get("wide", True) or not wide.available() else []
        names = names or ["wide", "repacked", "plain"]
        found = [{"kernels": name} for name in names if base.get("cache", "auto") in ("auto", "f16") or name != "wide"]
    elif aspect == "cache" and not running["wide"]:
        found = [{"cache": name} for name in ("f16", "bf16", "q8_0", "unfused")]
    elif aspect == "ngram" and drafts:
        found = [{"min_ngram": low, "max_ngram": high} for low, high in ((1, 4), (3, 6), (4, 10))]
    elif aspect == "length" and drafts and base.get("max_draft_tokens") is None and base.get("slots", 1) == 1:
        found = [{"draft_cap": length} for length in (3, 15)]
    return [
        Challenger(aspect, ", ".join(f"{name} {value}" for name, value in changes.items()), changes)
        for changes in found
        if not set(changes) & set(base)
    ]
