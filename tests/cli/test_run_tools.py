"""`localspec run --tools` and `chat --plain`: answers that call tools of a real server; a scripted endpoint answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Result
from tests.cli.test_chat import _until, at_terminal
from tests.tools.conftest import SCRIPT
from tests.tui.endpoint import Endpoint, served

REFUSED = "localspec: --tools does not go with --raw, --batch and --log-probs.\n"
ADD = ("add", '{"a": 2, "b": 3}')


class Caller(Endpoint):
    """Makes its calls, and then says what came of them."""

    calls: tuple[tuple[str, str], ...] = (ADD,)

    @property
    def deltas(self) -> list[dict[str, Any]]:
        messages = self.requests[-1]["messages"]
        results = [one["content"] for one in messages if one["role"] == "tool"]
        asks = sum(one["role"] == "user" for one in messages)
        if len(results) >= asks * len(self.calls) or "tools" not in self.requests[-1]:
            return [{"content": f"It is {', '.join(results)}."}]
        told = [
            {"index": at, "id": f"x{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(self.calls)
        ]
        return [{"content": "I look."}, {"tool_calls": told}]

    @deltas.setter
    def deltas(self, _: object) -> None:
        pass


@pytest.fixture
def caller() -> Iterator[Caller]:
    with served(Caller()) as running:
        assert isinstance(running, Caller)
        yield running


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of servers, outside of the current folder."""
    for name in ("data", "config"):
        monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", str(tmp_path / name))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return write(tmp_path / "servers.json", demo={"command": sys.executable, "args": [str(SCRIPT)]})


def write(path: Path, **entries: Any) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"mcpServers": entries}))
    return str(path)


def ran(command: Command, caller: Caller, *words: str) -> Result:
    return command("run", "What is 2 and 3?", "--endpoint", caller.url, *words)


def untimed(text: str) -> str:
    return re.sub(r"\d+\.\d s", "0.0 s", text)


def test_a_call_is_made_and_its_line_is_on_standard_error(command: Command, caller: Caller, tools: str) -> None:
    found = ran(command, caller, "--tools", tools, "--yes")
    assert (found.code, found.out) == (0, "I look.\n\nIt is 5.\n")
    assert untimed(found.err) == "(add(a=2, b=3), 0.0 s, 1 byte)\n"
    first, second = caller.requests
    assert {one["function"]["name"] for one in first["tools"]} >= {"add", "say"}
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "tool"]


def test_calls_are_in_the_json(command: Command, caller: Caller, tools: str) -> None:
    caller.calls = (ADD, ("fail", "{}"))
    found = ran(command, caller, "--tools", tools, "--yes", "--json")
    assert found.code == 0
    told = json.loads(found.out)
    assert told["text"].endswith("It is 5, It cannot be done..")
    assert [(one["call"]["name"], one["result"], one["failed"]) for one in told.pop("calls")] == [
        ("add", "5", False),
        ("fail", "It cannot be done.", True),
    ]
    plain = json.loads(ran(command, caller, "--json").out)
    assert (told["finish_reason"], told["endpoint"]) == ("stop", f"{caller.url}/v1")
    assert told.keys() == plain.keys()
    assert [one["stats"]["generated_tokens"] for one in (told, plain)] == [10, 5], "of two rounds, and of one"


def test_the_json_of_a_model_here_has_the_figures_of_an_answer_without_tools(command: Command, tools: str) -> None:
    words = ("run", "tiny", "Say: red house", "--max-tokens", "40", "--seed", "7", "--json")
    found, plain = command(*words, "--tools", tools, "--yes"), command(*words)
    told, usual = json.loads(found.out), json.loads(plain.out)
    assert told.keys() == usual.keys() - {"tokens"} | {"calls"}
    assert (told["seed"], told["configuration"]) == (7, usual["configuration"])
    assert told["stats"].keys() == usual["stats"].keys()
    assert told["stats"]["generated_tokens"] <= 40


