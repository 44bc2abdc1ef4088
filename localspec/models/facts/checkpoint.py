"""Trained heads as their authors publish them: a folder with config.json and weights, or a weights file of such."""

from __future__ import annotations

import json
import pickletools
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

from localspec.errors import ModelFileError, reason
from localspec.methods import ROWS, TABLE
from localspec.models.facts.heads import DraftKind
from localspec.models.facts.safetensors import opened

_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
_KNOWN = ("model", "pytorch_model")
"""How names of weights files begin."""
_BESIDE_MODEL = "medusa_lm_head"
"""How those of heads begin that are published in one folder with the whole model they were trained for."""
_OF_TRAINING = ("training_args", "optimizer", "scheduler", "rng_state")
"""How those begin that trainers leave beside them."""


def is_checkpoint(path: Path) -> bool:
    """Whether it is in the form in which models are published for Python, as against a GGUF file."""
    return path.is_dir() or path.suffix.lower() in _WEIGHTS


def checkpoint_kind(path: Path) -> DraftKind:
    """What a folder or weights file is as a drafter: by its config.json, else by the names of its tensors.

    Raises:
        ModelFileError: missing or damaged.
    """
    method = _by_config(config_of(path)) or _by_tensors(path)
    if not method:
        return DraftKind("unknown", "no head of a kind localspec knows", drafts=False)
    return DraftKind(method, ROWS[method].sentence, is_head=True)


def config_of(path: Path) -> dict[str, Any]:
    """The config.json in the folder, or beside the weights file; empty without one.

    Raises:
        ModelFileError: it is no JSON object.
    """
    place = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = json.loads(place.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{place} cannot be read: {reason(error)}.") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{place} is no JSON object.")
    return found


def weights_of(path: Path) -> list[Path]:
    """The weights files of a folder, safetensors before others, and those of known names before others; of a file
    itself. The model that Medusa heads lie beside is none of them.

    Raises:
        ModelFileError: there is none.
    """
    found = [path] if path.is_file() else []
    for name in (_BESIDE_MODEL, "") if path.is_dir() else ():
        for suffix in _WEIGHTS:
            files = sorted(path.glob(f"{name}*{suffix}"))
            found = found or [file for file in files if not file.name.startswith(_OF_TRAINING)]
    if not found:
        raise ModelFileError(f"{path} is missing, or holds no weights ({', '.join(_WEIGHTS)}).")
    return [file for file in found if file.name.startswith(_KNOWN)] or found


def trained_for(path: Path) -> str:
    """sha256 of the target's file, where the head says it; "" where not."""
    found = config_of(path).get("target_sha256")
    for file in weights_of(path) if found is None else ():
        if file.suffix.lower() == ".safetensors":
            found = found or (opened(file).metadata() or {}).get("target_sha256")
    return found if isinstance(found, str) else ""


def _by_config(config: dict[str, Any]) -> str:
    told = f"{config.get('model_type')} {config.get('architectures')}".lower()
    for row in TABLE:
        if (form := row.published) and (form.key in config or any(word in told for word in form.words)):
            return row.name
    return ""


def _by_tensors(path: Path) -> str:
    names = {name for file in weights_of(path) for name in _names(file)}
    for row in TABLE:
        if row.published and any(re.match(row.published.tensors, name) for name in names):
            return row.name
    return ""


def _names(path: Path) -> set[str]:
    """Names of the tensors in a weights file; of a pickled one every string it holds, none of which is run."""
    if path.suffix.lower() == ".safetensors":
        return set(opened(path).keys())
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            return {found for _, found, _ in pickletools.genops(archive.read(pickled)) if isinstance(found, str)}
    except (OSError, EOFError, ValueError, RuntimeError, StopIteration, zipfile.BadZipFile, zlib.error) as error:
        raise ModelFileError(f"{path} cannot be read as a file of torch's: {error or 'no data.pkl in it'}.") from None
