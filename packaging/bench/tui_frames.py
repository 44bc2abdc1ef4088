"""Frame times of the terminal chat: a chat of 20,000 tokens, text streaming in at 200 tokens a second, then scrolling.

    PYTHONPATH=. python packaging/bench/tui_frames.py [--tokens 20000] [--rate 200] [--seconds 20] [--size 120x40]
    PYTHONPATH=. python packaging/bench/tui_frames.py --memory 6 --rate 4000

A frame is a stretch of work of the screen's thread, from waking up to the next wait, in which something was drawn: for
so long the screen answers no key. It runs in a terminal of its own (a pty without a reader), so that encoding and
writing are part of it. Then Esc is pressed in that terminal while text streams in from a model that does not hear it:
the time until the answer is over on the screen, the wait for the rest of an escape sequence (ESCDELAY) included.

With `--memory N` it says instead what the process holds after each of N answers of `--tokens` tokens, one after the
other in one chat, each with its passes as an engine reports them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import resource
import select
import selectors
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from fcntl import ioctl
from itertools import pairwise
from pathlib import Path
from typing import Any

SCROLLS = 60
"""Pages up, and as many down again."""
STOPS = 10
"""Answers stopped with Esc."""
QUIET_SECONDS = 4.5
"""After so long without input, work that was put off is done."""
_VOCABULARY = 5_000
"""Different tokens."""
_PARAGRAPH = """\
## Part {n}

Some *text* about `thing_{n}`, with **weight** and a [link](https://example.org/{n}), and then a list:

- first of {n}, which goes on for a while so that it has to be wrapped somewhere
- second of {n}

```python
def part_{n}(x: int) -> int:
    return x * {n}  # and so on
```

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000, help="length of the chat, what streams in included")
    parser.add_argument("--rate", type=float, default=200.0, help="tokens a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long text streams in")
    parser.add_argument("--size", default="120x40", help="columns x rows")
    parser.add_argument("--memory", type=int, default=0, metavar="N", help="memory after each of N answers instead")
    options = parser.parse_args()
    if options.memory:
        options.seconds = options.tokens / options.rate
    columns, rows = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("DATA", "CONFIG", "CACHE"):
            os.environ[f"LOCALSPEC_{name}"] = folder
        result = Path(folder) / "result.json"
        wish, press = os.pipe()
        child, terminal = pty.fork()
        if child == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "ESCDELAY": "25"}  # as `localspec chat`
            run(options, result, press)
            os._exit(0)
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        drawn, pressed = _drain(terminal, wish)
        os.waitpid(child, 0)
        if not result.exists():
            sys.exit(f"The chat ended early:\n{drawn.decode(errors='replace')}")
        report(json.loads(result.read_text()), options, pressed)


def _drain(terminal: int, wish: int) -> tuple[bytes, list[float]]:
    """Reads what the chat draws, as a terminal would, and presses Esc when it wishes so.

    Returns the end of what was drawn, and when Esc was pressed.
    """
    drawn, pressed = b"", list[float]()
    while True:
        ready, _, _ = select.select([terminal, wish], [], [], 60.0)
        if wish in ready:
            os.read(wish, 1)
            pressed.append(time.monotonic())
            os.write(terminal, b"\x1b")
            continue
        try:
            read = os.read(terminal, 1 << 16) if ready else b""
        except OSError:  # closed at the other end
            read = b""
        if not read:
            return drawn, pressed
        drawn = (drawn + read)[-4000:]