def test_without_a_terminal_and_without_yes_a_call_is_refused_and_said(
    command: Command, caller: Caller, tools: str
) -> None:
    found = ran(command, caller, "--tools", tools)
    assert found.code == 0
    assert "add(a=2, b=3), a tool of the server demo\n" in found.err
    assert "It is refused: there is no terminal to ask at. --yes allows all calls." in found.err
    assert found.out.endswith("It is The user does not allow this call..\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tools", "nosuch"], "There is no server and no file 'nosuch'; you have none."),
        (["--yes"], "--yes needs --tools."),
        (["--tools", "FILE", "--log-probs", "1", "--json"], "--log-probs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    command: Command, caller: Caller, tools: str, words: list[str], said: str
) -> None:
    found = ran(command, caller, *[tools if word == "FILE" else word for word in words])
    assert (found.code, found.out) == (2, "")
    assert said in found.err
    assert found.err.count("\n") == 1
    assert caller.requests == []


def test_raw_and_batch_have_no_tools(command: Command, tools: str, tmp_path: Path) -> None:
    found = command("run", "Hi", "--raw", "--tools", tools)
    assert (found.code, found.err) == (2, REFUSED)
    lines = tmp_path / "lines"
    lines.write_text('{"prompt": "Hi"}\n')
    found = command("run", "--batch", str(lines), "--tools", tools)
    assert (found.code, found.err) == (2, REFUSED)


def test_a_server_that_does_not_start_costs_a_sentence(command: Command, caller: Caller, tools: str) -> None:
    file = write(Path(tools), gone={"command": "/nowhere/x"}, demo={"command": sys.executable, "args": [str(SCRIPT)]})
    found = ran(command, caller, "--tools", file, "--yes")
    assert (found.code, found.out) == (0, "I look.\n\nIt is 5.\n")
    assert "localspec: The server gone cannot be started: /nowhere/x: No such file or directory." in found.err


def test_an_endpoint_that_takes_no_tools_costs_a_sentence(command: Command, caller: Caller, tools: str) -> None:
    class Refusing(Caller):
        @property
        def body(self) -> str:
            return "no tools" if "tools" in self.requests[-1] else ""

        @body.setter
        def body(self, _: str) -> None:
            pass

    with served(Refusing()) as endpoint:
        endpoint.status = 400
        found = command("run", "Hi", "--endpoint", endpoint.url, "--tools", tools)
        name = endpoint.url.removeprefix("http://")
        said = f"localspec: The server {name} takes no tools; the answer was asked without them.\n"
        assert (found.code, found.out, found.err) == (0, "It is .\n", said)


def test_without_the_package_the_answer_goes_on(
    command: Command, caller: Caller, tools: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "localspec.tools.running", raising=False)
    for name in ["mcp", *(one for one in sys.modules if one.startswith("mcp."))]:
        monkeypatch.setitem(sys.modules, name, None)
    found = ran(command, caller, "--tools", tools, "--yes")
    assert (found.code, found.out) == (0, "It is .\n")
    assert found.err.count("pip install 'localspec[tools]'") == 1


def test_the_line_of_a_call_says_nothing_to_the_terminal(command: Command, caller: Caller, tools: str) -> None:
    caller.calls = (("say", json.dumps({"text": "\x1b[2J<|im_end|>"})),)
    found = ran(command, caller, "--tools", tools, "--yes")
    assert "\x1b" not in found.err
    assert "<|im_end|>" in found.out


def test_the_folders_file_is_used_where_it_is_named(command: Command, caller: Caller, tools: str) -> None:
    Path("mcp.json").write_bytes(Path(tools).read_bytes())
    assert ran(command, caller).out == "It is .\n"
    assert "tools" not in caller.requests[-1]
    assert ran(command, caller, "--tools", "./mcp.json", "--yes").out == "I look.\n\nIt is 5.\n"


def test_the_bundled_pair_is_asked_with_tools(command: Command, tools: str) -> None:
    found = command(
        "run", "tiny", "Say: red house", "--tools", tools, "--yes", "--max-tokens", "40", "--temperature", "0"
    )
    assert found.code == 0
    assert found.err.startswith("(say(")
    assert found.out.strip()


# ---- line by line


