"""Writes the recordings: `python -m tests.tui.recorder` asks the bundled pair and keeps every pass of its answers."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

from localspec.chat.template import Message
from localspec.runtime.engine import Engine
from tests.tui.replayer import FOLDER

CHATS = {
    "pair": [
        "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo.",
        "Sort these numbers: 4, 2, 9, 1",
        "Repeat this text exactly: The blue boat left the harbour at noon with nine sailors, two dogs and a red flag.",
        "Repeat this text exactly: one two three four five six seven eight nine ten.",
    ],
}


def record(engine: Engine, prompt: str) -> dict[str, Any]:
    """One answer, pass by pass."""
    generation = engine.chat([Message("user", prompt)], seed=7, max_tokens=96)
    passes = [
        [event.text, list(event.tokens), [list(origin) for origin in event.origins], _plain(event.record)]
        for event in generation
    ]
    # Not asdict, which takes Counters apart.
    stats = {item.name: getattr(generation.stats, item.name) for item in fields(generation.stats)}
    stats["gaps"] = [round(gap, 6) for gap in stats["gaps"]]
    assert generation.finish is not None
    return {"prompt": prompt, "passes": passes, "finish": generation.finish.value, "stats": stats}


def _plain(record: Any) -> list[Any] | None:
    return None if record is None else [list(value) if isinstance(value, tuple) else value for value in record]


def main() -> None:
    """Records every chat of `CHATS`."""
    FOLDER.mkdir(exist_ok=True)
    with Engine.load() as engine:
        for name, prompts in CHATS.items():
            answers = [record(engine, prompt) for prompt in prompts]
            said = {token for answer in answers for one in answer["passes"] for token in one[1]}
            drafted = {
                token for answer in answers for one in answer["passes"] if one[3] is not None for token in one[3][1]
            }
            model = engine.loaded.model
            pieces = {str(token): base64.b64encode(model.piece(token)).decode() for token in sorted(said | drafted)}
            text = json.dumps({"pieces": pieces, "answers": answers}, indent=None, separators=(",", ":"))
            (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
