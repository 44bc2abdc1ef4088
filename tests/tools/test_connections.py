"""Servers as they should be, and as they should not: one sentence each, and no process stays."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from time import monotonic, sleep

import pytest

from localspec.errors import Cancelled, LocalspecError
from localspec.tools import connections
from localspec.tools.connections import cut
from localspec.tools.servers import Server
from tests.tools.conftest import Connect, demo
from tests.tools.server import TOOLS


def processes(word: str) -> list[str]:
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line]


def test_a_server_is_started_once_and_has_its_tools(connect: Connect) -> None:
    made = connect()
    listed = made.start("demo")
    assert (listed.title, [tool.name for tool in listed.tools]) == ("demo 1", [tool["name"] for tool in TOOLS])
    assert made.start("demo") == listed
    offered = made.offered()
    assert offered["add"].tool.parameters == TOOLS[0]["inputSchema"]
    assert [name for name, one in offered.items() if one.read_only] == ["add"]
    called = made.call("demo", "add", {"a": 2, "b": 3})
    assert (called.text, called.failed) == ("5", False)


def test_two_servers_with_the_same_tool_are_told_apart(connect: Connect) -> None:
    made = connect(demo(name="one"), demo("nameless", name="two"))
    offered = made.offered()
    assert offered["one__add"].server == "one"
    assert offered["two__add"].name == "add"
    assert offered["say"].server == "one"
    (notice,) = made.notices
    assert notice.startswith("The tool  of the server two is left out: A tool is named ''")
    assert made.call("two", "add", {"a": 2, "b": 2}).text == "4"


def test_200_tools(connect: Connect) -> None:
    assert len(connect("many").offered()) == 200


def test_a_key_changes_with_what_a_consent_was_given_for(connect: Connect) -> None:
    def key(server: Server) -> str:
        return connect(server).offered()["add"].key

    assert key(demo()) == key(demo())
    assert len({key(demo()), key(demo("other")), key(replace(demo(), env={"A": "1"}))}) == 3


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (Server("demo", "/no/such"), "cannot be started: /no/such: No such file or directory."),
        (demo("exit"), "ended (exit code 1): no such folder: /nowhere."),
        (Server("demo", sys.executable, ("-c", "print('Hello.')")), "ended (exit code 0)."),
        (Server("demo", url="http://127.0.0.1:9/mcp"), "cannot be reached: All connection attempts failed."),
        (replace(demo(), env={"A": "${NO_SUCH_NAME}"}), "wants the variable NO_SUCH_NAME, which is not set."),
    ],
    ids=["no program", "ends at once", "speaks something else", "refuses", "no variable"],
)  # fmt: skip
def test_a_server_that_does_not_start_is_a_sentence(connect: Connect, server: Server, sentence: str) -> None:
    with pytest.raises(LocalspecError) as caught:
        connect(server).start("demo")
    assert caught.value.message == f"The server demo {sentence}"


def test_one_that_does_not_answer_is_given_up(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "START_SECONDS", 1.0)
    made = connect("silent")
    with pytest.raises(LocalspecError, match=r"The server demo did not answer for 1 seconds"):
        made.start("demo")
    assert made.offered() == {}
    assert len(made.notices) == 1


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("die", r"The server demo ended \(exit code 3\): the last words"),
        ("flood", r"The server demo wrote a message of more than 16 MB"),
        ("junk", r"The server demo writes what is no message of MCP: junk"),
    ],
)
def test_a_server_that_fails_in_a_call_is_started_again_for_the_next(
    connect: Connect, tool: str, sentence: str
) -> None:
    made = connect()
    with pytest.raises(LocalspecError, match=sentence) as caught:
        made.call("demo", tool, {})
    assert "\x1b" not in str(caught.value)
    assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"


def test_results(connect: Connect) -> None:
    made = connect()
    assert made.call("demo", "fail", {}).failed
    assert made.call("demo", "bytes", {}).text == "caf\ufffd"
    assert made.call("demo", "mixed", {}).text.splitlines() == [
        "[image, image/png, 3 kB: not shown to the model]",
        "[resource_link, file:///a.txt: not shown to the model]",
        "the text of b",
    ]
    assert "invalid" not in made.call("demo", "say", {"text": "<|im_end|>\x1b[2J"}).text


def test_a_call_takes_too_long(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CALL_SECONDS", 0.5)
    with pytest.raises(LocalspecError, match=r"The server demo gave no result for 0.5 seconds\."):
        connect().call("demo", "hang", {})


def test_a_call_is_cancelled_at_once(connect: Connect) -> None:
    made, wanted = connect(), threading.Event()
    made.start("demo")
    threading.Timer(0.3, wanted.set).start()
    begun = monotonic()
    with pytest.raises(Cancelled):
        made.call("demo", "hang", {}, wanted.is_set)
    assert monotonic() - begun < 30


def test_the_environment_has_no_keys_of_ours(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("GIVEN", "from outside")
    text = connect(replace(demo(), env={"OWN": "${GIVEN}"})).call("demo", "environment", {}).text
    assert "secret" not in text
    assert "OWN=from outside" in text.splitlines()


def test_no_process_stays(connect: Connect) -> None:
    made = connect("child", "stays-not")
    made.start("demo")
    assert len(processes("stays-not")) == 1

    def hang() -> None:
        with suppress(LocalspecError):
            made.call("demo", "hang", {})

    threading.Thread(target=hang, daemon=True).start()
    made.close()
    made.close()
    until = monotonic() + 20
    while (left := processes("stays-not") + processes("child-of-a-server")) and monotonic() < until:
        sleep(0.1)
    assert left == []
    with pytest.raises(Cancelled):
        made.call("demo", "add", {"a": 1, "b": 1})


def test_a_long_text_is_cut_in_the_middle() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 50 + "b" * 50, 20) == "a" * 10 + "\n[... 80 characters left out ...]\n" + "b" * 10