def test_over_a_pipe_calls_are_refused_unless_yes(command: Command, caller: Caller, tools: str) -> None:
    words = ("chat", "--plain", "--endpoint", caller.url, "--tools", tools)
    found = command(*words, stdin="What is 2 and 3?\n")
    assert "It is refused: there is no terminal to ask at." in found.err
    found = command(*words, "--yes", stdin="What is 2 and 3?\nAgain\n")
    assert found.code == 0
    assert found.out == "I look.\n\nIt is 5.\nI look.\n\nIt is 5, 5.\n"
    assert untimed(found.err) == "(add(a=2, b=3), 0.0 s, 1 byte)\n" * 2


def test_the_users_servers_are_used_and_a_folders_are_left_out_without_a_terminal(
    command: Command, caller: Caller, tools: str, tmp_path: Path
) -> None:
    write(tmp_path / "config" / "mcp.json", demo={"command": sys.executable, "args": [str(SCRIPT)]})
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"evil": {"command": "touch", "args": ["started"]}}}))
    found = command("chat", "--plain", "--endpoint", caller.url, "--yes", stdin="What is 2 and 3?\n")
    assert found.out == "I look.\n\nIt is 5.\n"
    path = Path("mcp.json").resolve()
    left = f"localspec: The servers of {path} are left out: there is no terminal to ask at.\n"
    assert found.err.startswith(left)
    assert not Path("started").exists()


def test_broken_files_are_notices(command: Command, caller: Caller, tools: str, tmp_path: Path) -> None:
    write(tmp_path / "config" / "mcp.json")
    (tmp_path / "config" / "mcp.json").write_text("{")
    Path("mcp.json").write_text("[]")
    found = command("chat", "--plain", "--endpoint", caller.url, stdin="Hi\n")
    assert (found.code, found.out) == (0, "It is .\n")
    assert f"{tmp_path / 'config' / 'mcp.json'} cannot be read" in found.err
    assert f"{Path('mcp.json').resolve()} has no mcpServers" in found.err


def test_at_a_terminal_it_is_asked_for_the_folder_once_and_for_each_call(caller: Caller, tools: str) -> None:
    """Two conversations: in the first all is agreed to, in the second nothing is asked any more."""
    Path("mcp.json").write_bytes(Path(tools).read_bytes())
    for first in (True, False):
        with at_terminal("chat", "--plain", "--endpoint", caller.url) as (chat, ours):
            if first:
                seen = _until(ours, lambda seen: b"Use them? [y]es, [n]ot now: " in seen)
                assert f"demo: {sys.executable} {SCRIPT}".encode() in seen.replace(b"\r\n", b"\n")
                os.write(ours, b"y\n")
            seen = _until(ours, lambda seen: b"> " in seen)
            assert first or b"Use them?" not in seen
            os.write(ours, b"What is 2 and 3?\n")
            if first:
                seen = _until(ours, lambda seen: b"Call it? " in seen)
                assert b"add(a=2, b=3), a tool of the server demo" in seen
                os.write(ours, b"a\n")
            seen = _until(ours, lambda seen: b"> " in seen.partition(b"It is 5.")[2])
            assert b"Call it?" not in seen
            os.write(ours, b"\x04")
            assert chat.wait(timeout=60) == 0


# ---- the end


def children(word: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
@pytest.mark.parametrize("name", ["hang", "add"])
def test_ctrl_c_while_a_tool_hangs_leaves_no_process(caller: Caller, tools: str, tmp_path: Path, name: str) -> None:
    """Once a call hangs, and once while a server starts."""
    mark = f"mark-{os.getpid()}-{name}"
    caller.calls = ((name, "{}"),)
    words = ["silent"] if name == "add" else []
    file = write(Path(tools), demo={"command": sys.executable, "args": [str(SCRIPT), mark, "child", *words]})
    run = [sys.executable, "-m", "localspec", "run", "Hi", "--endpoint", caller.url, "--tools", file, "--yes"]
    program = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while not children(mark) or (name == "hang" and not caller.requests):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # in the call
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert b"Traceback" not in err, err
    assert children(mark) == [], (out, err)
