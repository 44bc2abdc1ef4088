"""Every row of a tree sees its ancestors and nothing else, by llama.cpp's rule for sequence ids and positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.llama.library.batch import layout


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    return [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, 14)))]


@given(trees(), st.integers(0, 3))
def test_rows_see_their_ancestors(parents: list[int], spare: int) -> None:
    tree = layout(parents)
    most = tree.leaves + spare
    ids = {
        node: set(range(low, low + many)) for node in range(len(parents)) for low, many in [tree.id_range(node, most)]
    }
    assert set().union(*ids.values()) == set(range(most))
    for node in range(len(parents)):
        first = min(ids[node])
        seen = {other for other in ids if first in ids[other] and tree.depth[other] <= tree.depth[node]}
        path, at = set(), node
        while at >= 0:
            path.add(at)
            at = parents[at]
        assert seen == path


@given(trees())
def test_batch_order(parents: list[int]) -> None:
    """A permutation, parents before children, the main chain first and each id's positions rising."""
    tree = layout(parents)
    assert sorted(tree.order) == list(range(len(parents)))
    place = {node: row for row, node in enumerate(tree.order)}
    assert all(parent < 0 or place[parent] < place[node] for node, parent in enumerate(parents))
    main = tree.order[: tree.main_length]
    assert [parents[node] for node in main] == [-1, *main[:-1]]
    assert main[0] == parents.index(-1)
    numbers = list(range(len(parents)))
    assert (parents == [-1, *numbers[:-1]]) == (tree.leaves == 1 and tree.order == numbers)


def test_a_parent_behind_its_child_is_refused() -> None:
    for parents in ([0], [-1, 1], [-1, 2, 0], [-2]):
        with pytest.raises(UsageError, match="parent"):
            layout(parents)
