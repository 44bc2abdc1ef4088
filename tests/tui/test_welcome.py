"""An empty chat says who answers, where better models are, and the first keys; and how the app looks without colour."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.style import Style

from localspec.errors import ModelError
from localspec.llama.exact.wide import Limits
from localspec.models.installed.store import Entry, Store, StoredFile
from localspec.remote.answerer import Facts, LoadFailed
from localspec.runtime.offered import HEADING
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Posted
from localspec.tui.widgets.meter import Meter
from localspec.tui.widgets.transcript import Welcome
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def said(app: ChatApp) -> str:
    """What the empty chat in front says; "" = nothing."""
    hint = front(app).query_one(Welcome)
    return str(hint.content) if hint.display else ""


async def test_the_chat_says_that_the_chosen_model_cannot_answer_until_another_is_chosen(make_app: MakeApp) -> None:
    fault = "The model you chose cannot answer: /home/me/smol.gguf is gone. tiny answers."
    app = make_app("a", fault=fault)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: fault in said(app))
        assert [note.message for note in app._notifications] == [fault]
        app.chat_screen.use(ReplayAnswerer(Recording.load("pair")))
        await until(pilot, lambda: "answers" in said(app) and fault not in said(app))


async def test_another_model_is_said_and_the_figures_of_the_old_one_go(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 24)) as pilot:
        await say(pilot, "Hello")
        await until(pilot, lambda: "tok/s" in str(app.query_one(Meter).content))
        other = Recording([Recorded.of_text("a")], {}, Facts("other", context=600))
        app.chat_screen.use(ReplayAnswerer(other))
        await until(pilot, lambda: [note.message for note in app._notifications] == ["other answers from now on."])
        meter = str(app.query_one(Meter).content)
        assert "other" in meter
        assert "tok/s" not in meter


async def test_an_empty_chat_says_who_answers_and_the_first_keys(make_app: MakeApp, folders: Path) -> None:
    (folders / "config").mkdir()
    (folders / "config" / "keys.toml").write_text('[keys]\n"open.models" = "f12"\n')
    load = threading.Event()
    app = make_app(answerer=ReplayAnswerer(Recording.load("pair"), load=load))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "bundled pair is being loaded; you can write meanwhile" in said(app))
        load.set()
        await until(pilot, lambda: "bundled pair answers, and tiny-draft-q8_0 drafts for it." in said(app))
        assert "4,096 tokens" in said(app)
        assert "It is the tiny pair that comes with localspec" in said(app)
        assert "a demonstration" in said(app)
        assert "take a larger model" in said(app)
        lines = said(app).splitlines()
        assert any(line.startswith("f12") and "better ones" in line for line in lines), "as remapped"
        assert any(line.startswith("f1 ") and "help" in line for line in lines)
        await say(pilot, "Hello")
        assert said(app) == ""
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [])
        await until(pilot, lambda: "bundled pair answers" in said(app))


async def test_models_that_fit_are_offered_until_one_is_installed(make_app: MakeApp, tiny_target: Path) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: HEADING in said(app))
        offered = [line.split("  ") for line in said(app).splitlines() if "  about " in line]
        assert [line[0] for line in offered] == ["lfm2.5-8b-a1b-dspark", "qwen3.5-4b-dflash", "lfm2.5-2.6b-dspark"]
        assert "about 5.2 GB, drafter: dspark, perhaps 29 tok/s" in said(app)
        assert "localspec pull NAME" in said(app)
        assert app.session.facts is not None
        Store().add(Entry("mine", (StoredFile.of(tiny_target, "0" * 64, "foreign"),)))
        app.chat_screen.learn_anew()
        await until(pilot, lambda: "localspec pull" not in said(app))
        assert "bundled pair answers" in said(app)


async def test_the_speed_that_another_screen_says_holds_in_the_welcome_too(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "perhaps 29 tok/s" in said(app))
        found = Limits(memory_rate=40e9, int8_rate=1e12)
        monkeypatch.setattr("localspec.runtime.offered.wide", SimpleNamespace(read_limits=lambda threads: found))
        await pilot.press("f1", "escape")
        await until(pilot, lambda: ", some " in said(app) and "perhaps" not in said(app))


async def test_only_the_bundled_pair_is_called_tiny(make_app: MakeApp) -> None:
    recording = Recording([Recorded.of_text("x")], {}, Facts("[b]large[/b]", context=8192))
    app = make_app(answerer=ReplayAnswerer(recording))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "[b]large[/b] answers." in said(app))
        assert "tiny" not in said(app)
        app.session.facts = None
        app.post_message(Posted(LoadFailed(ModelError("other.gguf is no GGUF file."))))
        await until(pilot, lambda: "No model answers: other.gguf is no GGUF file." in said(app))
        await until(pilot, lambda: "no model: other.gguf" in str(app.query_one("#status").content))  # type: ignore[attr-defined]
        app.chat_screen.show_status()  # as every second
        assert "no model: other.gguf" in str(app.query_one("#status").content)  # type: ignore[attr-defined]


async def test_an_endpoint_is_called_one(make_app: MakeApp) -> None:
    recording = Recording([Recorded.of_text("x")], {}, Facts("far", remote=True))
    app = make_app(answerer=ReplayAnswerer(recording))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "far answers, at an endpoint." in said(app))


def drawn(app: ChatApp) -> list[Style]:
    """The styles of all that is on the screen."""
    strips = app.screen._compositor.render_strips()
    return [style for strip in strips for _, style, _ in strip if style is not None]


async def test_no_color_leaves_no_colour(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Repeat")
        await pilot.press("f6")
        await until(pilot, lambda: any(style.underline for style in drawn(app)))  # origins are lines under the text
        colours = {colour for style in drawn(app) for colour in (style.color, style.bgcolor) if colour is not None}
        triplets = [colour.triplet for colour in colours if colour.triplet is not None]
        assert triplets
        assert all(red == green == blue for red, green, blue in triplets)
