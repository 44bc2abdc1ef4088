"""localspec: local LLM text, faster than the target model alone and provably the same.

>>> from localspec import Engine, Message
>>> with Engine.load() as engine:
...     print(engine.chat([Message("user", "Repeat: one two three")]).text())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.chat.turn import Message as Message
    from localspec.config import EngineSettings as EngineSettings
    from localspec.engine.interfaces import Draft as Draft
    from localspec.engine.interfaces import Drafter as Drafter
    from localspec.engine.slot import Event as Event
    from localspec.engine.slot import FinishReason as FinishReason
    from localspec.engine.stats import RequestStats as RequestStats
    from localspec.errors import LocalspecError as LocalspecError
    from localspec.grammar.grammar import Grammar as Grammar
    from localspec.options import Options as Options
    from localspec.options import Rule as Rule
    from localspec.options import SamplingParams as SamplingParams
    from localspec.runtime.engine import Engine as Engine
    from localspec.runtime.generation import Generation as Generation

__version__ = "0.2.0"

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
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `localspec --help` must not pay for numpy."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'localspec' has no attribute {name!r}")
