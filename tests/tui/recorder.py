"""Writes recordings: `python -m tests.tui.recorder [NAME ...]` asks the bundled pair and keeps every pass it made."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import fields
from typing import Any

from localspec.chat.turn import Message
from localspec.runtime.engine import Engine
from tests.tui.replayer import FOLDER

MARIA = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo."
CODE = "```python\nfor n in range(10):\n    print(n)\n```"
Asked = tuple[str, dict[str, Any]]
"""A prompt, and how it is asked."""
CHATS: dict[str, list[Asked]] = {
    "pair": [
        (MARIA, {}),
        ("Sort these numbers: 4, 2, 9, 1", {}),
        (
            "Repeat this text exactly: The blue boat left the harbour at noon with nine sailors, two dogs and a red "
            "flag.",
            {},
        ),
        ("Repeat this text exactly: one two three four five six seven eight nine ten.", {}),
    ],
    "code": [(f"Repeat this text exactly: {CODE}", {}), (MARIA, {})],
}
RACE: list[Asked] = [(MARIA, {"drafter": "none", "max_tokens": 1}), (MARIA, {"drafter": "none"}), (MARIA, {})]
"""As the race screen asks: to warm up, plain, speculative."""
HEATS = 15
"""Races run; the one with the speedup in the middle is kept."""


def record(engine: Engine, prompt: str, options: dict[str, Any]) -> dict[str, Any]:
    """One answer, pass by pass."""
    generation = engine.chat([Message("user", prompt)], seed=7, **{"max_tokens": 96, **options})
    passes = [
        [event.text, list(event.tokens), [list(origin) for origin in event.origins], _plain(event.record)]
        for event in generation
    ]
    # Not asdict, which takes Counters apart.
    stats = {item.name: getattr(generation.stats, item.name) for item in fields(generation.stats)}
    stats["gaps"] = [round(gap, 6) for gap in stats["gaps"]]
    assert generation.finish is not None
    return {"prompt": prompt, "passes": passes, "finish": generation.finish.value, "stats": stats}


def race(engine: Engine) -> list[dict[str, Any]]:
    """The answers of the race whose speedup is in the middle of many."""
    heats = [[record(engine, *asked) for asked in RACE] for _ in range(HEATS)]
    return sorted(heats, key=lambda heat: _seconds(heat[1]) / _seconds(heat[2]))[HEATS // 2]


def _seconds(answer: dict[str, Any]) -> float:
    return float(sum(one[3][-1] for one in answer["passes"] if one[3] is not None))


def _plain(record: Any) -> list[Any] | None:
    return None if record is None else [list(value) if isinstance(value, tuple) else value for value in record]


def main() -> None:
    """Records chats of `CHATS`, those of the command line or all, on an engine that has answered before."""
    chosen = sys.argv[1:] or [*CHATS, "race"]
    FOLDER.mkdir(exist_ok=True)
    with Engine.load() as engine:
        for asked in CHATS["pair"]:
            record(engine, *asked)
        for name in chosen:
            answers = race(engine) if name == "race" else [record(engine, *asked) for asked in CHATS[name]]
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
