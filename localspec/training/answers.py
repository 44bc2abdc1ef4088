"""Answers of the target, with what it found likely at every place: written in pieces, so that a run can go on.

Each piece is a safetensors file of up to `PIECE` answers. Answer k of it has `k.tokens` I32 [n] (prompt and answer),
`k.prompt` I32 [1] (tokens of the prompt), and for each token of the answer `k.ids` I32 [answer, TOP] and `k.chances`
F16 [answer, TOP]: the target's most likely tokens there and their natural log-probabilities at temperature 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.checks.prompts import Conversation, prompt_tokens
from localspec.errors import LocalspecError, UsageError
from localspec.models.facts.heads import opened, save
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.types import SamplingParams, Tokens

TOP = 32  # tokens whose probabilities are kept at each place: 97 % and more of all probability at temperature 1
PIECE = 48  # answers of a file, at most: what a kill can cost
_PIECE_SECONDS = 120.0  # after which a piece asks nothing more
SLOTS = 8
_LEAST = 16  # answers of a piece before those that are being written at the end of the time are given up
MOST_TOKENS = 192  # of an answer. Many short answers teach more than a few long ones.
CONTEXT = 1024  # tokens of a slot's context: prompt and answer
BATCH = 8
LONGEST = 384  # tokens of an answer that are read, with the end of its prompt
_TEMPERATURES = (0.0, 0.7, 1.0)  # of answers, in turn: a draft model meets what users draw, too


@dataclass(frozen=True, slots=True)
class TeacherAnswer:
    tokens: Tokens  # int32[n]: prompt and answer
    prompt: int
    ids: Tokens  # int32[n - prompt, TOP]: the most likely tokens at each place of the answer, likeliest first
    chances: npt.NDArray[np.float16]  # float16[n - prompt, TOP]: their natural log-probabilities at temperature 1


def pieces(folder: Path) -> list[Path]:
    return sorted(folder.glob("answers-*.safetensors"))


def read(folder: Path) -> Iterator[TeacherAnswer]:
    for path in pieces(folder):
        file = opened(path)
        for number in range(sum(name.endswith(".tokens") for name in file.offset_keys())):
            parts = (file.get_tensor(f"{number}.{name}") for name in ("tokens", "prompt", "ids", "chances"))
            tokens, prompt, ids, chances = parts
            yield TeacherAnswer(tokens, int(prompt[0]), ids, chances)


def write(
    engine: Engine,
    prompts: Sequence[Conversation],
    folder: Path,
    seconds: float,
    progress: Callable[[int, float], None],
    kept: Callable[[float], None],
) -> None:
    """Has the target answer until the time is over, after the pieces that are there: every prompt once before one is
    answered again, with another temperature and seed. `engine` has `SLOTS` slots. `progress` is called after each
    answer with (tokens of answers, seconds) and may raise to stop, `kept` with the seconds so far when a piece is on
    disk. Raises LocalspecError: a full disk, or a target that cannot answer any of the prompts."""
    began, tokens, last = perf_counter(), 0, perf_counter() + seconds
    number, empty = 1 + max((int(path.stem[-5:]) for path in pieces(folder)), default=-1), 0
    while perf_counter() < last:
        chosen, found = range(number * PIECE, (number + 1) * PIECE), list[TeacherAnswer]()
        until = min(last, perf_counter() + _PIECE_SECONDS)
        try:
            with closing(_answered(engine, prompts, chosen, until)) as answered:
                for answer in answered:
                    found.append(answer)
                    tokens += len(answer.tokens) - answer.prompt
                    progress(tokens, perf_counter() - began)
                    if len(found) >= _LEAST and perf_counter() > last:
                        break
        finally:  # an interrupted piece, too
            if found:
                arrays = dict[str, npt.NDArray[Any]]()
                for place, one in enumerate(found):
                    arrays |= {f"{place}.tokens": one.tokens, f"{place}.prompt": np.array([one.prompt], np.int32)}
                    arrays |= {f"{place}.ids": one.ids, f"{place}.chances": one.chances}
                save(folder / f"answers-{number:05}.safetensors", arrays)
                kept(perf_counter() - began)
        number, empty = number + 1, 0 if found else empty + PIECE
        if empty >= len(prompts):
            why = f"each fills {CONTEXT} tokens by itself, or the target's chat template refuses it"
            raise LocalspecError(f"None of {len(prompts)} prompts could be answered: {why}.")


def _answered(
    engine: Engine, prompts: Sequence[Conversation], numbers: Sequence[int], until: float
) -> Generator[TeacherAnswer]:
    """Answers as they come, `SLOTS` at a time; after `until`, by `perf_counter`, no further prompt is asked."""
    asked, stopped = list[Generation](), threading.Event()

    def began(generation: Generation) -> None:
        asked.append(generation)
        if stopped.is_set():
            generation.cancel()

    def work(place: int, number: int) -> TeacherAnswer | None:
        if stopped.is_set() or (place >= SLOTS and perf_counter() >= until):
            return None
        return _answer(engine, prompts[number % len(prompts)], number, len(prompts), began)

    with ThreadPoolExecutor(SLOTS) as workers:
        futures = [workers.submit(work, place, number) for place, number in enumerate(numbers)]
        try:
            for future in as_completed(futures):
                answer = future.result()
                if answer is not None and len(answer.tokens) > answer.prompt:
                    yield answer
        finally:
            stopped.set()
            for generation in list(asked):
                generation.cancel()


def _answer(
    engine: Engine, prompt: Conversation, number: int, prompts: int, began: Callable[[Generation], None]
) -> TeacherAnswer | None:
    """None where the prompt fills the context, or is none by the chat template."""
    try:
        tokens = prompt_tokens(engine, prompt)
    except UsageError:
        return None
    if len(tokens) > CONTEXT - MOST_TOKENS:
        return None
    warm = _TEMPERATURES[(number + number // prompts) % len(_TEMPERATURES)]
    sampling = SamplingParams(temperature=warm, top_k=0, top_p=1.0, min_p=0.0)
    asked = Options(
        sampling=sampling, seed=number, max_tokens=MOST_TOKENS, top_log_probs=TOP, recall=False, remember=False
    )
    generation = engine.generate(tokens, asked)
    began(generation)
    top = [place.top for event in generation for place in event.log_probs]
    likely = np.array(top, dtype=np.float64).reshape(-1, TOP, 2)
    said = np.asarray(generation.tokens, dtype=np.int32)[: len(likely)]
    whole = np.concatenate([tokens, said]).astype(np.int32)
    return TeacherAnswer(whole, len(tokens), likely[..., 0].astype(np.int32), likely[..., 1].astype(np.float16))
