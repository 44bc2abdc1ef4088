"""`localspec run --batch FILE`: many prompts in several slots, a JSON line each as they finish.

An input line is a JSON object with `prompt` (text) or `messages`, and optionally `id`, `seed` and `max_tokens`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from localspec.cli import output
from localspec.cli.options import load_engine, read_text, request_options
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation

_KEYS = {"id", "prompt", "messages", "seed", "max_tokens"}


def run(options: argparse.Namespace) -> int:
    """Answers every line; exit code 1 when a line failed (its result says why)."""
    lines = list(_read(options.batch))
    slots = min(options.slots or 4, max(len(lines), 1))
    failed = 0
    with load_engine(options, slots=slots) as engine, ThreadPoolExecutor(max_workers=max(len(lines), 1)) as waiting:
        generations = [_start(engine, options, number, line) for number, line in lines]
        futures = {
            waiting.submit(_result, line, generation): number
            for (number, line), generation in zip(lines, generations, strict=True)
        }
        try:
            for future in as_completed(futures):
                result = future.result()
                failed += "error" in result
                print(json.dumps(result, ensure_ascii=False), flush=True)
        except BaseException:
            for generation in generations:
                if not isinstance(generation, LocalspecError):
                    generation.cancel()
            raise
    print(f"{len(lines) - failed} answered, {failed} failed.", file=sys.stderr)
    return 1 if failed else 0


def _read(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    text = sys.stdin.read() if path == "-" else read_text(path)
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: not JSON: {error}.") from None
        if not isinstance(line, dict) or ("prompt" in line) == ("messages" in line):
            raise UsageError(f"{path}, line {number}: it must be an object with either prompt or messages.")
        unknown = set(line) - _KEYS
        if unknown:
            raise UsageError(f"{path}, line {number}: unknown key {sorted(unknown)[0]!r}.")
        yield number, {"id": number, **line}


def _start(
    engine: Engine, options: argparse.Namespace, number: int, line: dict[str, Any]
) -> Generation | LocalspecError:
    """Queues one line; an error of this line is its result, not the end of the others."""
    from localspec.chat.template import Message

    arguments = request_options(options)
    arguments |= {key: line[key] for key in ("seed", "max_tokens") if key in line}
    try:
        if "messages" in line:
            return engine.chat([_message(row, number) for row in line["messages"]], **arguments)
        if options.raw or not engine.template.exists:
            return engine.generate(str(line["prompt"]), **arguments)
        system = [Message("system", options.system)] if options.system else []
        return engine.chat([*system, Message("user", str(line["prompt"]))], **arguments)
    except LocalspecError as error:
        return error


def _message(row: Any, number: int) -> Any:
    from localspec.chat.template import Message

    if not isinstance(row, dict) or set(row) != {"role", "content"}:
        raise UsageError(f"line {number}: {row!r} is not a message; it must have role and content.")
    return Message(str(row["role"]), str(row["content"]))


def _result(line: dict[str, Any], generation: Generation | LocalspecError) -> dict[str, Any]:
    try:
        if isinstance(generation, LocalspecError):
            raise generation
        return {"id": line["id"], **output.collect(generation)}
    except LocalspecError as error:
        return {"id": line["id"], "error": str(error)}
