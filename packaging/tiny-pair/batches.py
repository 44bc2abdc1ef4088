"""Batches: rows of whole chats, packed without cutting any, with a weight for every token."""

from __future__ import annotations

import queue
import random
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from chat import weighted
from corpus import Dialogue
from material import Source
from tasks import STEPS, TASKS, Example, chat
from tokenizer import PAD
from tokenizers import Tokenizer
from torch import Tensor

CORPUS_SHARES = {"gsm8k": 0.07, "codegen": 0.05, "roleplay": 0.05, "toolformer": 0.05}
TASK_SHARES = {"copy": 0.17, "json": 0.16, "rename": 0.16, "replace": 0.12, "lookup": 0.03, "fill": 0.02,
               "sort": 0.03, "count": 0.02, "arithmetic": 0.04, "reverse": 0.01, "upper": 0.01, "tool": 0.01,
               "chat": 0.05}  # fmt: skip
FIRST_SHARES = {"copy": 0.55, "json": 0.08, "rename": 0.08, "lookup": 0.05, "fill": 0.05, "gsm8k": 0.05,
                "codegen": 0.05, "roleplay": 0.04, "toolformer": 0.05}  # fmt: skip
CHAT_TASKS = [name for name in TASKS if name != "tool"]
CORPUS_USER_WEIGHT = 0.15
KEY_WEIGHT = 2.0


@dataclass(frozen=True)
class Phase:
    """A stretch of training: until which share of the time, and how long the rows are."""

    until: float
    length: int
    rows: int
    largest: int  # of the generated tasks, in words
    shares: dict[str, float]


def phase_at(phases: Sequence[Phase], done: float) -> Phase:
    """The phase of a share of the time."""
    return next((phase for phase in phases if done < phase.until), phases[-1])


@dataclass(frozen=True)
class Batch:
    """Inputs, the tokens that follow them, and their weights."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor


Document = tuple[list[int], list[float]]


class Mixture:
    """Draws documents so that each kind gets its share of the tokens."""

    def __init__(self, tokenizer: Tokenizer, dialogues: list[Dialogue], source: Source, seed: int) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self.rng = random.Random(seed)
        self.lengths: dict[str, float] = {}
        self.corpus: dict[str, list[Document]] = {}
        for dialogue in dialogues:
            document = weighted(tokenizer, dialogue.messages, CORPUS_USER_WEIGHT)
            self.corpus.setdefault(dialogue.source, []).append(document)
        self.pending: dict[str, list[int]] = {}

    def document(self, phase: Phase) -> Document:
        """The next document, at most as long as a row."""
        names = list(phase.shares)
        odds = [phase.shares[name] / self.lengths.get(name, 100.0) for name in names]
        while True:
            name = self.rng.choices(names, odds)[0]
            ids, weights = self._draw(name, phase)
            if name in self.corpus:
                ids, weights = ids[: phase.length + 1], weights[: phase.length + 1]
            if len(ids) <= phase.length + 1:
                self.lengths[name] = 0.98 * self.lengths.get(name, 100.0) + 0.02 * len(ids)
                return ids, weights

    def _draw(self, name: str, phase: Phase) -> Document:
        if name in self.corpus:
            order = self.pending.get(name)
            if not order:
                order = list(range(len(self.corpus[name])))
                self.rng.shuffle(order)
                self.pending[name] = order
            return self.corpus[name][order.pop()]
        power = 1.6 if name == "rename" else 0.8  # short pieces of code teach renaming fastest
        size = int(2.0 * (phase.largest / 2.0) ** (self.rng.random() ** power)) + 1
        if name == "chat":
            example = chat(self.rng, size, self.source, CHAT_TASKS, self.rng.randint(2, 5))
        else:
            example = {**TASKS, **STEPS}[name](self.rng, size, self.source)
        answer = {"role": "assistant", "content": example.answer}
        ids, weights = weighted(self.tokenizer, [*example.messages, answer], 0.0)
        if example.key:
            self._stress(example, weights)
        return ids, weights

    def _stress(self, example: Example, weights: list[float]) -> None:
        """Raise the weight of the tokens that write the key."""
        spans = self.tokenizer.encode(example.answer).offsets
        first = len(weights) - 1 - len(spans)
        for match in re.finditer(re.escape(example.key), example.answer):
            for index, (start, end) in enumerate(spans):
                if start < match.end() and end > match.start():
                    weights[first + index] = KEY_WEIGHT

    def batch(self, phase: Phase) -> Batch:
        """Fill the rows, the longest document that fits first."""
        width = phase.length + 1
        tokens = torch.full((phase.rows, width), PAD, dtype=torch.long)
        weights = torch.zeros((phase.rows, width))
        for row in range(phase.rows):
            used = 0
            pool = [self.document(phase) for _ in range(6)]
            while True:
                fitting = [index for index, (ids, _) in enumerate(pool) if len(ids) <= width - used]
                if not fitting or used > width - 16:
                    break
                index = fitting[0] if used < width // 2 else max(fitting, key=lambda item: len(pool[item][0]))
                ids, marks = pool[index]
                pool[index] = self.document(phase)
                tokens[row, used : used + len(ids)] = torch.tensor(ids)
                weights[row, used : used + len(ids)] = torch.tensor(marks)
                used += len(ids)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), weights[:, 1:].contiguous())


class Feeder:
    """A thread that keeps a few batches ready."""

    def __init__(self, mixture: Mixture, phase: Phase) -> None:
        self.mixture = mixture
        self.phase = phase
        self.ready: queue.Queue[tuple[Phase, Batch]] = queue.Queue(4)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            phase = self.phase
            self.ready.put((phase, self.mixture.batch(phase)))

    def __iter__(self) -> Iterator[Batch]:
        """Batches of the current phase, for ever."""
        while True:
            phase, batch = self.ready.get()
            if phase is self.phase:
                yield batch