class Clock(selectors.DefaultSelector):
    """Notices when the loop wakes up and when it waits again."""

    def __init__(self) -> None:
        super().__init__()
        self.woke = time.perf_counter()
        self.drew = False
        self.frames: list[float] = []
        self.longest = 0.0
        """The longest stretch of work, drawn or not."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:  # everything is done: it would wait
            busy = time.perf_counter() - self.woke
            self.longest = max(self.longest, busy)
            if self.drew:
                self.frames.append(busy)
            self.drew = False
            found = super().select(timeout)
            self.woke = time.perf_counter()
            return found
        return super().select(timeout)

    def take(self) -> tuple[list[float], float]:
        """Frames and the longest stretch since the last time."""
        taken, longest = self.frames, self.longest
        self.frames, self.longest = [], 0.0
        return taken, longest


class Paced:
    """An answerer that says Markdown at a steady rate."""

    name = "paced"

    def __init__(self, rate: float, seconds: float) -> None:
        self.facts: Any = None
        self._rate, self._seconds = rate, seconds

    def start(self, sink: Any) -> None:
        from localspec.remote.answerer import Facts, ModelReady

        self.facts = Facts(self.name, context=1 << 20)
        sink.post_message(ModelReady(self.facts))

    def piece(self, token: int) -> bytes:
        return b"%4d" % token

    def count(self, question: Any) -> int:
        return sum(len(message.content) // 4 for message in question.messages)

    def answer(self, question: Any, sink: Any) -> Any:
        answer = type("Answer", (), {"seed": 1, "cancel": lambda self: None})()
        threading.Thread(target=self._play, args=(answer, question, sink), daemon=True).start()
        return answer

    def forget_chat(self, chat: str) -> bool:
        return False

    def look(self, context: int) -> None:
        return None

    def close(self) -> None:
        pass

    def _play(self, answer: Any, question: Any, sink: Any) -> None:
        from localspec.engine.slot import FinishReason, Origin, PassRecord
        from localspec.engine.stats import RequestStats
        from localspec.remote.answerer import POSTS_PER_SECOND, AnswerEnded, AnswerPart, Taken

        if question.room is not None:
            sink.post_message(Taken(answer, self.count(question)))

        words = _words(int(self._rate * self._seconds))
        stats, began, done = RequestStats(), time.perf_counter(), 0
        while done < len(words):
            due = min(len(words), int((time.perf_counter() - began) * self._rate))
            if due > done:
                part = "".join(words[done:due])
                stats.generated, stats.verify_seconds = due, time.perf_counter() - began
                tokens = tuple(token % _VOCABULARY for token in range(done, due))
                origins = (Origin("draft", 1),) * (due - done)
                # One of three guesses accepted: two tokens a pass.
                records = tuple(
                    PassRecord("draft", (token, 1, 2), (-1, 0, 1), (0,), token, 4, 0.005) for token in tokens[::2]
                )
                sink.post_message(AnswerPart(answer, part, tokens, origins, records, stats))
                done = due
            time.sleep(1 / POSTS_PER_SECOND)
        sink.post_message(AnswerEnded(answer, FinishReason.STOP, stats))


def _text() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield _PARAGRAPH.format(n=number)


def _words(tokens: int) -> list[str]:
    """About a token each: four characters."""
    text = ""
    for part in _text():
        text += part
        if len(text) >= 4 * tokens:
            return [text[at : at + 4] for at in range(0, 4 * tokens, 4)]
    return []


def run(options: argparse.Namespace, result: Path, press: int) -> None:
    """The chat itself, in the child; a byte written to `press` wishes for Esc."""
    from localspec.chat.archive.archive import Archive
    from localspec.tui.shell.app import ChatApp
    from localspec.tui.talk.session import Preferences, Session

    clock = Clock()
    figures: dict[str, Any] = {}

    class Measured(ChatApp):
        def on_mount(self) -> None:  # beside ChatApp's, which Textual calls as well
            self.run_worker(drive())

        def _display(self, screen: Any, renderable: Any) -> None:
            clock.drew = True
            super()._display(screen, renderable)

    with Archive.open(result.parent / "chats.sqlite3") as archive:
        chat = archive.new_chat(title="long")
        old = 0 if options.memory else max(0, options.tokens - int(options.rate * options.seconds))
        words = _words(old)
        for at in range(0, len(words), 500):
            user = archive.append_user(chat.id, f"Question {at}")
            writer = archive.begin_answer(user.id)
            writer.extend("".join(words[at : at + 500]))
            writer.finish()
        app = Measured(Session(Paced(options.rate, options.seconds), archive, Preferences(enter_sends=True)))

        async def drive() -> None:
            await asyncio.sleep(2.0)
            await (remember() if options.memory else measure())
            app.exit(0)

        async def remember() -> None:
            figures["memory_mb"] = [_resident()]
            for _ in range(options.memory):
                pane = app.chat_screen.front
                pane.composer.put("Go")
                pane.composer.send()
                while pane.answer is None:
                    await asyncio.sleep(0.05)
                while pane.answer is not None or not all(
                    b.text is None or b.text.complete for b in pane.transcript.bubbles
                ):
                    await asyncio.sleep(0.1)
                await asyncio.sleep(QUIET_SECONDS)
                figures["memory_mb"].append(_resident())

        async def measure() -> None:
            pane = app.chat_screen.front
            pane.composer.put("Go")
            figures["memory_before_mb"] = _memory()
            clock.take()
            pane.composer.send()
            while pane.answer is None:
                await asyncio.sleep(0.05)
            while pane.answer is not None:
                await asyncio.sleep(0.1)
            figures["stream"] = _figures(*clock.take())
            await asyncio.sleep(1.0)
            figures["last repaint"] = _figures(*clock.take())
            await asyncio.sleep(QUIET_SECONDS)
            figures["quiet"] = _figures(*clock.take())
            for step in (-1, 1):
                for _ in range(SCROLLS):
                    app.chat_screen.action_page(step)
                    await asyncio.sleep(0.03)
            figures["scroll"] = _figures(*clock.take())
            figures["memory_after_mb"] = _memory()
            figures["stopped"] = [await stop(app.chat_screen.front) for _ in range(STOPS)]

        async def stop(pane: Any) -> float:
            """When an answer under way is over, painted and stored, after Esc."""
            pane.composer.put("Go")
            pane.composer.send()
            while pane.answer is None:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            os.write(press, b"!")
            while pane.answer is not None or pane.transcript.bubbles[-1].message.state == "streaming":
                await asyncio.sleep(0.001)
            return time.monotonic()

        loop = asyncio.SelectorEventLoop(clock)
        asyncio.set_event_loop(loop)
        app.run(loop=loop)
        if ("memory_mb" if options.memory else "stopped") not in figures:
            figures["failed"] = "it ended before it was measured"
    result.write_text(json.dumps(figures))


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _resident() -> float:
    """MB the process holds now; where the system does not tell, the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return _memory()
    return pages * resource.getpagesize() / 1e6


