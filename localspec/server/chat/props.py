"""What llama-server's /props says of a model, as far as it applies."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from localspec import __version__
from localspec.runtime.any_engine import AnyEngine
from localspec.types import SamplingParams


def props_of(name: str, engine: AnyEngine) -> dict[str, Any]:
    """Of a model that is in memory."""
    loaded, settings = engine.loaded, engine.settings
    model = loaded.model
    params = asdict(SamplingParams())
    params["logit_bias"] = []
    return {
        "default_generation_settings": {"n_ctx": loaded.context.n_ctx, "params": params},
        "total_slots": settings.slots,
        "model_alias": name,
        "model_path": str(settings.target),
        "draft_model_path": None if settings.draft is None else str(settings.draft),
        "chat_template": model.chat_template or "",
        "bos_token": model.text_of(model.bos),
        "eos_token": model.text_of(model.eos),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"localspec {__version__}",
        "is_sleeping": False,
        "speculative": {
            "drafter": settings.drafter,
            "max_draft_tokens": settings.max_draft_tokens,
            "verify_rule": settings.verify_rule.name.lower(),
            "exact": settings.exact,
            "configuration": loaded.configuration,
        },
    }
