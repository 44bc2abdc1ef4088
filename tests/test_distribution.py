"""The emitted text is distributed exactly as the target's own sampling, whatever the draft (promise A of the design).

A table stands in for both models: the logits behind the last two tokens. native/trial.c runs the engine's loop on it
(draw a draft, verify, append, until draft + 1 tokens are there, by as many passes as that takes) once per seed, and a
chi-square test compares the joint distribution of the tokens with the target's, computed token by token. Every check
is shown to have teeth: mistakes of the kind people make must fail it. Seeds are fixed, so nothing here is flaky.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from localspec.native import kernels, library
from localspec.types import (
    NO_TOKENS,
    Float32Array,
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)
from tests import reference

Counts = npt.NDArray[np.int64]

FULL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SETTINGS = {
    "plain": FULL,
    "temperature": replace(FULL, temperature=0.6),
    "hot": replace(FULL, temperature=1.7),
    "greedy": replace(FULL, temperature=0.0),
    "top_k": replace(FULL, top_k=3),
    "top_p": replace(FULL, top_p=0.8),
    "min_p": replace(FULL, min_p=0.2),
    "typical": replace(FULL, typical_p=0.7),
    "repeat": replace(FULL, repeat_penalty=1.8, penalty_last_n=2),
    "presence": replace(FULL, presence_penalty=0.9, frequency_penalty=0.4, penalty_last_n=-1),
    "bias": replace(FULL, logit_bias=((0, 1.0), (1, -1.0), (2, -np.inf))),
    "top_n_sigma": replace(FULL, top_n_sigma=0.9),
    "dynatemp": replace(FULL, dynatemp_range=0.8, dynatemp_exponent=0.6),
    "xtc": replace(FULL, xtc_probability=0.4, xtc_threshold=0.15),
    "dry": replace(FULL, dry_multiplier=1.2, dry_allowed_length=1, dry_penalty_last_n=4),
    "all": SamplingParams(
        0.8, 4, 0.95, 0.02, 0.97, 2.5, 0.3, 0.1, 0.4, 0.8, 1.3, 0.2, 0.1, 3, 0.5, logit_bias=((1, 0.5),)
    ),
}
CHAIN, TREE, WIDE_TREE = (1, 1, 1), (2, 2, 1), (3, 2, 1)


class _Trial(ctypes.Structure):
    _fields_ = (
        ("n_vocab", ctypes.c_int32),
        ("depth", ctypes.c_int32),
        ("siblings", ctypes.c_int32 * 4),
        ("length", ctypes.c_int32),
        ("rule", ctypes.c_int32),
        ("one_hot", ctypes.c_int32),
        ("round", ctypes.c_int32),
        ("target", ctypes.c_void_p),
        ("draft", ctypes.c_void_p),
        ("claimed", ctypes.c_void_p),
        ("sampling", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Case:
    """A pair of table models and how to draft with them."""

    n_vocab: int
    siblings: tuple[int, ...]
    rule: Rule
    sampling: SamplingParams
    one_hot: bool = False

    @property
    def length(self) -> int:
        return len(self.siblings) + 1

    def tables(self) -> tuple[Float32Array, Float32Array]:
        """float32[n_vocab^2, n_vocab] logits of target and draft: related, but far from equal."""
        rng = np.random.default_rng(self.n_vocab)
        target = rng.normal(0.0, 1.5, size=(self.n_vocab**2, self.n_vocab))
        draft = 0.7 * target + rng.normal(0.0, 0.8, size=target.shape)
        return target.astype(np.float32), draft.astype(np.float32)


def run(case: Case, seeds: int, first_seed: int = 0, noise_round: int = -1, lie: float = 1.0) -> Counts:
    """How often each sequence came out; `lie` scales the logits of the draft_probs that the rule is told."""
    lib = ctypes.CDLL(str(library.find_library()))
    target, draft = case.tables()
    claimed = (draft * lie).astype(np.float32)
    sampling = library.PackedSampling(case.sampling)
    siblings = (ctypes.c_int32 * 4)(*case.siblings)
    trial = _Trial(case.n_vocab, len(case.siblings), siblings, case.length, case.rule, case.one_hot, noise_round,
                   target.ctypes.data, draft.ctypes.data, claimed.ctypes.data, sampling.address)  # fmt: skip

    def share(start: int, stop: int) -> Counts:
        counts = np.zeros(case.n_vocab**case.length, dtype=np.int64)
        workspace = ctypes.c_void_p()
        assert lib.ls_workspace_new(0, ctypes.byref(workspace)) == 0
        seed, number = ctypes.c_uint64(first_seed + start), ctypes.c_int64(stop - start)
        status = lib.ls_run_trial(workspace, ctypes.byref(trial), seed, number, ctypes.c_void_p(counts.ctypes.data))
        lib.ls_workspace_free(workspace)
        assert status == 0
        return counts

    shares = min(8, os.cpu_count() or 1)
    bounds = [seeds * i // shares for i in range(shares + 1)]
    with ThreadPoolExecutor(shares) as pool:  # the C library lets go of Python's lock
        total: Counts = np.sum(list(pool.map(share, bounds[:-1], bounds[1:])), axis=0, dtype=np.int64)
    return total


def joint(case: Case) -> Float64Array:
    """The target's own distribution over sequences, by the chain rule."""
    rows = LogitRows.from_matrix(case.tables()[0])
    result = np.ones(1)
    for depth in range(case.length):
        wider = np.zeros((len(result), case.n_vocab))
        for i, path in enumerate(itertools.product(range(case.n_vocab), repeat=depth)):
            history = np.array((0, 0, *path), dtype=np.int32)
            row, chance = int(history[-2] * case.n_vocab + history[-1]), case.sampling.xtc_probability
            for xtc, share in ((0.0, 1.0 - chance), (1.0, chance)):  # a coin is thrown for each token
                step = reference.distribution(rows, row, replace(case.sampling, xtc_probability=xtc), history)
                wider[i, step.tokens] += result[i] * share * step.probs
        result = wider.reshape(-1)
    return result


