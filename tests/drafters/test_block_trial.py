"""200 comparisons of each kind of head that came in late 2026, under `strict`: chains and trees, one slot and four."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.drafters import assistant_files, dflash_files
from tests.drafters.shipped_heads import SHIPPED
from tests.llama import architectures

PROMPTS = [
    "<|user|>Copy this: On May 12 the quick fox met Ada Lopez near Paris.<|end|><|assistant|>",
    "<|user|>John has 12 apples and buys 3 more each day. How many has he after 5 days?<|end|><|assistant|>",
    "<|user|>Write a function that adds two numbers.<|end|><|assistant|>",
    "<|user|>Sort these words: pear, apple, fig, grape<|end|><|assistant|>",
]
TEMPERATURES, SEEDS = (0.0, 0.4, 0.7, 1.0, 1.3), (1, 2, 3, 4)
ENGINES: tuple[dict[str, Any], ...] = ({"branches": 1}, {"branches": 3}, {"slots": 4})


def pair(kind: str, folder: Path, tiny_target: Path) -> tuple[Path, Path]:
    """A target and a head: a trained one where the repository has it, else random weights."""
    if kind in SHIPPED:
        return tiny_target, SHIPPED[kind]
    if kind == "assistant":
        target = architectures.write("gemma4", folder)
        return target, assistant_files.assistant(folder / "assistant.gguf", target)[0]
    return tiny_target, dflash_files.head(folder / "head.gguf", tiny_target, kind)[0]


def answers(engine: Engine, drafter: str, temperature: float, seed: int) -> list[str]:
    """All prompts at once where there are slots for them; every answer must say that it is exact."""
    running = [
        engine.generate(
            prompt,
            sampling=SamplingParams(temperature=temperature),
            seed=seed,
            max_tokens=24,
            ignore_end=True,
            drafter=drafter,
        )
        for prompt in PROMPTS
    ]
    found = [one.text() for one in running]
    assert all(one.stats.exact for one in running)
    assert drafter == "none" or sum(one.stats.drafted for one in running) > 20
    return found


@pytest.mark.trial
@pytest.mark.parametrize("kind", ["assistant", "dflash", "dflash2", "dspark"])
def test_no_fork(kind: str, tiny_target: Path, tmp_path: Path) -> None:
    target, head = pair(kind, tmp_path, tiny_target)
    compared = 0
    for options in ENGINES:
        with Engine.load(
            target, heads=[head], threads=1, exact="strict", context=512, max_draft_tokens=5, corpus="off", **options
        ) as engine:
            for temperature, seed in product(TEMPERATURES, SEEDS):
                plain = answers(engine, "none", temperature, seed)
                assert answers(engine, kind, temperature, seed) == plain
                compared += len(plain)
    assert compared >= 200
