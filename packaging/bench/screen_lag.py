"""How long the terminal chat keeps its user waiting on a slow core: keys and Esc while an answer streams in.

    PYTHONPATH=. python packaging/bench/screen_lag.py [--rates 100,500] [--busy 15] [--seconds 8]

The chat runs in a pty on one core beside busy loops that share that core. For each rate (tokens a second) an answer
streams in for some seconds; then letters are typed, one after the other, and Esc is pressed. The lag of a letter is the
time from the key to the painting that shows it, and that of Esc is the time to the painting after the answer's end, the
wait for the rest of an escape sequence (25 ms) included. CPU per update is the processor time of the chat over the
parts of the answer that were drawn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path
from typing import Any

from tui_frames import Paced

KEYS = 5
"""Letters typed at each rate."""
KEY_SECONDS, ESC_SECONDS = 4.0, 20.0
"""A wait longer than this is given up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100,500", help="tokens a second, comma-separated")
    parser.add_argument("--busy", type=int, default=15, help="busy loops on the same core")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long text streams in before the first key")
    options = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    loops = [multiprocessing.Process(target=_spin, args=(core,), daemon=True) for _ in range(options.busy)]
    for loop in loops:
        loop.start()
    try:
        print(f"the chat on one core beside {options.busy} busy loops")
        for rate in options.rates.split(","):
            print(f"{rate:>5} tokens/s: {Trial(float(rate), core).run(options.seconds)}", flush=True)
    finally:
        for loop in loops:
            loop.kill()


def _spin(core: int) -> None:
    os.setsid()  # Linux shares a core among sessions first: one with all loops would get half of it
    os.sched_setaffinity(0, {core})
    while True:
        pass


class Trial:
    """One chat at one rate."""

    def __init__(self, rate: float, core: int) -> None:
        self._told, tell = os.pipe()
        self._lines: list[list[str]] = []
        self._rest = ""
        self._folder = tempfile.TemporaryDirectory()
        self.child, self._terminal = pty.fork()
        if self.child == 0:
            for name in ("DATA", "CONFIG", "CACHE"):
                os.environ[f"LOCALSPEC_{name}"] = self._folder.name
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "ESCDELAY": "25"}  # as `localspec chat`
            os.sched_setaffinity(0, {core})
            chat(rate, Path(self._folder.name), tell)
            os._exit(0)
        ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def run(self, seconds: float) -> str:
        """What it said, in a line."""
        try:
            if self._wait("ready", 30.0) is None:
                sys.exit("The chat did not start.")
            os.write(self._terminal, b"Go\r")
            self._wait("part", 30.0)
            self._read(time.monotonic() + seconds)
            lags = [self._press(b"x", "typed", KEY_SECONDS) for _ in range(KEYS)]
            esc = self._press(b"\x1b", "over", ESC_SECONDS)
        finally:
            os.kill(self.child, 9)
            os.waitpid(self.child, 0)
            self._folder.cleanup()
        parts = [line for line in self._lines if line[0] == "part"]
        spent = (float(parts[-1][2]) - float(parts[0][2])) / max(1, len(parts) - 1)
        known = sorted(lag for lag in lags if lag is not None)
        longest = f"over {KEY_SECONDS:g} s" if len(known) < len(lags) else f"{known[-1] * 1e3:.0f} ms"
        median = f"{known[len(known) // 2] * 1e3:.0f} ms" if known else longest
        stopped = f"over {ESC_SECONDS:g} s" if esc is None else f"{esc * 1e3:.0f} ms"
        per_second = (len(parts) - 1) / (float(parts[-1][1]) - float(parts[0][1]))
        return (
            f"keys {median} in the median, {longest} at most; Esc {stopped}; "
            f"{per_second:.1f} updates/s, {spent * 1e3:.1f} ms of CPU each"
        )

    def _press(self, key: bytes, what: str, seconds: float) -> float | None:
        """Seconds until the chat tells that it has drawn the effect of a key; None = it took too long."""
        began = time.monotonic()
        os.write(self._terminal, key)
        when = self._wait(what, seconds)
        self._read(time.monotonic() + 0.2)
        return None if when is None else when - began

    def _wait(self, what: str, seconds: float) -> float | None:
        """When the chat next tells of something."""
        seen, deadline = len(self._lines), time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(time.monotonic() + 0.02)
            for line in self._lines[seen:]:
                if line[0] == what:
                    return float(line[1])
        return None

    def _read(self, until: float) -> None:
        """Reads what the chat draws, as a terminal would, and what it tells."""
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._terminal, self._told], [], [], left)
            if self._terminal in ready:
                os.read(self._terminal, 1 << 16)
            if self._told in ready:
                *lines, self._rest = (self._rest + os.read(self._told, 1 << 16).decode()).split("\n")
                self._lines += [line.split() for line in lines]


def chat(rate: float, folder: Path, tell: int) -> None:
    """The chat itself, in the child; writes lines (what, monotonic time, processor time) to `tell`."""
    from localspec.chat.archive.archive import Archive
    from localspec.remote.answerer import AnswerPart, ModelReady
    from localspec.tui.shell.app import ChatApp
    from localspec.tui.talk.session import Posted, Preferences, Session

    def say(what: str) -> None:
        os.write(tell, f"{what} {time.monotonic()} {time.process_time()}\n".encode())

    class Measured(ChatApp):
        typed, asked = "", False

        def on_posted(self, event: Posted) -> None:  # beside ChatApp's, which Textual calls as well
            if isinstance(event.told, ModelReady):
                self.call_after_refresh(say, "ready")
            elif isinstance(event.told, AnswerPart):
                say("part")

        def _display(self, screen: Any, renderable: Any) -> None:
            super()._display(screen, renderable)
            pane = self.pane
            if pane is None or not pane.is_mounted:
                return
            if len(pane.composer.text) > len(self.typed):
                say("typed")
            if self.asked and pane.answer is None:
                say("over")
            self.typed, self.asked = pane.composer.text, pane.answer is not None

    with Archive.open(folder / "chats.sqlite3") as archive:
        Measured(Session(Paced(rate, 600.0), archive, Preferences(enter_sends=True))).run()


if __name__ == "__main__":
    main()
