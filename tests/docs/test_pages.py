"""The pages are true: links lead somewhere, quoted sentences are the program's, commands parse."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.cli import COMMANDS, WITH_DEFAULT, build_parser
from localspec.errors import UsageError

ROOT = Path(__file__).parents[2]
LINKED = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.md")])
NEEDS = ("network", "files", "checkout", "GPU", "terminal", "server", "other platform")
"""What a block of commands may need besides an installation: a marker before it says which."""
ON_THE_HUB = ("pull", "search")
"""Commands that ask the network."""
LEAST_FIXED = 8
"""Characters that a sentence must have besides its variable parts, or a quotation says nothing."""
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SH = re.compile(r"(?:^<!-- needs: ([^\n]+) -->\n)?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (`{1,2})(\S.*?)\1(?: \(in `[^`]+`\))? \|", re.MULTILINE)
_VARIABLE = re.compile(r"<[^>]+>")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(text: str) -> str:
    """A page without its code, in which a link is none and # begins no heading."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def anchors(path: Path) -> set[str]:
    """What headings are called in addresses, where GitHub and Python-Markdown call them the same."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", path.read_text("utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\s-]", "", plain).strip().replace(" ", "-")
        if "--" not in name:  # which Python-Markdown shortens
            found.add(name)  # the second of a name has another number in each
    return found


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(file, anchor) of every relative link."""
    for target in _LINK.findall(without_code(path.read_text("utf-8"))):
        if not re.match(r"[a-z]+:", target):
            place, _, anchor = target.partition("#")
            yield place, anchor


def faults(path: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for place, anchor in links(path):
        target = path if not place else (path.parent / place).resolve()
        if not target.exists():
            found.append(f"{place} is not there")
        elif anchor and anchor not in anchors(target):
            found.append(f"{target.name} has no heading for #{anchor}")
    return found


@pytest.mark.parametrize("path", LINKED, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert faults(path) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md#one-thing) [b](page.md#two) [c](no.md) `[d](code.md)` [e](https://x.y)\n")
    assert faults(page) == ["page.md has no heading for #two", "no.md is not there"]
    page.write_text("# One & two\n[a](#one--two) [b](#one-two)\n")
    assert faults(page) == ["page.md has no heading for #one--two", "page.md has no heading for #one-two"]


def template(node: ast.expr) -> str | None:
    """A text of the source, NUL for what is filled in; None = no text."""
    if isinstance(node, ast.Constant):
        return re.sub(r"%[sd]", "\0", node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join("\0" if isinstance(part, ast.FormattedValue) else template(part) or "" for part in node.values)
    return None


@functools.cache
def templates() -> list[str]:
    """All texts in the code, with what is filled in left out, but not docstrings."""
    found = []
    for path in sorted((ROOT / "localspec").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        skipped = inner | said
        expressions = (node for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in skipped)
        found += [text for node in expressions if (text := template(node))]
    return found


def is_said(sentence: str) -> bool:
    """Whether a text of the code has the fixed parts of a sentence, in their order and with something between them."""
    parts = [part for part in _VARIABLE.split(sentence) if part]
    pattern = re.compile(r".*?\0.*?".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in templates())


def sentences() -> list[str]:
    """What the page on troubleshooting quotes: the first column of its tables."""
    found = [said for _, said in _ROW.findall((ROOT / "docs" / "troubleshooting.md").read_text("utf-8"))]
    assert len(found) >= 40
    return found


@pytest.mark.parametrize("sentence", sentences())
def test_the_program_says_every_sentence_that_is_quoted(sentence: str) -> None:
    assert len(_VARIABLE.sub("", sentence)) >= LEAST_FIXED
    assert is_said(sentence)


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("<file> does not exist.", True),
        ("<file> does not exist any more.", False),
        ("There is no drafter called <name>; there are: <names>.", True),
        ("There is no drafter called <name>, there are: <names>.", False),
        ("there are: <names>. There is no drafter called <name>", False),
    ],
)
def test_a_sentence_that_the_program_does_not_say_is_found(sentence: str, said: bool) -> None:
    assert is_said(sentence) is said


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """(what it needs, words behind `localspec`) of every command in the blocks of a page."""
    for needs, block in _SH.findall(page):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r"\s(?:\||&&)\s", re.sub(r" > \S+", "", line)):
                words = shlex.split(command, comments=True)
                if words and words[0].rpartition("/")[2] == "localspec":
                    yield needs, words[1:]


def parse(words: list[str]) -> None:
    """Has the real parser take a command; a model's name or an option as the first word means the chat.

    Raises:
        UsageError: the parser refuses it.
    """
    first, *more = words or ["chat"]
    if first not in COMMANDS:
        first, more = "chat", words
    elif first in WITH_DEFAULT and not {*more} & {*WITH_DEFAULT[first]}:
        more = [WITH_DEFAULT[first][0], *more]
    build_parser(first).parse_args([first, *more])


def all_commands() -> list[tuple[str, str, list[str]]]:
    """(page, what it needs, words) of every command of every page."""
    return [(name_of(path), needs, words) for path in LINKED for needs, words in commands(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    ("page", "needs", "words"), all_commands(), ids=[f"{page}: {' '.join(words)}" for page, _, words in all_commands()]
)
def test_every_command_parses_and_says_what_it_needs(page: str, needs: str, words: list[str]) -> None:
    assert needs in ("", *NEEDS)
    parse(words)
    asks = bool(words) and words[0] in ON_THE_HUB and "--offline" not in words
    assert not asks or needs == "network"


def test_a_command_that_does_not_parse_is_found() -> None:
    page = '<!-- needs: GPU -->\n```sh\nlocalspec run --gpu-lairs -1 "Hi"\n```\n'
    assert [*commands(page)] == [("GPU", ["run", "--gpu-lairs", "-1", "Hi"])]
    with pytest.raises(UsageError, match="--gpu-lairs"):
        parse(["run", "--gpu-lairs", "-1", "Hi"])
