"""A report for an issue: findings, versions and settings; without prompts, answers, keys and the user's name."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localspec.checks.doctor import Finding
from localspec.models.installed.catalog import Catalog

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of variables whose values are left out."""
_OURS = re.compile(r"(LOCALSPEC|GGML|LLAMA|OMP|GOMP|KMP|CUDA|HF)_\w+")
"""Names of variables that can change what localspec does; no others are written."""
_LEFT_OUT = "(left out)"
_SHORTEST_SECRET = 6
"""Characters; a shorter value would be found in text that has nothing to do with it."""


def bundle(
    findings: Sequence[Finding], settings: Mapping[str, Any], environment: Mapping[str, str], keys: Collection[str] = ()
) -> str:
    """The report as JSON, for people to read before they attach it.

    Args:
        findings: what doctor found.
        settings: how the models were loaded.
        environment: the process's variables; values of keys are left out here, and wherever else they stand.
        keys: names of further variables whose values are left out.
    """
    secret_names = {name for name in environment if name in keys or _SECRET.search(name)}
    data = {
        "versions": dict(_versions()),
        "findings": [asdict(finding) for finding in findings],
        "settings": dict(settings),
        "environment": {
            name: _LEFT_OUT if name in secret_names else value
            for name, value in sorted(environment.items())
            if _OURS.fullmatch(name)
        },
    }
    text = json.dumps(data, indent=2, default=str, ensure_ascii=False)
    secrets = [environment[name] for name in secret_names]
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(_as_json(secret), _LEFT_OUT)
    return text.replace(_as_json(os.path.expanduser("~")), "~") + "\n"


def _as_json(text: str) -> str:
    """How it stands inside a string of the report."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def write_bundle(path: Path, findings: Sequence[Finding], settings: Mapping[str, Any]) -> None:
    """Writes the report of this process."""
    keys = {entry.key_env for entry in Catalog.load().endpoints.values()}
    text = bundle(findings, settings, os.environ, keys)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")  # JSON's way to write a name that is no text


def _versions() -> Iterator[tuple[str, str]]:
    """localspec's own version and those of the packages it needs, as far as they are installed."""
    needed = importlib.metadata.requires("localspec") or []
    names = (re.match(r"[\w.-]+", line) for line in needed if "extra ==" not in line)
    for name in ("localspec", *(found[0] for found in names if found)):
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
