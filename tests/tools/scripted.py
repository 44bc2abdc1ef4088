"""A model that answers as a test has written it: each round what it says, thinks and calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from localspec.chat.reply.tool import ToolCall
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError
from localspec.remote.answerer import (
    Answer,
    AnswerEnded,
    AnswerPart,
    Facts,
    ModelReady,
    Prefilled,
    Question,
    Sink,
    Told,
)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"id-{name}", name, json.dumps(arguments))


@dataclass
class Said:
    """A round. `wait`: it is said once the answer is cancelled."""

    text: str = ""
    calls: Sequence[ToolCall] = ()
    thinking: str = ""
    error: LocalspecError | None = None
    wait: bool = False


@dataclass
class ScriptedAnswer:
    seed: int | None = 1
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self.cancelled.set()


class Scripted:
    name = "scripted"
    piece: Callable[[int], bytes] | None = None

    def __init__(self, script: Callable[[Question], Said] | Sequence[Said], context: int | None = None) -> None:
        """`script`: what is said to a question, or what is said in turn, the last again and again."""
        self.facts: Facts | None = Facts("scripted", context=context)
        self.asked = list[Question]()
        self._script = script

    def start(self, sink: Sink) -> None:
        assert self.facts is not None
        sink.post_message(ModelReady(self.facts))

    def answer(self, question: Question, sink: Sink) -> Answer:
        answer = ScriptedAnswer()
        self.asked.append(question)
        rounds = self._script
        said = rounds(question) if callable(rounds) else rounds[min(len(self.asked), len(rounds)) - 1]
        threading.Thread(target=self._say, args=(answer, said, sink), daemon=True).start()
        return answer

    @staticmethod
    def _say(answer: ScriptedAnswer, said: Said, sink: Sink) -> None:
        stats = RequestStats(prompt_tokens=10, generated=3, passes=2)
        sink.post_message(Prefilled(answer, 0, 1))
        half = len(said.text) // 2
        sink.post_message(AnswerPart(answer, said.text[:half], stats=stats, thinking=said.thinking))
        sink.post_message(AnswerPart(answer, said.text[half:], stats=stats, calls=tuple(said.calls)))
        if said.wait:
            answer.cancelled.wait(60)
        finish = FinishReason.ERROR if said.error else FinishReason.CANCELLED if said.wait else FinishReason.STOP
        sink.post_message(AnswerEnded(answer, finish, stats, said.error))

    def count(self, question: Question) -> int | None:
        return None

    def forget_chat(self, chat: str) -> bool:
        return False

    def look(self, context: int) -> None:
        return None

    def close(self) -> None:
        pass


class Heard(SimpleQueue[Told]):
    """A sink that keeps what is posted."""

    def post_message(self, message: Told) -> bool:
        self.put(message)
        return True

    def until_end(self, each: Callable[[Told], object] = lambda _: None) -> list[Told]:
        """All up to the end of the answer; `each` sees every one as it comes."""
        found = list[Told]()
        while not found or not isinstance(found[-1], AnswerEnded):
            found.append(self.get(timeout=60))
            each(found[-1])
        return found
