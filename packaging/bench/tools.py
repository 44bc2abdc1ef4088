"""What drafts bring where an answer quotes a tool's result: a file of 60 lines, plain and by default, in turns.

    python packaging/bench/tools.py MODEL.gguf [--tokens 600] [--turns 2]

First `localspec run --tools` with a server of this file: the model calls `read_file` and writes out what it was
given, with one name changed. Then the same conversation at the endpoint: the official `openai` client makes the call.
Each answer has a fresh home and a process of its own: nothing is known of the machine, the model or an earlier answer.
Seconds are of decoding, all rounds together; texts are compared. Close other programs first. Needs
`localspec[tools]` and `openai`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Contender, running
from start import at_home

LINES = "".join(f"price_{n:02} = total(items={n * 37 % 97}, tax={n * n % 53})  # of shop {n}\n" for n in range(60))
ASK = "Read the file table.py. Then write it out again, all 60 lines, with the function total renamed to amount."
TOOL: dict[str, Any] = {
    "name": "read_file",
    "description": "The text of a file.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
MOST_ROUNDS = 4


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    passes: int
    seconds: float
    """Of decoding."""


def serve() -> None:
    """A server of MCP with the one tool."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("files")

    @server.tool(description=TOOL["description"])
    def read_file(path: str) -> str:
        return LINES

    server.run()


def told(text: str, every: list[dict[str, Any]]) -> Answer:
    """An answer of rounds by their figures, as `--json` and the endpoint give them."""
    tokens, passes = (sum(one[name] for one in every) for name in ("generated_tokens", "passes"))
    return Answer(text, tokens, passes, sum(one["generated_tokens"] / one["tokens_per_second"] for one in every))


def run(options: argparse.Namespace, drafter: str) -> Answer:
    """By the command line."""
    with tempfile.TemporaryDirectory(prefix="localspec-tools-") as home:
        path = Path(home) / "mcp.json"
        path.write_text(
            json.dumps({"mcpServers": {"files": {"command": sys.executable, "args": [__file__, "--serve"]}}})
        )
        asked = ["--tools", str(path), "--yes", "--json", "--temperature", "0", "--max-tokens", str(options.tokens)]
        command = [sys.executable, "-m", "localspec", "run", "--target", str(options.model), *asked]
        done = subprocess.run(
            [*command, "--drafter", drafter, ASK], env=at_home(Path(home)), check=True, capture_output=True, text=True
        )
    said = json.loads(done.stdout)
    return told(said["text"], [said["stats"]])


def ask(options: argparse.Namespace, drafter: str) -> Answer:
    """By the endpoint."""
    from openai import OpenAI

    command = [sys.executable, "-m", "localspec", "serve", "--quiet", "--target", str(options.model)]
    tools: Any = [{"type": "function", "function": TOOL}]
    text, every, messages = "", list[dict[str, Any]](), list[Any]([{"role": "user", "content": ASK}])
    with running(Contender("", "localspec serve", command)) as (port, _, _):
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=600)
        for _ in range(MOST_ROUNDS):
            answer = client.chat.completions.create(
                model=options.model.stem,
                messages=messages,
                tools=tools,
                temperature=0,
                max_tokens=options.tokens,
                extra_body={"speculative": {"enabled": drafter != "none"}},
            )
            message = answer.choices[0].message
            every.append((answer.model_extra or {})["localspec"][0]["stats"])
            text += message.content or ""
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": one.id, "content": LINES} for one in message.tool_calls]
    return told(text, every)


def compare(name: str, turns: int, answer: Callable[[str], Answer]) -> None:
    """A line of the table: answers plain and by default, in an order that turns round."""
    found: dict[str, list[Answer]] = {"none": [], "auto": []}
    for turn in range(turns):
        for drafter in sorted(found, reverse=turn % 2 == 0):
            found[drafter].append(answer(drafter))
            print(f"{name}, {drafter}: {found[drafter][-1].seconds:.1f} s", file=sys.stderr, flush=True)
    plain, own = [sum(one.seconds for one in all_) / turns for all_ in (found["none"], found["auto"])]
    same = len({one.text for all_ in found.values() for one in all_}) == 1
    one = found["auto"][0]
    a_pass = [f"{all_[0].tokens / all_[0].passes:.2f}" for all_ in (found["none"], found["auto"])]
    words = "equal" if same else "DIFFERENT"
    print(f"| {name} | {one.tokens} | {plain:.1f} | {own:.1f} | {plain / own:.2f} | {' to '.join(a_pass)} | {words} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a model that calls tools")
    parser.add_argument("--tokens", type=int, default=600, help="of a round at most (600)")
    parser.add_argument("--turns", type=int, default=2, help="answers of each side (2)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.model is None or not options.model.is_file():
        parser.error(f"there is no model {options.model}")
    print("| answer | tokens | plain, s | default, s | ratio | tokens a pass | texts |\n|---|---|---|---|---|---|---|")
    compare("run --tools", options.turns, lambda drafter: run(options, drafter))
    compare("the endpoint", options.turns, lambda drafter: ask(options, drafter))


if __name__ == "__main__":
    main()
