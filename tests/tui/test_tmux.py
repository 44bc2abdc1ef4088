"""The chat in a real terminal: tmux holds it, keys are sent, and what stands on the screen is read."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.odd import Odd, serving
from tests.tui.endpoint import Endpoint, served

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
SECONDS = 120.0
"""How long anything may take on a busy machine; nothing is waited for longer than it takes."""


class Terminal:
    """A tmux server of its own, with one window."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"
        self.folder = folder

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments], capture_output=True, text=True, encoding="utf-8", timeout=30
        )
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def start(self, *options: str) -> None:
        """`localspec` in a fresh window; what it ended with stays on the screen."""
        folders = [f"LOCALSPEC_{name}={self.folder / name.lower()}" for name in ("DATA", "CONFIG", "CACHE")]
        command = [
            "env",
            *("-u", "NO_COLOR", "-u", "COLUMNS", "-u", "LINES"),
            "GOMP_SPINCOUNT=0",
            *folders,
            sys.executable,
            "-m",
            "localspec",
            *options,
        ]
        self.tmux(*("new-session", "-d", "-x", "100", "-y", "30"), shlex.join(command))
        self.tmux("set-option", "remain-on-exit", "on")

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def write(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def until(self, wanted: Callable[[str], object]) -> str:
        """Waits for something to stand on the screen."""
        deadline = time.monotonic() + SECONDS
        while not wanted(screen := self.screen()):
            late = time.monotonic() >= deadline or "Pane is dead" in screen
            assert not late, f"it never came:\n{screen}"
            time.sleep(0.05)
        return screen

    def sees(self, *parts: str) -> str:
        return self.until(lambda screen: all(part in screen for part in parts))

    def leave(self) -> None:
        """Ctrl+Q, and exit code 0."""
        self.press("C-q")
        deadline = time.monotonic() + SECONDS
        while not self.tmux("display-message", "-p", "#{pane_dead_status}").strip():
            assert time.monotonic() < deadline, f"it did not end:\n{self.screen()}"
            server = int(self.tmux("display-message", "-p", "#{pid}"))
            os.kill(server, signal.SIGCHLD)  # tmux 3.3a sometimes misses that its child has ended
            time.sleep(0.05)
        assert self.tmux("display-message", "-p", "#{pane_dead_status}").strip() == "0"
        self.kill()

    def kill(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, timeout=30)


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    opened = Terminal(tmp_path_factory.mktemp("t"))
    yield opened
    opened.kill()


def test_a_session(terminal: Terminal) -> None:
    """First run, chat, edit, branch, search, race, quit, resume."""
    terminal.start("chat", "--exact", "strict")
    terminal.sees("the tiny pair that comes with localspec", "bundled pair answers")
    terminal.write("Say: red house")
    terminal.press("Enter")
    terminal.sees("You", "Say: red house", "tokens/s")
    terminal.press("C-g")
    terminal.sees("Editing")
    terminal.write(" or blue boat")
    terminal.press("Enter")
    terminal.sees("◂ 2/2 ▸", "Say: red house or blue boat", "tokens/s")
    terminal.press("C-Up")
    terminal.press("C-Up")
    terminal.press("Left")
    terminal.sees("◂ 1/2 ▸")
    terminal.until(lambda screen: "blue boat" not in screen)
    terminal.press("F6")
    terminal.sees("the target's own")
    terminal.press("C-f")
    terminal.sees("Search all chats")
    terminal.write("boat")
    terminal.sees("red house or blue boat")
    terminal.press("Enter")
    terminal.sees("◂ 2/2 ▸")
    terminal.press("F8")
    terminal.sees("Race")
    terminal.press("Enter")
    terminal.sees("✓ the same")
    terminal.press("Escape")
    terminal.sees("◂ 2/2 ▸")
    terminal.press("Enter")  # from the message to the input
    terminal.write("a draft")
    terminal.sees("a draft")
    terminal.leave()

    terminal.start()
    terminal.sees("Say: red house or blue boat", "a draft", "bundled pair")
    terminal.leave()


def _asks(terminal: Terminal, endpoint: Endpoint) -> None:
    """A chat with the first model of an endpoint, which waits for its first token."""
    terminal.start("chat", "--endpoint", endpoint.url)
    terminal.sees(f"{endpoint.models[0]} answers, at an endpoint")
    terminal.write("Say hello")
    terminal.press("Enter")
    terminal.sees("waiting for the first token")


def test_stop(terminal: Terminal) -> None:
    """Esc ends an answer that never comes; one of the bundled pair may be at its end before the key comes."""
    endpoint = Endpoint()
    endpoint.hold.clear()
    with served(endpoint):
        _asks(terminal, endpoint)
        terminal.press("Escape")
        terminal.sees("stopped")
        terminal.leave()
        endpoint.hold.set()


def test_no_terminal_wide_enough_is_too_small(terminal: Terminal) -> None:
    """Nothing breaks at 20 columns; what was there comes back when the window grows."""
    terminal.start("chat", "--exact", "off")
    terminal.sees("bundled pair answers")
    terminal.tmux("resize-window", "-x", "20", "-y", "8")
    terminal.write("Hi")
    terminal.sees("Hi")
    terminal.tmux("resize-window", "-x", "250", "-y", "60")
    terminal.sees("bundled pair answers", "Hi")
    terminal.leave()


def test_a_server_answers(terminal: Terminal) -> None:
    """`--endpoint`: the first token is waited for in sight, and another of the server's models is chosen."""
    endpoint = Endpoint()
    endpoint.models = ["small-one", "large-one"]
    endpoint.hold.clear()
    with served(endpoint):
        _asks(terminal, endpoint)
        terminal.sees("waiting for the first token: 2 s")
        endpoint.hold.set()
        terminal.sees("Hello there.", "tok/s")
        terminal.write("/model")
        terminal.press("Enter")
        terminal.sees(f"Models of {endpoint.url}/v1", "answers now", "large-one")
        terminal.press("Down", "Enter")
        terminal.until(lambda screen: "large-one" in screen.rstrip().splitlines()[-2])
        terminal.write("And now?")
        terminal.press("Enter")
        terminal.until(lambda screen: screen.count("Hello there.") == 2)
        terminal.leave()
    assert [request["model"] for request in endpoint.requests] == ["small-one", "large-one"]


def test_a_name_of_models_toml_opens_the_chat_and_a_model_of_this_machine_takes_over(terminal: Terminal) -> None:
    endpoint = Endpoint()
    with served(endpoint):
        config = terminal.folder / "config"
        config.mkdir()
        entry = f'[[endpoint]]\nname = "work"\nendpoint = "{endpoint.url}"\nmodel = "large-one"\n'
        (config / "models.toml").write_text(entry, encoding="utf-8")
        terminal.start("work")
        terminal.sees("large-one answers, at an endpoint")
        terminal.write("Hi")
        terminal.press("Enter")
        terminal.sees("Hello there.")
        terminal.press("F5")
        terminal.sees("tiny")
        terminal.press("Enter")
        terminal.sees("Hello there.", "tiny + tiny-draft-q8_0")
        terminal.write("/model work")
        terminal.press("Enter")
        terminal.sees("large-one")
        terminal.leave()
    assert [request["model"] for request in endpoint.requests] == ["large-one"]


def test_a_server_of_this_machine_is_found(terminal: Terminal) -> None:
    """`/servers` at a real usual port; nothing is sent without a yes."""
    odd = Odd({"/v1/models": {"data": [{"id": "far-one"}]}})
    try:
        opened = serving(odd, port=4891)
        opened.__enter__()
    except OSError:
        pytest.skip("another program uses the port")
    try:
        terminal.start("chat")
        terminal.sees("bundled pair answers")
        terminal.write("/servers")
        terminal.press("Enter")
        screen = terminal.sees("http://127.0.0.1:4891", "far-one")
        marked = next(i for i, line in enumerate(screen[screen.index("which one") :].splitlines()) if "4891" in line)
        terminal.press(*["Down"] * (marked // 2 - 1), "Enter")
        terminal.sees("far-one answers, at an endpoint")
        terminal.write("Hello")
        terminal.press("Enter")
        terminal.sees("Send this chat to http://127.0.0.1:4891?")
        terminal.press("Down", "Enter")
        terminal.sees("Nothing was sent.")
        terminal.leave()
    finally:
        opened.__exit__(None, None, None)
    assert {method for method, _, _ in odd.asked} == {"GET"}


WORDS = [f"word{number:02}" for number in range(1, 41)]
"""Long enough to fill several lines, each one to be told apart."""


def test_every_word_of_an_answer_is_there_at_every_width(terminal: Terminal) -> None:
    """From 20 columns on nothing is cut on the right, in paragraphs, lists, quotes, code and tables."""
    endpoint = Endpoint()
    parts = [WORDS[at : at + 8] for at in range(0, 40, 8)]
    table = "| " + " | ".join(parts[4][:4]) + " |\n" + "|---" * 4 + "|\n| " + " | ".join(parts[4][4:]) + " |"
    text = "\n\n".join(
        [" ".join(parts[0]), "- " + " ".join(parts[1]), "> " + " ".join(parts[2]), f"`{' '.join(parts[3])}`", table]
    )
    endpoint.deltas = [{"content": text}]
    with served(endpoint):
        terminal.start("chat", "--endpoint", endpoint.url)
        terminal.sees("answers, at an endpoint")
        terminal.write("Go")
        terminal.press("Enter")
        terminal.sees("word40", "tok/s")
        for width in (60, 40, 30, 20, 100):
            terminal.tmux("resize-window", "-x", str(width), "-y", "80")
            screen = terminal.until(lambda screen: all(word in screen for word in WORDS))
            assert max(map(len, screen.splitlines())) <= width
        terminal.tmux("resize-window", "-x", "15", "-y", "6")
        terminal.write("narrow")
        terminal.sees("narrow")
        terminal.tmux("resize-window", "-x", "100", "-y", "30")
        terminal.sees("word40", "narrow")
        terminal.leave()


def test_an_answer_is_copied_inside_tmux(terminal: Terminal) -> None:
    """By tmux itself, which lets no sequence through; what was copied is in its buffer, and the note says no more."""
    endpoint = Endpoint()
    endpoint.deltas = [{"content": "Two lines,\nand ünï¢ode.\n\n```\nx = 1\n```"}]
    with served(endpoint):
        terminal.start("chat", "--endpoint", endpoint.url)
        terminal.tmux("set-option", "-g", "allow-passthrough", "off")
        terminal.sees("answers, at an endpoint")
        terminal.write("Go")
        terminal.press("Enter")
        terminal.sees("x = 1", "tok/s")
        terminal.press("C-l")
        terminal.sees("Message copied to tmux, which hands it to your")
        assert terminal.tmux("show-buffer") == endpoint.deltas[0]["content"]
        terminal.write("/copy code")
        terminal.press("Enter")
        terminal.sees("Code block copied to tmux")
        assert terminal.tmux("show-buffer") == "x = 1\n"
        terminal.leave()


def test_a_chat_is_compacted_and_its_tabs_are_back_after_a_kill(terminal: Terminal) -> None:
    """A summary in the chat, two tabs, `kill -9`, and all of it again."""
    endpoint = Endpoint()
    endpoint.deltas = [{"content": "First answer."}]
    with served(endpoint):
        terminal.start("chat", "--endpoint", endpoint.url)
        terminal.sees("answers, at an endpoint")
        for question in ("About zebras", "About lions"):
            terminal.write(question)
            terminal.press("Enter")
            terminal.sees(question, "First answer.", "tok/s")
        terminal.until(lambda screen: screen.count("First answer.") == 2)
        endpoint.deltas = [{"content": "They spoke of zebras."}]
        terminal.write("/compact")
        terminal.press("Enter")
        terminal.sees("The model sees a summary of what stands above")
        terminal.press("C-n")
        terminal.sees("New chat")
        terminal.write("Second tab")
        terminal.press("Enter")
        terminal.until(lambda screen: screen.count("Second tab") >= 2 and "tok/s" in screen)
        terminal.press("C-PPage")
        terminal.sees("About lions")
        os.kill(int(terminal.tmux("display-message", "-p", "#{pane_pid}")), signal.SIGKILL)
        terminal.tmux("respawn-pane", "-k")  # the same command once more
        terminal.sees("About zebras", "Second tab", "About lions", "The model sees a summary of what stands above")
        terminal.press("C-NPage")
        terminal.sees("They spoke of zebras.")  # which is what the second tab's answer says
        terminal.leave()