def surprise(counts: Counts, probs: Float64Array) -> float:
    """How many standard deviations the chi-square statistic is above what it should be (Wilson and Hilferty 1931).

    Sequences expected fewer than 10 times are thrown together; an impossible one is an infinite surprise.
    """
    if counts[probs == 0].any():
        return float("inf")
    expected = probs * counts.sum()
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum()).astype(float)
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 1e-9], expected[expected > 1e-9]
    freedom = len(expected) - 1
    if freedom == 0:
        return 0.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    spread = 2.0 / (9.0 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


PASSES = 4.5  # standard deviations; a right rule exceeds this once in 300,000 checks, and seeds are fixed

SHAPES = {
    "rejection chain": (CHAIN, Rule.REJECTION, False),
    "rejection tree": (TREE, Rule.REJECTION, False),
    "rejection wide tree": (WIDE_TREE, Rule.REJECTION, False),
    "rejection of deterministic guesses": (TREE, Rule.REJECTION, True),
    "block chain": (CHAIN, Rule.BLOCK, False),
    "block of deterministic guesses": (CHAIN, Rule.BLOCK, True),
    "coupled tree": (TREE, Rule.COUPLED, False),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_joint_distribution_is_the_targets(shape: str, setting: str) -> None:
    siblings, rule, one_hot = SHAPES[shape]
    case = Case(4, siblings, rule, SETTINGS[setting], one_hot)
    assert surprise(run(case, 30_000), joint(case)) < PASSES


@pytest.mark.trial
@pytest.mark.parametrize("shape", ["rejection chain", "rejection tree", "block chain"])
def test_joint_distribution_over_a_million_draws(shape: str) -> None:
    siblings, rule, one_hot = SHAPES[shape]
    case = Case(3, siblings, rule, SETTINGS["temperature"], one_hot)
    assert surprise(run(case, 1_000_000), joint(case)) < PASSES


@pytest.mark.trial
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n_vocab", "draws"), [(3, 1_000_000), (6, 200_000)])
def test_joint_distribution_of_everything_at_length(n_vocab: int, draws: int, shape: str, setting: str) -> None:
    siblings, rule, one_hot = SHAPES[shape]
    case = Case(n_vocab, siblings, rule, SETTINGS[setting], one_hot)
    assert surprise(run(case, draws, first_seed=10**9), joint(case)) < PASSES


# The checks have teeth


def test_noise_used_twice_is_caught() -> None:
    """Passes that share a round meet numbers that an earlier pass has conditioned on: *block* looks at a whole chain
    before it cuts it. (*Rejection* never looks behind the cut, so it would survive this one.)"""
    case = Case(4, CHAIN, Rule.BLOCK, FULL)
    assert surprise(run(case, 100_000, noise_round=0), joint(case)) > 2 * PASSES


@pytest.mark.parametrize("shape", ["rejection chain", "rejection tree", "block chain"])
def test_draft_probs_that_are_not_those_the_draft_was_drawn_from_are_caught(shape: str) -> None:
    siblings, rule, one_hot = SHAPES[shape]
    case = Case(4, siblings, rule, FULL, one_hot)
    assert surprise(run(case, 50_000, lie=0.8), joint(case)) > 2 * PASSES


def textbook_rejection(
    target: list[Float64Array], draft: list[Float64Array], dice: random.Random, mistake: str
) -> list[int]:
    """One pass of rejection verification over a chain, written from the paper, right or with a mistake."""

    def draw(probs: Float64Array) -> int:
        return dice.choices(range(len(probs)), probs.tolist())[0]

    out: list[int] = []
    for position in range(len(draft)):
        p, q = target[position], draft[position]
        x = draw(q)
        ratio = q[x] / p[x] if mistake == "ratio upside down" else p[x] / q[x]
        if dice.random() >= ratio:
            return [*out, draw(p if mistake == "no subtraction" else np.maximum(p - q, 0.0))]
        out.append(x)
    return [*out, draw(target[len(draft)])]


@pytest.mark.parametrize("mistake", ["", "ratio upside down", "no subtraction"])
def test_wrong_rules_fail_the_check_that_the_textbook_passes(mistake: str) -> None:
    """Independent of the kernels: the check itself tells right from wrong, with a twentieth of the draws."""
    rng = np.random.default_rng(5)
    target = list(rng.dirichlet(np.ones(3), size=3))
    draft = list(rng.dirichlet(np.ones(3), size=2))
    dice, counts = random.Random(1), np.zeros(27, dtype=np.int64)
    for _ in range(20_000):
        out: list[int] = []
        while len(out) < 3:
            out += textbook_rejection(target[len(out) :], draft[len(out) :], dice, mistake)
        counts[out[0] * 9 + out[1] * 3 + out[2]] += 1
    probs = np.einsum("i,j,k->ijk", *target).reshape(-1)
    assert (surprise(counts, probs) > 2 * PASSES) == bool(mistake)


class WrongWalk(reference.Walk):
    """The specification with the residual forgotten."""

    def subtract_draft(self, support: reference.Support, weights: Float64Array, node: int) -> Float64Array:
        return weights


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_forgotten_residual_in_the_kernel_is_caught(rule: Rule, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification itself on one step, with and without the mistake."""
    if wrong:
        monkeypatch.setattr("tests.reference.verdict.Walk", WrongWalk)
    matrix = np.log(np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], dtype=np.float32))
    rows = LogitRows.from_matrix(np.ascontiguousarray(matrix))
    draft = SparseProbs(np.array([2, 1, 0], dtype=np.int32), np.array([0.5, 0.3, 0.2]))
    counts = np.zeros(3, dtype=np.int64)
    dice = np.random.default_rng(2).choice(draft.tokens, p=draft.probs, size=1500).astype(np.int32)
    parents = np.array([-1], dtype=np.int32)
    for seed, token in enumerate(dice):
        node = np.array([token], dtype=np.int32)
        accepted, last = reference.verify(rows, node, parents, (draft,), FULL, NO_TOKENS, Noise(seed), 0, rule)
        counts[token if len(accepted) else last] += 1
    probs = np.array([0.6, 0.3, 0.1])
    assert (surprise(counts, probs) > PASSES) == wrong


# Coupled: the same text, token by token


def plain_text(rows: LogitRows, case: Case, noise: Noise, length: int) -> list[int]:
    """Sequential Gumbel-max: the whole score of every token, no kernels beyond the noise and the distribution."""
    history = [0, 0]
    for _ in range(length):
        window = np.array(history, dtype=np.int32)
        row = history[-2] * case.n_vocab + history[-1]
        probs = reference.distribution(rows, row, case.sampling, window, noise, len(history))
        gumbel = reference.gumbel(noise, Purpose.SAMPLE, len(history), probs.tokens)
        history.append(int(probs.tokens[np.argmax(np.log(probs.probs) + gumbel)]))
    return history[2:]


def random_tree(rng: np.random.Generator, n_vocab: int, guess: list[int]) -> tuple[Tokens, Tokens]:
    """A draft with forks; often right, so that paths are followed."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(int(rng.integers(0, 9))):
        parent = int(rng.integers(-1, node)) if rng.random() < 0.4 else node - 1
        depth = 0 if parent < 0 else depths[parent] + 1
        taken = {tokens[i] for i in range(node) if parents[i] == parent}
        token = guess[depth] if depth < len(guess) and rng.random() < 0.7 else int(rng.integers(n_vocab))
        if token not in taken:
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
        else:
            break
    return np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32)


@pytest.mark.parametrize("setting", SETTINGS)
def test_coupled_text_is_plain_text_for_any_draft(setting: str) -> None:
    """The text is a function of target, settings and seed alone; rows off the path are never touched: they are NaN."""
    length = 12
    for seed in range(25):
        rng = np.random.default_rng(seed)
        case = Case(5, CHAIN, Rule.COUPLED, SETTINGS[setting])
        table = case.tables()[0]
        noise = Noise(seed * 12345678901, stream=seed % 3)
        wanted = plain_text(LogitRows.from_matrix(table), case, noise, length)
        history = [0, 0]
        while len(history) < length + 2:
            tokens, parents = random_tree(rng, 5, wanted[len(history) - 2 :])
            matrix = np.full((len(tokens) + 1, 5), np.nan, dtype=np.float32)
            contexts, path = {-1: tuple(history[-2:])}, -1
            matrix[0] = table[contexts[-1][0] * 5 + contexts[-1][1]]
            remaining = iter(wanted[len(history) - 2 :])
            for i, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
                contexts[i] = (contexts[parent][1], token)
            for token in remaining:  # only rows on the path hold numbers
                here = [i for i in range(len(tokens)) if parents[i] == path and tokens[i] == token]
                if not here:
                    break
                path = here[0]
                matrix[1 + path] = table[contexts[path][0] * 5 + contexts[path][1]]
            else:
                path_open = [i for i in range(len(tokens)) if np.isnan(matrix[1 + i, 0])]
                for i in path_open:
                    matrix[1 + i] = table[contexts[i][0] * 5 + contexts[i][1]]
            accepted, last = kernels.verify(
                LogitRows.from_matrix(matrix), tokens, parents, None, case.sampling,
                np.array(history, dtype=np.int32), noise, len(history), Rule.COUPLED,
            )  # fmt: skip
            history += [*tokens[accepted].tolist(), last]
        assert history[2 : length + 2] == wanted
