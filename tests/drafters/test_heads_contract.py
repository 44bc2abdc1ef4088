"""One contract for all trained heads, over real weights and a real target; the text is plain's under `strict`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from localspec.chat.turn import Message
from localspec.checks.prompts import BenchPrompt
from localspec.checks.verify import DraftSetting, verify
from localspec.drafters.heads import head as heads
from localspec.drafters.heads.head import Head
from localspec.engine.interfaces import Draft, Drafter, DraftRequest, History
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.methods import ROWS
from localspec.runtime.engine import Engine
from localspec.types import Feed, Noise, SamplingParams, Tokens
from tests.drafters.shipped_heads import SHIPPED, target_of
from tests.fakes import draft_request, paths

LENGTH = 160
SETTINGS = ContextSettings(n_ctx=LENGTH, grid=64, threads=1, type_v="bf16", n_slots=2)
PROMPTS = (
    BenchPrompt("copy", (Message("user", "Copy this: seven green boats, seven red boats, seven green lamps."),)),
    BenchPrompt("chat", (Message("user", "Name three fruits."), Message("user", "Now three more."))),
)


@dataclass(frozen=True)
class Attached:
    """A head at work."""

    head: Head
    target: Context
    drafter: Drafter
    text: Tokens
    """int32[200], of ordinary words."""

    def read(self, slot: int, tokens: Tokens) -> History:
        """A history that the target has evaluated, all but its last token."""
        self.target.decode([Feed(slot, tokens[:-1], max(1, len(tokens) - 5))])
        return History(tokens)

    def ask(self, history: History, slot: int = 0, nodes: int = 3, depth: int | None = None, seed: int = 1) -> Draft:
        request = draft_request(
            slot, history, nodes, nodes if depth is None else depth, SamplingParams(temperature=0.8), Noise(seed)
        )
        (draft,) = self.drafter.draft([request])
        check(draft, request, self.target.n_vocab)
        return draft


def check(draft: Draft, request: DraftRequest, n_vocab: int) -> None:
    """Whether a draft is one that was asked for."""
    nodes = paths(draft.parents.tolist())
    assert len(draft) <= max(0, request.max_nodes)
    assert max(map(len, nodes), default=0) <= max(0, request.max_depth)
    assert len(set(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))) == len(draft), "equal siblings"
    assert ((draft.tokens >= 0) & (draft.tokens < n_vocab)).all()
    assert bool(draft.origin) == bool(len(draft))


@pytest.fixture(scope="module", params=SHIPPED)
def attached(request: pytest.FixtureRequest) -> Iterator[Attached]:
    path = target_of(request.param)
    head = heads.find(SHIPPED[request.param], read_header(path))
    with Model.load(path, nextn=True) as model:
        text = model.tokenize("The old man went to the river and saw seven boats. " * 20, special=False, add_bos=True)
        target = Context(model, SETTINGS, tap=head.tap)
        yield Attached(head, target, head.attach(target, 1), text[:200])
        head.close()
        head.close()
        target.close()


def test_it_says_who_it_is(attached: Attached) -> None:
    assert attached.head.name == attached.drafter.name
    row = ROWS[attached.head.name]
    assert row.kind == "head"
    assert getattr(attached.drafter, "one_pass", False) == row.one_pass
    assert bool(attached.head.tap) == (row.needs != "tokenizer")
    assert attached.head.path in SHIPPED.values()
    assert not attached.drafter.free


def test_it_guesses_along_any_history_that_grows_shrinks_and_changes(attached: Attached) -> None:
    text, guessed = attached.text, 0
    histories = [text[:40], text[:41], text[:60], text[:20], np.concatenate([text[:30], text[90:110]]), text[:100]]
    for turn, tokens in enumerate(histories):
        history = attached.read(turn % 2, tokens.astype(np.int32))
        for _ in range(4):  # a long history is read in parts, one before each pass
            draft = attached.ask(history, turn % 2, seed=turn)
        guessed += len(draft)
    assert guessed > len(histories), "guesses most of the time"
    assert attached.drafter.draft([]) == []
    attached.drafter.observe([])


def test_nothing_is_guessed_where_nothing_is_asked_for(attached: Attached) -> None:
    history = attached.read(0, attached.text[:40])
    for nodes, depth in ((0, 0), (0, 3), (3, 0)):
        assert len(attached.ask(history, nodes=nodes, depth=depth)) == 0


def test_states_that_are_not_there_are_no_error(attached: Attached) -> None:
    """A cache from disk brings none; neither does a history nobody evaluated."""
    text, needs_states = attached.text[100:], bool(attached.head.tap)
    attached.target.forget(0)
    unread = [attached.ask(History(text[:30])) for _ in range(3)]
    history = attached.read(0, text[:50])
    state = bytes(attached.target.save(0))
    assert attached.target.restore(0, state, text[:49], 40)
    restored = [attached.ask(history) for _ in range(3)]
    attached.target.decode([Feed(0, text[:53], 40)])
    known = [attached.ask(History(text[:54])) for _ in range(3)]
    assert [len(drafts[-1]) == 0 for drafts in (unread, restored, known)] == [needs_states, needs_states, False]


def test_the_end_of_the_context(attached: Attached) -> None:
    text = attached.text[np.arange(LENGTH) % len(attached.text)]
    for length in range(LENGTH - 3, LENGTH + 1):
        attached.ask(attached.read(1, text[:length]), 1, nodes=8)


def test_another_drafter_of_the_head_outlives_the_first(attached: Attached) -> None:
    history = attached.read(0, attached.text[:40])
    first = attached.head.attach(attached.target, 1)
    second = attached.head.attach(attached.target, 2)
    first.close()
    first.close()
    request = draft_request(0, history, 4, 4, SamplingParams(temperature=0.0), Noise(1))
    for _ in range(3):
        (draft,) = second.draft([request])
        check(draft, request, attached.target.n_vocab)
    assert len(draft) > 0
    second.close()


@pytest.mark.parametrize("method", SHIPPED)
def test_the_text_is_that_of_plain_decoding(method: str) -> None:
    """Chains and trees at three temperatures, and beside the other drafters, one after another in the same chats."""
    settings = [DraftSetting(method, 3), DraftSetting(method, 5, branches=2), DraftSetting("auto", 4)]
    with Engine.load(
        target_of(method), heads=[] if method == "mtp" else [SHIPPED[method]], exact="strict", kernels="plain",
        threads=1, context=512, branches=2, drafter="auto", max_draft_tokens=5, corpus="off",
    ) as engine:  # fmt: skip
        report = verify(engine, PROMPTS, (0.0, 0.7, 1.0), settings, max_tokens=16)
    assert not report.forks
    assert all(tally.drafted > 0 and not tally.inexact for tally in report.by_setting.values())
    assert sum(report.by_setting[setting].accepted for setting in settings if setting.drafter == method) > 0
