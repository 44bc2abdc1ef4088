"""A chat knows the model that answered in it, and offers it while another one is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.archive.archive import Archive
from localspec.models.installed.installed import adopt
from localspec.models.installed.store import Store
from localspec.remote.answerer import Facts
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.composer import own_model
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def answering(facts: Facts) -> ReplayAnswerer:
    return ReplayAnswerer(Recording([Recorded.of_text("said")], {}, facts))


def begun(archive: Archive, model: str) -> None:
    """A chat in which a model has answered."""
    chat = archive.new_chat(model=model)
    asked = archive.append_user(chat.id, "Which one are you?")
    writer = archive.begin_answer(asked.id, model=model)
    writer.extend("The other one.")
    writer.finish()


@pytest.fixture
def mine(folders: Path, tiny_target: Path) -> Path:
    """An installed model, called "mine"; the path of its file."""
    shutil.copy(tiny_target, folders / "mine.gguf")
    adopt(folders / "mine.gguf", Store(), name="mine")
    return folders / "mine.gguf"


def loads(app: ChatApp) -> list[str | None]:
    """The models that the chat is asked to load from now on; none of them is."""
    asked: list[str | None] = []

    def load(target: str | None, draft: str | None = None, **settings: Any) -> bool:
        asked.append(target)
        return True

    app.chat_screen.load = load  # type: ignore[method-assign]
    return asked


def line(app: ChatApp) -> str:
    found = front(app).own_model
    return str(found.content) if found.display else ""


async def test_a_chat_offers_its_model_while_another_is_loaded(
    make_app: MakeApp, archive: Archive, mine: Path, tiny_target: Path
) -> None:
    begun(archive, "mine")
    app = make_app(answerer=answering(Facts("bundled pair", 4096, key="tiny", target=tiny_target, bundled=True)))
    async with app.run_test(size=(80, 24)) as pilot:
        loaded = loads(app)
        await until(pilot, lambda: line(app) == "/own lets mine answer, as before in this chat")
        front(app).composer.put("/own")
        await pilot.press("enter")
        await until(pilot, lambda: loaded == ["mine"])
        await pilot.click(front(app).own_model)
        await until(pilot, lambda: loaded == ["mine", "mine"])
        app.session.facts = Facts("mine", 4096, key="mine", target=mine)
        app.chat_screen.learn_anew()
        await until(pilot, lambda: line(app) == "")


async def test_who_answers_next_is_the_model_of_the_chat(
    make_app: MakeApp, archive: Archive, mine: Path, tiny_target: Path
) -> None:
    begun(archive, "mine")
    app = make_app(answerer=answering(Facts("bundled pair", 4096, key="tiny", target=tiny_target, bundled=True)))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "mine" in line(app))
        await say(pilot, "And now?")
        await until(pilot, lambda: line(app) == "")
        assert front(app).chat.model == "tiny"
        front(app).composer.put("/own")
        await pilot.press("enter")
        await until(pilot, lambda: any("The model of this chat answers" in note.message for note in app._notifications))


async def test_a_model_that_went_away_is_not_offered(folders: Path, mine: Path, tiny_target: Path) -> None:
    loaded = Facts("bundled pair", 4096, key="tiny", target=tiny_target)
    assert own_model("mine", loaded) == "mine"
    assert own_model(str(mine), loaded) == str(mine)
    assert own_model("mine", Facts("mine", 4096, key=str(mine), target=mine)) == "", "the same file by another name"
    assert own_model("mine", Facts("far", remote=True)) == ""
    assert own_model("mine", None) == ""
    assert own_model("never was", loaded) == ""
    mine.unlink()
    assert own_model("mine", loaded) == ""
    assert own_model(str(mine), loaded) == ""


async def test_a_chat_that_does_not_fit_can_go_to_its_own_model(
    make_app: MakeApp, archive: Archive, mine: Path, tiny_target: Path
) -> None:
    begun(archive, "mine")
    app = make_app(answerer=answering(Facts("small", 60, key="tiny", target=tiny_target)))
    async with app.run_test(size=(80, 24)) as pilot:
        loaded = loads(app)
        await until(pilot, lambda: "mine" in line(app))
        front(app).composer.put("many words " * 40)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        first = app.screen
        await pilot.press("end", "enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog) and app.screen is not first)
        assert loaded == ["mine"], "what is loaded here is as small, so that it is asked again"
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