def _figures(frames: list[float], longest: float) -> dict[str, float]:
    ordered = sorted(frames) or [0.0]
    return {
        "frames": len(frames),
        "median_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3,
        "longest_ms": longest * 1e3,
    }


def report(figures: dict[str, Any], options: argparse.Namespace, pressed: list[float]) -> None:
    if figures.get("failed"):
        sys.exit(f"The chat failed: {figures['failed']}")
    if options.memory:
        held = figures["memory_mb"]
        print(f"answers of {options.tokens:,} tokens, terminal {options.size}: {held[0]:.1f} MB before the first")
        for number, (before, after) in enumerate(pairwise(held), start=1):
            print(f"answer {number:2d}: {after:6.1f} MB ({after - before:+.1f})")
        return
    print(f"{options.tokens:,} tokens, {options.rate:g} a second for {options.seconds:g} s, terminal {options.size}")
    for phase in ("stream", "last repaint", "quiet", "scroll"):
        one = figures[phase]
        print(
            f"{phase:>12}: {one['frames']:5d} frames, median {one['median_ms']:6.1f} ms, p99 {one['p99_ms']:6.1f} ms, "
            f"longest work {one['longest_ms']:6.1f} ms"
        )
    waits = sorted(1e3 * (over - esc) for esc, over in zip(pressed, figures["stopped"], strict=True))
    print(f"Esc to the end of the answer: median {waits[len(waits) // 2]:.0f} ms, longest {waits[-1]:.0f} ms")
    print(f"peak memory: {figures['memory_before_mb']:.0f} MB before, {figures['memory_after_mb']:.0f} MB after")


if __name__ == "__main__":
    main()
