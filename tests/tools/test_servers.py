"""The file of servers: what is read, refused, written, and that no key of it is shown."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UsageError
from localspec.tools import servers
from localspec.tools.servers import Server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


def write(path: Path, entries: Any, **more: Any) -> None:
    path.write_text(json.dumps({"mcpServers": entries} | more))


def test_a_file_as_other_programs_have_it_is_read(path: Path) -> None:
    git = {"command": "uvx", "args": ["mcp-server-git"], "env": {"A": "1"}, "cwd": "/x", "type": "stdio"}
    docs = {"url": "https://host/mcp", "headers": {"Authorization": "Bearer k"}, "alwaysAllow": ["read"]}
    write(path, {"git": git, "docs": docs, "off": {"command": 7, "disabled": True}}, theme="dark")
    first, second = servers.read(path)
    assert first == Server("git", "uvx", ("mcp-server-git",), {"A": "1"}, cwd="/x")
    assert second == Server("docs", url="https://host/mcp", headers={"Authorization": "Bearer k"})


def test_keys_are_not_shown(path: Path) -> None:
    one = Server("x", "run", env={"TOKEN": "secret-1"}, headers={"Authorization": "secret-2"})
    assert "secret" not in repr(one) + str(one) + one.key


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("run|--token|a b|x", "run --token *** x"),
        ("run|--api-key=abc|-k", "run --api-key=*** -k"),
        ("run|--password|a|--key|b", "run --password *** --key ***"),
        ("docker|-e|GITHUB_TOKEN|-e|OPENAI_API_KEY=abc|image", "docker -e GITHUB_TOKEN -e OPENAI_API_KEY=*** image"),
        ("run|--header|Authorization: Bearer abc", "run --header Authorization:***"),
        ("run|--token|${MINE}|--use-auth|--loud", "run --token ${MINE} --use-auth --loud; it gets your MINE"),
        ("run|postgresql://me:abc@host/db", "run postgresql://***"),
        ("run|server-key.js|/home/me/tokens", "run server-key.js /home/me/tokens"),
    ],
)
def test_what_looks_like_a_key_can_be_masked(words: str, shown: str) -> None:
    command, *args = words.split("|")
    assert Server("x", command, tuple(args)).masked().words == shown


def test_a_key_in_an_address_can_be_masked() -> None:
    assert Server("x", url="https://h/mcp?a=1&api_key=abc").masked().words == "https://h/mcp?a=1&api_key=***"
    assert Server("x", url="https://h/a@b").masked().words == "https://h/a@b"


def test_the_key_changes_with_all_that_decides_what_runs() -> None:
    base = Server("x", "run", ("a", "b"), {"K": "1"})
    others = [
        Server("x", "run2", ("a", "b"), {"K": "1"}),
        Server("x", "run", ("ab",), {"K": "1"}),
        Server("x", "run", ("a", "b"), {"K": "2"}),
        Server("x", "run", ("a", "b"), {"K": "1"}, cwd="/tmp"),
        Server("x", url="http://h"),
        Server("x", url="http://h", headers={"K": "1"}),
    ]
    assert len({base.key, *(one.key for one in others)}) == 7
    assert base.key == Server("x", "run", ("a", "b"), {"K": "1"}).key


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "it must have either a command or a url."),
        ({"command": "x", "url": "http://h"}, "it must have either a command or a url."),
        ({"command": ["x"]}, "command must be a text."),
        ({"command": "x", "args": "-v"}, "args must be a list of texts."),
        ({"command": "x", "args": [1]}, "args must be a list of texts."),
        ({"command": "x", "env": {"A": 1}}, "env must be an object of texts."),
        ({"url": "http://h", "headers": ["k"]}, "headers must be an object of texts."),
        ({"url": "ftp://h"}, "it must begin with http:// or https:// and a host."),
        ({"url": "http://"}, "it must begin with http:// or https:// and a host."),
        ("x", "it must be an object with command or url."),
    ],
)
def test_an_entry_that_is_none_is_named(path: Path, entry: Any, said: str) -> None:
    write(path, {"git": entry})
    with pytest.raises(UsageError) as caught:
        servers.read(path)
    assert caught.value.message.startswith(f"{path}, server 'git': ")
    assert said in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "../x", "é", "x" * 65])
def test_a_bad_name_is_refused(path: Path, name: str) -> None:
    write(path, {name: {"command": "x"}})
    with pytest.raises(UsageError, match="a name has 1 to 64"):
        servers.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read: Expecting property name enclosed in double quotes: line 1"),
        ("[" * 100_000, "cannot be read: "),
        ("[]", "has no mcpServers"),
        ('{"mcpServers": []}', "has no mcpServers"),
        ("\udcff", "cannot be read: it is not UTF-8 text"),
    ],
)
def test_a_file_of_another_form_is_refused(path: Path, text: str, said: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=said):
        servers.read(path)


def test_a_missing_file_is_said(path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        servers.read(path)


def test_variables_are_filled_in_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO", "me")
    monkeypatch.delenv("NOBODY", raising=False)
    one = Server("x", "run", ("--as=${env:WHO}", "${NOBODY:-you}"), {"K": "${WHO}-key"}, headers={"H": "${WHO}"})
    found = one.filled()
    assert (found.args, found.env, found.headers) == (("--as=me", "you"), {"K": "me-key"}, {"H": "me"})
    with pytest.raises(UsageError, match="server y wants the variable NOBODY"):
        Server("y", url="http://h/${NOBODY}").filled()


def test_adding_and_removing_keep_all_else(path: Path) -> None:
    write(path, {"old": {"command": "x", "alwaysAllow": ["a"]}}, theme="dark")
    servers.add(path, Server("new", "run", ("-v",), {"K": "1"}))
    with pytest.raises(UsageError, match="has a server new already"):
        servers.add(path, Server("new", "run"))
    assert [one.name for one in servers.read(path)] == ["old", "new"]
    servers.remove(path, "new")
    assert json.loads(path.read_text()) == {
        "mcpServers": {"old": {"command": "x", "alwaysAllow": ["a"]}},
        "theme": "dark",
    }
    with pytest.raises(UsageError, match="has no server 'new'; it has old"):
        servers.remove(path, "new")


def test_a_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings" / "mcp.json"
    servers.add(path, Server("new", url="https://h/mcp", headers={"Authorization": "k"}))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert servers.read(path) == [Server("new", url="https://h/mcp", headers={"Authorization": "k"})]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("server", [Server("a b", "x"), Server("a"), Server("a", url="h")])
def test_no_entry_is_added_that_could_not_be_read(path: Path, server: Server) -> None:
    with pytest.raises(UsageError):
        servers.add(path, server)
    assert not path.exists()


def test_a_link_to_the_file_stays_one(tmp_path: Path, path: Path) -> None:
    write(tmp_path / "real.json", {})
    path.symlink_to(tmp_path / "real.json")
    servers.add(path, Server("new", "run"))
    assert path.is_symlink()
    assert [one.name for one in servers.read(tmp_path / "real.json")] == ["new"]


def test_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    assert servers.user_file() == tmp_path / "settings" / "mcp.json"
