"""What a process of its own costs a chat: models in this process and in another, asked in turns.

    python packaging/bench/process_border.py [MODEL] [--rounds 5] [--threads 1] [--drafter auto]

Per round and place: seconds of loading, milliseconds from the question to the first text, tokens a second by the
engine's clock and by this program's, milliseconds of CPU time that this program takes for 1,000 tokens, and
milliseconds from Esc to the answer's end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from functools import partial
from typing import Any

from localspec.chat.turn import Message
from localspec.llama.exact.choice import Progress
from localspec.models.installed.installed import find
from localspec.remote.answerer import AnswerEnded, Answerer, AnswerPart, ModelReady, Question
from localspec.runner.answering import ChildAnswerer
from localspec.runner.child import Child, Load
from localspec.runtime.engine import Engine
from localspec.server.own.serve import Here
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


def question(seed: int, tokens: int, drafter: str | None) -> Question:
    """With plain decoding only the border differs."""
    asked = [Message("user", f"Tell story {seed} of the sea.")]
    sampling = SamplingParams(temperature=1.0)
    return Question(messages=asked, sampling=sampling, seed=seed, max_tokens=tokens, drafter=drafter)


def measured(answerer: Answerer, seed: int, drafter: str | None) -> dict[str, float]:
    """One answer to its end, and one that is stopped."""
    listener, begun, worked = Listener(), time.perf_counter(), time.process_time()
    answerer.answer(question(seed, TOKENS, drafter), listener)
    listener.ended.wait()
    seen = listener.tokens / (listener.at["ended"] - begun)
    found = {
        "first text, ms": 1e3 * (listener.at["first"] - begun),
        "tokens/s": listener.tokens_per_second,
        "seen": seen,
        "CPU, ms": 1e6 * (time.process_time() - worked) / listener.tokens,
    }
    listener = Listener()
    answer = answerer.answer(question(seed + 1000, 5000, drafter), listener)
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
    parser.add_argument("--drafter", default="none", help="auto = what pays")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as the chat does
    settings = {"threads": options.threads, "context": 4096}
    drafter = None if options.drafter == "auto" else options.drafter
    target, draft = find(options.model)
    load = Load(target, draft, (), settings)
    answerers: dict[str, Answerer] = {
        "here": ChildAnswerer(lambda: Here(partial(_load, options.model, settings)), "here"),
        "apart": ChildAnswerer(lambda: Child(load), "apart"),
    }
    found = dict[str, dict[str, list[float]]]()
    for name, answerer in answerers.items():
        listener, begun = Listener(), time.perf_counter()
        answerer.start(listener)
        listener.ready.wait()
        found[name] = {"loading, s": [time.perf_counter() - begun]}
    for index in range(options.rounds):
        for name in sorted(answerers, key=lambda name: (list(answerers).index(name) + index) % len(answerers)):
            for what, value in measured(answerers[name], index, drafter).items():
                found[name].setdefault(what, []).append(value)
    for name, rows in found.items():
        print(name, *(f"{what}: {statistics.median(values):.2f}" for what, values in rows.items()), sep="  ")
    for answerer in answerers.values():
        answerer.close()


def _load(model: str | None, settings: dict[str, Any], progress: Progress) -> Engine:
    return Engine.load(model, progress=progress, **settings)


if __name__ == "__main__":
    main()
