"""The chat's models in a process that is asked over its socket: what is posted is what an engine here posts."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.reply import harmony
from localspec.chat.reply.tool import Tool
from localspec.chat.turn import Message
from localspec.cli.commands import chat
from localspec.engine.slot import FinishReason
from localspec.errors import Cancelled, DeviceError, LocalspecError, ModelFileError, RunnerError
from localspec.options import SamplingParams
from localspec.processes import running
from localspec.remote.answerer import (
    AnswerEnded,
    Answerer,
    AnswerPart,
    LoadFailed,
    Loading,
    ModelReady,
    Prefilled,
    Question,
    Told,
)
from localspec.runner import answering, child
from localspec.runner.answering import ChildAnswer, ChildAnswerer, Host
from localspec.runner.child import Child, Load
from localspec.runtime.engine import Engine, WantedAnswer
from localspec.runtime.kept.caches import CacheFolder
from localspec.server.own.serve import Here
from localspec.tui.talk.session import Preferences, Session
from tests.chat.marked_file import write_harmony
from tests.llama import architectures
from tests.runner.conftest import PATIENCE, lives, threads, until
from tests.runner.test_child import SIGNALS
from tests.server.named_events import LOOK_UP, QUERY_JSON, WIKIPEDIA

TARGET, DRAFT = (str(paths.bundled(f"tiny-{name}-q8_0.gguf")) for name in ("target", "draft"))
ASKED = Question(
    [Message("user", "Tell me a story.")], SamplingParams(temperature=0.0), seed=3, drafter="none", max_tokens=60
)
SENTENCES = " ".join(f"Maria bought {n} lanterns in Lisbon and {3 * n} lamps in Oslo." for n in range(9))
COPY = [Message("user", f"Repeat this text exactly: {SENTENCES}")]
LONG = replace(ASKED, messages=COPY, max_draft_tokens=4, max_tokens=600)
ENDLESS = replace(ASKED, sampling=SamplingParams(logit_bias=((40, 1e6),)), max_tokens=None)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc"),
    pytest.mark.usefixtures("nothing_is_left_at_all"),
]


class Heard:
    """Keeps what is posted."""

    def __init__(self, at_part: Callable[[], object] = lambda: None, part: int = 1) -> None:
        """`at_part`: called once, at this part of an answer."""
        self.seed: int | None = None
        self.posts: list[Told] = []
        self.over = threading.Event()
        self._at_part, self._part = at_part, part

    def post_message(self, message: Told) -> bool:
        self.posts.append(message)
        if isinstance(message, AnswerPart) and len(self.parts) == self._part:
            self._at_part()
        if isinstance(message, AnswerEnded):
            self.over.set()
        return True

    @property
    def parts(self) -> list[AnswerPart]:
        return [one for one in self.posts if isinstance(one, AnswerPart)]

    @property
    def ended(self) -> AnswerEnded:
        assert self.over.wait(PATIENCE)
        end = self.posts[-1]
        assert isinstance(end, AnswerEnded)
        return end

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def tokens(self) -> list[int]:
        return [token for part in self.parts for token in part.tokens]

    @property
    def told(self) -> dict[str, Any]:
        """All that does not depend on time, nor on how it was joined."""
        end, prefilled = self.ended, [one for one in self.posts if isinstance(one, Prefilled)]
        records = [record._asdict() for part in self.parts for record in part.records]
        return {
            "text": self.text,
            "thinking": "".join(part.thinking for part in self.parts),
            "tokens": self.tokens,
            "origins": [origin for part in self.parts for origin in part.origins],
            "records": [_untimed(record) for record in records],
            "figures": _untimed(asdict(end.stats)),
            "read": [(one.done, one.total) for one in prefilled[-1:]],
            "end": (end.finish, str(end.error)),
        }


def _untimed(facts: dict[str, Any]) -> dict[str, Any]:
    timed = ("gaps", "row_cost", "compared", "guarded_passes")
    return {name: value for name, value in facts.items() if name not in timed and not name.endswith("seconds")}


def heard(answerer: Answerer, question: Question, at_part: Callable[[], object] = lambda: None, part: int = 1) -> Heard:
    """A whole answer."""
    found = Heard(at_part, part)
    answer = answerer.answer(question, found)
    assert found.over.wait(PATIENCE)
    found.seed = answer.seed
    return found


@contextmanager
def host(make: Callable[[], Host]) -> Iterator[tuple[ChildAnswerer, Heard]]:
    """Who asks it and has started, and what is posted of its model; in the end all threads are gone."""
    answerer, news, before = ChildAnswerer(make, "here"), Heard(), threads()
    answerer.start(news)
    try:
        yield answerer, news
    finally:
        answerer.close()
        until(lambda: threads() <= before)


@contextmanager
def apart(target: str = TARGET, draft: str | None = None, **settings: Any) -> Iterator[tuple[ChildAnswerer, Heard]]:
    """One that has started, and what it posts of its model."""
    load = Load(target, draft, (), {"slots": 1} | settings)
    with host(lambda: Child(load)) as found:
        yield found


@contextmanager
def here(target: str = TARGET, draft: str | None = None, **settings: Any) -> Iterator[Engine]:
    with Engine.load(target, draft, **settings) as engine:
        engine.work_when_idle()
        yield engine


def asked_of(engine: Engine, question: Question) -> WantedAnswer:
    given = {name: getattr(question, name) for name in ("thinking", "reasoning", "prefix", "thought_out")}
    return WantedAnswer(engine, question.messages, **given)


def plain(engine: Engine, question: Question) -> Heard:
    """A whole answer, asked of the engine itself.

    Raises:
        LocalspecError: it fails.
    """
    found = Heard()
    answer, asked = ChildAnswer(question, found, {}), asked_of(engine, question)
    if question.alone:
        engine.forget()
    generation = engine.generate(
        asked.prompt,
        preserved=asked.preserved,
        on_prefill=lambda done, total: found.post_message(Prefilled(answer, done, total)),
        max_tokens=question.max_tokens or asked.most,
        **{name: getattr(question, name) for name in ("sampling", "seed", "stop", "drafter", "max_draft_tokens")},
    )
    for event in generation:
        text, thoughts = harmony.apart(asked.reply.push(event.text))
        records = () if event.record is None else (event.record,)
        found.post_message(AnswerPart(answer, text, event.tokens, event.origins, records, event.stats, thoughts))
    text, thoughts = harmony.apart(asked.reply.finish())
    found.post_message(AnswerPart(answer, text, thinking=thoughts))
    assert generation.finish is not None
    found.post_message(AnswerEnded(answer, generation.finish, generation.stats))
    found.seed = generation.request.seed
    return found


def same(answerer: ChildAnswerer, engine: Engine, questions: list[Question]) -> list[Heard]:
    """Answers that both give."""
    found = []
    for question in questions:
        one, two = heard(answerer, question), plain(engine, question)
        assert one.told == two.told
        assert one.seed == two.seed
        assert answerer.count(question) == len(asked_of(engine, question).prompt)
        assert all(answerer.piece(token) == engine.loaded.model.piece(token) for token in one.tokens)
        found.append(one)
    with host(lambda: Here(lambda progress: engine, closes=False)) as (other, _):
        heard(other, ASKED)
        assert answerer.facts == other.facts
    return found


def child_of(answerer: ChildAnswerer) -> Child:
    """What it asks."""
    assert isinstance(answerer.child, Child)
    return answerer.child


def strike(answerer: ChildAnswerer, number: int = signal.SIGKILL) -> None:
    pid = child_of(answerer).pid
    assert pid, "0 would be this process, and those beside it"
    os.kill(pid, number)


def test_answers_are_those_of_an_engine_here() -> None:
    drawn = replace(ASKED, sampling=SamplingParams(temperature=0.8, logit_bias=((40, float("-inf")),)), stop=("a",))
    always: dict[str, Any] = {"drafter": "draft", "max_draft_tokens": 4}  # whether it pays or not, which time decides
    with apart(draft=DRAFT, **always) as (answerer, news), here(draft=DRAFT, **always) as other:
        assert answerer.count(ASKED) is None
        drafted = replace(ASKED, drafter=None)
        refused = replace(ASKED, drafter="nobody")
        alone = replace(drafted, alone=True)
        found = same(answerer, other, [drafted, alone, drawn, replace(ASKED, prefix="Once upon")])
        assert found[0].tokens == found[1].tokens
        assert any(origin.drafter == "draft" for origin in found[0].told["origins"])
        with pytest.raises(LocalspecError) as raised:
            plain(other, refused)
        assert str(heard(answerer, refused).ended.error) == str(raised.value)
        assert isinstance(news.posts[0], Loading)
        assert isinstance(news.posts[-1], ModelReady)
        assert heard(answerer, replace(ASKED, seed=None)).seed is not None


def test_thinking_is_that_of_an_engine_here(tmp_path: Path) -> None:
    path = str(write_harmony(tmp_path / "harmony.gguf"))
    settings: dict[str, Any] = {"context": 4096, "exact": "off"}
    with apart(path, **settings) as (answerer, _), here(path, **settings) as other:
        thought = replace(ASKED, reasoning="Let me see.")
        questions = [ASKED, thought, replace(thought, thought_out=True), replace(thought, prefix="So")]
        same(answerer, other, [*questions, replace(ASKED, raw=True)])
        assert answerer.facts is not None
        assert answerer.facts.channels


def test_a_call_comes_with_its_answer_which_is_not_gone_on_from() -> None:
    question = replace(ASKED, messages=[Message("user", LOOK_UP)], tools=(Tool(**WIKIPEDIA),))
    with apart() as (answerer, _):
        found = heard(answerer, question)
        (call,) = [call for part in found.parts for call in part.calls]
        assert (call.name, call.arguments) == ("wikipedia", QUERY_JSON)
        assert (found.ended.state, found.text) == (("done", ""), "")
        answer = ChildAnswer(question, Heard(), {})
        with child_of(answerer).use() as use:
            answer.read(use)
        assert answer.called


def test_a_cancelled_answer_ends_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_LAST_FIGURES_SECONDS", PATIENCE)
    with apart() as (answerer, _):
        found = Heard(lambda: answer.cancel())
        answer = answerer.answer(ENDLESS, found)
        end = found.ended
        assert (end.finish, end.error) == (FinishReason.CANCELLED, None)
        assert end.stats.generated == len(found.tokens) > 0
        assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH


def test_nothing_is_asked_to_cancel_an_answer_that_is_over() -> None:
    with apart() as (answerer, _):
        found = Heard()
        answer = answerer.answer(ASKED, found)
        assert found.ended.finish is FinishReason.LENGTH
        answer.cancel()
        assert not any(one.name == "localspec-cancel" for one in threading.enumerate())


def test_an_answer_that_is_cancelled_before_it_is_asked() -> None:
    with apart() as (answerer, _):
        found = Heard()
        answerer.answer(ENDLESS, found).cancel()
        assert found.ended.finish is FinishReason.CANCELLED
        assert found.parts == []


def test_an_answer_of_a_process_that_stands_still_ends_when_it_is_cancelled() -> None:
    with apart() as (answerer, _):

        def stop() -> None:
            strike(answerer, signal.SIGSTOP)
            answer.cancel()

        found = Heard(stop)
        answer = answerer.answer(ENDLESS, found)
        assert isinstance(found.ended.error, Cancelled)
        strike(answerer, signal.SIGCONT)
        assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH


@pytest.mark.parametrize("drafter", ["none", "draft"])
def test_an_answer_goes_on_when_the_process_dies(drafter: str, caplog: pytest.LogCaptureFixture) -> None:
    question = replace(LONG, drafter=drafter)
    with apart(draft=DRAFT) as (answerer, _):
        whole = heard(answerer, question)
        child = child_of(answerer)
        for part in (1, 2):  # each answer that has come to its end lets another death be mended
            old = child.pid
            found = heard(answerer, question, lambda: strike(answerer), part)
            assert found.text == whole.text
            assert found.tokens == whole.tokens
            assert child.pid not in (0, old)
            assert not lives(old)
    assert "(SIGKILL) while it answered. " in caplog.text
    assert "The models are loaded again." in caplog.text


def test_raw_text_is_not_gone_on_from() -> None:
    with apart() as (answerer, _):
        end = heard(answerer, replace(LONG, raw=True), lambda: strike(answerer)).ended
        assert isinstance(end.error, RunnerError)
        assert heard(answerer, replace(ASKED, raw=True)).ended.finish is FinishReason.LENGTH


@pytest.mark.trial
def test_many_deaths_at_random_parts() -> None:
    rng = random.Random(79)
    with apart(draft=DRAFT) as (answerer, _):
        whole = heard(answerer, LONG).text
        for _ in range(12):
            struck = partial(strike, answerer, rng.choice(SIGNALS))
            assert heard(answerer, LONG, struck, rng.randrange(1, 4)).text == whole


def test_an_answer_ends_with_the_second_death_and_the_next_one_starts_a_process() -> None:
    with apart() as (answerer, _):
        whole = heard(answerer, ASKED).text
        child = child_of(answerer)
        old = child.pid
        strike(answerer)
        until(lambda: child.pid not in (0, old))
        end = heard(answerer, ENDLESS, lambda: strike(answerer)).ended
        assert isinstance(end.error, RunnerError)
        assert end.finish is FinishReason.ERROR
        assert heard(answerer, ASKED).text == whole


LOSES = """
from pathlib import Path
from localspec.errors import DeviceError
from localspec.runtime.worker import Worker

