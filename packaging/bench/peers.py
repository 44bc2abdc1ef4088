"""localspec and llama-server side by side on one model: tokens/s by kind of text, start and memory; prints Markdown.

    python packaging/bench/peers.py MODEL.gguf --llama-server PATH [--draft FILE] [--answers 2] [--users 1]

Two groups of contenders: both as they come, and both with the same slots, context and threads, where llama-server has a
row for each of its ways to guess. Without --llama-server ours is measured alone; `packaging/peer/build` builds one.

Each contender starts alone, --starts times: seconds from the command until /health says 200, and until the first text
of a short chat that is sent then; then the memory of all its processes. Our home is empty before every start; the file
was read before. Then all are up at once, and each gets the chats of real.py, once, at temperature 0 and with one seed,
in turns whose order rotates. No cache outlives a request (`cache_prompt` is false, `--cache-ram 0`,
`--prompt-cache-size 0`, no past answers); our server still reuses the few tokens with which every chat begins, and they
do not count as read. All times are the client's, of the stream: prompt tokens/s are tokens read over seconds to the
first text, decoding is what came after it. --users sends several chats at once; figures are those of one user.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from real import CELLS
from start import PROMPT, at_home, warm_memory

from localspec.llama.exact.wide import cpu_name
from localspec.machine import default_threads

GUESSES = ("none", "ngram-simple", "ngram-mod")
"""llama-server's ways that need no second model; those are left out that it does not know."""
START_SECONDS, REST_SECONDS = 300.0, 0.05
"""The longest start; and between two answers, until threads of the last one have gone to sleep."""
COLUMNS = (*CELLS, "ready, s", "first token, s", "memory, MB", "peak, MB")


@dataclass(frozen=True)
class Answer:
    """One chat, as its user saw it; seconds since it was sent."""

    cell: str
    read: int
    """Tokens of the prompt that no cache held."""
    reused: int
    tokens: int
    first_tokens: int
    """That came with the first text."""
    first: float
    whole: float
    text: str


@dataclass
class Contender:
    """A server and what was found of it."""

    group: str
    name: str
    command: Sequence[str]
    starts: list[tuple[float, float]] = field(default_factory=list)
    """(seconds until ready, until the first text)."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(MB after one answer, sum of the peaks of its processes)."""
    answers: list[Answer] = field(default_factory=list)

    def figures(self) -> list[tuple[float, ...]]:
        """By column: decoding and prompt tokens/s of each kind of text; the start and memory, medians."""
        found: list[tuple[float, ...]] = []
        for cell in CELLS:
            own = [one for one in self.answers if one.cell == cell]
            decoded, read = sum(one.tokens - one.first_tokens for one in own), sum(one.read for one in own)
            seconds, waited = sum(one.whole - one.first for one in own), sum(one.first for one in own)
            found.append((decoded / seconds, read / waited))
        pairs = [*zip(*self.starts, strict=True), *zip(*self.memory, strict=True)]
        return found + [(statistics.median(one),) for one in pairs]


def contenders(options: argparse.Namespace) -> list[Contender]:
    """Ours first in each group."""
    model, threads = str(options.model), str(default_threads())
    ours = [sys.executable, "-m", "localspec", "serve", "--quiet", "--prompt-cache-size", "0", "--target", model]
    ours += ["--draft", str(options.draft)] if options.draft else []
    slots, context, came = options.users, options.context, "as they come"
    same = f"{slots} slot{'s' * (slots > 1)} of {context} tokens, {threads} threads"
    settings = ["--slots", str(slots), "--context", str(context), "--threads", threads]
    found = [Contender(came, "localspec serve", ours), Contender(same, "localspec serve", [*ours, *settings])]
    if options.llama_server:
        binary = str(options.llama_server)
        theirs = [binary, "--model", model, "--cache-ram", "0"]
        settings = ["--parallel", str(slots), "--ctx-size", str(slots * context), "--threads", threads]
        known = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
        ways = [["--spec-type", one] for one in GUESSES if one in known]
        if options.draft:
            ways.append(["--spec-type", "draft-simple", "--spec-draft-model", str(options.draft)])
        found.append(Contender(came, "llama-server", theirs))
        found += [Contender(same, f"llama-server, {way[1]}", [*theirs, *settings, *way]) for way in ways]
    return sorted(found, key=lambda one: one.group != came)


