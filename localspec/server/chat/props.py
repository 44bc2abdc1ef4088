"""What llama-server's /props says of a model, as far as it applies."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec import __version__
from localspec.gguf.split import read_parts
from localspec.models.facts.pairing import vocabulary
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Pool
from localspec.types import SamplingParams


def props_of(name: str, facts: ModelFacts) -> dict[str, Any]:
    """Of a model that is in memory."""
    return {
        **_of_files(name, Path(facts.target), None if facts.draft is None else Path(facts.draft)),
        "default_generation_settings": _defaults(facts.context),
        "total_slots": facts.slots,
        "chat_template": facts.template,
        "bos_token": facts.bos,
        "eos_token": facts.eos,
        "is_sleeping": False,
        "speculative": facts.speculative | {"configuration": facts.configuration},
    }


def props_unloaded(name: str, pool: Pool) -> dict[str, Any]:
    """Of a model that was never in memory, as its file tells it; a context of 0 is not known before it is loaded."""
    files = pool.files(name)
    header = read_parts(files.target)[0]
    words = vocabulary(header)
    bos, eos = (
        "" if token is None else words.tokens[token].decode("utf-8", "replace") for token in (words.bos, words.eos)
    )
    return {
        **_of_files(name, files.target, files.draft),
        "default_generation_settings": _defaults(0),
        "total_slots": pool.slots(files),
        "chat_template": header.chat_template or "",
        "bos_token": bos,
        "eos_token": eos,
        "is_sleeping": True,
    }


def _of_files(name: str, target: Path, draft: Path | None) -> dict[str, Any]:
    return {
        "model_alias": name,
        "model_path": str(target),
        "draft_model_path": None if draft is None else str(draft),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"localspec {__version__}",
    }


def _defaults(n_ctx: int) -> dict[str, Any]:
    return {"n_ctx": n_ctx, "params": asdict(SamplingParams()) | {"logit_bias": []}}
