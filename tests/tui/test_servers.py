"""`/servers`: what answers on this machine is listed, and nothing goes there before the user agrees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from localspec.remote import search
from localspec.remote.asking import ServedAnswerer
from localspec.runner.answering import ChildAnswerer
from localspec.runtime.pool import Pool
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.remote.odd import Odd, serving
from tests.server.live import COPIED, COPY, running
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.endpoint import Endpoint, served

pytestmark = pytest.mark.asyncio


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A server at the one usual port."""
    with served(Endpoint()) as one:
        at(monkeypatch, int(one.url.rpartition(":")[2]))
        yield one


def at(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Only these are the usual ports, and a busy machine may take its time."""
    monkeypatch.setattr(search, "PORTS", dict.fromkeys(ports, "Somebody"))
    monkeypatch.setattr(search, "SECONDS", 5.0)


async def write(pilot: Pilot[int], text: str) -> None:
    app = pilot.app
    assert isinstance(app, ChatApp)
    front(app).composer.put(text)
    await pilot.press("enter")


def rows(app: ChatApp) -> list[list[str]]:
    """The answers of the dialog in front, each with what it says below."""
    return [str(option.prompt).split("\n") for option in app.screen.query_one(OptionList).options]


async def asked(pilot: Pilot[int]) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))


def said(app: ChatApp, text: str) -> bool:
    return any(text in note.message for note in app._notifications)


async def test_a_server_is_chosen_and_asked_only_after_a_yes(make_app: MakeApp, endpoint: Endpoint) -> None:
    endpoint.models = ["sm\x1ball", "large"]
    app = make_app("From here.")
    async with app.run_test() as pilot:
        await say(pilot, "Hi")
        await write(pilot, "/servers")
        await asked(pilot)
        assert rows(app) == [[f"{endpoint.url} · Somebody's port", "sm␛all, large"]]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog) and len(rows(app)) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.session.facts is not None and app.session.facts.name == "large")
        assert front(app).chat.model == "large"
        assert endpoint.requests == []

        await write(pilot, "And there?")
        await asked(pilot)
        await pilot.press("down", "enter")  # no
        await until(pilot, lambda: said(app, "Nothing was sent."))
        assert [message.content for message in front(app).path][2:] == ["And there?"]
        await pilot.press("ctrl+r")
        await asked(pilot)
        await pilot.press("escape")  # no
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert endpoint.requests == []

        await pilot.press("ctrl+r")
        await asked(pilot)
        await pilot.press("enter")  # yes
        await until(pilot, lambda: len(front(app).path) == 4)
        await answered(pilot)
        assert front(app).path[-1].content == "Hello there."
        await say(pilot, "Once more")  # nobody asks again
    assert [request["model"] for request in endpoint.requests] == ["large", "large"]
    assert all("Authorization" not in headers for headers in endpoint.headers)
    app.session.answerer.close()


async def test_nothing_is_looked_for_unless_asked(make_app: MakeApp, endpoint: Endpoint) -> None:
    with serving(Odd({"/v1/models": {"data": []}})) as odd, pytest.MonkeyPatch.context() as patch:
        at(patch, odd.port)
        app = make_app("Hello.")
        async with app.run_test() as pilot:
            await say(pilot, "Hi")
            assert odd.asked == []
            await write(pilot, "/servers")
            await asked(pilot)
            assert rows(app)[0][1] == "it lists no models"
            await pilot.press("enter")
            await until(pilot, lambda: said(app, "load one there first"))
            assert not isinstance(app.session.answerer, ServedAnswerer)


async def test_a_name_of_models_toml_answers_with_its_key(
    make_app: MakeApp, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path))
    text = f'[[endpoint]]\nname = "work"\nendpoint = "{endpoint.url}"\nmodel = "large"\nkey_env = "WORK_KEY"\n'
    (tmp_path / "models.toml").write_text(text, encoding="utf-8")
    app = make_app("From here.")
    async with app.run_test() as pilot:
        await say(pilot, "Hi")
        await write(pilot, "/model play")
        await until(pilot, lambda: said(app, "No model is called 'play'"))
        monkeypatch.delenv("WORK_KEY", raising=False)
        await write(pilot, "/model work")
        await until(pilot, lambda: said(app, "WORK_KEY, which is not set"))
        assert not isinstance(app.session.answerer, ServedAnswerer)
        monkeypatch.setenv("WORK_KEY", "sesame")
        await write(pilot, "/model")
        await asked(pilot)
        assert rows(app) == [["a model of this machine", ""], ["work", endpoint.url]]
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.session.facts is not None and app.session.facts.name == "large")
        assert front(app).chat.model == "work"
        await say(pilot, "And there?")  # it is the user's own entry: nothing is asked
        assert front(app).path[-1].content == "Hello there."
    assert [request["model"] for request in endpoint.requests] == ["large"]
    assert endpoint.headers[0]["Authorization"] == "Bearer sesame"
    app.session.answerer.close()


async def test_no_server_and_the_one_that_answers_already(make_app: MakeApp, endpoint: Endpoint) -> None:
    remote = ServedAnswerer(endpoint.url)
    app = make_app(answerer=remote)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await write(pilot, "/servers")
        await until(pilot, lambda: said(app, "No other server answers on this machine"))
        await say(pilot, "Hi")  # named on the command line: nobody asks
    assert len(endpoint.requests) == 1
    remote.close()


async def test_a_model_of_this_machine_takes_over_again(
    make_app: MakeApp, endpoint: Endpoint, live: ChildAnswerer
) -> None:
    app = make_app("From here.", make=lambda target, draft, settings: live)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await write(pilot, "/servers")
        await asked(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: app.session.facts is not None and app.session.facts.remote)
        app.chat_screen.load("tiny")
        await until(pilot, lambda: app.session.facts is not None and not app.session.facts.remote)
        await say(pilot, "Hi")
        assert front(app).path[-1].content
    assert endpoint.requests == []


async def test_the_real_endpoint_answers_once_agreed(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(settings={"context": 512, "exact": "strict"})
    with running(pool) as server:
        at(monkeypatch, server.port)
        app = make_app("From here.", begin={"temperature": 0.0})
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.session.facts is not None)
            await write(pilot, "/servers")
            await asked(pilot)
            assert rows(app)[0][1].startswith(server.service.pool.default)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, ChoiceDialog) and len(rows(app)) > 1)
            await pilot.press("enter")
            await until(pilot, lambda: app.session.facts is not None and app.session.facts.remote)
            await write(pilot, COPY)
            await asked(pilot)
            await pilot.press("enter")
            await until(pilot, lambda: len(front(app).path) == 2)
            await answered(pilot)
            assert front(app).path[-1].content == COPIED
        app.session.answerer.close()
    pool.close()
