"""`@folder`: which files go along, and that their size is asked about first."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.tui.talk import files
from localspec.tui.talk.files import Ignored, attached_below
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.tui.conftest import MakeApp, answered, front, until


def write(place: Path, **files: str) -> None:
    for name, text in files.items():
        path = place / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("lines", "path", "is_folder", "left_out"),
    [
        (["*.log"], "a/b/run.log", False, True),
        (["*.log"], "run.logs", False, None),
        (["/top.txt"], "top.txt", False, True),
        (["/top.txt"], "a/top.txt", False, None),
        (["out/"], "a/out", True, True),
        (["out/"], "a/out", False, None),
        (["guides/*.md"], "guides/a.md", False, True),
        (["guides/*.md"], "guides/a/b.md", False, None),
        (["a/**/z"], "a/b/c/z", False, True),
        (["a/**/z"], "a/z", False, True),
        (["*.log", "!keep.log"], "keep.log", False, False),
        (["# *.txt", "", "x[0-9].c"], "x7.c", False, True),
        (["x[!0-9].c"], "x7.c", False, None),
        (["\\#a"], "#a", False, True),
        (["\\!a"], "!a", False, True),
        (["a\\ b"], "a b", False, True),
        (["a\\ "], "a ", False, True),
        (["\\**"], "*.txt", False, True),
        (["[z-a]x", "y"], "y", False, True),
        (["[]", "y"], "y", False, True),
        (["a[\\]b", "y"], "y", False, True),
        (["y", "!"], "y", False, True),
        (["y", "\\"], "y", False, True),
        (["*" * 60 + "b"], "a" * 250 + "b", False, True),
        (["*" * 60 + "b"], "a" * 250, False, None),
        (["*a" * 30 + "b"], "a" * 250, False, True),  # more is left out rather than less
        (["*", "!" + "*a" * 30 + "b"], "a" * 250, False, True),
        (["*/" * 30 + "b"], "a/" * 30 + "c", False, None),
        (["a/" + "*" * 40 + "/b"], "a/c/d/b", False, True),
        (["caf\udce9"], "caf\udce9", False, True),  # bytes that are not UTF-8
    ],
)
def test_gitignore(lines: list[str], path: str, is_folder: bool, left_out: bool | None) -> None:
    assert Ignored(lines).names(path, is_folder) is left_out


def test_text_files_by_path_without_what_is_ignored_hidden_or_binary(tmp_path: Path) -> None:
    write(tmp_path, a_dot_py="print(1)", sub__b_dot_py="print(2)", sub__c_dot_log="no", made__d_dot_py="no")
    write(tmp_path, _dot_gitignore="*.log\nmade/\n", sub___dot_gitignore="!c.log\n", _dot_hidden="no")
    write(tmp_path, node_modules__e_dot_js="no")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00\xff\xfe")
    found = attached_below(tmp_path, "src/")
    assert [(one.name, one.content) for one in found] == [
        ("src/a.py", "print(1)"),
        ("src/sub/b.py", "print(2)"),
        ("src/sub/c.log", "no"),
    ]


def test_the_file_of_rules_has_a_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path, a_dot_py="print(1)", secret="no")
    (tmp_path / ".gitignore").write_bytes(b"\xef\xbb\xbfsecret\r\n*.log\r\n")
    assert [one.name for one in attached_below(tmp_path, "src")] == ["src/a.py"]


def test_rules_of_the_repository_around_it_hold(tmp_path: Path) -> None:
    write(tmp_path, src__a_dot_py="print(1)", src__b__secret="no", src__c_dot_log="no", made__d_dot_py="print(2)")
    write(tmp_path, _dot_gitignore="src/b/secret\nmade/\n*.log\n", _dot_git__HEAD="")
    assert [one.name for one in attached_below(tmp_path / "src", "src")] == ["src/a.py"]
    assert [one.name for one in attached_below(tmp_path / "made", "made")] == ["made/d.py"], "it was named itself"
    (tmp_path / ".git" / "HEAD").unlink()
    (tmp_path / ".git").rmdir()
    assert len(attached_below(tmp_path / "src", "src")) == 3, "without a repository there is nothing around it"


def test_nothing_or_too_much_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="src has no text files to attach"):
        attached_below(tmp_path, "src")
    write(tmp_path, a="1", b="2")
    monkeypatch.setattr(files, "MOST_FILES", 1)
    with pytest.raises(UsageError, match="src has more than 1 text files"):
        attached_below(tmp_path, "src")


@pytest.mark.asyncio
async def test_a_folder_is_attached_after_a_question_with_its_tokens(make_app: MakeApp, folders: Path) -> None:
    write(folders / "work" / "src", one_dot_txt="alpha beta", two_dot_txt="gamma")
    app = make_app("read", "only words")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        front(app).composer.put("What is in @src/ ?")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        question = str(app.screen.query_one(".question").content)  # type: ignore[attr-defined]
        assert question.startswith("Attach the 2 text files of src/: ")
        assert "tokens" in question
        await pilot.press("escape")
        await until(pilot, lambda: front(app).composer.text == "What is in @src/ ?")
        assert front(app).path == []
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: len(front(app).path) == 2)
        await answered(pilot)
        assert [one.name for one in front(app).path[0].attachments] == ["src/one.txt", "src/two.txt"]
        front(app).composer.put("And @src again")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("down", "enter")
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        assert front(app).path[2].attachments == ()
