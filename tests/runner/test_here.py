"""The chat's models in this process are asked as those in another: by a server on a thread, of which nothing stays."""

from __future__ import annotations

import sys
import threading
from argparse import ArgumentParser
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from localspec.cli.commands import chat
from localspec.engine.slot import FinishReason
from localspec.errors import Cancelled, LocalspecError, ModelFileError
from localspec.llama.exact.choice import Progress
from localspec.remote.answerer import LoadFailed, Loading, ModelReady
from localspec.runner.answering import ChildAnswerer
from localspec.runtime.engine import Engine
from localspec.server.own import serve
from localspec.server.own.serve import Here
from tests.runner.conftest import PATIENCE, threads, until
from tests.runner.test_answering import ASKED, DRAFT, ENDLESS, TARGET, Heard, heard, host

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="what is left is looked for in /proc"),
    pytest.mark.usefixtures("nothing_is_left_at_all"),
]


def load(progress: Progress, **settings: Any) -> Engine:
    return Engine.load(TARGET, DRAFT, progress=progress, **settings)


@pytest.mark.parametrize("files", [True, False])
def test_it_answers_with_and_without_socket_files(files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_SOCKET_FILES", files)
    there = Here(partial(load, drafter="draft", max_draft_tokens=4))  # whether it pays or not, which time decides
    with host(lambda: there) as (answerer, news):
        found = heard(answerer, replace(ASKED, drafter=None))
        assert found.ended.finish is FinishReason.LENGTH
        assert len(found.tokens) == found.ended.stats.generated == ASKED.max_tokens
        assert b"".join(answerer.piece(token) for token in found.tokens).decode() == found.text
        assert any(origin.drafter == "draft" for origin in found.told["origins"])
        assert [type(news.posts[index]) for index in (0, -1)] == [Loading, ModelReady]
        assert answerer.facts is not None
        assert (answerer.facts.target, answerer.facts.draft) == (Path(TARGET), Path(DRAFT).stem)
        look = answerer.look(100)
        assert look is not None
        assert {one["name"] for one in look.parts} >= {"context"}
        assert there.engine is not None
        assert "draft" in there.engine.drafters
        with there.use() as use:
            assert (use.at is not None) == files
            transport = None if use.at is None else httpx.HTTPTransport(uds=str(use.at))
            with httpx.Client(transport=transport, base_url=use.url) as stranger:
                assert stranger.get("/localspec/doctor?context=1").status_code == 404
    with pytest.raises(LocalspecError, match="is closed"), there.use():
        pass


def test_an_answer_ends_when_it_is_closed() -> None:
    begun = threading.Event()
    with host(partial(Here, load)) as (answerer, _):
        found = Heard(begun.set)
        answerer.answer(ENDLESS, found)
        assert begun.wait(PATIENCE)
    assert found.ended.finish in (FinishReason.CANCELLED, FinishReason.ERROR)
    assert found.ended.stats.generated > 0


def test_an_engine_of_somebody_else_stays_open() -> None:
    with load(lambda what, share: None) as engine:
        for _ in range(2):
            begun = threading.Event()
            with host(partial(Here, lambda progress: engine, closes=False)) as (answerer, _):
                assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH
                found = Heard(begun.set)
                answerer.answer(ENDLESS, found)
                assert begun.wait(PATIENCE)
            assert found.ended.finish is FinishReason.CANCELLED
            assert found.ended.stats.generated == len(found.tokens) > 0
            assert not engine.outdated


@pytest.mark.parametrize("reports", [True, False])
def test_it_is_closed_while_it_loads(reports: bool) -> None:
    loads, closed = threading.Event(), threading.Event()
    engines = []

    def slow(progress: Progress) -> Engine:
        engines.append(load(progress))
        loads.set()
        assert closed.wait(PATIENCE)
        if reports:
            with engines[0]:
                progress("measuring", 0.5)
        return engines[0]

    with host(partial(Here, slow)) as (answerer, news):
        found = Heard()
        answerer.answer(ASKED, found)
        assert loads.wait(PATIENCE)
        assert answerer.count(ASKED) is None
        assert not answerer.forget_chat("one")
        assert answerer.look(100) is None
        answerer.close()
        closed.set()
        assert isinstance(found.ended.error, Cancelled)
        assert not any(isinstance(one, LoadFailed | ModelReady) for one in news.posts)
    with pytest.raises(LocalspecError, match="closed"):
        engines[0].forget()


@pytest.mark.parametrize("error", [ModelFileError("It is broken."), ValueError("an unforeseen one")], ids=str)
def test_what_cannot_be_loaded_is_the_error_of_each_answer(error: Exception) -> None:
    def fails(progress: Progress) -> Engine:
        raise error

    with host(partial(Here, fails)) as (answerer, news):
        for _ in range(2):
            failure = heard(answerer, ASKED).ended.error
            assert failure is not None
            assert str(error) in failure.message
            assert isinstance(failure, type(error) if isinstance(error, LocalspecError) else LocalspecError)
        assert [type(one) for one in news.posts] == [LoadFailed]


def test_a_host_that_tells_nothing_of_its_models_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "facts_of", lambda engine: None)
    with host(partial(Here, load)) as (answerer, news):
        error = heard(answerer, ASKED).ended.error
        assert error is not None
        assert "could not be loaded" in error.message
        assert isinstance(news.posts[-1], LoadFailed)


def test_an_answer_that_cannot_be_posted_ends() -> None:
    def fails() -> None:
        raise ValueError("no room")

    with host(partial(Here, load)) as (answerer, _):
        error = heard(answerer, ENDLESS, fails).ended.error
        assert error is not None
        assert "ValueError('no room')" in error.message


def test_an_engine_that_is_of_no_use_any_more_is_loaded_again() -> None:
    engines = list[Engine]()

    def again(progress: Progress) -> Engine:
        engines.append(load(progress))
        return engines[-1]

    with host(partial(Here, again)) as (answerer, _):
        whole = heard(answerer, ASKED).text
        engines[0].outdated = "A GPU is gone."
        assert heard(answerer, ASKED).text == whole
        assert len(engines) == 2


def test_the_chat_asks_it_where_the_models_are_in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    parser = ArgumentParser()
    chat.add_options(parser)
    options = parser.parse_args(["--no-process", "--target", TARGET, "--context", "512", "--no-tune"])
    options.command = "chat"
    answerer, before = chat._answerer(options, {}), threads()
    assert isinstance(answerer, ChildAnswerer)
    answerer.start(Heard())
    try:
        assert heard(answerer, ASKED).ended.finish is FinishReason.LENGTH
        assert isinstance(answerer.child, Here)
        assert answerer.facts is not None
        assert (answerer.facts.context, answerer.facts.draft) == (512, None)
    finally:
        answerer.close()
        until(lambda: threads() <= before)
