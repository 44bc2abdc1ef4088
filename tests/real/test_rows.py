"""Log-probabilities beside those of llama.cpp alone, and caches that are used again."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.chat.turn import Message
from localspec.engine.slot import TokenLogProb
from localspec.types import Float32Array, SamplingParams, Tokens
from tests.real.published import ALL, INSTRUCT, Real, on

pytestmark = pytest.mark.trial

TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1969, two people walked on the Moon, and a third one waited above"
)
LIKELIEST = SamplingParams(temperature=0.0)


def log_softmax(rows: Float32Array) -> np.ndarray:
    exact = rows.astype(np.float64)
    shifted = exact - exact.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


@on(ALL)
def test_log_probabilities_are_those_of_llama_cpp(real: Real) -> None:
    """Its kernels round otherwise than ours, which moves a logit by some hundredths."""
    tokens = real.engine.tokenize(TEXT)
    expected = log_softmax(real.bare.rows(tokens.tolist(), real.engine.loaded.context.threads))
    scored = real.engine.score(tokens, top=5)
    for place, found in enumerate(scored):
        assert found.token == tokens[place + 1]
        assert found.log_prob == pytest.approx(expected[place, found.token], abs=0.1)
        best = [(value, expected[place, token]) for token, value in found.top]
        assert best == [pytest.approx((other, other), abs=0.1) for _, other in best]


def told(real: Real, prompt: Tokens) -> list[TokenLogProb]:
    """A likeliest answer with its best alternatives."""
    generation = real.engine.generate(prompt, sampling=LIKELIEST, max_tokens=24, top_log_probs=20, drafter="none")
    return [one for event in generation for one in event.log_probs]


@on(INSTRUCT)
def test_a_second_turn_reads_only_what_is_new(real: Real) -> None:
    """All is used again where the cache does not depend on how a prompt was cut, else whole chunks of the prompt."""
    engine, settings = real.engine, real.engine.loaded.context.settings
    first = [Message("user", f"Who waited above the Moon? Read this:\n{TEXT * 24}")]
    engine.forget()
    prompt = engine.chat_tokens(first)
    assert len(prompt) > settings.grid
    generation = engine.generate(prompt, sampling=LIKELIEST, max_tokens=48)
    answer = generation.text()
    second = engine.chat_tokens([*first, Message("assistant", answer), Message("user", "And how many walked?")])
    held = len(prompt) + len(generation.tokens) - 1  # the last token of an answer is read by the next turn
    assert second[:held].tolist() == [*prompt.tolist(), *generation.tokens[:-1]]

    again = engine.generate(second, sampling=LIKELIEST, max_tokens=24, top_log_probs=20, drafter="none")
    warm = [one for event in again for one in event.log_probs]
    whole = len(prompt) // settings.grid * settings.grid
    assert again.stats.reused_tokens == (held if settings.reuse == "all" else whole)
    engine.forget()
    assert told(real, second) == warm