whole = Worker._step

def loses(self):
    def step():
        self.outdated = "The GPU was lost."
        raise DeviceError(self.outdated)

    self.loop.step = step
    whole(self)

mark = Path(__file__).with_suffix(".mark")
if not mark.exists():
    mark.touch()
    Worker._step = loses
"""
"""Has the first process lose its GPU with its first pass."""


def test_a_process_that_lost_its_gpu_is_replaced_before_the_next_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(LOSES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with apart() as (answerer, _):
        error = heard(answerer, ASKED).ended.error
        assert isinstance(error, DeviceError)
        assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH
        assert answerer.child is not None
        assert answerer.child.outdated == ""


def test_a_connection_that_breaks_while_the_process_lives_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_BROKEN_SECONDS", 0.0)
    with apart() as (answerer, _):

        def breaks() -> None:
            assert answer._asked is not None
            made = answer._asked[1]._socket
            assert made is not None
            made.shutdown(socket.SHUT_RDWR)

        found = Heard(breaks)
        answer = answerer.answer(ENDLESS, found)
        end = found.ended
        assert str(end.error) == "The connection to the process that computes tiny-target-q8_0.gguf broke. Ask again."
        assert end.finish is FinishReason.ERROR
        assert found.text
        assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH


def test_a_process_that_dies_while_it_is_loaded_again_is_loaded_once_more_for_the_next_answer() -> None:
    with apart() as (answerer, _):
        whole, has = heard(answerer, ASKED).text, child_of(answerer)
        old = has.pid
        strike(answerer)
        until(lambda: has.pid not in (0, old))
        strike(answerer)
        until(lambda: has.outdated != "")
        found = Heard()
        answerer.answer(ASKED, found)
        until(lambda: answerer.child not in (None, has) and child_of(answerer).pid != 0)
        strike(answerer)
        assert isinstance(found.ended.error, RunnerError)
        assert heard(answerer, ASKED).text == whole


@pytest.mark.parametrize("aborts", [False, True])
def test_what_cannot_be_loaded_is_the_error_of_each_answer(tmp_path: Path, aborts: bool) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(Path(TARGET).read_bytes()[:-5000])
    if aborts:
        file = architectures.write("qwen3", tmp_path, attention__value_length=64)  # the keys have 128
    with apart(str(file)) as (answerer, news):
        for _ in range(2):
            error = heard(answerer, ASKED).ended.error
            assert isinstance(error, RunnerError if aborts else ModelFileError)
        failed = news.posts[-1]
        assert isinstance(failed, LoadFailed)
        assert str(failed.error) == str(error)


def test_it_is_closed_while_it_loads() -> None:
    with apart() as (answerer, news):
        found = Heard()
        answerer.answer(ASKED, found)
        until(lambda: answerer.child is not None and child_of(answerer).pid != 0)
        answerer.close()
        assert isinstance(found.ended.error, LocalspecError)
        assert not any(isinstance(one, LoadFailed) for one in news.posts)


def test_the_models_are_looked_at() -> None:
    with apart() as (answerer, _):
        heard(answerer, ASKED)
        found = answerer.look(100)
        assert found is not None
        assert {one["name"] for one in found.parts} >= {"context"}
        assert (found.files, found.wide, found.last_log) == ((Path(TARGET),), True, ())


@pytest.mark.parametrize("deleted", [False, True])
def test_a_deleted_chat_is_not_kept(deleted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    with apart(chat_cache_gb=1.0) as (answerer, _):
        heard(answerer, replace(LONG, chat="one"))
        if deleted:
            Session(answerer, Archive(None), Preferences()).forget("one")  # it is in the slot, not yet on disk
    assert CacheFolder().path("one").exists() is not deleted


def test_the_chat_asks_it_and_tells_other_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    parser = ArgumentParser()
    chat.add_options(parser)
    options = parser.parse_args(["--target", TARGET, "--context", "512"])
    options.command = "chat"
    answerer = chat._answerer(options, {})
    assert isinstance(answerer, ChildAnswerer)
    answerer.start(Heard())
    assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH
    assert answerer.facts is not None
    assert (answerer.facts.context, answerer.facts.draft) == (512, None)
    (told,) = running()
    assert (told.pid, told.command, told.target, told.draft, told.context) == (os.getpid(), "chat", TARGET, "", 512)
    answerer.close()
    assert running() == []
