"""A verdict by preselected lists is the verdict by whole rows: the kernel compiled for the host, on random passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localspec.types import NO_TOKENS, Noise, Rule, SamplingParams

from ..test_kernel_agreement import Pass, random_pass
from .host import Host
from .verdicts import Verifier


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    one = Verifier()
    yield one
    one.close()


def random_sampling(rng: np.random.Generator, vocabulary: int) -> SamplingParams:
    """Settings of every kind; most can be decided by lists."""

    def pick(*choices: float) -> float:
        return float(rng.choice(choices))

    biased = rng.integers(0, vocabulary + 3, size=int(rng.integers(0, 4)))
    return SamplingParams(
        temperature=pick(0.0, 0.0, 0.01, 0.7, 1.0, 1.0, 100.0),
        top_k=int(pick(0, 0, 0, 1, 7, 40, 1000)),
        top_p=pick(1.0, 1.0, 1.0, 0.9),
        min_p=pick(0.0, 0.0, 1e-310, 0.05, 0.6, 1.0),
        typical_p=pick(1.0, 1.0, 1.0, 0.5),
        top_n_sigma=pick(*[-1.0] * 14, 1.0),
        xtc_probability=pick(*[0.0] * 8, 0.5, 1.0),
        xtc_threshold=pick(0.01, 0.1, 0.5),
        dynatemp_range=pick(*[0.0] * 8, 0.5, 1.0),
        dynatemp_exponent=pick(0.5, 1.0),
        dry_multiplier=pick(*[0.0] * 19, 0.8),
        repeat_penalty=pick(1.0, 1.0, 1.3, 0.7),
        presence_penalty=pick(0.0, 0.0, 0.6, -0.5),
        frequency_penalty=pick(0.0, 0.0, 0.3),
        penalty_last_n=int(pick(-1, 0, 5, 64)),
        logit_bias=tuple((int(token), pick(-np.inf, -3.0, 0.5, 9.0, 3e38)) for token in biased),
    )


def damage(p: Pass, rng: np.random.Generator) -> None:
    """Now and then a row holds what no logit is, or numbers at the ends of float32."""
    place = rng.integers(p.matrix.size)
    kind = rng.integers(0, 30)
    if kind == 0:
        p.matrix.reshape(-1)[place] = rng.choice([np.nan, np.inf])
    elif kind == 1:
        p.matrix *= np.float32(1e30)
    elif kind == 2:
        p.matrix[:] = -np.inf
    elif kind == 3:
        p.matrix[p.matrix < 0] = np.finfo(np.float32).min


def large_pass(seed: int, vocabulary: int) -> Pass:
    """A chain of two guesses, the second row's the likeliest of the first."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(0, 3, size=(3, vocabulary)).astype(np.float32)
    matrix[:, rng.integers(0, vocabulary, size=30)] += np.float32(9)
    tokens = np.argsort(-matrix[0], kind="stable")[:1].repeat(2).astype(np.int32)
    window = rng.integers(0, vocabulary, size=50).astype(np.int32)
    return Pass(matrix, tokens, np.array([-1, 0], np.int32), None, window, Noise(seed, 1), 100 + seed)


def compare(host: Host, verifier: Verifier, p: Pass, sampling: SamplingParams, rule: Rule) -> str:
    """Asserts that both verdicts are the same; says how the second came about."""
    listed = verifier.listed(host, p, sampling, rule)
    assert listed.answer == verifier.whole(p, sampling, rule), (sampling, rule)
    return "no request" if not listed.requested else "lists" if listed.whole == 0 else "rows after all"


def small_cases(host: Host, verifier: Verifier, seeds: range) -> Counter[str]:
    ways: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng([seed, 49])
        p = random_pass(seed, chain=seed % 2 == 0)
        damage(p, rng)
        rule = Rule.COUPLED if seed % 8 else Rule.REJECTION
        rule = Rule.BLOCK if seed % 16 == 0 else rule
        ways[compare(host, verifier, p, random_sampling(rng, p.matrix.shape[1]), rule)] += 1
    return ways


def test_a_penalty_of_the_path_brings_an_unlikely_token_to_the_top(host: Host, verifier: Verifier) -> None:
    """The first row's token is not among the second row's best, and wins there for having been said."""
    p = replace(large_pass(3, 9000), window=NO_TOKENS)
    p.matrix[0, p.tokens[0]], p.matrix[1, p.tokens[0]] = 30.0, -8.0
    greedy = SamplingParams(temperature=0.0, top_k=0, presence_penalty=-50.0)
    assert compare(host, verifier, p, greedy, Rule.COUPLED) == "lists"
    assert verifier.whole(p, greedy, Rule.COUPLED).accepted == (0, 1)


class Broken:
    """A device whose lists hold `token` in place of their first entry."""

    def __init__(self, host: Host, token: int) -> None:
        self._host, self._token = host, token

    def lists(self, *arguments: Any) -> Any:
        found, tokens, values = self._host.lists(*arguments)
        tokens[:, 0] = self._token
        return found, tokens, values


@pytest.mark.parametrize("token", [-1, 9000, 2**31 - 1])
def test_a_token_that_is_none_makes_c_ask_for_the_row(host: Host, verifier: Verifier, token: int) -> None:
    p, greedy = large_pass(4, 9000), SamplingParams(temperature=0.0, top_k=0)
    listed = verifier.listed(Broken(host, token), p, greedy, Rule.COUPLED)
    assert listed.whole > 0
    assert listed.answer == verifier.whole(p, greedy, Rule.COUPLED)


def test_a_list_without_its_patched_token_leaves_nothing_for_the_next_verdict(host: Host, verifier: Verifier) -> None:
    p = replace(large_pass(4, 9000), window=NO_TOKENS)
    biased = SamplingParams(temperature=0.0, top_k=0, logit_bias=((8000, 1e30),))
    plain = SamplingParams(temperature=0.0, top_k=0)
    wanted = verifier.whole(p, plain, Rule.COUPLED)
    verifier.listed(Broken(host, 1), p, biased, Rule.COUPLED)
    assert verifier.listed(host, p, plain, Rule.COUPLED).answer == wanted
    assert verifier.listed(host, p, replace(plain, logit_bias=((8000, 1.0),)), Rule.COUPLED).answer == wanted


LARGE = [
    SamplingParams(temperature=0.0, top_k=0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.1),
    SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.3, logit_bias=((5, 9.0),)),
]


def test_small_vocabularies(host: Host, verifier: Verifier) -> None:
    ways = small_cases(host, verifier, range(1960))
    assert ways["lists"] > 980, ways
    assert ways["rows after all"] > 50, ways
    assert ways["no request"] > 250, ways


def large_cases(host: Host, verifier: Verifier, vocabulary: int, seeds: range) -> Counter[str]:
    return Counter(
        compare(host, verifier, large_pass(seed, vocabulary), LARGE[seed % len(LARGE)], Rule.COUPLED) for seed in seeds
    )


@pytest.mark.parametrize("vocabulary", [152_000, 256_000])
def test_large_vocabularies(host: Host, verifier: Verifier, vocabulary: int) -> None:
    assert large_cases(host, verifier, vocabulary, range(len(LARGE))) == {"lists": len(LARGE)}


@pytest.mark.trial
@pytest.mark.parametrize("vocabulary", [152_000, 256_000])
def test_more_of_large_vocabularies(host: Host, verifier: Verifier, vocabulary: int) -> None:
    assert large_cases(host, verifier, vocabulary, range(len(LARGE), 20)) == {"lists": 20 - len(LARGE)}
