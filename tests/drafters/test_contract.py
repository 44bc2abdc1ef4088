"""One contract for all drafters: whatever a user may ask for goes through every test here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.config import EngineSettings
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heads.blocks import ParallelContext
from localspec.drafters.heads.head import BlockDrafter
from localspec.drafters.search import Habits, PromptLookup, SuffixDecoding
from localspec.drafters.setup import code_of
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, History
from localspec.methods import HEADS, NAMES, PLAIN, ROWS, TABLE
from localspec.native.indexes import ContextCounts, SuffixIndex
from localspec.types import Noise, SamplingParams, SparseProbs
from tests.drafters import plug_ins
from tests.drafters.block_context import block_drafter
from tests.drafters.made_tokenizers import MadeTokenizer, foreign_draft_model
from tests.drafters.masked_context import MaskedContext
from tests.fakes import FakeDraftContext, HashModel, draft_request, paths

VOCABULARY, CONTEXT = 6, 48
MODEL = HashModel(VOCABULARY, order=1, seed=4)
FLAT = HashModel(VOCABULARY, order=1, seed=4, sharpness=0.5)
END = frozenset({5})
LETTERS = MadeTokenizer([b"a", b"b", b"c", b"d", b"e", b"f"])
OTHERS = MadeTokenizer([b"!", b"f", b"c", b"a", b"?", b"e", b"b", b"d"])
OTHER = HashModel(len(OTHERS.pieces), order=1, seed=4)


def draft_model(branches: int = 1) -> DraftModel:
    return DraftModel(FakeDraftContext(MODEL, CONTEXT), END, branches)


def pard(branches: int = 1) -> BlockDrafter:
    context = MaskedContext(HashModel(VOCABULARY + 1, order=1, seed=4), VOCABULARY, CONTEXT)
    return BlockDrafter(ParallelContext(context, VOCABULARY), END, branches, "pard")


def block(branches: int, kind: str) -> BlockDrafter:
    return block_drafter(VOCABULARY, kind, branches, CONTEXT, END)


class FixedCorpus:
    """Texts that stay as they are."""

    def __init__(self) -> None:
        self.index = SuffixIndex()
        self.index.add([np.arange(30, dtype=np.int32) * 7 % 11 % VOCABULARY, np.arange(9, dtype=np.int32) % VOCABULARY])
        self.counts = ContextCounts()
        self.counts.add(np.arange(30, dtype=np.int32) * 7 % 11 % VOCABULARY)
        self.right: list[int] = []

    def borrow(self) -> tuple[SuffixIndex, ContextCounts]:
        return self.index, self.counts

    def give_back(self) -> None:
        pass

    def used(self, sequence: int) -> None:
        self.right.append(sequence)


def of_table(name: str) -> Drafter:
    """As the program makes it."""
    settings = EngineSettings(Path("t.gguf"), min_ngram=1, max_ngram=4)
    drafter: Drafter = code_of(name)(plug_ins.setup(VOCABULARY, settings=settings))
    return drafter


MAKERS: dict[str, Callable[[], Drafter]] = {
    **{row.name: partial(of_table, row.name) for row in TABLE if row.kind == "search"},
    "suffix with a corpus": lambda: SuffixDecoding(FixedCorpus()),
    "suffix, trees": lambda: SuffixDecoding(FixedCorpus(), branches=2),
    "habits with a corpus": lambda: Habits(FixedCorpus()),
    "habits, trees": lambda: Habits(FixedCorpus(), branches=3),
    "draft": draft_model,
    "draft, 2 branches": lambda: draft_model(2),
    "draft, 5 branches": lambda: draft_model(5),
    "draft, other tokenizer": lambda: foreign_draft_model(OTHER, LETTERS, OTHERS, n_ctx=CONTEXT, end=END),
    "draft in one pass": pard,
    "draft in one pass, 2 branches": lambda: pard(2),
    "lookup of pairs": PromptLookup,
    "draft of a block": lambda: block(1, "dflash"),
    "draft of a block with a bias": lambda: block(1, "dspark"),
    "draft of a block of candidates": lambda: block(1, "dflash2"),
    "draft of a block with a bias, 3 branches": lambda: block(3, "dspark"),
    "draft of a block of candidates, 3 branches": lambda: block(3, "dflash2"),
}
every = pytest.mark.parametrize("name", MAKERS)
some_tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=CONTEXT + 4)


def ask(
    tokens: Sequence[int] | History,
    slot: int = 0,
    nodes: int = 4,
    depth: int | None = None,
    seed: int = 1,
    temperature: float = 0.8,
    needs_probs: bool = False,
) -> DraftRequest:
    history = tokens if isinstance(tokens, History) else History(tokens)
    sampling = SamplingParams(temperature=temperature, top_p=1.0, min_p=0.0)
    noise = Noise(seed, round=len(history) if needs_probs else 0)
    deepest = nodes if depth is None else depth
    return draft_request(slot, history, nodes, deepest, sampling, noise, needs_probs=needs_probs)


def assert_valid(draft: Draft, request: DraftRequest) -> None:
    count = len(draft)
    assert count <= max(request.max_nodes, 0)
    assert draft.tokens.dtype == draft.parents.dtype == np.int32
    assert len(draft.parents) == count
    nodes = paths(draft.parents.tolist())
    assert max(map(len, nodes), default=0) <= max(request.max_depth, 0)
    assert len(set(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))) == count, "equal siblings"
    assert ((draft.tokens >= 0) & (draft.tokens < VOCABULARY)).all()
    assert draft.confidence is None or (draft.confidence.dtype == np.float32 and len(draft.confidence) == count)
    assert bool(draft.origin) == bool(count)
    if draft.probs is None:
        return
    assert len(draft.probs) == count
    for token, probs in zip(draft.tokens.tolist(), draft.probs, strict=True):
        assert token in probs.tokens, "drawn from a distribution that does not have it"
        assert probs.probs.sum() == pytest.approx(1.0, abs=1e-9)
        assert (probs.probs > 0).all()
        assert len(set(probs.tokens.tolist())) == len(probs.tokens)


def content(draft: Draft) -> object:
    """All a draft says, comparable."""
    confidence = None if draft.confidence is None else draft.confidence.tolist()
    probs = draft.probs and [(one.tokens.tolist(), one.probs.tolist()) for one in draft.probs]
    return draft.tokens.tolist(), draft.parents.tolist(), confidence, probs, draft.origin


def fresh(name: str, request: DraftRequest) -> object:
    """What a drafter says that never saw anything else."""
    return content(MAKERS[name]().draft([request])[0])


def test_every_name_a_user_may_ask_for_is_tested_here() -> None:
    assert set(NAMES) - set(HEADS) - {"auto", PLAIN} <= set(MAKERS), "heads are tested in test_heads_contract"
    assert all(NAMES.values())


@every
def test_it_says_who_it_is_and_what_it_needs(name: str) -> None:
    drafter = MAKERS[name]()
    assert drafter.name
    assert drafter.needs.hidden_layers == ()
    if name in ROWS:
        row = ROWS[name]
        assert (drafter.name, drafter.free) == (name, row.kind == "search")
        assert drafter.needs.constraint == (row.needs == "grammar")
        assert getattr(drafter, "one_pass", False) == row.one_pass


@pytest.mark.parametrize("closed", [row.name for row in TABLE if row.kind == "search"])
def test_one_that_closes_leaves_the_others_right_that_search_the_same_conversations(closed: str) -> None:
    setup, request = plug_ins.setup(VOCABULARY), ask([1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    drafters: dict[str, Drafter] = {row.name: code_of(row.name)(setup) for row in TABLE if row.kind == "search"}
    before = {name: drafter.draft([request])[0].tokens.tolist() for name, drafter in drafters.items()}
    assert any(before.values())
    drafters.pop(closed).close()
    assert all(one.draft([request])[0].tokens.tolist() == before[name] for name, one in drafters.items())


@every
def test_one_that_is_free_has_nothing_to_read_and_one_that_reads_says_how_much(name: str) -> None:
    drafter, history = MAKERS[name](), History([1, 2, 3, 1, 2])
    assert drafter.free == ("draft" not in name)
    before = drafter.missing(0, history)
    assert before == (0 if drafter.free else 5)
    drafter.draft([ask(history)])
    history.append([4, 4])
    assert drafter.missing(0, history) == (0 if drafter.free else min(before, 2))
    assert drafter.missing(0, History([4, 4, 4])) == (0 if drafter.free else 3)
    assert drafter.missing(1, history) == (0 if drafter.free else 7)
    drafter.close()
    drafter.missing(0, history)


@every
@settings(max_examples=40)
@given(
    tokens=some_tokens,
    nodes=st.integers(-1, 12),
    depth=st.integers(-1, 12),
    temperature=st.sampled_from([0.0, 0.8, 2.0]),
    needs_probs=st.booleans(),
)
def test_any_history_gets_a_legal_draft(
    name: str, tokens: list[int], nodes: int, depth: int, temperature: float, needs_probs: bool
) -> None:
    request = ask(tokens, nodes=nodes, depth=depth, temperature=temperature, needs_probs=needs_probs)
    assert_valid(MAKERS[name]().draft([request])[0], request)


@every
@pytest.mark.parametrize(("nodes", "depth"), [(0, 0), (0, 5), (5, 0)])
def test_nothing_is_drafted_where_nothing_is_asked_for(name: str, nodes: int, depth: int) -> None:
    for tokens in ([1], [1, 2, 1, 2, 1, 2]):
        assert len(MAKERS[name]().draft([ask(tokens, nodes=nodes, depth=depth)])[0]) == 0


@every
def test_no_requests_no_drafts(name: str) -> None:
    drafter = MAKERS[name]()
    assert drafter.draft([]) == []
    drafter.observe([])


edits = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, VOCABULARY - 1), max_size=4) | st.integers(0, CONTEXT)),
    max_size=12,
)


@every
@settings(max_examples=40)
@given(starts=st.lists(some_tokens, min_size=3, max_size=3), edits=edits, replaced=st.sets(st.integers(0, 12)))
def test_state_is_only_a_cache_of_the_histories(
    name: str, starts: list[list[int]], edits: list[tuple[int, list[int] | int]], replaced: set[int]
) -> None:
    """Three slots grow, shrink and are given other histories; every draft is that of a fresh drafter."""
    drafter = MAKERS[name]()
    histories = [History(start) for start in starts]
    for turn, (slot, edit) in enumerate(edits):
        if isinstance(edit, list):
            histories[slot].append(edit)
        else:
            histories[slot].truncate(max(1, edit % (len(histories[slot]) + 1)))
        if turn in replaced:
            histories[slot] = History(histories[slot].tokens[::-1])
        asked = [ask(histories[i], slot=i, seed=turn) for i in (slot, (slot + 1) % 3)]
        assert [content(draft) for draft in drafter.draft(asked)] == [fresh(name, request) for request in asked]


@every
def test_answers_come_in_the_order_of_the_requests(name: str) -> None:
    histories = [[1, 2, 3, 1, 2], [4, 4, 4], [2, 3, 2, 3, 2], [1]]
    asked = [ask(tokens, slot=slot, nodes=1 + slot) for slot, tokens in enumerate(histories)]
    backwards = MAKERS[name]().draft(asked[::-1])
    assert [content(draft) for draft in backwards[::-1]] == [fresh(name, request) for request in asked]


@every
def test_the_same_history_gets_the_same_draft(name: str) -> None:
    drafter, history = MAKERS[name](), History([1, 2, 3, 1, 2, 3, 1])
    first, again = (content(drafter.draft([ask(history)])[0]) for _ in range(2))
    copy = content(drafter.draft([ask(history.tokens.copy())])[0])
    assert first == again == copy


@pytest.mark.parametrize("name", [name for name in MAKERS if "draft" not in name])
def test_one_that_is_free_guesses_a_chain_where_one_is_asked_for(name: str) -> None:
    request = ask([1, 2, 3, 1, 2, 4, 1, 2], nodes=8, depth=4)  # in which more nodes than levels ask for a tree
    (draft,) = MAKERS[name]().draft([replace(request, chain=True)])
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    (tree,) = MAKERS[name]().draft([request])
    if name in ("suffix", "suffix, trees", "habits", "habits with a corpus", "habits, trees"):
        assert tree.parents.tolist() != list(range(-1, len(tree) - 1)), "else this says nothing"


@every
def test_closing_twice_does_nothing(name: str) -> None:
    drafter = MAKERS[name]()
    drafter.draft([ask([1, 2, 1])])
    drafter.close()
    drafter.close()


@every
def test_histories_at_the_end_of_the_drafters_context(name: str) -> None:
    drafter = MAKERS[name]()
    for length in range(CONTEXT - 5, CONTEXT + 3):
        request = ask([i % VOCABULARY for i in range(length)], nodes=8)
        assert_valid(drafter.draft([request])[0], request)


class Drafts(Protocol):
    """The part of a drafter that is looked at here."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]: ...


