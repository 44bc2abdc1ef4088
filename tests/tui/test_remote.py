"""The same chat on an OpenAI-style endpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from textual.widgets import OptionList, Static

from localspec.errors import UsageError
from localspec.remote.asking import ServedAnswerer
from localspec.tui.screens.models import ModelsScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.endpoint import Endpoint, served


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with served(Endpoint()) as running:
        yield running


@pytest.fixture
def answerer(endpoint: Endpoint) -> Iterator[ServedAnswerer]:
    remote = ServedAnswerer(endpoint.url, key="secret")
    yield remote
    remote.close()


@pytest.mark.asyncio
async def test_an_endpoint_answers(make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer) -> None:
    endpoint.deltas = [{"role": "assistant"}, {"reasoning_content": "hm"}, {"content": "Hel"}, {"content": "lo."}]
    app = make_app(answerer=answerer, begin={"temperature": 0.1, "max_tokens": 20, "stop": ["x"]})
    async with app.run_test() as pilot:
        await say(pilot, "Hi")
        stored = front(app).path[1]
        assert (stored.content, stored.reasoning, stored.state, stored.model) == (
            "Hello.",
            "hm",
            "done",
            "served-model",
        )
        assert stored.stats["generated_tokens"] == 5
    (request,) = endpoint.requests
    assert request["messages"] == [{"role": "user", "content": "Hi"}]
    assert (request["model"], request["stream"], request["max_tokens"]) == ("served-model", True, 20)
    assert (request["temperature"], request["stop"]) == (0.1, ["x"])
    assert "seed" not in request
    assert "top_k" not in request
    assert endpoint.headers[0]["Authorization"] == "Bearer secret"


@pytest.mark.asyncio
async def test_stopping_closes_the_connection(make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer) -> None:
    endpoint.deltas, endpoint.pause = [{"content": "word "}] * 2000, 0.01
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path and len(front(app).transcript.bubbles) == 2)
        await pilot.pause(0.3)
        await pilot.press("escape")
        await answered(pilot)
        assert front(app).path[1].state == "stopped"
        assert front(app).path[1].content.startswith("word word")
        await until(pilot, endpoint.broken.is_set)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (404, '{"error": {"message": "no such model"}}', "answers 404: no such model"),
        (401, '{"error": {"message": "bad key"}}', "OPENAI_API_KEY"),
        (500, "oops", "answers 500: oops"),
        (200, "data: {not json\n\n", "not OpenAI's format"),
        (200, 'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (200, 'data: {"choices": [3]}\n\n', "not OpenAI's format"),
    ],
)
async def test_what_is_wrong_is_one_sentence(
    make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer, status: int, body: str, wanted: str
) -> None:
    endpoint.status, endpoint.body = status, body
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await answered(pilot)
        assert front(app).path[1].state == "error"
        assert any(wanted in note.message for note in app._notifications), [n.message for n in app._notifications]


@pytest.mark.asyncio
async def test_nobody_there(make_app: MakeApp) -> None:
    answerer = ServedAnswerer("http://127.0.0.1:9")
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await until(pilot, lambda: any("cannot be reached" in note.message for note in app._notifications))
    answerer.close()


@pytest.mark.asyncio
async def test_an_answer_is_continued_with_what_it_says(
    make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer
) -> None:
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await say(pilot, "Hi")
        endpoint.deltas = [{"content": " Again."}]
        front(app).transcript.bubbles[1].focus()
        await pilot.press("o")
        await until(pilot, lambda: front(app).path[-1].content == "Hello there. Again.")
    assert endpoint.requests[1]["messages"][-1] == {"role": "assistant", "content": "Hello there."}
    assert endpoint.requests[1]["continue_final_message"] is True


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError, match="http://"):
        ServedAnswerer("localhost:8000")


def status(app: ChatApp) -> str:
    """The line at the bottom."""
    return str(app.query_one("#status", Static).content)


@pytest.mark.asyncio
async def test_a_model_is_chosen_from_the_list_and_kept(
    make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer
) -> None:
    endpoint.models = ["small", "la\x1b[31mrge\n", "small"]
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await say(pilot, "Hi")
        front(app).composer.put("/model")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        listed = app.screen.query_one(OptionList)
        assert listed.option_count == 2
        assert [str(option.prompt).split("\n") for option in listed.options] == [
            ["small", "answers now"],
            ["la␛[31mrge↵", ""],
        ]
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.session.facts is not None and app.session.facts.name == "la\x1b[31mrge\n")
        await say(pilot, "And now?")
        assert [message.model for message in front(app).path if message.role == "assistant"] == [
            "small",
            "la\x1b[31mrge\n",
        ]
        assert front(app).chat.model == "la\x1b[31mrge\n"
    assert [request["model"] for request in endpoint.requests] == ["small", "la\x1b[31mrge\n"]


@pytest.mark.asyncio
async def test_a_model_is_chosen_by_name(make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer) -> None:
    endpoint.models = ["small", "large"]
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        front(app).composer.put("/model huge")
        await pilot.press("enter")
        await until(pilot, lambda: any("has no model 'huge'" in note.message for note in app._notifications))
        assert any("It has: small, large." in note.message for note in app._notifications)
        front(app).composer.put("/model large")
        await pilot.press("enter")
        await until(pilot, lambda: app.session.facts is not None and app.session.facts.name == "large")
        endpoint.models = []
        front(app).composer.put("/model small")
        await pilot.press("enter")
        await until(pilot, lambda: any("lists no models" in note.message for note in app._notifications))
        assert answerer.model == "large"


@pytest.mark.asyncio
async def test_a_model_of_this_machine_is_changed_on_its_own_screen(make_app: MakeApp) -> None:
    app = make_app("Hello.")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        front(app).composer.put("/model large")
        await pilot.press("enter")
        await until(pilot, lambda: any("F5 lists the models" in note.message for note in app._notifications))
        front(app).composer.put("/model")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))


@pytest.mark.asyncio
@pytest.mark.parametrize("stopped", [False, True])
async def test_the_first_token_is_waited_for_in_sight(
    make_app: MakeApp, endpoint: Endpoint, answerer: ServedAnswerer, stopped: bool
) -> None:
    endpoint.hold.clear()
    app = make_app(answerer=answerer)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        front(app).composer.put("Hi")
        await pilot.press("enter")
        await until(pilot, lambda: "waiting for the first token: 0 s" in status(app))
        await until(pilot, lambda: "waiting for the first token: 1 s" in status(app))
        if stopped:
            await pilot.press("escape")
        else:
            endpoint.hold.set()
        await answered(pilot)
        await until(pilot, lambda: "waiting" not in status(app))
        assert front(app).path[1].state == ("stopped" if stopped else "done")
        assert "served-model" in status(app)
    endpoint.hold.set()
