"""Where models can be put on this machine, and whether a word of the command line names one that can be opened."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from localspec.cli.parser import add_engine_settings
from localspec.config import PLANNED
from localspec.errors import ModelError
from localspec.runtime.memory import places as places

if TYPE_CHECKING:
    from localspec.models.memory.fit import FitSettings


def names_model(word: str) -> bool:
    """Whether a word is the name of a model, installed or listed, or a GGUF file; else it may be a prompt."""
    from localspec.models.installed.installed import knows
    from localspec.paths import typed

    path = typed(word)
    is_file = os.path.isfile(path)
    if knows(word) or (word.endswith(".gguf") and (is_file or len(word.split()) == 1)):
        return True
    with suppress(OSError), open(path if is_file else os.devnull, "rb") as file:
        return file.read(4) == b"GGUF"
    return False


def check_openable(word: str, commands: Iterable[str] = ()) -> None:
    """Accepts an installed model or pair, a server's model of models.toml, or a GGUF file. Nothing is fetched.

    Args:
        commands: what else could have been meant.

    Raises:
        UsageError: neither a command nor a name that is known; the hint names those most like it.
    """
    from localspec.cli.parser import did_you_mean
    from localspec.errors import UsageError
    from localspec.gguf import read_header
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, knows, usable
    from localspec.paths import typed

    endpoints = Catalog.load().endpoints
    if word in endpoints:
        return
    names_file = word.endswith(".gguf") or "/" in word or os.path.isfile(typed(word))
    if not names_file and not knows(word):
        kinds = "command, model or file" if commands else "model, pair or file"
        hint = did_you_mean(word, [*commands, *usable(), *endpoints])
        raise UsageError(
            f"There is no {kinds} called {word!r}.",
            hint or "`localspec help` lists the commands, `localspec list` the models that are installed.",
        )
    target, _ = find(word)
    read_header(target)


_CACHES: dict[str, dict[str, Any]] = {
    "auto": {},
    "f16": {},
    "bf16": {"type_v": "bf16"},
    "q8_0": {"type_k": "q8_0", "type_v": "q8_0"},
    "unfused": {"flash_attention": False},
}
"""What the choices of `EngineSettings.cache` are to a memory plan."""


def fitted(settings: dict[str, Any]) -> dict[str, Any]:
    """Context, cache type and GPU layers with which an engine of these settings fits memory; says so on standard error.

    Where an F16 cache fits, its type stays what exactness makes of it (F16 is the largest of those); a Q8_0 cache is
    taken before a shorter context is, unless the settings name a type or kernels that know F16 only.

    Args:
        settings: keyword arguments of `Engine.load`.

    Raises:
        ModelError: nothing fits.
    """
    from localspec.drafters.heads.loading import apart, may_predict, shapes
    from localspec.gguf import read_parts
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory.fit import FitSettings, choose
    from localspec.runtime.placement import alone

    target, draft = find(settings.get("target"))
    if settings.get("draft") is not None:
        draft = find_one(settings["draft"])
    wanted = {name: settings[name] for name in PLANNED if name in settings}
    cache = settings.get("cache", "auto")
    may_shrink = cache == "auto" and settings.get("kernels", "auto") != "wide"
    draft, heads = apart(draft, [find_one(head) for head in settings.get("heads", ())])
    parts, drafts = read_parts(target), None if draft is None else read_parts(draft)
    nextn = may_predict(settings.get("drafter", "auto"))
    wished = FitSettings(**wanted, **_CACHES.get(cache, {}), heads=shapes(parts[0], heads), nextn=nextn)
    cpu, *there = places(settings.get("rpc"))
    there = alone(there, settings.get("split_mode", "layer"), settings.get("main_gpu", 0))
    plan = choose(parts, drafts, wished, [cpu, *there], cache_types=("q8_0",) if may_shrink else ())
    if not plan.fits:
        raise ModelError(plan.sentence(), "Take a smaller quantisation, a shorter --context, or close other programs.")
    print(plan.sentence(), file=sys.stderr)
    found = {"context": plan.context, "gpu_layers": plan.gpu_layers, "draft_gpu_layers": plan.draft_gpu_layers}
    return found | ({"cache": "q8_0"} if may_shrink and plan.type_k == "q8_0" else {})


def add_memory_options(parser: argparse.ArgumentParser) -> None:
    """How the models would run."""
    add_engine_settings(parser, "context", "slots")
    parser.add_argument("--cache-type", default="f16", metavar="TYPE", help="of keys and values: f16 (default), q8_0")
    add_engine_settings(parser, "gpu_layers", "cpu_moe")


def fit_settings(options: argparse.Namespace) -> FitSettings:
    """Settings of a memory plan from parsed options."""
    from localspec.models.memory.fit import FitSettings

    names = ("context", "slots", "gpu_layers", "cpu_moe")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return FitSettings(type_k=options.cache_type, type_v=options.cache_type, **given)