# -- honest probabilities --------------------------------------------------------------------------------------------


def misfit(drafter: Drafts, draws: int) -> float:
    """How far the drawn tokens are from the distributions named, in standard deviations of chi-square.

    Nodes are grouped by all that was drawn before them, so chains and siblings are tested for what they are given.
    """
    seen: dict[object, Counter[int]] = defaultdict(Counter)
    named: dict[object, dict[int, float]] = {}
    for seed in range(draws):
        request = ask([2, 1, 3], nodes=4, seed=seed, needs_probs=True)
        (draft,) = drafter.draft([request])
        assert draft.probs is not None
        for node, probs in enumerate(draft.probs):
            before = (node, *draft.tokens[:node].tolist(), *draft.parents[: node + 1].tolist())
            seen[before][int(draft.tokens[node])] += 1
            named[before] = dict(zip(probs.tokens.tolist(), probs.probs.tolist(), strict=True))
    statistic = freedom = 0.0
    for given_these, counts in seen.items():
        total = counts.total()
        assert set(counts) <= set(named[given_these])
        expected = {token: total * share for token, share in named[given_these].items()}
        if len(expected) < 2 or min(expected.values()) < 5:
            continue
        statistic += sum((counts[token] - number) ** 2 / number for token, number in expected.items())
        freedom += len(expected) - 1
    assert freedom > 20, "too little was compared"
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def drawing(branches: int) -> DraftModel:
    return DraftModel(FakeDraftContext(FLAT), frozenset(), branches)


