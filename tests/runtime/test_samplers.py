"""Every sampler on the bundled pair: plain against speculative, byte for byte, where the sampler does change texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.types import SamplingParams

FULL = SamplingParams(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)
SAMPLERS = {
    "top-n-sigma": replace(FULL, temperature=1.5, top_n_sigma=1.0),
    "XTC": replace(FULL, xtc_probability=0.5, xtc_threshold=0.05),
    "dynamic temperature": replace(FULL, dynatemp_range=0.8, dynatemp_exponent=0.7),
    "DRY": replace(FULL, dry_multiplier=1.5, dry_allowed_length=1),
    "all": SamplingParams(
        temperature=1.0,
        top_n_sigma=2.0,
        xtc_probability=0.3,
        dynatemp_range=0.5,
        dry_multiplier=0.8,
        dry_penalty_last_n=40,
        dry_sequence_breakers=(".", "on"),
        repeat_penalty=1.1,
    ),
}
PROMPT = "On Monday the baker sold 12 loaves. On Tuesday the baker sold 12 loaves. On Wednesday the baker"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The bundled pair; exact whatever it costs here."""
    with Engine.load(exact="strict", context=512) as loaded:
        yield loaded


def answer(engine: Engine, sampling: SamplingParams, seed: int, drafter: str | None) -> Generation:
    """A continuation with a drafter in every pass, or plain."""
    generation = engine.generate(
        PROMPT,
        sampling=sampling,
        seed=seed,
        max_tokens=24,
        drafter=drafter or "none",
        forced=drafter is not None,
        recall=False,
        remember=False,
    )
    generation.text()
    return generation


@pytest.mark.parametrize("name", SAMPLERS)
def test_drafts_change_no_text(engine: Engine, name: str) -> None:
    drafted = accepted = changed = 0
    for seed in range(5):
        plain = answer(engine, SAMPLERS[name], seed, None)
        without = answer(engine, replace(FULL, temperature=SAMPLERS[name].temperature), seed, None)
        changed += plain.tokens != without.tokens
        for drafter in ("draft", "lookup"):
            other = answer(engine, SAMPLERS[name], seed, drafter)
            assert other.tokens == plain.tokens, (seed, drafter)
            assert other.text() == plain.text()
            drafted += other.stats.drafted
            accepted += other.stats.accepted
    assert plain.stats.drafted == 0
    assert drafted > accepted > 10
    assert changed > 1
