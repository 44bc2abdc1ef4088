"""How a request's body is read: which fields are ignored, which are refused, and how the client and the log hear of it.

By default null stands for a field that is left out, and a field that is not known is ignored, unless it would change
the answer: those of `SWITCHES` are refused. A strict reading refuses every field that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from localspec.server.http.errors import invalid
from localspec.server.http.meter import LOG

HEADER = "Localspec-Ignored-Fields"
"""Header of a response: names of the request's fields that were ignored."""
MOST_NAMES = 20
"""Ignored names that are told of one request."""
LONGEST_NAME = 64
"""Characters of an ignored name that are told."""
MOST_REMEMBERED = 200
"""Ignored names that the log tells, each once, before it tells no more."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")

SWITCHES: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dynamic_temperature": (False,),
    "nsigma": (-1, 0),
    "adaptive_target": (-1,),
    "top_a": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "smoothing_factor": (0,),
    "no_repeat_ngram_size": (0,),
    "guidance_scale": (1,),
    "cfg_scale": (1,),
    "num_beams": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "include_stop_str_in_output": (False,),
    "lora": ([], {}),
    "lora_request": ([], {}),
    "lora_adapters": ([], {}),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": ([],),
    "images": ([],),
    "image_data": ([],),
    "multimodal_data": ([], {}),
    "prompt_embeds": ([],),
    "best_of": (1,),
    "dimensions": (),
    "messages": ([],),
    "prompt": (),
    "conversation": (),
}
"""Fields of other servers that change the answer and that are not supported, with the values that turn each off.
Fields that only tune one of them (`mirostat_tau`, `guidance_rescale`, ...) change nothing by themselves."""


class Reading:
    """The context in which the body of one request is validated. Collects the names of ignored fields."""

    def __init__(self, *, strict: bool) -> None:
        """`strict`: refuse unknown fields."""
        self._strict = strict
        self._ignored: dict[str, None] = {}

    def taken(self, data: dict[Any, Any], kind: type[BaseModel]) -> dict[Any, Any]:
        """The fields of an object that `kind` is to validate."""
        if self._strict:
            return data
        known, kept = _names(kind), {}
        for name, value in data.items():
            if value is None:
                continue
            if name in known:
                kept[name] = value
            else:
                if name not in getattr(kind, "ignored_switches", ()):
                    _check(name, value)
                self._ignore(str(name))
        return kept

    def with_tools(self, data: dict[Any, Any], types: frozenset[str]) -> dict[Any, Any]:
        """The same without tools of other types, which no client runs; a tool without a type stays."""
        tools = data.get("tools")
        if self._strict or not isinstance(tools, list):
            return data
        kept = []
        for tool in tools:
            kind = tool.get("type") if isinstance(tool, dict) else None
            if isinstance(kind, str) and kind not in types:
                self._ignore(f"tools.{kind}")
            else:
                kept.append(tool)
        return {**data, "tools": kept}

    def _ignore(self, name: str) -> None:
        told = shown(name)
        if told and len(self._ignored) < MOST_NAMES:
            self._ignored[told] = None

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names that may stand in a header and in the log."""
        return tuple(self._ignored)


class IgnoredNames:
    """What the log has told: each name once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, names: Iterable[str]) -> None:
        """Writes a line about those that are new, while there is room to remember them."""
        fresh = [name for name in names if name not in self._told][: MOST_REMEMBERED - len(self._told)]
        if fresh:
            self._told.update(fresh)
            LOG.warning("Ignored unknown fields of requests, told once each: %s", ", ".join(fresh))


def shown(name: str) -> str:
    """A name without what could forge a header or a line of the log; "" if nothing is left."""
    return _UNSAFE.sub("", name[: 4 * LONGEST_NAME])[:LONGEST_NAME]


def renamed(data: dict[Any, Any], other_names: Mapping[str, str]) -> dict[Any, Any]:
    """The same fields under our names; ApiError 400: two names of one field, and two values."""
    if not any(other in data for other in other_names):
        return data
    data = dict(data)
    for other, own in other_names.items():
        value = data.pop(other, None)
        if value is None:
            continue
        if data.get(own, value) not in (None, value):
            raise invalid(f"{other} and {own} differ, and are two names of one field.", other, "invalid_value")
        data[own] = value
    return data


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """What the fields of a model are called in JSON."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def _check(name: Any, value: Any) -> None:
    if name in SWITCHES and value not in SWITCHES[name]:
        what = f"{name} is not supported and would change the answer. Leave it out or turn it off."
        raise invalid(what, name, "unsupported_parameter")
