"""Comparisons on an engine that keeps its answers: no heat finds what another one said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.bench.sides import EngineSide
from localspec.chat.turn import Message
from localspec.checks.compare import Answering, AskedTurn
from localspec.checks.prompts import BenchPrompt
from localspec.checks.verify import DraftSetting, verify
from localspec.engine.slot import PassRecord
from localspec.engine.stats import RequestStats
from localspec.errors import LocalspecError
from localspec.options import Options
from localspec.remote.answerer import AnswerEnded, AnswerPart, Question, Told
from localspec.runner.answering import ChildAnswerer
from localspec.runtime.engine import Engine
from localspec.server.own.serve import Here
from localspec.types import SamplingParams
from tests.native.inside import tokens_held

GREEDY = SamplingParams(temperature=0.0)
MESSAGES = (Message("user", "Tell me about the sea."),)
TOKENS = 64

pytestmark = pytest.mark.usefixtures("runtime")


@contextmanager
def keeping(folder: Path, *files: Path) -> Iterator[Engine]:
    """It keeps answers, and forces drafts, so that what it drafts does not depend on what passes cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_DATA", str(folder))
        with Engine.load(*files, exact="strict", corpus="on", max_draft_tokens=4, context=1024, tuned=False) as engine:
            yield engine


@pytest.fixture(scope="module")
def engine(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Without a draft model, so that habits draft, too."""
    with keeping(tmp_path_factory.mktemp("data"), tiny_target) as found:
        yield found


def held(engine: Engine) -> int:
    """Tokens of past answers."""
    corpus = engine.loaded.corpus
    assert corpus is not None
    corpus.settle()
    return tokens_held(corpus._index)


class Listener:
    """Collects what an answerer posts."""

    def __init__(self) -> None:
        self.records: list[PassRecord] = []
        self.stats = RequestStats()
        self.error: LocalspecError | None = None
        self.over = threading.Event()

    def post_message(self, message: Told) -> bool:
        if isinstance(message, AnswerPart):
            self.records += message.records
        if isinstance(message, AnswerEnded):
            self.stats, self.error = message.stats, message.error
            self.over.set()
        return True


def heat(engine: Engine, drafter: str, alone: bool = True) -> Listener:
    """One heat as the race screen asks for it; or, not `alone`, an answer of the chat."""
    answerer, listener = ChildAnswerer(lambda: Here(lambda progress: engine, closes=False), "pair"), Listener()
    answerer.start(listener)
    question = Question(
        list(MESSAGES), GREEDY, seed=1, max_tokens=TOKENS, drafter=drafter, chat=None if alone else "c", alone=alone
    )
    answerer.answer(question, listener)
    assert listener.over.wait(60)
    answerer.close()
    assert listener.error is None
    return listener


@pytest.mark.parametrize("drafter", ["suffix", "habits", "lookup"])
def test_a_heat_drafts_the_same_whatever_was_answered_before(engine: Engine, drafter: str) -> None:
    _drafts_the_same(engine, drafter)


def test_a_heat_of_the_draft_model_reads_its_prompt_anew(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    with keeping(tmp_path, tiny_target, tiny_draft) as engine:
        _drafts_the_same(engine, "draft")


def _drafts_the_same(engine: Engine, drafter: str) -> None:
    """In either order, again, and after the chat has answered the very same prompt."""

    def drafts() -> list[tuple[int, ...]]:
        found = heat(engine, drafter)
        assert found.stats.reused_tokens == 0, "each heat reads its prompt"
        return [one.guesses for one in found.records]

    before = held(engine)
    first = drafts()
    heat(engine, "none")
    assert drafts() == first
    assert drafts() == first
    assert held(engine) == before, "a heat is no past answer"
    heat(engine, drafter, alone=False)
    assert held(engine) >= TOKENS
    assert drafts() == first


def test_an_answer_found_in_past_answers_is_compared_as_any_other(engine: Engine) -> None:
    heat(engine, "suffix", alone=False)
    held(engine)
    again = heat(engine, "suffix", alone=False)
    assert again.stats.accepted > 0.6 * again.stats.generated, "it was found"
    assert again.stats.compared == again.stats.generated


def test_what_verify_counts_does_not_depend_on_the_order_of_its_settings(engine: Engine) -> None:
    prompts = [BenchPrompt("sea", MESSAGES), BenchPrompt("again", MESSAGES)]
    settings = [DraftSetting("suffix", 4), DraftSetting("habits", 4)]
    before = held(engine)
    counts = []
    for order in (settings, settings[::-1]):
        report = verify(engine, prompts, (0.0,), order, max_tokens=TOKENS)
        assert not report.forks
        counts.append({one: (tally.drafted, tally.accepted) for one, tally in report.by_setting.items()})
    assert counts[0] == counts[1]
    assert held(engine) == before
    engine.configure(drafter="auto", max_draft_tokens=4, branches=1)


def test_tune_and_bench_keep_no_answers(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = held(engine)
    bench = EngineSide(engine, "suffix 4", "suffix", 4)
    turn = AskedTurn(MESSAGES, Options(sampling=GREEDY, seed=1, max_tokens=TOKENS))
    rates = []
    for _ in range(2):
        bench.begin(BenchPrompt("sea", MESSAGES))
        stats = bench.answer(turn).stats
        rates.append((stats["drafted"], stats["accepted"]))
    bench.close()
    assert rates[0] == rates[1]
    assert held(engine) == before
    engine.configure(drafter="auto", max_draft_tokens=4)

    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    target = engine.settings.target
    side = Answering(target, None, {"corpus": "on", "exact": "off", "drafter": "suffix", "context": 1024})
    try:
        side.answer(
            AskedTurn(MESSAGES, Options(sampling=GREEDY, seed=1, max_tokens=TOKENS, recall=False, remember=False))
        )
        assert held(side._engine) == 0
    finally:
        side.close()
