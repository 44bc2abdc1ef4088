"""`localspec run --batch FILE`: many prompts in several slots, a JSON line each as they finish.

An input line is a JSON object with `prompt` (text) or `messages`, and optionally `id`, `seed` and `max_tokens`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from localspec.chat.text_file import read_text
from localspec.cli import output, streams
from localspec.cli.answer import say_of_model, start_answer
from localspec.cli.options import load_engine, wanted_of
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.options import Options
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation

_KEYS = {"id", "prompt", "messages", "seed", "max_tokens"}


def run(options: argparse.Namespace) -> int:
    """Answers every line; exit code 1 when a line failed (its result says why)."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    lines = list(_read(options.batch))
    wanted = wanted_of(options)
    slots = min(options.slots or 4, max(len(lines), 1))
    failed = 0
    with load_engine(options, slots=slots) as engine:
        say_of_model(engine.settings.target, not engine.template.exists, options)
        batch = _Batch(engine, options, wanted)
        with ThreadPoolExecutor(max_workers=slots) as workers:  # a worker waits for one slot's answer
            futures = [workers.submit(batch.answer, line) for line in lines]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    failed += "error" in result
                    print(json.dumps(result, ensure_ascii=False), flush=True)
            except BaseException:
                workers.shutdown(wait=False, cancel_futures=True)
                batch.cancel()
                raise
    print(f"{len(lines) - failed} answered, {failed} failed.", file=sys.stderr)
    return 1 if failed else 0


class _Batch:
    """Answers lines; an error of one line is its result, not the end of the others."""

    def __init__(self, engine: Engine, options: argparse.Namespace, wanted: Options) -> None:
        self._engine, self._options, self._wanted = engine, options, wanted
        self._running: set[Generation] = set()

    def answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """One line's result."""
        try:
            wanted = self._wanted.having({key: line[key] for key in ("seed", "max_tokens") if key in line})
            prompt = line["prompt"] if "prompt" in line else _messages(line["messages"])
            generation = start_answer(self._engine, self._options, prompt, wanted)
            self._running.add(generation)
            try:
                return {"id": line["id"], **output.collect(generation, self._engine.loaded.configuration)}
            finally:
                self._running.discard(generation)
        except LocalspecError as error:
            return {"id": line["id"], "error": str(error)}

    def cancel(self) -> None:
        """Stops what runs."""
        for generation in list(self._running):
            generation.cancel()


def _messages(rows: list[dict[str, str]]) -> list[Message]:
    from localspec.chat.turn import Message

    return [Message(row["role"], row["content"]) for row in rows]


def _read(path: str) -> Iterator[dict[str, Any]]:
    text = streams.read_all() if path == "-" else read_text(path)
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: not JSON: {error}.") from None
        problem = _problem(line)
        if problem:
            raise UsageError(f"{path}, line {number}: {problem}.")
        yield {"id": number, **line}


def _problem(line: Any) -> str:
    """What is wrong with the form of a line; "" = nothing."""
    if not isinstance(line, dict) or ("prompt" in line) == ("messages" in line):
        return "it must be an object with either prompt or messages"
    unknown = set(line) - _KEYS
    if unknown:
        return f"unknown key {sorted(unknown)[0]!r}"
    if not isinstance(line.get("prompt", ""), str):
        return "prompt must be a text"
    messages = line.get("messages", [])
    texts = {"role": str, "content": str}
    if not isinstance(messages, list) or not all(
        isinstance(row, dict) and {key: type(value) for key, value in row.items()} == texts for row in messages
    ):
        return "messages must be a list of objects with the texts role and content"
    for key in ("seed", "max_tokens"):
        if key in line and type(line[key]) is not int:
            return f"{key} is {line[key]!r}; it must be a whole number"
    return ""
