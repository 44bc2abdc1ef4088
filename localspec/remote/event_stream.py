"""The lines of a streamed answer (server-sent events, OpenAI's JSON) as its pieces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event brought; a field an event says nothing about is empty."""

    text: str = ""
    thinking: str = ""
    """What a server that reads the model's marks for thinking itself takes for such."""
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
            finish=later.finish or self.finish,
            tokens=later.tokens or self.tokens,
            prompt_tokens=later.prompt_tokens or self.prompt_tokens,
            drafted=self.drafted if later.drafted is None else later.drafted,
            accepted=self.accepted if later.accepted is None else later.accepted,
            done=later.done or self.done,
            error=later.error or self.error,
        )


END = Piece(done=True)
"""Nothing comes after it."""


def piece_of(line: str) -> Piece | None:
    """What a line brings; None = it is a comment, a ping or another line without data.

    Raises:
        ValueError: it is not OpenAI's format.
    """
    kind, _, content = line.partition(":")
    content = content.strip()
    if kind == "error":  # llama-server's way of breaking an answer off
        return Piece(error=words_of(content))
    if kind != "data":
        return None
    if content == "[DONE]":
        return END
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError(content[:200])
    return Piece(error=words_of(content)) if data.get("error") else _piece(data)


def words_of(content: str) -> str:
    """The message of an error, in JSON or not, on one line."""
    try:
        said = json.loads(content)
    except ValueError:
        said = content
    for name in ("error", "message"):
        said = said.get(name, said) if isinstance(said, dict) else said
    return " ".join(str(said).split())[:200]


def _piece(data: dict[str, Any]) -> Piece:
    choices = data.get("choices") or [{}]
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise ValueError(f"choices: {choices!r}"[:200])
    choice, delta = choices[0], _object(choices[0].get("delta"))
    usage, timings = _object(data.get("usage")), _object(data.get("timings"))
    return Piece(
        _text(delta.get("content")) or _text(choice.get("text")),
        _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")),
        _text(choice.get("finish_reason")),
        _count(usage.get("completion_tokens")) or _count(timings.get("predicted_n")) or 0,
        _count(usage.get("prompt_tokens")) or 0,
        _count(timings.get("draft_n")),
        _count(timings.get("draft_n_accepted")),
        done=bool(choice.get("finish_reason")),
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
