"""Runs with one drafter more, added as a contributor adds one: a file in `drafters/`, and a row of the table.

python -m tests.drafters.added FILE ROW            prints as JSON where the drafter is seen
python -m tests.drafters.added FILE ROW TEST...    runs these tests with it
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

import localspec.drafters

_TABLE = Path(localspec.__file__).parent / "methods.py"


def add(file: Path, row: str) -> None:
    """Before anything reads the table.

    Args:
        file: of the drafter; lies in a folder by itself.
        row: text of the table's row.
    """
    text = _TABLE.read_text("utf-8")
    before, mark, after = text.partition("    # heads: ")
    assert mark
    spec = spec_from_loader("localspec.methods", loader=None)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["localspec.methods"] = module
    exec(compile(f"{before}{row}\n{mark}{after}", str(_TABLE), "exec"), module.__dict__)
    localspec.drafters.__path__.append(str(file.parent))


def seen(name: str) -> dict[str, Any]:
    """Where a drafter of that name is seen."""
    from localspec import Engine, paths
    from localspec.bench.sides import possible_drafters
    from localspec.checks.verify import default_settings
    from localspec.cli import main
    from localspec.cli.commands.show import describe
    from localspec.gguf import read_header
    from localspec.machine import ram
    from localspec.models.memory.fit import FitSettings
    from localspec.tui.text.origin_lines import kind_of, ordered
    from tests.docs import tables

    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        main(["run", "--help-all"])
    target = [read_header(paths.bundled("tiny-target-q8_0.gguf"))]
    options: dict[str, Any] = {"max_tokens": 48, "seed": 5, "ignore_end": True}
    with Engine.load(context=512, exact="strict", chat_cache_gb=0.0, max_draft_tokens=4) as engine:
        plain, guessed = (engine.generate("Say: a b a b a b", drafter=one, **options) for one in ("none", name))
        return {
            "help": f"{name}, " in help_text.getvalue(),
            "in auto": name in engine.drafters,
            "same text": plain.text() == guessed.text(),
            "drafted": guessed.stats.drafted_by_drafter,
            "bench": name in possible_drafters(engine),
            "verify": [str(one) for one in default_settings(False, True) if one.drafter == name],
            "facts": [one["why"] for one in describe(target, FitSettings(), [ram()])["methods"] if one["name"] == name],
            "chat": [kind_of(name).name, kind_of(name).letter, kind_of(name).colour],
            "order": ordered(["zebra", name]),
            "docs": [
                row
                for rows in tables.ROWS.values()
                for row in rows()
                if f"`{name}`" in row or f" {kind_of(name).name} " in row
            ],
        }


if __name__ == "__main__":
    added, its_row, *tests = sys.argv[1:]
    add(Path(added), its_row)
    if tests:
        sys.exit(pytest.main(tests))
    print(json.dumps(seen(Path(added).stem)))
