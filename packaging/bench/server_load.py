"""localspec and llama-server under load, side by side: tokens/s together and per user, and time to first token.

    python packaging/bench/server_load.py FOLDER --llama-server PATH [--minutes 20] [--quants Q8_0] [--users 1,8]

FOLDER keeps the padded pairs (`--pairs` names another place), the servers' output and every finished turn: stopped or
killed, it goes on where it was; run again, it adds further rounds. --print only prints what there is.

All servers of a type have as many slots as there are users at most, the same model, context and threads, and stay
loaded; those whose turn it is not sleep. They take turns within every round, and who goes first changes from round to
round, so that a machine that drifts hits all alike. Every user sends one streamed chat after the other; the same
prompts in the same order go to every server, other ones for each number of users, so that little of a prompt is still
in any cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
from pairs import QUANTS, Wanted, make
from peer_server import SETTINGS, PeerServer, ServerProcess, free_port
from server_load_turns import Answer, Turn, Turns, page

from localspec.checks.prompts import load_prompts
from localspec.machine.cpus import default_threads
from localspec.remote.server import Piece, piece_of

OURS: dict[str, tuple[str, ...]] = {
    "localspec": (),
    "localspec, exact strict": ("--exact", "strict"),
    "localspec, exact off": ("--exact", "off"),
    "localspec, no drafts": ("--drafter", "none"),
}
"""Contender -> options of `localspec serve`."""
CONTEXT = 1024
LONGEST_PROMPT = 1200
"""Characters; a prompt of some 1,000 tokens would fill the context, and a turn with reading it."""
LEAST_REQUESTS = 6
SHAPES = ("1b", "100m")
_ENDLESS = 1000


NO_REUSE = httpx.Limits(max_keepalive_connections=0)
"""llama-server closes a connection that was idle for five seconds, which a request may meet."""


def ask(client: httpx.Client, server: ServerProcess, number: int, messages: Any, fields: dict[str, Any]) -> Answer:
    """Sends one chat and reads its stream."""
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}} | fields
    start, first, text, seen, exact = time.perf_counter(), 0.0, "", Piece(), False
    with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            raise SystemExit(f"{server.name} answers {response.status_code}: {response.text[:300]}")
        for line in response.iter_lines():
            exact = exact or '"exact":true' in line
            piece = piece_of(line)
            if piece is None:
                continue
            if piece.error:
                raise SystemExit(f"{server.name} broke off: {piece.error}")
            if piece.text and not first:
                first = time.perf_counter() - start
            text += piece.text
            seen = seen.then(piece)
    whole = time.perf_counter() - start
    return Answer(number, seen.tokens, first or whole, whole, seen.drafted or 0, seen.accepted or 0, exact, text)


class Load:
    """One invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.users = [int(count) for count in options.users.split(",")]
        self.slots = max(self.users)
        self.fields = {"max_tokens": options.tokens, "temperature": options.temperature, "seed": 1}
        self.turns = Turns(self.folder / f"load-{options.tokens}-{options.temperature:g}.jsonl")
        self.end = time.monotonic() + 60.0 * options.minutes
        chats = [prompt.messages for prompt in load_prompts()]
        self._prompts = [
            [{"role": message.role, "content": message.content} for message in chat]
            for chat in chats
            if [message.role for message in chat if message.role != "system"] == ["user"]
            and sum(len(message.content) for message in chat) <= LONGEST_PROMPT
        ]

    def measure(self) -> None:
        """--rounds rounds of each type, then further ones, until the time is over; what is there is not repeated."""
        begun, quants = 0, self.options.quants.split(",")
        while True:
            rounds = range(begun, begun + (self.options.rounds if len(quants) > 1 else _ENDLESS))
            for quant in quants:
                if any(self._missing(quant, number) for number in rounds):
                    with self._servers(quant) as servers:
                        for number in rounds:
                            self._round(quant, servers, number)
            begun = rounds.stop

    def _round(self, quant: str, servers: Sequence[ServerProcess], number: int) -> None:
        for users in self.users:
            for server in servers if number % 2 == 0 else servers[::-1]:
                if (quant, server.name, users, number) in self.turns.found:
                    continue
                if time.monotonic() > self.end:
                    raise TimeoutError
                self.turns.add(self._turn(quant, server, users, number))

    def _turn(self, quant: str, server: ServerProcess, users: int, number: int) -> Turn:
        """All prompts of this number of users, dealt out to them."""
        prompts = self._chosen(users)
        with httpx.Client(timeout=600, limits=NO_REUSE) as client, ThreadPoolExecutor(users) as crowd:

            def use(user: int) -> list[Answer]:
                return [
                    ask(client, server, index, prompts[index], self.fields)
                    for index in range(user, len(prompts), users)
                ]

            start = time.perf_counter()
            answers = [answer for found in crowd.map(use, range(users)) for answer in found]
            seconds = time.perf_counter() - start
        rate = sum(answer.tokens for answer in answers) / seconds
        left = max(0.0, self.end - time.monotonic()) / 60
        say(f"{quant}, round {number + 1}, {users} users, {server.name}: {rate:.1f} tok/s ({left:.0f} minutes left)")
        return Turn(quant, server.name, users, number, seconds, tuple(answers))

    def _chosen(self, users: int) -> list[Any]:
        """Prompts of their own for each number of users, as far as there are enough."""
        counts = {one: max(LEAST_REQUESTS, 2 * one) for one in self.users}
        start = sum(counts[one] for one in self.users[: self.users.index(users)])
        return [self._prompts[(start + index) % len(self._prompts)] for index in range(counts[users])]

    def _missing(self, quant: str, number: int) -> bool:
        names = [*self.options.ours.split(";"), *(self.options.theirs.split(";") if self.options.llama_server else ())]
        return any((quant, name, users, number) not in self.turns.found for name in names for users in self.users)

    @contextmanager
    def _servers(self, quant: str) -> Iterator[list[ServerProcess]]:
        """All servers of a type, each warmed up by an answer."""
        options = self.options
        folder = options.pairs or self.folder / "pairs"
        target, draft = (
            make(Wanted(kind, shape, quant), folder).path
            for kind, shape in zip(("target", "draft"), SHAPES, strict=True)
        )
        logs = self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        threads = options.threads or default_threads()
        found: list[ServerProcess] = []
        with ExitStack() as stack:
            for name in options.ours.split(";"):
                log = logs / f"load-{quant}-{name.replace(' ', '-')}.log"
                found.append(self._own(name, target, draft, threads, log))
                stack.enter_context(closing(found[-1]))
            for name in options.theirs.split(";") if options.llama_server else ():
                log = logs / f"load-{quant}-{name.replace(' ', '-')}.log"
                say(f"{quant}: starting llama-server ({name})")
                found.append(PeerServer(options.llama_server, name, target, draft, CONTEXT, threads, log, self.slots))
                stack.enter_context(closing(found[-1]))
            with httpx.Client(timeout=600, limits=NO_REUSE) as client, ThreadPoolExecutor(self.slots) as crowd:
                for server in found:  # first passes are slow everywhere
                    warm = [crowd.submit(ask, client, server, 0, chat, self.fields) for chat in self._prompts[:2]]
                    for one in warm:
                        one.result()
            yield found

    def _own(self, name: str, target: Path, draft: Path, threads: int, log: Path) -> ServerProcess:
        say(f"starting {name} (the first time it measures the machine)")
        port = free_port()
        command = [
            *(sys.executable, "-m", "localspec", "serve", "--port", str(port), "--quiet"),
            *("--target", str(target), "--draft", str(draft), "--slots", str(self.slots)),
            *("--context", str(CONTEXT), "--threads", str(threads), *OURS[name]),
        ]
        return ServerProcess(name, port, command, log)

    def print(self) -> None:
        """The page of what there is."""
        print(page(list(self.turns.found.values()), self.slots))


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="without it localspec is measured alone")
    parser.add_argument("--pairs", type=Path, metavar="FOLDER", help="where the padded pairs are, or are made")
    parser.add_argument("--minutes", type=float, default=20.0, help="stop (and print) after so many; default: 20")
    parser.add_argument("--quants", default="Q8_0,Q4_K_M", help=f"of {', '.join(QUANTS)}; default: Q8_0,Q4_K_M")
    parser.add_argument("--rounds", type=int, default=2, help="before another type has its turn; default: 2")
    parser.add_argument("--users", default="1,2,4,8", help="numbers of users at once; default: 1,2,4,8")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer; default: 48")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, help="of every server; default: one per physical core")
    parser.add_argument("--ours", default="localspec, exact strict;localspec, exact off", help=f"of {'; '.join(OURS)}")
    parser.add_argument("--theirs", default="server none;server draft 3", help=f"of {'; '.join(SETTINGS)}")
    parser.add_argument("--print", dest="only_print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for given, known in ((options.ours, OURS), (options.theirs, SETTINGS)):
        unknown = set(given.split(";")) - set(known)
        if unknown:
            parser.error(f"there is no contender {', '.join(sorted(unknown))}; there are: {'; '.join(known)}")
    if options.llama_server is not None and not options.llama_server.is_file():
        parser.error(f"there is no file {options.llama_server}")
    return options


def main() -> int:
    """Measures for a while, prints what there is."""
    options = parse()
    load, code = Load(options), 0
    if not options.only_print:
        try:
            load.measure()
        except TimeoutError:
            say("the time is up")
        except KeyboardInterrupt:
            say("interrupted")
            code = 130
        except httpx.HTTPError as error:
            say(f"stopped, a server did not answer: {error}")
            code = 1
    load.print()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
