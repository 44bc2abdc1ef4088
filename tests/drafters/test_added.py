"""A drafter that is added as CONTRIBUTING says, one file and one row, is seen wherever drafters are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.drafters.plug_ins import EXAMPLE

ROW = """
    Method(
        "repeat",
        "repeating",
        "what followed a token the last time",
        "repeat:Repeat",
        DrafterLook("w", "#010203", "black"),
        "text",
        shown="the same, by one token",
        kind="search",
        chains=(2, 9),
    ),
"""


def run(folder: Path, *arguments: str) -> str:
    """Standard output of `tests.drafters.added` with the example plug-in moved inside."""
    file = folder / "repeat.py"
    file.write_text((EXAMPLE / "localspec_repeat.py").read_text("utf-8"), "utf-8")
    words = [sys.executable, "-m", "tests.drafters.added", str(file), ROW, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_seen_everywhere(tmp_path: Path) -> None:
    seen = json.loads(run(tmp_path).splitlines()[-1])
    assert seen.pop("drafted")["repeat"] > 0
    assert seen == {
        "help": True,
        "in auto": True,
        "same text": True,
        "bench": True,
        "verify": ["repeat 2", "repeat 9", "repeat 6, tree of 2"],
        "facts": ["the same, by one token"],
        "chat": ["repeating", "w", "#010203"],
        "order": ["repeat", "zebra"],
        "docs": ["| `w` | black | repeating |\n"],
    }


def test_the_contract_holds_it_to_its_word(tmp_path: Path) -> None:
    told = run(tmp_path, "tests/drafters/test_contract.py", "-q", "-k", "[repeat", "-p", "no:cacheprovider", "-n", "0")
    assert "passed" in told
    assert "failed" not in told