@contextmanager
def running(one: Contender) -> Iterator[tuple[int, int, float]]:
    """(its port, its process, when its command began), once it is ready; it ends with us."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="localspec-peers-") as home, (Path(home) / "log").open("w+b") as log:
        begun = time.perf_counter()
        command = [*one.command, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=at_home(Path(home)))
        try:
            while not _ready(port):
                if process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                    log.seek(0)
                    raise SystemExit(f"{one.name} does not start: {log.read().decode(errors='replace')[-600:]}")
                time.sleep(0.005)
            yield port, process.pid, begun
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # nobody listens, or 503: it is loading
        return False


def ask(port: int, cell: str, text: str, tokens: int) -> Answer:
    """Sends one chat; lines are looked into after the last one."""
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0, "seed": 1}
    body = chat | {"stream": True, "cache_prompt": False, "timings_per_token": True}
    url, kind = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    sent = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind), timeout=600) as answer:
        lines = [(time.perf_counter() - sent, line) for line in answer if line.startswith(b"data: {")]
    events = [(when, json.loads(line[6:])) for when, line in lines]
    chosen = [(when, event, event["choices"][0]) for when, event in events if event.get("choices")]
    texts = [(when, event, one["delta"]["content"]) for when, event, one in chosen if one["delta"].get("content")]
    if not texts or not chosen[-1][2]["finish_reason"]:
        raise SystemExit(f"a server breaks off: {lines[-1:]}")
    (first, begun, _), (whole, end, _) = texts[0], chosen[-1]
    counts = [end["timings"][name] for name in ("prompt_n", "cache_n", "predicted_n")]
    return Answer(cell, *counts, begun["timings"]["predicted_n"], first, whole, "".join(one[2] for one in texts))


def memory(process: int) -> tuple[float, float]:
    """MB of a process and those it started: now, and the sum of what each took at most."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    found = [int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            found = [own + more for own, more in zip(found, memory(int(child)), strict=True)]
    return found[0], found[1]


def measure(all_: Sequence[Contender], options: argparse.Namespace) -> None:
    """First the starts, each alone, then the answers."""
    files = [options.model, *([options.draft] if options.draft else [])]
    for file in files:
        file.read_bytes()
    for number in range(options.starts):
        for one in all_:
            warm_memory(files)
            with running(one) as (port, process, begun):
                ready = time.perf_counter() - begun
                answer = ask(port, "", PROMPT, 8)
                one.starts.append((ready, time.perf_counter() - begun - answer.whole + answer.first))
                one.memory.append(memory(process))
            say(f"start {number + 1}, {one.name}: ready after {ready:.2f} s, {one.memory[-1][0]:.0f} MB")
    chats = [(cell, prompts[place]) for place in range(options.answers) for cell, prompts in CELLS.items()]
    with ExitStack() as stack, ThreadPoolExecutor(options.users) as crowd:
        ports = [stack.enter_context(running(one))[0] for one in all_]
        for port in ports:
            ask(port, "", PROMPT, 8)  # first passes are slow everywhere
        for turn, start in enumerate(range(0, len(chats), options.users)):
            batch = chats[start : start + options.users]
            for place in range(len(all_)):
                one = (place + turn) % len(all_)
                time.sleep(REST_SECONDS)
                asked = [crowd.submit(ask, ports[one], *chat, options.tokens) for chat in batch]
                all_[one].answers += [answer.result() for answer in asked]
            say(f"{start + len(batch)} of {len(chats)} chats answered")


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def page(all_: Sequence[Contender]) -> str:
    """A table: every contender, and under each group ours over the best that llama-server has in each column."""
    lines, notes = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"], [""]
    for group in dict.fromkeys(one.group for one in all_):
        own = [one for one in all_ if one.group == group]
        rows = [one.figures() for one in own]
        lines.append(f"| *{group}* |{' |' * len(COLUMNS)}")
        lines += [_line(one.name, row, [1] * 5 + [2, 2, 0, 0]) for one, row in zip(own, rows, strict=True)]
        if len(own) > 1:
            best = [
                tuple((max if place < len(CELLS) else min)(figures) for figures in zip(*column, strict=True))
                for place, column in enumerate(zip(*rows[1:], strict=True))
            ]
            ratios = [tuple(a / b for a, b in zip(x, y, strict=True)) for x, y in zip(rows[0], best, strict=True)]
            lines.append(_line("**ours over llama-server's best**", ratios, [2] * len(COLUMNS)))
            pairs = [list(zip(own[0].answers, one.answers, strict=True)) for one in own[1:]]
            same = ", ".join(str(sum(a.text == b.text for a, b in pair)) for pair in pairs)
            other = sum(a.read + a.reused != b.read + b.reused for pair in pairs for a, b in pair)
            notes.append(f"{group}: of {len(own[0].answers)} texts {same} are ours; prompts of another length: {other}")
    return "\n".join(lines + notes)


def _line(name: str, row: Sequence[tuple[float, ...]], digits: Sequence[int]) -> str:
    cells = [" / ".join(f"{one:.{digit}f}" for one in figures) for figures, digit in zip(row, digits, strict=True)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path, help="a draft model for both")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="without it localspec is measured alone")
    parser.add_argument("--context", type=int, default=4096, help="tokens of a slot, of the second group")
    parser.add_argument("--users", type=int, default=1, help="chats at once, and slots of the second group")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer at most (default 96)")
    parser.add_argument("--answers", type=int, default=2, help="chats of each kind, at most 4 (default 2)")
    parser.add_argument("--starts", type=int, default=3, help="of each contender (default 3)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no server outlives us
    all_ = contenders(options)
    measure(all_, options)
    print(f"{options.model.name}, {cpu_name()}: decoding / prompt tokens per second\n\n{page(all_)}")


if __name__ == "__main__":
    main()
