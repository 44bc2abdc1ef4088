"""What a process of its own costs a chat: models in this process and in another one, asked in turns.

    python packaging/bench/process_border.py [MODEL] [--rounds 5] [--threads 1]

Per round and place: seconds of loading, milliseconds from the question to the first text, tokens a second, and
milliseconds from Esc to the answer's end.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from localspec.chat.turn import Message
from localspec.remote.answerer import AnswerEnded, AnswerPart, ModelReady, Question
from localspec.runner.engine import EngineApart
from localspec.runtime.engine import Engine
from localspec.tui.talk.local import LocalAnswerer
from localspec.types import SamplingParams

TOKENS = 200
"""Of an answer whose speed is taken."""


class Listener:
    """Notes when what came."""

    def __init__(self) -> None:
        self.first, self.ended, self.ready = threading.Event(), threading.Event(), threading.Event()
        self.at: dict[str, float] = {}
        self.tokens = 0

    def post_message(self, message: Any) -> bool:
        """As a widget's."""
        now = time.perf_counter()
        if isinstance(message, AnswerPart):
            self.tokens += len(message.tokens)
            self.at.setdefault("first", now)
            self.first.set()
        elif isinstance(message, AnswerEnded):
            self.at["ended"] = now
            self.tokens_per_second = message.stats.tokens_per_second
            self.ended.set()
        elif isinstance(message, ModelReady):
            self.ready.set()
        return True


def question(seed: int, tokens: int) -> Question:
    """Plain decoding, so that only the border differs."""
    asked = [Message("user", f"Tell story {seed} of the sea.")]
    sampling = SamplingParams(temperature=1.0)
    return Question(messages=asked, sampling=sampling, seed=seed, max_tokens=tokens, drafter="none")


def measured(answerer: LocalAnswerer, seed: int) -> dict[str, float]:
    """One answer to its end, and one that is stopped."""
    listener, begun = Listener(), time.perf_counter()
    answerer.answer(question(seed, TOKENS), listener)
    listener.ended.wait()
    found = {"first text, ms": 1e3 * (listener.at["first"] - begun), "tokens/s": listener.tokens_per_second}
    listener = Listener()
    answer = answerer.answer(question(seed + 1000, 5000), listener)
    listener.first.wait()
    time.sleep(0.3)
    if listener.ended.is_set():  # the model had no more to say
        return found
    stopped = time.perf_counter()
    answer.cancel()
    listener.ended.wait()
    return found | {"Esc to the end, ms": 1e3 * (listener.at["ended"] - stopped)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    places: dict[str, Callable[..., Any]] = {"here": Engine.load, "apart": EngineApart.load}
    answerers, found = {}, dict[str, dict[str, list[float]]]()
    for name, load in places.items():
        settings = {"threads": options.threads, "context": 4096}
        answerer = LocalAnswerer(partial(_load, load, options.model, settings), name)
        listener, begun = Listener(), time.perf_counter()
        answerer.start(listener)
        listener.ready.wait()
        found[name] = {"loading, s": [time.perf_counter() - begun]}
        answerers[name] = answerer
    for index in range(options.rounds):
        for name in list(places)[:: 1 if index % 2 else -1]:
            for what, value in measured(answerers[name], index).items():
                found[name].setdefault(what, []).append(value)
    for name, rows in found.items():
        print(name, *(f"{what}: {statistics.median(values):.1f}" for what, values in rows.items()), sep="  ")
    for answerer in answerers.values():
        answerer.close()


def _load(load: Callable[..., Any], model: str | None, settings: dict[str, Any], progress: Any) -> Any:
    return load(model, progress=progress, **settings)


if __name__ == "__main__":
    main()