@pytest.mark.parametrize("branches", [1, 2, 3])
def test_tokens_are_drawn_from_the_distributions_named(branches: int) -> None:
    assert misfit(drawing(branches), 3000) < 4.5


class Flatter:
    """Names distributions a little flatter than those it draws from."""

    def __init__(self, drafter: DraftModel) -> None:
        self.drafter = drafter

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [replace(draft, probs=self.wrong(draft)) for draft in self.drafter.draft(requests)]

    def wrong(self, draft: Draft) -> tuple[SparseProbs, ...]:
        assert draft.probs is not None
        return tuple(replace(one, probs=one.probs**0.7 / (one.probs**0.7).sum()) for one in draft.probs)


class WithReplacement(Flatter):
    """Names for the second sibling what the first was drawn from."""

    def wrong(self, draft: Draft) -> tuple[SparseProbs, ...]:
        assert draft.probs is not None
        first = [draft.parents.tolist().index(parent) for parent in draft.parents.tolist()]
        return tuple(draft.probs[node] for node in first)


@pytest.mark.parametrize("wrong", [Flatter, WithReplacement])
def test_a_dishonest_drafter_is_noticed(wrong: type[Flatter]) -> None:
    assert misfit(wrong(drawing(2)), 3000) > 9


def test_at_temperature_0_every_guess_is_certain() -> None:
    (draft,) = draft_model(3).draft([ask([2, 1, 3], nodes=6, temperature=0.0, needs_probs=True)])
    assert len(draft) == 6
    assert draft.probs is not None
    for token, probs in zip(draft.tokens.tolist(), draft.probs, strict=True):
        assert (probs.tokens.tolist(), probs.probs.tolist()) == ([token], [1.0])


@pytest.mark.parametrize("name", ["lookup", "suffix", "lookup of pairs"])
def test_a_deterministic_guess_has_no_probabilities(name: str) -> None:
    (draft,) = MAKERS[name]().draft([ask([1, 2, 3, 4, 1, 2, 3], needs_probs=True)])
    assert draft.probs is None
    assert len(draft)


@pytest.mark.parametrize("name", ["draft", "draft, 2 branches"])
def test_probabilities_are_given_only_where_a_rule_needs_them(name: str) -> None:
    history = [0, 1, 2, 3]
    assert MAKERS[name]().draft([ask(history)])[0].probs is None
    assert MAKERS[name]().draft([ask(history, needs_probs=True)])[0].probs is not None
