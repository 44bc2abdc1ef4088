"""Servers as they should be, and as they should not: one sentence each, and no process stays."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest

from localspec.errors import Cancelled, LocalspecError
from localspec.tools import connections, running
from localspec.tools.connections import cut
from localspec.tools.servers import Server
from tests.tools.conftest import Connect, demo
from tests.tools.server import TOOLS


def processes(word: str) -> list[str]:
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line]


def ends(word: str) -> bool:
    """Whether no process with the word is left, after a moment at most."""
    until = monotonic() + 20
    while processes(word) and monotonic() < until:
        sleep(0.05)
    return not processes(word)


def fault(work: Callable[[], object]) -> str:
    """The sentence of an error, in which nothing can move a cursor, and no type of Python stands."""
    with pytest.raises(LocalspecError) as caught:
        work()
    text = caught.value.message
    assert text.endswith(".")
    assert text.isprintable()
    assert "pydantic" not in text
    assert "Error" not in text
    return text


def test_a_server_is_started_once_and_has_its_tools(connect: Connect) -> None:
    made = connect()
    listed = made.start("demo")
    assert (listed.title, [tool["name"] for tool in listed.tools]) == ("demo 1", [tool["name"] for tool in TOOLS])
    assert made.start("demo") is listed
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


def test_a_server_that_failed_is_tried_again_once_it_was_off(connect: Connect, tmp_path: Path) -> None:
    program = tmp_path / "program"
    made = connect(Server("demo", str(program)))
    assert made.offered() == {}
    assert len(made.notices) == 1
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {' '.join(demo().args)}\n")
    program.chmod(0o755)
    assert made.offered() == {}
    assert made.offered(off={"demo"}) == {}
    assert "add" in made.offered()
    assert len(made.notices) == 1


def test_200_tools(connect: Connect) -> None:
    assert len(connect("many").offered()) == 200


def test_a_key_changes_with_what_a_consent_was_given_for(connect: Connect) -> None:
    def key(server: Server) -> str:
        return connect(server).offered()["add"].key

    assert key(demo()) == key(demo())
    assert len({key(demo()), key(demo("other")), key(replace(demo(), env={"A": "1"}))}) == 3


def test_tools_that_change_are_listed_anew_and_not_called_as_what_they_were(connect: Connect, tmp_path: Path) -> None:
    made = connect(demo("changes", str(tmp_path / "changed")))
    before = made.offered()["add"]
    assert made.call("demo", "say", {}, key=made.offered()["say"].key).text == "Hello."
    said = fault(lambda: made.call("demo", "add", {"a": 1, "b": 1}, key=before.key))
    assert said == "The server demo has changed its tool add meanwhile: it was not called."
    after = made.offered()["add"]
    assert after.tool.description == "Adds three numbers."
    assert made.call("demo", "add", {"a": 1, "b": 1}, key=after.key).text == "2"


def test_a_tool_of_a_server_that_is_started_again_is_called_if_it_is_the_same(connect: Connect, tmp_path: Path) -> None:
    made = connect(demo("changes", str(tmp_path / "changed")))
    keys = {name: one.key for name, one in made.offered().items()}
    (tmp_path / "changed").touch()
    assert made.call("demo", "add", {"a": 1, "b": 1}, key=keys["add"]).text == "2"
    fault(lambda: made.call("demo", "die", {}))
    assert made.call("demo", "fail", {}, key=keys["fail"]).failed
    assert "has changed its tool add" in fault(lambda: made.call("demo", "add", {"a": 1, "b": 1}, key=keys["add"]))
    assert "has changed its tool no" in fault(lambda: made.call("demo", "no", {}, key=keys["add"]))


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (Server("demo", "/no/such"), "cannot be started: /no/such: No such file or directory."),
        (demo("exit"), "ended (exit code 1): no such folder: /nowhere."),
        (Server("demo", sys.executable, ("-c", "print('Hello.')")), "ended (exit code 0)."),
        (demo("hello"), "does not answer as an MCP server does (it writes what is no message)."),
        (demo("half"), "wrote a message of more than 16 MB."),
        (replace(demo(), cwd="/no/such"), "cannot be started: /no/such: No such file or directory."),
        (Server("demo", "/"), "cannot be started: /: Permission denied."),
        (Server("demo", url="http://127.0.0.1:9/mcp"), "cannot be reached: All connection attempts failed."),
        (replace(demo(), env={"A": "${NO_SUCH_NAME}"}), "wants the variable NO_SUCH_NAME, which is not set."),
    ],
)
def test_a_server_that_does_not_start_is_a_sentence_and_costs_no_other(
    connect: Connect, server: Server, sentence: str
) -> None:
    made = connect(server, demo(name="good"))
    for _ in range(2):
        assert fault(lambda: made.start("demo")) == f"The server demo {sentence}"
    assert made.call("good", "add", {"a": 1, "b": 1}).text == "2"


def test_a_tool_that_is_none_is_left_out_and_costs_no_other(connect: Connect) -> None:
    made = connect("nonsense")
    assert list(made.offered()) == ["add"]
    assert len(made.notices) == 4
    assert all("of the server demo is left out: " in one for one in made.notices)


def test_lists_of_many_pages_are_whole_and_end(connect: Connect) -> None:
    made = connect(demo("pages", name="pages"), demo("endless", name="endless"))
    assert [tool["name"] for tool in made.start("pages").tools] == [f"tool{number}" for number in range(200)]
    assert len(made.start("endless").tools) == 100


def test_a_greeting_on_its_output_is_overlooked(connect: Connect) -> None:
    assert connect("greeting").call("demo", "add", {"a": 1, "b": 1}).text == "2"


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
        ("junk", r"The server demo writes what is no message of MCP: junk\."),
        ("wrong", r'The server demo writes what is no message of MCP: {"jsonrpc": "2.0", '),
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
        "[resource, file:///c, 6 kB: not shown to the model]",
        "[new: not shown to the model]",
        "last",
    ]
    assert made.call("demo", "structured", {}).text == '{"sum": 3, "é": [1]}'
    assert (unheard := made.call("demo", "unheard", {})).failed
    assert unheard.text == "Unknown tool: unheard"
    assert made.call("demo", "say", {"text": "half \ud83d"}).text == "half ?"
    long = made.call("demo", "say", {"text": "x" * 300_000}).text
    assert len(long) < 200_100
    assert "[... 100000 characters left out ...]" in long
    assert "invalid" not in made.call("demo", "say", {"text": "<|im_end|>\x1b[2J"}).text


def test_a_call_takes_too_long_and_the_server_goes_on(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, hang = connect(), {"note": str(tmp_path / "note")}
    made.start("demo")
    monkeypatch.setattr(connections, "CALL_SECONDS", 0.5)
    said = fault(lambda: made.call("demo", "hang", hang))
    assert said == "The server demo gave no result for 0.5 seconds."
    monkeypatch.setattr(connections, "CALL_SECONDS", 60.0)
    assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"


def test_a_call_is_cancelled_at_once_and_the_server_is_told(connect: Connect, tmp_path: Path) -> None:
    note = tmp_path / "note"
    made = connect(demo("note", str(note)))
    with pytest.raises(Cancelled):  # as soon as the server has the call
        made.call("demo", "hang", {"note": str(note)}, note.exists)
    assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"
    assert note.read_text() == "called\ncancelled\n"


def test_a_server_that_is_stuck_in_a_call_that_was_given_up_is_started_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note, stuck = tmp_path / "note", tmp_path / "stuck"
    made = connect()
    for path, more in ((note, {}), (stuck, {"stuck": True})):
        before = made.start("demo")
        with pytest.raises(Cancelled):
            made.call("demo", "hang", {"note": str(path), **more}, path.exists)
        if more:
            monkeypatch.setattr(running, "_STUCK_SECONDS", 0.5)
        assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"
        assert (made.start("demo") is before) is (path is note)


def test_a_start_that_nobody_waits_for_goes_on_and_ends_with_the_rest(connect: Connect, tmp_path: Path) -> None:
    made = connect(demo("silent", str(tmp_path)))
    with pytest.raises(Cancelled):
        made.start("demo", lambda: bool(processes(str(tmp_path))))
    made.close()
    assert ends(str(tmp_path))


def test_the_environment_has_no_keys_of_ours(connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("GIVEN", "from outside")
    made = connect(replace(demo(), env={"OWN": "${GIVEN}"}, cwd=str(tmp_path)))
    text = made.call("demo", "environment", {}).text
    assert "secret" not in text
    assert "OWN=from outside" in text.splitlines()
    assert made.call("demo", "folder", {}).text == str(tmp_path.resolve())


def test_its_standard_error_is_kept_within_bounds_and_without_keys(connect: Connect, tmp_path: Path) -> None:
    keyed = replace(demo("exit", name="keyed"), env={"KEY": "key-of-mine", "SHORT": "folder"})
    made = connect(demo("loud", name="loud"), keyed)
    made.start("loud")
    assert fault(lambda: made.start("keyed")) == "The server keyed ended (exit code 1): My key is ***."
    assert (tmp_path / "data" / "mcp-keyed.log").read_text() == "started\nno such folder: /nowhere\nMy key is ***.\n"
    log = tmp_path / "data" / "mcp-loud.log"
    assert 900_000 < log.stat().st_size <= 1 << 20
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_no_reason_to_fail(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    made = connect()
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "file"))
    assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"


def test_a_full_disk_is_no_reason_to_fail(connect: Connect, tmp_path: Path) -> None:
    made, limits = connect(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # a file can be made, and nothing be written to it
    try:
        assert made.call("demo", "add", {"a": 1, "b": 1}).text == "2"
        made.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "data" / "mcp-demo.log").read_text() == ""


def test_the_log_is_of_the_last_start_alone(connect: Connect, tmp_path: Path) -> None:
    first, second = connect(), connect()
    first.start("demo")
    second.start("demo")
    fault(lambda: first.call("demo", "die", {}))
    second.close()
    assert (tmp_path / "data" / "mcp-demo.log").read_text() == "started\n"


def test_no_process_stays(connect: Connect, tmp_path: Path) -> None:
    made, note = connect(demo("stubborn", "child", str(tmp_path))), tmp_path / "note"
    said = list[Exception]()

    def hang() -> None:
        try:
            made.call("demo", "hang", {"note": str(note)})
        except LocalspecError as error:
            said.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    while not note.exists():
        sleep(0.01)
    assert len(processes(str(tmp_path))) == 2
    made.close()
    made.close()
    thread.join(20)
    assert ends(str(tmp_path))
    assert [str(one) for one in said] == ["The tools are closed."]
    with pytest.raises(Cancelled):
        made.call("demo", "add", {"a": 1, "b": 1})


def test_a_child_that_left_its_group_holds_up_nothing(connect: Connect, tmp_path: Path) -> None:
    made = connect(demo("runaway", str(tmp_path)))
    made.start("demo")
    begun = monotonic()
    made.close()
    assert monotonic() - begun < 15  # the child goes on for 20 seconds, and holds the pipes


SCRIPT = """
import sys
from localspec.tools.connections import Connections
from localspec.tools.servers import Server

