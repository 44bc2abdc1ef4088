"""OpenAI-style servers under load, side by side: tokens/s together and per user, and time to first token.

Start the servers yourself, each with as many slots as the largest number of users, the same model, context and
threads. They take turns within every round, and who goes first changes from round to round, so that a machine that
drifts hits all alike. Every user sends one streamed chat after the other; the same prompts in the same order go to
every server.

    localspec serve --target T.gguf --draft D.gguf --slots 8 --context 2048 --port 8080 --quiet
    llama-server -m T.gguf -np 8 -c 16384 --port 8081 --cache-ram 0 [-md D.gguf ...]
    python packaging/bench/server_load.py localspec=http://127.0.0.1:8080 llama-server=http://127.0.0.1:8081
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx2 as httpx

from localspec.bench.event_stream import Piece, pieces
from localspec.checks.prompts import load_prompts
from localspec.engine.stats import percentile


@dataclass(frozen=True)
class Server:
    """Who is measured."""

    name: str
    url: str
    model: str


@dataclass(frozen=True)
class Answer:
    """One request, as its user saw it. Times in seconds."""

    prompt: int
    tokens: int
    first: float
    """Until the first text."""
    whole: float
    """Until the last event."""
    text: str
    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Tokens/s that the user got, waiting included; a short answer may come in one event, so gaps say little."""
        return self.tokens / self.whole


@dataclass(frozen=True)
class Turn:
    """One server, one number of users, one round."""

    server: str
    users: int
    round: int
    seconds: float
    answers: tuple[Answer, ...]

    @property
    def rate(self) -> float:
        """Tokens/s of all users together."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


def ask(client: httpx.Client, server: Server, number: int, messages: list[dict[str, str]], fields: Any) -> Answer:
    """Sends one chat and reads its stream."""
    body = {"model": server.model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    start, first, text, seen = time.perf_counter(), 0.0, "", Piece()
    with client.stream("POST", f"{server.url}/v1/chat/completions", json=body | fields) as response:
        if response.status_code != 200:
            response.read()
            raise SystemExit(f"{server.name} answers {response.status_code}: {response.text[:300]}")
        for piece in pieces(response.iter_lines()):
            if piece.error:
                raise SystemExit(f"{server.name} broke off: {piece.error}")
            if piece.text and not first:
                first = time.perf_counter() - start
            text += piece.text
            seen = seen.then(piece)
    whole = time.perf_counter() - start
    return Answer(number, seen.tokens, first or whole, whole, text, seen.drafted or 0, seen.accepted or 0)


def take_turn(server: Server, users: int, number: int, prompts: Sequence[list[dict[str, str]]], fields: Any) -> Turn:
    """All prompts, dealt out to `users` who ask at once."""
    with httpx.Client(timeout=600) as client, ThreadPoolExecutor(users) as crowd:

        def use(user: int) -> list[Answer]:
            return [ask(client, server, index, prompts[index], fields) for index in range(user, len(prompts), users)]

        start = time.perf_counter()
        answers = [answer for found in crowd.map(use, range(users)) for answer in found]
        seconds = time.perf_counter() - start
    return Turn(server.name, users, number, seconds, tuple(answers))


def table(turns: Sequence[Turn], servers: Sequence[Server]) -> str:
    """Medians over rounds; the ratio is to the last server."""
    lines = [
        f"{'users':>5}  {'server':<16}{'tok/s':>8}{'ratio':>7}{'tok/s a user':>14}"
        f"{'TTFT p50':>10}{'p95 ms':>8}{'accepted':>10}"
    ]
    by_case: dict[tuple[int, str], list[Turn]] = defaultdict(list)
    for turn in turns:
        by_case[turn.users, turn.server].append(turn)
    for users in sorted({turn.users for turn in turns}):
        base = statistics.median(turn.rate for turn in by_case[users, servers[-1].name])
        for server in servers:
            found = by_case[users, server.name]
            answers = [answer for turn in found for answer in turn.answers]
            rate = statistics.median(turn.rate for turn in found)
            firsts = [answer.first * 1e3 for answer in answers]
            drafted = sum(answer.drafted for answer in answers)
            accepted = f"{sum(answer.accepted for answer in answers) / drafted:.2f}" if drafted else "-"
            lines.append(
                f"{users:>5}  {server.name:<16}{rate:>8.1f}{rate / base:>7.2f}"
                f"{statistics.median(answer.rate for answer in answers):>14.1f}"
                f"{percentile(firsts, 0.5):>10.1f}{percentile(firsts, 0.95):>8.1f}{accepted:>10}"
            )
    return "\n".join(lines)


def same_texts(turns: Sequence[Turn], servers: Sequence[Server]) -> str:
    """How often a server said to a prompt what the last one said to it, over all turns."""
    texts: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for turn in turns:
        for answer in turn.answers:
            texts[turn.server][answer.prompt].add(answer.text)
    base, lines = texts[servers[-1].name], []
    for server in servers:
        own = texts[server.name]
        steady = sum(len(found) == 1 for found in own.values())
        equal = sum(found == base[prompt] for prompt, found in own.items())
        lines.append(
            f"{server.name}: {steady} of {len(own)} prompts got one text under every load, "
            f"{equal} the same as with {servers[-1].name}"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("servers", nargs="+", metavar="NAME=URL", help="ratios are to the last one")
    options.add_argument("--users", default="1,2,4,8", help="numbers of users at once; default: 1,2,4,8")
    options.add_argument("--requests", type=int, default=16, help="in a turn, over all users; default: 16")
    options.add_argument("--rounds", type=int, default=3, help="turns per server and number of users; default: 3")
    options.add_argument("--tokens", type=int, default=96, help="most tokens an answer; default: 96")
    options.add_argument("--temperature", type=float, default=0.0)
    options.add_argument("--ignore-eos", action="store_true", help="all answers as long as --tokens")
    options.add_argument(
        "--prompts", type=Path, help="JSONL as `localspec verify --prompts` takes it; default: its own"
    )
    options.add_argument("--json", type=Path, help="write every answer to this file")
    return options.parse_args()


def main() -> None:
    args = parse()
    servers = []
    with httpx.Client(timeout=60) as client:
        for given in args.servers:
            name, found, url = given.partition("=")
            if not found:
                raise SystemExit(f"{given} must look like NAME=URL.")
            url = url.rstrip("/").removesuffix("/v1")
            servers.append(Server(name, url, client.get(f"{url}/v1/models").json()["data"][0]["id"]))
    chats = [prompt.messages for prompt in load_prompts(args.prompts)]
    single = [chat for chat in chats if [message.role for message in chat if message.role != "system"] == ["user"]]
    prompts = [
        [{"role": message.role, "content": message.content} for message in chat]
        for chat in islice(cycle(single), args.requests)
    ]
    fields: dict[str, Any] = {"max_tokens": args.tokens, "temperature": args.temperature, "seed": 1}
    if args.ignore_eos:
        fields["ignore_eos"] = True
    users = [int(count) for count in args.users.split(",")]
    for server in servers:  # first passes are slow everywhere
        take_turn(server, max(users), 0, prompts[: max(users)], fields)
    turns = []
    for number in range(args.rounds):
        for count in users:
            order = servers if number % 2 == 0 else servers[::-1]
            for server in order:
                turn = take_turn(server, count, number, prompts, fields)
                turns.append(turn)
                print(f"round {number + 1}, {count} users, {server.name}: {turn.rate:.1f} tok/s", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps([asdict(turn) for turn in turns]), encoding="utf-8")
    print(table(turns, servers))
    print(same_texts(turns, servers))


if __name__ == "__main__":
    main()
