"""Trees grow where they are likeliest to be reached, within their limits, from whatever context guesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.draft_model import DraftModel
from localspec.engine.interfaces import Draft, History, Price
from localspec.types import Feed, LogitRows, Noise, SamplingParams, Tokens
from tests.fakes import HashModel, draft_request, paths

MODEL = HashModel(12, order=2, seed=3)
END = 11
HISTORY = [1, 2, 3, 1]


class Paths:
    """A `DraftContext` with paths over a function from tokens to logits; minds how many ways it is asked to go."""

    n_ctx, n_vocab = 64, 12

    def __init__(self, n_paths: int) -> None:
        self.n_paths, self.passes = n_paths, 0
        self.seen: set[tuple[int, ...]] = set()

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        self.passes += 1
        for feed in feeds:
            path = tuple(feed.tokens.tolist())
            assert path not in self.seen, "nothing is asked twice"
            assert len(path) == len(HISTORY) or path[:-1] in self.seen, "a path grows by one token a pass"
            assert path[-1] != END or len(path) == len(HISTORY), "nothing follows the end of an answer"
            self.seen.add(path)
        inner = {path[:-1] for path in self.seen}
        assert len(self.seen - inner) <= self.n_paths
        return [LogitRows.from_matrix(MODEL(feed.tokens)[None, :].copy()) for feed in feeds]

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        raise AssertionError("there is nothing to read")

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        return len(tokens) - 1


class Never(Price):
    def pays(self, path: Sequence[float], nodes: int) -> bool:
        return False


def ask(
    branches: int, nodes: int, depth: int, temperature: float, n_paths: int = 8, seed: int = 5,
    needs_probs: bool = False, price: Price | None = None, sampling: SamplingParams | None = None,
) -> tuple[Draft, Paths]:  # fmt: skip
    context = Paths(n_paths)
    drafter = DraftModel(context, frozenset({END}), branches, "trial")
    history = History(np.array(HISTORY, dtype=np.int32))
    request = draft_request(
        0, history, nodes, depth, sampling or SamplingParams(temperature=temperature), Noise(seed),
        needs_probs, price=price or Price(),
    )  # fmt: skip
    (draft,) = drafter.draft([request])
    return draft, context


@given(
    st.integers(2, 4), st.integers(0, 12), st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    st.integers(2, 6), st.integers(0, 50),
)  # fmt: skip
def test_a_tree_keeps_its_limits(
    branches: int, nodes: int, depth: int, temperature: float, n_paths: int, seed: int
) -> None:
    draft, context = ask(branches, nodes, depth, temperature, n_paths, seed)
    found = paths(draft.parents.tolist())
    assert len(draft) <= nodes
    assert max(map(len, found), default=0) <= depth
    assert context.passes <= depth
    assert (draft.parents < np.arange(len(draft))).all()
    siblings = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    assert len(set(siblings)) == len(siblings)
    if not len(draft):
        assert min(nodes, depth) == 0
        return
    assert draft.confidence is not None
    confidence = draft.confidence.tolist()
    for parent in set(draft.parents.tolist()):
        shares = [share for share, (above, _) in zip(confidence, siblings, strict=True) if above == parent]
        assert shares == sorted(shares, reverse=True), "in trial order"
        assert sum(shares) < 1.001
    reach = [float(np.prod([confidence[node] for node in path])) for path in found]
    assert reach == pytest.approx(sorted(reach, reverse=True))


def test_the_likeliest_is_there_and_is_tried_first() -> None:
    """At temperature 0 the first child of every node is what the model itself would say."""
    draft, _ = ask(branches=3, nodes=9, depth=4, temperature=0.0)
    tokens = draft.tokens.tolist()
    first: dict[int, int] = {}
    for node, parent in enumerate(draft.parents.tolist()):
        first.setdefault(parent, node)
    for parent, node in first.items():
        before = [] if parent < 0 else [tokens[one] for one in paths(draft.parents.tolist())[parent]]
        assert tokens[node] == int(MODEL(np.array(HISTORY + before, dtype=np.int32)).argmax())


def test_a_guess_is_the_surer_the_fewer_it_may_be() -> None:
    """Chances of the first guess, by how many tokens there are to draw from."""
    found = []
    for support in (1, 2, 3, 12):
        sampling = SamplingParams(temperature=1.0, top_k=support, top_p=1.0, min_p=0.0)
        drafts = [ask(3, 3, 1, 1.0, seed=seed, sampling=sampling)[0] for seed in range(40)]
        assert {len(draft) for draft in drafts} == {min(support, 3)}
        chances = [draft.confidence for draft in drafts if draft.confidence is not None]
        found.append(float(np.mean([one[0] for one in chances])))
        assert support > 2 or [one.sum() for one in chances] == pytest.approx([1.0] * 40, abs=2e-3)
    assert found[0] == pytest.approx(0.999)
    assert found == sorted(set(found), reverse=True)


def test_what_is_too_unlikely_for_a_share_is_drawn_last() -> None:
    sampling = SamplingParams(temperature=0.01, top_k=0, top_p=1.0, min_p=0.0)
    for seed in range(20):
        draft, _ = ask(branches=3, nodes=3, depth=1, temperature=0.01, seed=seed, sampling=sampling)
        assert len(draft) == 3
        assert draft.confidence is not None
        assert np.isfinite(draft.confidence).all()
        assert draft.confidence.tolist() == sorted(draft.confidence.tolist(), reverse=True)


def test_no_level_is_drawn_that_does_not_pay() -> None:
    draft, context = ask(branches=3, nodes=9, depth=4, temperature=0.0, price=Never())
    assert context.passes == 1
    assert draft.parents.tolist() == [-1, -1, -1]


def test_where_draws_must_not_be_chosen_from_leaves_stand_beside_a_chain() -> None:
    drawn, context = ask(branches=2, nodes=8, depth=4, temperature=1.0, needs_probs=True)
    assert drawn.probs is not None
    assert len(drawn.probs) == len(drawn) == 8
    assert drawn.parents.tolist() == [-1, -1, 0, 0, 2, 2, 4, 4]
    assert context.passes == 4


def test_one_branch_or_one_path_is_a_chain() -> None:
    draft, context = ask(branches=1, nodes=3, depth=4, temperature=1.0)
    assert draft.parents.tolist() == [-1, 0, 1]
    assert context.passes == 3
