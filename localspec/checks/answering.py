"""The same prompts answered under chosen settings, and how long that took: what tuning compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from localspec.chat.turn import Message
from localspec.checks.prompts import Prompt, prompt_tokens
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams


class Question(NamedTuple):
    """What is asked."""

    messages: tuple[Message, ...]
    sampling: SamplingParams
    seed: int
    max_tokens: int


class Timing(NamedTuple):
    """How an answer went."""

    seconds: float
    """Of the whole answer, its prompt included."""
    tokens: int
    exact: bool
    """No pass could have changed the text."""

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(1, self.tokens)


class Answering:
    """An engine under some settings; made in a process of its own (`apart`)."""

    def __init__(
        self,
        target: Path,
        draft: Path | None,
        settings: Mapping[str, Any],
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """Loads; raises as `Engine.load`."""
        self._engine = Engine.load(target, draft, progress=progress, tuned=False, **settings)

    def answer(self, question: Question) -> Timing:
        """Answers once, as if nothing had been answered before."""
        engine = self._engine
        prompt = prompt_tokens(engine, question.messages)
        engine.forget()
        start = perf_counter()
        generation = engine.generate(
            prompt, sampling=question.sampling, seed=question.seed, max_tokens=question.max_tokens, past=False
        )
        generation.text()
        seconds = perf_counter() - start
        return Timing(seconds, generation.stats.generated, generation.stats.exact)

    def about(self) -> dict[str, Any]:
        """What it runs with: configuration in words, exactness, threads, wide kernels, a GPU, drafting or not."""
        loaded = self._engine.loaded
        return {
            "configuration": loaded.configuration,
            "exact": loaded.context.exact_widths is not None,
            "threads": loaded.context.threads,
            "wide": loaded.model.kernels == "wide",
            "gpu": loaded.model.gpu_layers != 0,
            "drafts": bool(self._engine.drafters),
        }

    def close(self) -> None:
        self._engine.close()


def questions(prompts: list[Prompt], sampling: SamplingParams, seed: int, max_tokens: int) -> list[Question]:
    """The first user turn of each prompt, with a seed of its own."""
    found = []
    for number, prompt in enumerate(prompts):
        end = next((i for i, message in enumerate(prompt.messages) if message.role != "system"), None)
        if end is not None:
            found.append(Question(prompt.messages[: end + 1], sampling, seed + number, max_tokens))
    return found
