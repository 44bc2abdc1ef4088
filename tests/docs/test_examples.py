"""The examples of docs/python.md run, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_PAGE = Path(__file__).parents[2] / "docs" / "python.md"
_FILE = re.compile(r"^Save this as `([^`]+)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """(program, what it prints) of every block that is not a file."""
    text = _PAGE.read_text("utf-8")
    found, files = _EXAMPLE.findall(_FILE.sub("", text)), _FILE.findall(text)
    assert len(found) + len(files) == text.count("```python\n"), "a block of Python has no block of what it prints"
    assert found
    return found


@pytest.mark.parametrize(("program", "printed"), examples(), ids=lambda text: text.splitlines()[-1][:40].strip())
def test_an_example_prints_what_the_page_says(
    program: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in _FILE.findall(_PAGE.read_text("utf-8")):
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(program, str(_PAGE), "exec"), {"__name__": "example"})
    shown = "\n".join(line.strip() for line in capsys.readouterr().out.splitlines())
    assert shown == printed.strip()
