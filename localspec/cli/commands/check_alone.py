"""`localspec check FILE`: what a model is, whether it loads and fits, what drafts for it, and whether that is exact."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.output import print_plain
from localspec.cli.places import fit_settings, installed_models, memory_lines, places
from localspec.errors import ModelError, UsageError

if TYPE_CHECKING:
    from localspec.gguf import Header
    from localspec.models.facts.facts import Method
    from localspec.models.facts.suggestion import Suggestion


_UNASKED = ("lookup", "suffix", "recycling")
"""Methods that need no file."""


def run(options: argparse.Namespace, path: Path) -> int:
    """The verdict on a model without a draft; exit code 1 if it does not load or fit.

    Raises:
        UsageError: it drafts for another model, which is to be named.
        ModelFileError: it is missing, damaged, or no model that generates text.
    """
    from localspec.cli.commands.show import exactness_of
    from localspec.gguf.split import read_parts
    from localspec.llama.model import check_text_model
    from localspec.models.facts import checkpoint
    from localspec.models.facts.facts import describe
    from localspec.models.facts.heads import draft_kind
    from localspec.models.memory import fit
    from localspec.runtime.memory.serving import gpu_lines, serving

    kind = checkpoint.checkpoint_kind(path) if checkpoint.is_checkpoint(path) else draft_kind(read_parts(path)[0])
    if kind.is_head:
        raise UsageError(
            f"{path.name} is {kind.sentence}, and drafts for the target it was trained for.",
            f"Name that before it: localspec check TARGET {options.target}",
        )
    check_text_model(path)
    parts = read_parts(path)
    settings, there, why = serving(fit_settings(options), path, None, places())
    plan = (fit.choose if options.fit else fit.plan)(parts, None, settings, there)
    facts = describe(parts, settings, there)
    refusal = _refusal(path)
    exact, exact_words = (None if refusal else exactness_of(facts)) or ({}, "unknown")
    drafts = _drafts(options.target, parts)
    if options.json:
        told: dict[str, Any] = {"file": facts.file, "kind": facts.kind, "architecture": facts.architecture}
        told |= {"loads": not refusal, "refusal": refusal, "template": facts.template is not None}
        told |= {"methods": [method.name for method in facts.methods if method.fits]}
        told |= {"drafts": [one.as_dict() for one in drafts], "exact": exact, "memory": plan.as_dict()}
        print(json.dumps(told))
    else:
        chats = "" if facts.template else "; it has no chat template, so it completes text"
        print_plain(f"{path.name} is {facts.kind}: {facts.architecture}, {facts.quantisation}{chats}.")
        print_plain(f"loads: {f'no: {refusal}' if refusal else 'yes'}", f"exact: {exact_words}")
        print_plain(*_draft_lines(facts.methods, drafts), *gpu_lines(plan, why), *memory_lines(plan))
    return 0 if plan.fits and not refusal else 1


def _refusal(path: Path) -> str:
    """Why llama.cpp does not load a file; "" = it does. Its weights are not read."""
    from localspec.llama.model import Model

    try:
        Model.load(path, kernels="plain", weights=False).close()
    except ModelError as error:
        return str(error)
    return ""


def _drafts(name: str, parts: Sequence[Header]) -> list[Suggestion]:
    """Draft models and heads for it: of this machine, and of the catalogue."""
    from localspec.models.facts.suggestion import neighbours, suggest
    from localspec.models.installed.catalog import Catalog

    installed = installed_models()
    path = parts[0].path
    near = neighbours(path, installed.values())
    return suggest(parts, {name, path.name}, Catalog.load(), installed | near, name)


def _draft_lines(methods: Sequence[Method], drafts: Sequence[Suggestion]) -> list[str]:
    own = [method.name for method in methods if method.fits and method.name in _UNASKED]
    text = f"drafted from the text alone: {', '.join(own) or 'no'}"
    known = [f"drafted by {one.draft} ({one.method}, {'here' if one.installed else 'on the hub'})" for one in drafts]
    return [text, *(known or ["drafted by a model or head: none is known"])]
