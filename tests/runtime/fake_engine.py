"""An engine whose models are fakes: no file, no sleeping, and a test may hold its thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from localspec.config import EngineSettings
from localspec.engine.interfaces import Request
from localspec.engine.loop import Loop
from localspec.errors import LocalspecError
from localspec.llama.library.settings import ContextSettings
from localspec.llama.special_tokens import SpecialToken
from localspec.planning.plan import FixedPlan
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.loaded import Loaded
from localspec.types import Prompt, SamplingParams, Tokens
from tests.fakes import Answer, FakeDraftContext, FakeTarget, FakeVocabulary, HashModel, answer, prompt

VOCABULARY_SIZE, PATIENCE = 16, 10.0
"""Seconds after which a test says that somebody waits for ever."""
BOS, EOS = 14, 15
LOGITS = HashModel(VOCABULARY_SIZE)
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"


class Target(FakeTarget):
    """A fake context that can be closed, and held up before each pass."""

    def __init__(self, slots: int, n_ctx: int = 128) -> None:
        super().__init__(LOGITS, VOCABULARY_SIZE, n_ctx, range(1, 33), streams=slots > 1)
        self.closed = 0
        self.settings = ContextSettings(n_ctx=n_ctx, n_slots=slots)
        self.most_nodes = self.settings.max_rows - 1

    def close(self) -> None:
        self.closed += 1


class DraftContext(FakeDraftContext):
    """A fake draft context that can be emptied and closed."""

    def forget(self, slot: int) -> None:
        self.cached[slot] = []

    def close(self) -> None:
        pass


class Model(FakeVocabulary):
    """A fake model: a token is a letter of `TEXT`."""

    TEXT = "abcdefghijklsu"

    def __init__(self) -> None:
        super().__init__(VOCABULARY_SIZE, {EOS}, [letter.encode() for letter in self.TEXT] + [b"", b""])
        self.n_vocab, self.bos, self.eos, self.add_bos, self.can_trim = VOCABULARY_SIZE, BOS, EOS, True, True
        self.chat_template = TEMPLATE
        self.closed = 0

    def sampling(self, given: SamplingParams) -> SamplingParams:
        return given

    def text_of(self, token: int) -> str:
        return {BOS: "<", EOS: ">"}.get(token) or self.TEXT[token]

    def tokenize(self, text: str, *, special: bool, add_bos: bool) -> Tokens:
        known = {letter: token for token, letter in enumerate(self.TEXT)} | ({"<": BOS, ">": EOS} if special else {})
        return prompt(*([BOS] if add_bos else []), *(known[letter] for letter in text))

    @property
    def special_tokens(self) -> tuple[SpecialToken, ...]:
        return (SpecialToken("<", BOS, control=True), SpecialToken(">", EOS, control=True))

    def tokenize_prompt(self, prompt: Prompt, *, add_bos: bool) -> Tokens:
        return self.tokenize(prompt.text, special=True, add_bos=add_bos)

    def close(self) -> None:
        self.closed += 1


class Hold:
    """Holds the engine's thread before each pass until the test lets it go on."""

    def __init__(self, target: FakeTarget) -> None:
        self._arrived, self._go = threading.Semaphore(0), threading.Semaphore(0)
        target.before_decode = self._wait

    def _wait(self) -> None:
        self._arrived.release()
        assert self._go.acquire(timeout=PATIENCE)

    def arrived(self) -> None:
        """Waits until the engine is about to run a pass."""
        assert self._arrived.acquire(timeout=PATIENCE), "no pass began"

    def go(self, passes: int = 1) -> None:
        self._go.release(passes)


def make(slots: int = 1, **settings: Any) -> tuple[Engine, Target]:
    target = Target(slots, settings.pop("n_ctx", 128))
    parts: Any = (Model(), target, "fake", Model(), DraftContext(LOGITS.like(0.8)))
    loaded = Loaded(EngineSettings(Path("fake.gguf"), Path("draft.gguf"), slots=slots, **settings), *parts)
    return Engine(loaded), target


def read(generation: Generation) -> Answer:
    """All that comes; fails if the end does not come."""
    found, errors = Answer(), list[BaseException]()

    def consume() -> None:
        try:
            for event in generation:
                found.add(event)
        except LocalspecError as error:
            errors.append(error)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the caller waits for ever"
    if errors:
        raise errors[0]
    return found


def request(seed: int, max_tokens: int = 12, start: tuple[int, ...] = (1, 2, 3)) -> Request:
    sampling = SamplingParams(temperature=0.9)
    return Request(prompt(BOS, *start, seed % 13), sampling=sampling, seed=seed, max_tokens=max_tokens, ignore_end=True)


def alone(one: Request) -> list[int]:
    """The tokens of a request without engine, drafter or company."""
    return answer(Loop(FakeTarget(LOGITS, VOCABULARY_SIZE), FixedPlan((), 0, None), Model()), one).tokens
