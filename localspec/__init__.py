"""localspec: local LLM text, faster than the target model alone and provably the same.

>>> from localspec import Engine, Message
>>> with Engine.load() as engine:
...     print(engine.chat([Message("user", "Repeat: one two three")]).text())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.config import EngineSettings
    from localspec.engine.interfaces import Draft, Drafter
    from localspec.engine.slot import Event, FinishReason
    from localspec.engine.stats import RequestStats
    from localspec.errors import LocalspecError
    from localspec.grammar.grammar import Grammar
    from localspec.options import Options, Rule, SamplingParams
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation

__version__ = "0.2.0"

__all__ = [
    "Draft",
    "Drafter",
    "Engine",
    "EngineSettings",
    "Event",
    "FinishReason",
    "Generation",
    "Grammar",
    "LocalspecError",
    "Message",
    "Options",
    "RequestStats",
    "Rule",
    "SamplingParams",
    "__version__",
]

_HOME = {
    "Draft": "localspec.engine.interfaces",
    "Drafter": "localspec.engine.interfaces",
    "Engine": "localspec.runtime.engine",
    "EngineSettings": "localspec.config",
    "Event": "localspec.engine.slot",
    "FinishReason": "localspec.engine.slot",
    "Generation": "localspec.runtime.generation",
    "Grammar": "localspec.grammar.grammar",
    "LocalspecError": "localspec.errors",
    "Message": "localspec.chat.turn",
    "Options": "localspec.options",
    "RequestStats": "localspec.engine.stats",
    "Rule": "localspec.options",
    "SamplingParams": "localspec.options",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `localspec --help` must not pay for numpy."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'localspec' has no attribute {name!r}")
