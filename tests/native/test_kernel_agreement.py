"""C against numpy, bit for bit, on every instruction set: random shapes and settings, masks, ties, refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.types import (
    NO_BREAKERS,
    Breakers,
    Float32Array,
    LogitRows,
    ModelSampling,
    Noise,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)
from tests import reference

from .backends import NATIVE


def breakers(*sequences: list[int]) -> Breakers:
    """Sequences of tokens, ordered by the first."""
    heads = [one[0] for one in sequences]
    offsets = np.cumsum([0, *(len(one) - 1 for one in sequences)])
    tails = [token for one in sequences for token in one[1:]]
    return Breakers(*(np.array(part, dtype=np.int32) for part in (heads, offsets, tails)))


SAMPLINGS = st.builds(
    ModelSampling,
    temperature=st.sampled_from([0.0, 0.01, 0.5, 0.8, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 1000]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-310, 1e-4, 0.05, 0.6, 1.0]),
    typical_p=st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.0]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 0.0, 0.01, 1.0, 3.0]),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.51]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.3, 1.0, 100.0]),
    dynatemp_exponent=st.sampled_from([0.0, 0.4, 1.0, 2.5]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.6, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.3]),
    penalty_last_n=st.sampled_from([-1, 0, 1, 5, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.0, 0.8, 100.0]),
    dry_base=st.sampled_from([1.0, 1.75, 100.0]),
    dry_allowed_length=st.sampled_from([0, 1, 2, 5]),
    dry_penalty_last_n=st.sampled_from([-1, 0, 1, 20]),
    breakers=st.sampled_from([NO_BREAKERS, breakers([0]), breakers([1], [2, 3], [2, 3, 0], [3, 3])]),
    logit_bias=st.lists(st.tuples(st.integers(0, 70), st.sampled_from([-np.inf, -3.0, 0.5, 9.0])), max_size=3).map(
        tuple
    ),
)
VOCABULARIES = [1, 2, 3, 5, 8, 15, 31, 63, 64, 65, 127, 128, 129, 200, 383, 1000, 3001]


@dataclass
class Pass:
    """Everything a verdict needs."""

    matrix: Float32Array
    tokens: Tokens
    parents: Tokens
    probs: tuple[SparseProbs, ...] | None
    window: Tokens
    noise: Noise
    position: int

    @property
    def rows(self) -> LogitRows:
        return LogitRows.from_matrix(self.matrix)


def random_rows(rng: np.random.Generator, n: int, vocabulary: int) -> Float32Array:
    """Rows as models make them, and as they do not: ties, masks, single survivors, zeros of both signs."""
    rows = rng.normal(size=(n, vocabulary)) * rng.choice([0.01, 1.0, 4.0, 30.0])
    kind = rng.integers(0, 6)
    if kind == 0:
        rows = np.round(rows)
    elif kind == 1:
        rows[rng.random(rows.shape) < 0.6] = -np.inf
    elif kind == 2:
        rows[rng.random(rows.shape) < rng.random()] = -np.inf
        rows[:, rng.integers(vocabulary)] = -0.0
    elif kind == 3:
        rows[:] = -np.inf
        rows[np.arange(n), rng.integers(0, vocabulary, size=n)] = 1.5
    elif kind == 4:
        rows = np.where(rng.random(rows.shape) < 0.5, 0.0, -0.0)
    rows = np.sort(rows, axis=1) if rng.random() < 0.1 else rows
    return np.ascontiguousarray(rows, dtype=np.float32)


def random_pass(seed: int, chain: bool) -> Pass:
    rng = np.random.default_rng(seed)
    vocabulary, n = int(rng.choice(VOCABULARIES)), int(rng.integers(0, 7))
    matrix = random_rows(rng, n + 1, vocabulary)
    if rng.random() < 0.5:
        matrix[:] = matrix[:1]  # alike rows make accepted paths long
    parents = np.arange(-1, n - 1, dtype=np.int32)
    if not chain:
        parents = np.array([rng.integers(-1, i) for i in range(n)], dtype=np.int32)
    likely = np.argsort(-matrix[0], kind="stable")[: max(1, vocabulary // 8)]
    tokens = rng.choice(likely, size=n).astype(np.int32)
    probs = None
    if rng.random() < 0.6:
        probs = tuple(random_probs(rng, vocabulary, int(token)) for token in tokens)
    window = rng.integers(-1, vocabulary + 1, size=int(rng.integers(0, 90))).astype(np.int32)
    if rng.random() < 0.5:  # texts that repeat themselves
        window = (np.tile(window, 3) if rng.random() < 0.5 else window % rng.integers(1, 5)).astype(np.int32)
    noise = Noise(int(rng.integers(2**63)), int(rng.integers(4)), int(rng.integers(2**30)))
    return Pass(matrix, tokens, parents, probs, window, noise, int(rng.integers(0, 10**6)))


def random_probs(rng: np.random.Generator, vocabulary: int, token: int) -> SparseProbs:
    """A distribution that holds `token`."""
    others = rng.choice(vocabulary, size=int(rng.integers(0, min(vocabulary, 50))), replace=False)
    tokens = np.unique(np.append(others, token)).astype(np.int32)
    probs = np.sort(rng.dirichlet(np.ones(len(tokens))))[::-1] + 1e-12
    return SparseProbs(rng.permutation(tokens), probs / probs.sum())


def outcome(function: Any, *arguments: Any) -> tuple[object, ...]:
    """The bytes of what comes back, or the sentence of the refusal."""
    try:
        result = function(*arguments)
    except KernelError as error:
        return (str(error),)
    parts = (result.tokens, result.probs) if isinstance(result, SparseProbs) else result
    parts = parts if isinstance(parts, tuple) else (parts,)
    return tuple((p.dtype.str, p.tobytes()) if isinstance(p, np.ndarray) else p for p in parts)


def assert_same(name: str, matrix: Float32Array, *arguments: Any) -> None:
    wanted = outcome(getattr(reference, name), *arguments)
    before = matrix.tobytes()
    for backend in NATIVE:
        assert outcome(getattr(backend.kernels, name), *arguments) == wanted, backend
        assert matrix.tobytes() == before, f"{backend} left a row changed"


@given(st.integers(0, 2**40), SAMPLINGS, st.sampled_from([1, 1, 2, 5, 100]))
def test_sample(seed: int, sampling: SamplingParams, count: int) -> None:
    p = random_pass(seed, chain=True)
    assert_same("sample", p.matrix, p.rows, 0, sampling, p.window, p.noise, p.position, count)


@given(st.integers(0, 2**40), SAMPLINGS)
def test_distribution(seed: int, sampling: SamplingParams) -> None:
    p = random_pass(seed, chain=True)
    assert_same("distribution", p.matrix, p.rows, 0, sampling, p.window, p.noise, p.position)


@given(st.integers(0, 2**40), st.integers(1, 50))
def test_log_probs(seed: int, count: int) -> None:
    p = random_pass(seed, chain=True)
    assert_same("log_probs", p.matrix, p.rows, 0, p.tokens)
    assert_same("top_log_probs", p.matrix, p.rows, 0, count)


@given(st.integers(0, 2**40), SAMPLINGS, st.sampled_from([Rule.COUPLED, Rule.REJECTION]))
def test_verify_trees(seed: int, sampling: SamplingParams, rule: Rule) -> None:
    p = random_pass(seed, chain=False)
    assert_same("verify", p.matrix, p.rows, p.tokens, p.parents, p.probs, sampling, p.window, p.noise, p.position, rule)


@given(st.integers(0, 2**40), SAMPLINGS, st.sampled_from(Rule))
def test_verify_chains(seed: int, sampling: SamplingParams, rule: Rule) -> None:
    p = random_pass(seed, chain=True)
    assert_same("verify", p.matrix, p.rows, p.tokens, p.parents, p.probs, sampling, p.window, p.noise, p.position, rule)


@given(
    st.integers(0, 2**40), SAMPLINGS, st.sampled_from(Rule), st.sampled_from([np.nan, np.inf]), st.integers(0, 10**6)
)
def test_refusals_name_the_same_place(seed: int, sampling: SamplingParams, rule: Rule, bad: float, place: int) -> None:
    p = random_pass(seed, chain=True)
    p.matrix.reshape(-1)[place % p.matrix.size] = bad
    assert_same("sample", p.matrix, p.rows, 0, sampling, p.window, p.noise, p.position, 3)
    assert_same("distribution", p.matrix, p.rows, 0, sampling, p.window)
    assert_same("log_probs", p.matrix, p.rows, 0, p.tokens)
    assert_same("verify", p.matrix, p.rows, p.tokens, p.parents, p.probs, sampling, p.window, p.noise, p.position, rule)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.0, top_k=0),
                                      SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
                                      SamplingParams(temperature=1.0, top_k=0, top_p=0.9, min_p=0.0),
                                      SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05),
                                      SamplingParams(temperature=1.0, top_k=0, top_n_sigma=1.0, dynatemp_range=0.5),
                                      SamplingParams(top_k=0, top_p=1.0, min_p=0.0, xtc_probability=1.0),
                                      SamplingParams(dry_multiplier=0.8, dry_allowed_length=0),
                                      SamplingParams(temperature=1.0, top_k=0, typical_p=0.5)])  # fmt: skip
def test_a_large_vocabulary(sampling: SamplingParams) -> None:
    rng = np.random.default_rng(4)
    matrix = rng.normal(0, 3, size=(2, 151_937)).astype(np.float32)
    rows, noise, window = LogitRows.from_matrix(matrix), Noise(5), rng.integers(0, 151_937, 100).astype(np.int32)
    for count in (1, 40):
        assert_same("sample", matrix, rows, 0, sampling, window, noise, 100, count)
    assert_same("distribution", matrix, rows, 0, sampling, window)
    token, _ = reference.sample(rows, 0, sampling, window, noise, 100)
    for rule in Rule:
        assert_same("verify", matrix, rows, token, np.array([-1], np.int32), None, sampling, window, noise, 100, rule)
