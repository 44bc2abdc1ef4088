"""The commands of the pages that need nothing but an installation run."""

from __future__ import annotations

import io

import pytest

from localspec.cli import main
from tests.docs.test_pages import all_commands

MARKED = ("docs/drafters.md", "docs/models.md", "docs/python.md", "docs/troubleshooting.md")
"""Pages that mark the commands which need more than that."""
ADVISES = ("doctor",)
"""Commands whose exit code 1 says that there is advice about this machine."""


def runnable() -> list[list[str]]:
    """Each command once that carries no marker."""
    found = {" ".join(words): words for page, needs, words in all_commands() if page in MARKED and not needs}
    assert len(found) > 10
    return list(found.values())


@pytest.mark.trial
@pytest.mark.parametrize("words", runnable(), ids=" ".join)
def test_a_command_without_a_marker_runs(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    code = main(words)
    shown = capsys.readouterr()
    assert code in ((0, 1) if words[0] in ADVISES else (0,)), shown.err
    assert shown.out or shown.err
