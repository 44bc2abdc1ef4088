"""What exact widths are kept under, without a model that is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from localspec.gguf.spread import BY_LAYER
from localspec.llama.exact import choice
from localspec.llama.library.settings import ContextSettings


def key(path: Path, settings: ContextSettings, widest: int, **where: Any) -> str:
    """Of a model there; `where` it is: kernels, gpu_layers, device, spread."""
    usual = {"path": path, "kernels": "repacked", "gpu_layers": 0, "device": None, "spread": BY_LAYER}
    context: Any = SimpleNamespace(model=SimpleNamespace(**usual | where), settings=settings)
    return json.dumps(choice.key(context, widest), sort_keys=True)