connections = Connections([Server("x", sys.argv[1], tuple(sys.argv[2:]))])
try:
    if sys.argv[3] != "silent":
        connections.start("x")
    if sys.argv[3] != "idle":
        connections.call("x", "hang", {"note": sys.argv[4]})
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_no_process_stays_after_a_program_that_forgets_them(tmp_path: Path) -> None:
    """It ends by itself, or by Ctrl-C in a call or in a start."""
    scripts = dict[str, subprocess.Popen[str]]()
    for word in ("idle", "hang", "silent"):
        server = demo(word, str(tmp_path / word))
        scripts[word] = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, server.command, *server.args],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"LOCALSPEC_DATA": str(tmp_path)},
        )
    try:
        for word, script in scripts.items():
            mark = f"{word} {tmp_path / word}"
            while word != "idle" and not (
                (tmp_path / word).exists() or (word == "silent" and len(processes(mark)) > 1)
            ):
                assert script.poll() is None
                sleep(0.02)
            if word != "idle":
                script.send_signal(signal.SIGINT)
            _, said = script.communicate(timeout=60)
            assert (word, script.returncode, said) == (word, 0 if word == "idle" else 7, "")
            assert ends(mark)
    finally:
        for script in scripts.values():
            script.kill()


def test_without_the_extra_a_sentence_names_it(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "localspec.tools.running", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.client.session", None)
    with pytest.raises(LocalspecError) as caught:
        connect().start("demo")
    assert caught.value.message == "Tools need mcp, which is not installed."
    assert caught.value.hint == "pip install 'localspec[tools]'"


def test_a_long_text_is_cut_in_the_middle() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("a" * 50 + "b" * 50, 20) == "a" * 10 + "\n[... 80 characters left out ...]\n" + "b" * 10
