"""Verdicts whose answers can be read off, and everything the door refuses."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import KernelError
from localspec.native import kernels, library
from localspec.native.kernels import KERNELS
from localspec.types import NO_TOKENS, LogitRows, Noise, Rule, SamplingParams, SparseProbs, Tokens

from .backends import BACKENDS, Backend

FULL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = replace(FULL, temperature=0.0)


def tokens_of(*values: int) -> Tokens:
    return np.array(values, dtype=np.int32)


def peaked(*tokens: int, vocabulary: int = 8) -> LogitRows:
    """One row per token, nearly all of its probability there."""
    matrix = np.zeros((len(tokens), vocabulary), dtype=np.float32)
    matrix[np.arange(len(tokens)), tokens] = 60.0
    return LogitRows.from_matrix(matrix)


def verdict(
    backend: Backend, rows: LogitRows, tokens: Tokens, parents: Tokens, **settings: Any
) -> tuple[list[int], int]:
    accepted, last = backend.kernels.verify(
        rows, tokens, parents, settings.get("probs"), settings.get("sampling", FULL), settings.get("window", NO_TOKENS),
        settings.get("noise", Noise(1)), settings.get("position", 0), settings.get("rule", Rule.COUPLED),
    )  # fmt: skip
    return accepted.tolist(), last


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
class TestVerdicts:
    """What the target insists on is accepted, what it excludes is not, under every rule."""

    @pytest.mark.parametrize("sampling", [FULL, GREEDY, SamplingParams()])
    @pytest.mark.parametrize("rule", Rule)
    def test_an_empty_draft_is_not_a_special_case(self, backend: Backend, rule: Rule, sampling: SamplingParams) -> None:
        assert verdict(backend, peaked(5), NO_TOKENS, NO_TOKENS, rule=rule, sampling=sampling) == ([], 5)

    @pytest.mark.parametrize("sampling", [FULL, GREEDY, SamplingParams()])
    @pytest.mark.parametrize("rule", Rule)
    def test_a_right_chain_is_accepted_whole(self, backend: Backend, rule: Rule, sampling: SamplingParams) -> None:
        chain, parents = tokens_of(1, 2, 3), tokens_of(-1, 0, 1)
        assert verdict(backend, peaked(1, 2, 3, 4), chain, parents, rule=rule, sampling=sampling) == ([0, 1, 2], 4)

    @pytest.mark.parametrize("rule", Rule)
    def test_a_wrong_token_ends_it(self, backend: Backend, rule: Rule) -> None:
        assert verdict(backend, peaked(1, 5, 3), tokens_of(1, 2), tokens_of(-1, 0), rule=rule) == ([0], 5)

    @pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.REJECTION])
    def test_a_tree_is_followed_and_the_rest_not_looked_at(self, backend: Backend, rule: Rule) -> None:
        matrix = np.full((6, 8), np.nan, dtype=np.float32)
        for row, token in ((0, 2), (2, 6), (4, 1)):
            matrix[row] = 0.0
            matrix[row, token] = 60.0
        tokens, parents = tokens_of(1, 2, 6, 6, 7), tokens_of(-1, -1, 0, 1, 3)
        assert verdict(backend, LogitRows.from_matrix(matrix), tokens, parents, rule=rule) == ([1, 3], 1)

    @pytest.mark.parametrize("rule", Rule)
    def test_a_draft_with_the_targets_own_distribution_is_accepted(self, backend: Backend, rule: Rule) -> None:
        """0 / 0 in the block rule; the coupled draft draws with the same noise."""
        rng = np.random.default_rng(0)
        for seed in range(40):
            noise = Noise(seed, round=0 if rule == Rule.COUPLED else 7)
            rows = LogitRows.from_matrix(rng.normal(size=(4, 5)).astype(np.float32))
            tokens, probs = [], []
            for i in range(3):
                tokens.append(int(backend.kernels.sample(rows, i, FULL, NO_TOKENS, noise, 7 + i)[0][0]))
                probs.append(backend.kernels.distribution(rows, i, FULL, NO_TOKENS))
            settings = {"probs": tuple(probs), "noise": noise, "position": 7, "rule": rule}
            accepted, _ = verdict(backend, rows, tokens_of(*tokens), tokens_of(-1, 0, 1), **settings)
            assert accepted == [0, 1, 2]

    def test_penalties_see_the_path(self, backend: Backend) -> None:
        sampling = replace(GREEDY, presence_penalty=5.0, penalty_last_n=2)
        matrix = np.array([[9, 6, 5, 0]] * 4, dtype=np.float32)
        rows = LogitRows.from_matrix(matrix)
        assert verdict(
            backend, rows, tokens_of(0, 1, 2), tokens_of(-1, 0, 1), sampling=sampling, window=tokens_of(0, 3, 3)
        ) == ([0, 1, 2], 0)

    def test_faults_are_named(self, backend: Backend) -> None:
        rows, chain = peaked(1, 2, 3), (tokens_of(1, 2), tokens_of(-1, 0))
        rows[1][4] = np.nan
        with pytest.raises(KernelError, match=r"row 1 of the logits holds NaN or \+inf for token 4"):
            verdict(backend, rows, *chain)
        for parents in ((0, -1), (-1, 1), (-1, -2)):
            with pytest.raises(KernelError, match=r"draft node . has parent .*; parents come before"):
                verdict(backend, peaked(1, 2, 3), tokens_of(1, 2), tokens_of(*parents))
        with pytest.raises(KernelError, match="the block rule takes chains only"):
            verdict(backend, peaked(1, 2, 3), tokens_of(1, 2), tokens_of(-1, -1), rule=Rule.BLOCK)
        wrong = SparseProbs(tokens_of(5), np.ones(1))
        for rule in (Rule.REJECTION, Rule.BLOCK):
            with pytest.raises(KernelError, match="draft node 0 is token 1, to which its own draft_probs give 0"):
                verdict(backend, peaked(1, 2, 3), *chain, probs=(wrong, wrong), rule=rule)

    def test_a_banned_window_does_not_matter_to_coupled_probs(self, backend: Backend) -> None:
        wrong = SparseProbs(tokens_of(5), np.ones(1))
        assert verdict(backend, peaked(1, 2), tokens_of(1), tokens_of(-1), probs=(wrong,)) == ([0], 2)


def test_the_door_refuses_what_does_not_fit() -> None:
    rows = peaked(1, 2)
    bad: list[Any] = [
        lambda: kernels.sample(rows, 2, FULL, NO_TOKENS, Noise(1), 0),
        lambda: kernels.sample(rows, 0, FULL, NO_TOKENS, Noise(1), 0, 0),
        lambda: kernels.distribution(rows, -1, FULL, NO_TOKENS),
        lambda: kernels.log_probs(rows, 0, [8]),
        lambda: kernels.log_probs(rows, 0, [-1]),
        lambda: kernels.top_log_probs(rows, 0, 0),
        lambda: kernels.verify(
            rows, tokens_of(1, 2), tokens_of(-1, 0), None, FULL, NO_TOKENS, Noise(1), 0, Rule.COUPLED
        ),
        lambda: kernels.verify(rows, tokens_of(1), tokens_of(), None, FULL, NO_TOKENS, Noise(1), 0, Rule.COUPLED),
        lambda: kernels.verify(rows, tokens_of(1), tokens_of(-1), (), FULL, NO_TOKENS, Noise(1), 0, Rule.REJECTION),
    ]
    for call in bad:
        with pytest.raises(KernelError):
            call()


def test_threads_do_not_share_scratch_memory() -> None:
    backend = KERNELS
    rows = LogitRows.from_matrix(np.random.default_rng(1).normal(size=(3, 4000)).astype(np.float32))
    wanted = [backend.sample(rows, 1, SamplingParams(), NO_TOKENS, Noise(i), 0)[0][0] for i in range(300)]
    failures: list[int] = []

    def work() -> None:
        got = [backend.sample(rows, 1, SamplingParams(), NO_TOKENS, Noise(i), 0)[0][0] for i in range(300)]
        failures.extend(i for i in range(300) if got[i] != wanted[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_every_function_of_the_header_is_declared() -> None:
    """The ABI page and the ctypes signatures agree by name and by number of arguments."""
    header = (Path(__file__).parents[2] / "native" / "localspec.h").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    found = re.findall(r"LS_API [^;(]*?(\w+)\(([^;]*)\);", text)
    functions = {name: 0 if arguments == "void" else arguments.count(",") + 1 for name, arguments in found}
    del functions["ls_run_trial"]  # tests/test_distribution.py declares that one
    assert functions == {name: len(arguments) for name, (_, arguments) in library.SIGNATURES.items()}
    assert int(re.findall(r"LS_ABI_VERSION (\d+)", header)[0]) == library.ABI_VERSION
