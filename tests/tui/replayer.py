"""A recorded model: plays token streams of the real bundled pair through the messages a real one posts.

Texts of the pair differ between CPU families, so screens are pictured on recordings; other tests ask the pair itself.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.chat.reply.harmony import MARKS, apart
from localspec.chat.reply.reply import ReplyParser
from localspec.engine.slot import FinishReason, Origin, PassRecord
from localspec.engine.stats import RequestStats
from localspec.errors import ContextOverflowError
from localspec.remote.answerer import (
    AnswerEnded,
    AnswerPart,
    Facts,
    Loading,
    ModelReady,
    Prefilled,
    Question,
    Sink,
    Taken,
)

FOLDER = Path(__file__).parent / "recordings"


@dataclass(frozen=True)
class Pass:
    """What one event brought."""

    text: str
    tokens: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    record: PassRecord | None = None


@dataclass(frozen=True)
class Recorded:
    """One answer."""

    passes: Sequence[Pass]
    finish: FinishReason = FinishReason.STOP
    stats: RequestStats | None = None

    @classmethod
    def of_text(cls, text: str, size: int = 0) -> Recorded:
        """Any text, `size` characters a post (0 = twenty posts): for what the pair would never say."""
        size = size or max(4, len(text) // 20)
        return cls([Pass(text[at : at + size], (0,), (Origin("", 0),)) for at in range(0, len(text), size)])


FACTS = Facts("bundled pair", context=4096, draft="tiny-draft-q8_0", configuration="recorded", bundled=True)


@dataclass(frozen=True)
class Recording:
    """Answers in the order they are asked for; begins again behind the last."""

    answers: Sequence[Recorded]
    pieces: dict[int, bytes]
    facts: Facts = FACTS

    @classmethod
    def load(cls, name: str) -> Recording:
        """A file of `recordings/`, as `recorder.py` writes them."""
        data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        pieces = {int(token): base64.b64decode(piece) for token, piece in data["pieces"].items()}
        return cls([_answer(answer) for answer in data["answers"]], pieces)


def _answer(data: dict[str, Any]) -> Recorded:
    passes = [
        Pass(
            text,
            tuple(tokens),
            tuple(Origin(drafter, depth) for drafter, depth in origins),
            None if record is None else _record(record),
        )
        for text, tokens, origins, record in data["passes"]
    ]
    stats = dict(data["stats"])
    stats["accepted_histogram"] = Counter({int(depth): n for depth, n in stats["accepted_histogram"].items()})
    for name in ("accepted_by_drafter", "drafted_by_drafter"):
        stats[name] = Counter(stats[name])
    return Recorded(passes, FinishReason(data["finish"]), RequestStats(**stats))


def _record(data: list[Any]) -> PassRecord:
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in data]
    return PassRecord(*values)


class ReplayAnswer:
    """One answer under way."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


class ReplayAnswerer:
    """Implements `Answerer`; keeps the questions for tests to look at."""

    def __init__(self, recording: Recording, *, pause: float = 0.0, load: threading.Event | None = None) -> None:
        """`pause`: seconds between two posts. `load`: it is ready once this is set; None = at once."""
        self.name = recording.facts.name
        self.facts: Facts | None = None
        self.piece: Callable[[int], bytes] | None = lambda token: recording.pieces.get(token, b"?")
        self.questions: list[Question] = []
        self.closed = False
        self.hold: threading.Event | None = None
        """While set to an event: answers wait for it before their last pass."""
        self._recording, self._pause = recording, pause
        self._loaded = load

    def start(self, sink: Sink) -> None:
        def tell() -> None:
            if self._loaded is not None:
                sink.post_message(Loading("Loading the target", 0.4))
                self._loaded.wait(20)
            self.facts = self._recording.facts
            sink.post_message(ModelReady(self.facts))

        threading.Thread(target=tell, daemon=True).start()

    def answer(self, question: Question, sink: Sink) -> ReplayAnswer:
        answer = ReplayAnswer(question.seed)
        if question.room is not None:
            tokens, context = self.count(question), self._recording.facts.context
            assert tokens is not None
            if question.room and context is not None and tokens > context - question.room:
                error = ContextOverflowError(f"The prompt has {tokens} tokens.")
                sink.post_message(AnswerEnded(answer, FinishReason.ERROR, RequestStats(), error))
                return answer
            sink.post_message(Taken(answer, tokens))
        recorded = self._recording.answers[len(self.questions) % len(self._recording.answers)]
        self.questions.append(question)
        threading.Thread(target=self._play, args=(answer, recorded, sink), daemon=True).start()
        return answer

    def count(self, question: Question) -> int | None:
        return sum(4 + len(message.content) // 4 for message in question.messages) + len(question.prefix) // 4

    def forget_chat(self, chat: str) -> bool:
        return False

    def look(self, context: int) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    def _play(self, answer: ReplayAnswer, recorded: Recorded, sink: Sink) -> None:
        if self._loaded is not None:
            self._loaded.wait(20)
        stats = recorded.stats or RequestStats()
        live = replace(stats, generated=0)
        reply = ReplyParser(thought=MARKS)
        sink.post_message(Prefilled(answer, 8, 8))
        for index, one in enumerate(recorded.passes):
            if index == len(recorded.passes) - 1 and self.hold is not None:
                self.hold.wait(20)
            if answer.cancelled.is_set():
                sink.post_message(AnswerEnded(answer, FinishReason.CANCELLED, live))
                return
            live.generated += len(one.tokens)
            text, thinking = apart(reply.push(one.text))
            records = () if one.record is None else (one.record,)
            sink.post_message(AnswerPart(answer, text, one.tokens, one.origins, records, live, thinking))
            if self._pause:
                time.sleep(self._pause)
        text, thinking = apart(reply.finish())
        if text or thinking:
            sink.post_message(AnswerPart(answer, text, stats=live, thinking=thinking))
        sink.post_message(AnswerEnded(answer, recorded.finish, stats if recorded.stats else live))
