"""The lines of a streamed completion (server-sent events, OpenAI's JSON) as pieces of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event brought; a field an event says nothing about is empty."""

    text: str = ""
    finish: str = ""
    """Why the answer ended."""
    tokens: int = 0
    """Generated in all."""
    prompt_tokens: int = 0
    drafted: int | None = None
    """By llama-server's timings; None = it says nothing."""
    accepted: int | None = None
    done: bool = False
    """The answer is whole."""
    error: str = ""

    def then(self, later: Piece) -> Piece:
        """Both, without text; the later one counts where it says something."""
        return Piece(
            "",
            later.finish or self.finish,
            later.tokens or self.tokens,
            later.prompt_tokens or self.prompt_tokens,
            self.drafted if later.drafted is None else later.drafted,
            self.accepted if later.accepted is None else later.accepted,
            later.done or self.done,
            later.error or self.error,
        )


def pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """Pieces as they come. Comments, pings and what is no JSON object are left out."""
    for line in lines:
        kind, _, content = line.partition(":")
        content = content.strip()
        if kind == "error":  # llama-server's way of breaking an answer off
            yield Piece(error=_words(content))
        elif kind == "data" and content == "[DONE]":
            yield Piece(done=True)
        elif kind == "data":
            yield _piece(content)


def _piece(content: str) -> Piece:
    try:
        data = json.loads(content)
    except ValueError:
        return Piece()
    if not isinstance(data, dict):
        return Piece()
    if data.get("error"):
        return Piece(error=_words(content))
    text, finish = "", ""
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choice = choices[0]
        delta = choice.get("delta")
        said = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        text, finish = said if isinstance(said, str) else "", str(choice.get("finish_reason") or "")
    usage, timings = _object(data.get("usage")), _object(data.get("timings"))
    return Piece(
        text,
        finish,
        _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n")) or 0,
        _count(usage.get("prompt_tokens")) or 0,
        _count(timings.get("draft_n")),
        _count(timings.get("draft_n_accepted")),
        done=bool(finish),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _words(content: str) -> str:
    """The message of an error, on one line."""
    try:
        said = json.loads(content)
    except ValueError:
        said = content
    if isinstance(said, dict):
        said = said.get("error", said)
    if isinstance(said, dict):
        said = said.get("message", said)
    return " ".join(str(said).split())[:200]
