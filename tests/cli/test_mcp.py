"""`localspec mcp`, and `mcp.json` of the current folder: what is said, what is kept, and what starts nothing."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.tools.servers import user_file
from localspec.tools.toolbox import FolderFile
from tests.cli.conftest import Command
from tests.tools.conftest import SCRIPT
from tests.tools.server import TOOLS

SECRET = "sk-a-secret-of-the-user"
DEMO = {"command": sys.executable, "args": [str(SCRIPT)]}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "config"):
        monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", str(tmp_path / name))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def write(path: Path, **entries: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"mcpServers": entries}))


def test_a_server_is_added_listed_checked_and_removed(command: Command) -> None:
    added = command("mcp", "add", "demo", "--", sys.executable, str(SCRIPT))
    assert added.code == 0
    assert added.out == f"demo is in {user_file()}. `localspec mcp check demo` starts it once.\n"
    assert json.loads(user_file().read_text()) == {"mcpServers": {"demo": DEMO}}
    listed = command("mcp", "list")
    assert listed.out == f"demo             {sys.executable} {SCRIPT}  ({user_file()})\n"
    checked = command("mcp", "check")
    assert checked.code == 0
    assert checked.out.startswith(f"demo: demo 1, {len(TOOLS)} tools, started in ")
    assert "\n  add                      Adds two numbers.\n" in checked.out
    assert command("mcp", "remove", "demo").out == f"demo is no longer in {user_file()}.\n"
    assert "There are no servers in" in command("mcp", "list").out


def test_as_a_process() -> None:
    words = [sys.executable, "-m", "localspec", "mcp"]
    subprocess.run([*words, "add", "demo", "--", sys.executable, str(SCRIPT), "child"], check=True)
    done = subprocess.run([*words, "check", "demo"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  say                      Gives a text.\n" in done.stdout
    done = subprocess.run([*words, "check", "nosuch"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    hint = "`localspec mcp add` adds one."
    assert done.stderr == f"localspec: There is no server and no file 'nosuch'; yours are demo. {hint}\n"


def test_secrets_are_kept_for_the_user_alone_and_never_printed(command: Command) -> None:
    shown = [
        command("mcp", "add", "one", "--env", f"KEY={SECRET}", "--", sys.executable, str(SCRIPT), "exit"),
        command("mcp", "add", "two", "--url", "http://127.0.0.1:9/mcp", "--header", f"Authorization=Bearer {SECRET}"),
        command("mcp", "list"),
        command("mcp", "check"),
    ]
    assert [one.code for one in shown] == [0, 0, 0, 1]
    assert SECRET not in "".join(one.out + one.err for one in shown)
    assert stat.S_IMODE(user_file().stat().st_mode) == 0o600
    assert json.loads(user_file().read_text())["mcpServers"]["one"]["env"] == {"KEY": SECRET}
    assert "My key is ***." in shown[-1].err
    assert shown[-1].err.count("\n") == 2


def test_what_else_stands_in_the_file_stays(command: Command) -> None:
    theirs = {"command": "x", "alwaysAllow": ["a"], "disabled": True}
    user_file().parent.mkdir()
    user_file().write_text(json.dumps({"inputs": [1], "mcpServers": {"theirs": theirs}}))
    assert command("mcp", "add", "mine", "--", "y", "--flag").code == 0
    mine = {"command": "y", "args": ["--flag"]}
    assert json.loads(user_file().read_text()) == {"inputs": [1], "mcpServers": {"theirs": theirs, "mine": mine}}
    assert command("mcp", "remove", "mine").code == 0
    assert json.loads(user_file().read_text()) == {"inputs": [1], "mcpServers": {"theirs": theirs}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "demo", "--", "x"], "has a server demo already"),
        (["add", "new"], "it must have either a command or a url"),
        (["add", "new", "--url", "http://x/mcp", "--", "x"], "it must have either a command or a url"),
        (["add", "new", "--url", "ftp://x"], "it must begin with http:// or https://"),
        (["add", "a b", "--", "x"], "a name has 1 to 64 letters"),
        (["add", "new", "--env", "KEY", "--", "x"], "--env is 'KEY'; it must look like NAME=VALUE"),
        (["add", "new", "--header", "=x", "--url", "http://x"], "--header is '=x'; it must look like NAME=VALUE"),
        (["remove", "nosuch"], "has no server 'nosuch'; it has demo"),
        (["check", "nosuch"], "There is no server and no file 'nosuch'; yours are demo"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(command: Command, words: list[str], said: str) -> None:
    write(user_file(), demo=DEMO)
    before = user_file().read_bytes()
    found = command("mcp", *words)
    assert found.code == 2
    assert said in found.err
    assert found.err.count("\n") == 1
    assert user_file().read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"servers": {}}', '{"mcpServers": {"a": 1}}', "\0", "[" * 9999])
def test_a_broken_file_is_named(command: Command, content: str) -> None:
    user_file().parent.mkdir()
    user_file().write_text(content)
    for words in (["list"], ["check"], ["check", str(user_file())]):
        found = command("mcp", *words)
        assert found.code == 2
        assert found.err.startswith(f"localspec: {user_file()}")
        assert found.err.count("\n") == 1


def test_without_a_server_check_says_how_to_add_one(command: Command) -> None:
    found = command("mcp", "check")
    assert (found.code, found.out) == (2, "")
    hint = "`localspec mcp add NAME -- COMMAND` adds one."
    assert found.err == f"localspec: There is no server to check. {hint}\n"


def test_without_the_package_one_sentence_names_the_extra(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write(user_file(), one=DEMO, two=DEMO)
    monkeypatch.delitem(sys.modules, "localspec.tools.running", raising=False)
    for name in ["mcp", *(one for one in sys.modules if one.startswith("mcp."))]:
        monkeypatch.setitem(sys.modules, name, None)
    found = command("mcp", "check")
    assert found.code == 1
    assert "Tools need mcp, which is not installed." in found.err
    assert "pip install 'localspec[tools]'" in found.err
    assert found.err.count("\n") == 2


# ---- mcp.json of the current folder


def test_a_list_masks_keys_and_the_question_shows_what_would_start(command: Command) -> None:
    write(Path("mcp.json"), there={"command": "x", "args": ["--token", SECRET]})
    assert command("mcp", "list").out.startswith("there            x --token ***  (")
    folder = FolderFile.find([])
    assert folder is not None
    assert f"x --token {SECRET}" in folder.question


def test_the_servers_of_the_folder_are_listed_with_whether_they_may_start(command: Command) -> None:
    write(Path("mcp.json"), there={"command": "x", "args": ["y"]})
    path = Path("mcp.json").resolve()
    assert command("mcp", "list").out == f"there            x y  ({path}, not allowed yet: the chat asks)\n"
    folder = FolderFile.find([])
    assert folder is not None
    assert [one.name for one in folder.added([])] == ["there"]
    assert command("mcp", "list").out == f"there            x y  ({path}, allowed)\n"
    write(Path("mcp.json"), there={"command": "x", "args": ["z"]})
    assert "not allowed yet" in command("mcp", "list").out


def test_a_consent_holds_for_this_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "two"):
        write(tmp_path / name / "mcp.json", there=DEMO)
        monkeypatch.chdir(tmp_path / name)
        folder = FolderFile.find([])
        assert folder is not None
        found.append(folder)
    found[0].added([])
    assert [one.is_allowed for one in found] == [True, False]


def test_a_broken_file_of_the_folder_is_a_notice(command: Command) -> None:
    write(user_file(), demo=DEMO)
    Path("mcp.json").write_text("{")
    found = command("mcp", "list")
    assert found.code == 0
    assert found.out.startswith("demo ")
    assert f"{Path('mcp.json').resolve()} cannot be read" in found.err


def test_the_users_file_is_not_a_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    write(user_file(), demo=DEMO)
    monkeypatch.chdir(user_file().parent)
    assert FolderFile.find([]) is None


def test_the_question_shows_what_would_run_and_what_it_gets() -> None:
    write(
        Path("mcp.json"),
        one={
            "command": "sh",
            "args": ["-c", "rm -r x\nIt is safe.\x1b[2J"],
            "env": {"LD_PRELOAD": SECRET},
            "cwd": "/x",
        },
        two={"url": "http://there/${HOME}", "headers": {"Key": "${OPENAI_API_KEY}"}},
    )
    folder = FolderFile.find([])
    assert folder is not None
    first, one, two = folder.question.splitlines()
    assert first.startswith(f"Use the servers of {Path('mcp.json').resolve()}?")
    assert one.startswith("  one: sh -c rm -r x↵It is safe.")
    assert one.endswith("; in /x; with LD_PRELOAD")
    assert two == "  two: http://there/${HOME}; with Key; it gets your OPENAI_API_KEY, HOME"
    assert SECRET not in folder.question
    assert "\x1b" not in folder.question
