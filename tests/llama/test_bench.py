"""The passes that an examination compares, and what it looks at in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.llama.exact import widths
from localspec.llama.exact.widths import Bench, beside, comb, in_turn
from localspec.llama.library.batch import layout
from localspec.llama.library.handle import Observer
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model

SETTINGS = ContextSettings(n_ctx=640, threads=1, type_v="bf16", flash_attention=True)


def test_an_interrupt_in_the_callback_is_raised_after_the_pass(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Observer, tensor: int, asks: bool, data: object) -> bool:
        raise KeyboardInterrupt

    bench = Bench(model, replace(SETTINGS, n_ctx=320), observed=True)
    bench.reference(230, 8)
    with monkeypatch.context() as patch:
        patch.setattr(Observer, "_see", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.chain_equals(230, 2)
    assert bench.chain_equals(230, 2)  # nothing is left of it
    bench.close()


def test_rows_of_an_earlier_pass_are_not_compared(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(model, replace(SETTINGS, n_ctx=320), observed=True)
    bench.reference(230, 8)
    assert bench._observer is not None
    assert bench._observer.rows
    monkeypatch.setattr(Observer, "_see", lambda self, tensor, asks, data: not asks)
    assert not bench.chain_equals(230, 2)
    assert not bench._observer.rows
    bench.close()


def test_comb() -> None:
    assert comb(6, 9) == [-1, -1, 0, 0, 2, 2]
    assert comb(5, 9) == [-1, -1, 0, 0, 2]
    assert comb(6, 2) == [-1, -1, 0, 2, 3, 4]
    assert comb(3, 1) == [-1, 0, 1]
    assert all(layout(comb(nodes, most)).leaves <= most for nodes in range(2, 20) for most in range(1, 9))


def test_chains_beside_a_main_one() -> None:
    assert beside(2) == ([-1, -1], [1])
    assert beside(5) == ([-1, 0, 1, -1, 3], [3, 4])
    assert in_turn(6) == ([-1, -1, -1, 1, 2, 3], [1, 3, 5])
    for nodes in range(4, 20):
        for parents, chain in (beside(nodes), in_turn(nodes)):
            assert len(parents) == nodes
            assert [parents[node] for node in chain] == [-1, *chain[:-1]]
            assert not set(chain) & set(layout(parents).order[: layout(parents).main_length])
        assert layout(in_turn(nodes)[0]).leaves == 3


def test_a_chain_whose_rows_lie_apart_is_examined(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, n_ctx=320, threads=1)
    equals = Bench._side_equals

    def together(self: Bench, length: int, parents: list[int], true: list[int]) -> bool:
        whole = parents == comb(len(parents), self.context.max_leaves) or true == list(range(true[0], true[-1] + 1))
        return whole and equals(self, length, parents, true)

    monkeypatch.setattr(Bench, "_side_equals", together)
    assert widths.examine(model, replace(settings, max_leaves=2), widest=6) == frozenset(range(1, 7))
    assert widths.examine(model, replace(settings, max_leaves=3), widest=6) == frozenset(range(1, 5))


def test_the_trees_of_the_draft_model_are_examined(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, n_ctx=320, max_leaves=4)
    for observed in (False, True):
        bench = Bench(model, settings, observed)
        bench.reference(230, 10)
        assert all(bench.comb_equals(230, width) for width in range(3, 9))
        bench._references[230][2] = np.zeros(4).tobytes(), bench._references[230][2][1]
        assert not bench.comb_equals(230, 5)
        bench.close()
    monkeypatch.setattr(Bench, "comb_equals", lambda self, length, width: width < 4)
    assert widths.examine(model, settings, widest=5) == frozenset({1, 2, 3})
