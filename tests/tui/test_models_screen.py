"""The models screen: list, fit and speed; pull over real HTTP from a hub of this machine; import; remove; switch."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import DataTable, Footer, Input, OptionList, Static

from localspec.chat.archive.archive import Archive
from localspec.methods import HEADS
from localspec.models.hub.hub import Hub
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import find_kept
from localspec.models.installed.store import Entry, Store, StoredFile
from localspec.runtime.offered import offered
from localspec.tui.screens.models import ModelItem, ModelsScreen, cells, detail, judged, shelf, speeds_of, timed
from localspec.tui.screens.pull import FindModelScreen, ImportScreen, PathInput, PullScreen, dropped
from localspec.tui.screens.settings import Tick
from localspec.tui.screens.stats import AnswerFigures
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import ChoiceDialog
from tests.fake_gpus import CARD, SLOW, list_gpus
from tests.hub import published
from tests.hub.conftest import PAIR, _server, client, draft_bytes, local_hub, quick, store, target_bytes
from tests.hub.server import LocalHub
from tests.tui.conftest import MakeApp, until

__all__ = ["_server", "client", "draft_bytes", "local_hub", "quick", "store", "target_bytes"]

pytestmark = pytest.mark.asyncio


class Loads:
    """What the app was asked to load."""

    def __init__(self, app: ChatApp) -> None:
        self.asked: list[tuple[str | None, str | None]] = []
        app.chat_screen.load = self._load  # type: ignore[method-assign]

    def _load(self, target: str | None, draft: str | None = None, **settings: Any) -> bool:
        self.asked.append((target, draft))
        return True


async def opened(app: ChatApp, pilot: Any, client: Hub, store: Store) -> ModelsScreen:
    screen = ModelsScreen(app.chat_screen, lambda: client, store)
    app.push_screen(screen)
    await until(pilot, lambda: screen.items and screen.items[0].fit)
    return screen


def text(screen: Any, query: str) -> str:
    """What a Static shows; "" while it is not there yet."""
    return "".join(str(found.content) for found in screen.query(query).results(Static))


def row_of(screen: ModelsScreen, name: str) -> int:
    return next(index for index, item in enumerate(screen.items) if item.name == name)


async def test_the_bundled_pair_is_here_and_fits(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        loads = Loads(app)
        screen = await opened(app, pilot, client, store)
        first = screen.items[0]
        assert (first.name, first.state, first.draft, first.fits) == ("tiny", "here", "tiny-draft", True)
        assert "fits" in text(screen, "#detail")
        assert any(item.state == "hub" for item in screen.items)
        alone = next(item for item in screen.items if item.name == "gpt-oss-20b")
        assert (alone.state, alone.draft) == ("hub", "")
        assert alone.why.startswith("ggml-org/gpt-oss-20b-GGUF; pulling it looks for the drafter")
        assert screen.query_one(DataTable).row_count == len(screen.items)
        await pilot.press("enter")
        assert loads.asked == [("tiny", None)]
        assert app.screen is app.chat_screen


async def test_what_runs_where_and_why_is_said(
    make_app: MakeApp, client: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 30)) as pilot:
        screen = await opened(app, pilot, client, store)
        assert "GPU" not in text(screen, "#detail")
        list_gpus(monkeypatch, SLOW, CARD)
        screen.action_again()
        await until(pilot, lambda: screen.items[0].layers)
        assert screen.item is not None
        assert screen.item.name == "tiny"
        lines = text(screen, "#detail").splitlines()
        assert "CUDA0 (NVIDIA GeForce RTX 4090): 7 layers of the target, 3 layers of the draft" in lines
        assert "Vulkan0 (Intel(R) UHD Graphics 770): not used, there is a GPU with memory of its own" in lines
        found = detail(screen.item, ["target: all layers on CUDA0"]).plain.splitlines()
        assert "Loaded: target: all layers on CUDA0." in found, "of the model that answers, what is"
        assert not [line for line in found if "layers of the target" in line]


async def test_a_pull_is_planned_loaded_and_used(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        loads = Loads(app)
        screen = await opened(app, pilot, client, store)
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, PullScreen))
        pull: Any = app.screen
        pull.query_one("#name", Input).value = PAIR[0]
        pull.query_one("#draft", Input).value = PAIR[1]
        await pilot.press("enter")
        await until(pilot, lambda: "y loads it" in text(pull, "#note"))
        plan = text(pull, "#plan")
        assert PAIR[0] in plan
        assert "fit" in plan
        assert not store.entries()
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        assert {entry.name for entry in store.entries()} == {f"{PAIR[0]}:Q8_0", f"{PAIR[1]}:Q8_0"}
        drafts = [f"{PAIR[1]}:Q8_0"]  # read while it is asked: the answer closes the list
        await until(pilot, lambda: [one.draft for one in screen.items if one.name == f"{PAIR[0]}:Q8_0"] == drafts)
        await pilot.press("enter")
        await until(pilot, lambda: bool(loads.asked))
        assert loads.asked == [(PAIR[0], None)]


async def test_a_pull_can_be_stopped_and_gone_on_with(
    make_app: MakeApp, client: Hub, store: Store, local_hub: LocalHub
) -> None:
    local_hub.faults.seconds_per_block, local_hub.faults.block = 0.05, 64 << 10
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        await opened(app, pilot, client, store)
        app.push_screen(PullScreen(lambda: client, store, PAIR[0]))
        await until(pilot, lambda: isinstance(app.screen, PullScreen) and "y loads it" in text(app.screen, "#note"))
        await pilot.press("y")
        await until(
            pilot, lambda: "in all" in text(app.screen, "#plan") and " 0 bytes of" not in text(app.screen, "#plan")
        )
        await pilot.press("escape")
        await until(pilot, lambda: "Stopped." in text(app.screen, "#note"))
        assert not store.entries()
        before = sum(local_hub.sent.values())
        assert before > 0
        local_hub.faults.seconds_per_block = 0.0
        await pilot.press("y")
        await until(pilot, lambda: store.entries())
        size = len(local_hub.repositories[PAIR[0]].files["tiny-target-Q8_0.gguf"])
        assert sum(local_hub.sent.values()) < size + before


async def test_a_pull_finds_the_models_drafter(
    make_app: MakeApp, client: Hub, store: Store, local_hub: LocalHub
) -> None:
    files = {"m-Q8_0.gguf": published.model(), "eagle3-m-Q8_0.gguf": published.eagle3()}
    local_hub.add("us/headed-GGUF", files)
    app = make_app()
    async with app.run_test(size=(160, 40)) as pilot:
        await opened(app, pilot, client, store)
        for draft, words in (
            ("", "eagle3-m-Q8_0.gguf (60.7 kB) taken: an EAGLE-3 head"),
            ("-", "no draft model comes with it"),
        ):
            app.push_screen(PullScreen(lambda: client, store, "us/headed-GGUF", draft))
            await until(pilot, lambda: isinstance(app.screen, PullScreen) and "y loads it" in text(app.screen, "#note"))
            assert words in text(app.screen, "#plan")
            assert ("drafter" in text(app.screen, "#plan")) == (draft == "")
            await pilot.press("escape")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody/nothing-GGUF", "nobody/nothing-GGUF"),
        ("no such name", "is no model or pair"),
        ("tiny", "shipped with localspec"),
    ],
)
async def test_what_cannot_be_pulled_is_a_sentence(
    make_app: MakeApp, client: Hub, store: Store, name: str, words: str
) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        app.push_screen(PullScreen(lambda: client, store, name))
        await until(pilot, lambda: isinstance(app.screen, PullScreen) and words in text(app.screen, "#note"))
        assert app.screen.query_one("#note").has_class("bad")
        await pilot.press("y")  # nothing to load
        await pilot.press("n")
        assert isinstance(app.focused, Input)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat_screen)


async def test_wrong_bytes_are_not_installed(make_app: MakeApp, client: Hub, store: Store, local_hub: LocalHub) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        app.push_screen(PullScreen(lambda: client, store, PAIR[0]))
        await until(pilot, lambda: isinstance(app.screen, PullScreen) and "y loads it" in text(app.screen, "#note"))
        local_hub.faults.wrong_byte = 3_000_000
        await pilot.press("y")
        await until(pilot, lambda: app.screen.query_one("#note").has_class("bad"))
        assert not store.entries()


async def test_an_empty_name_is_asked_for(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        app.push_screen(PullScreen(lambda: client, store))
        await until(pilot, lambda: isinstance(app.screen, PullScreen) and isinstance(app.focused, Input))
        await pilot.press("enter")
        await pilot.pause()
        assert "Give a name first" in text(app.screen, "#note")


async def test_a_model_of_another_program_is_chosen_from_a_list(
    make_app: MakeApp, client: Hub, store: Store, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.tui.screens.pull.find_kept", find_kept)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "kept"))
    (tmp_path / "kept").mkdir()
    shutil.copy(tiny_target, tmp_path / "kept" / "theirs.gguf")
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await opened(app, pilot, client, store)
        await pilot.press("i")
        await until(
            pilot, lambda: isinstance(app.screen, ImportScreen) and app.screen.query_one(OptionList).option_count
        )
        await pilot.press("tab", "enter")
        await until(pilot, lambda: app.screen.query_one("#name", Input).value == "theirs")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen and any(item.name == "theirs" for item in screen.items))


async def test_a_file_is_imported_used_and_removed(
    make_app: MakeApp, client: Hub, store: Store, tiny_target: Path, tmp_path: Path
) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        loads = Loads(app)
        screen = await opened(app, pilot, client, store)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, ImportScreen))
        app.screen.query_one("#file", Input).value = str(tmp_path / "nothing.gguf")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen.query_one("#note").has_class("bad"))
        app.screen.query_one("#file", Input).value = str(tiny_target)
        app.screen.query_one("#name", Input).value = "mine"
        app.screen.query_one("#copy", Tick).value = True
        await pilot.press("ctrl+s")
        await until(pilot, lambda: app.screen is screen and any(item.name == "mine" for item in screen.items))
        screen.query_one(DataTable).move_cursor(row=row_of(screen, "mine"))
        await pilot.pause()
        assert "mine" in text(screen, "#detail")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("down", "enter")
        await until(pilot, lambda: not any(item.name == "mine" for item in screen.items))
        assert not store.entries()
        assert tiny_target.exists()
        assert not loads.asked


async def test_another_draft_model_can_be_chosen(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        loads = Loads(app)
        await opened(app, pilot, client, store)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: bool(loads.asked))
        assert loads.asked == [("tiny", "tiny-draft")]
        await opened(app, pilot, client, store)
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("end", "enter")
        await until(pilot, lambda: len(loads.asked) == 2)
        target, draft = loads.asked[1]
        assert str(target).endswith("tiny-target-q8_0.gguf")
        assert draft is None


async def test_keys_that_do_not_fit_the_row_say_why(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await opened(app, pilot, client, store)
        await pilot.press("x")
        assert "nothing of it on this disk" in text(screen, "#detail")
        hub = next(index for index, item in enumerate(screen.items) if item.state == "hub")
        screen.query_one(DataTable).move_cursor(row=hub)
        await pilot.press("d")
        assert "Only a model that is here" in text(screen, "#detail")
        await pilot.press("r")
        await until(pilot, lambda: screen.items)


@pytest.mark.parametrize("gone", ["#detail", "DataTable"])
async def test_a_list_that_comes_while_the_screen_closes_is_left(
    gone: str, make_app: MakeApp, client: Hub, store: Store
) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await opened(app, pilot, client, store)
        await screen.query_one(gone).remove()
        screen._show(screen.items)


async def test_pairs_with_heads_are_listed(store: Store) -> None:
    catalog = Catalog.load()
    found = {pair.name for pair in catalog.pairs.values() if pair.method in HEADS}
    assert found
    assert found <= {item.name for item in shelf(catalog, store)}


async def test_a_broken_file_is_said(tmp_path: Path, store: Store, tiny_target: Path) -> None:
    copy = tmp_path / "own.gguf"
    copy.write_bytes(tiny_target.read_bytes())
    store.add(Entry("own", (StoredFile.of(copy, "0" * 64, "foreign"),), origin="here", quant="Q8_0"))
    copy.unlink()
    (item,) = (item for item in shelf(Catalog.load(), store) if item.name == "own")
    assert item.state == "broken"
    assert "gone" in item.why
    assert judged(item, []).fits is None


async def test_speed_is_that_of_the_last_answers(archive: Archive, store: Store) -> None:
    chat = archive.new_chat(model="tiny")
    user = archive.append_user(chat.id, "hi")
    stats = {"generated_tokens": 100, "draft_seconds": 0.1, "verify_seconds": 0.4, "plain_seconds": 1.0}
    writer = archive.begin_answer(user.id, model="tiny")
    writer.extend("x")
    writer.finish("done", stats=stats)
    item = timed(shelf(Catalog.load(), store)[0], speeds_of(archive))
    assert (item.rate, item.speedup) == (200.0, 2.0)
    assert timed(item, {}).rate == 0.0


async def test_answers_without_drafts_are_plain_whatever_was_estimated() -> None:
    speeds = defaultdict[str, AnswerFigures](AnswerFigures)
    kept = {"generated_tokens": 100, "drafted": 0, "verify_seconds": 2.0, "plain_seconds": 1.0, "compared_seconds": 2.0}
    speeds["own"].add(kept)
    item = timed(ModelItem("own", "", "here", 1), speeds)
    assert cells(item, False)[-1].plain == "50 tok/s plain"
    assert "50.0 tok/s, plain decoding." in detail(item).plain
    speeds["own"].add(kept | {"drafted": 5, "plain_seconds": 4.0})
    assert cells(timed(ModelItem("own", "", "here", 1), speeds), False)[-1].plain == "50 tok/s 1.5x"


async def test_speed_is_found_under_every_name_answers_are_signed_with() -> None:
    speeds = defaultdict[str, AnswerFigures](AnswerFigures)
    speeds["tiny-GGUF"].add({"generated_tokens": 50, "verify_seconds": 0.5})
    speeds["bundled pair"].add({"generated_tokens": 30, "verify_seconds": 0.1})
    speeds["nothing"].add({"generated_tokens": 0})
    pulled = ModelItem("us/tiny-GGUF:Q8_0", "", "here", 1)
    assert timed(pulled, speeds).rate == 100.0
    assert timed(ModelItem("tiny", "tiny-draft", "here", 1), speeds).rate == 300.0
    assert timed(ModelItem("other", "", "hub", 1), speeds).rate == 0.0


async def test_a_model_is_searched_on_the_hub_and_planned(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await opened(app, pilot, client, store)
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, FindModelScreen) and isinstance(app.focused, Input))
        find: Any = app.screen
        await pilot.press("enter")
        await until(pilot, lambda: "Give a word first" in text(find, "#note"))
        find.query_one("#words", Input).value = "no such words"
        await pilot.press("enter")
        await until(pilot, lambda: "Nothing was found" in text(find, "#note"))
        find.query_one("#words", Input).value = "gpt-oss 120b"
        await pilot.press("enter")
        await until(pilot, lambda: [one.name for one in find._found.items] == ["gpt-oss-120b"])
        assert "of the list: ggml-org" in str(find.query_one("#found").get_option_at_index(0).prompt)
        find.query_one("#words", Input).value = "US/tiny gguf"
        await pilot.press("enter")
        await until(pilot, lambda: find.query_one("#found").option_count == 2 and isinstance(app.focused, OptionList))
        rows = [str(find.query_one("#found").get_option_at_index(row).prompt) for row in range(2)]
        assert rows[0].startswith(PAIR[0])
        assert "7 downloads" in rows[0]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PullScreen) and "y loads it" in text(app.screen, "#note"))
        assert app.screen.query_one("#name", Input).value == PAIR[0]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)


async def test_the_catalogue_is_searched_without_a_hub_and_its_silence_is_said(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        taken = list[str | None]()
        app.push_screen(FindModelScreen(lambda: Hub(cache=tmp_path, offline=True)), taken.append)
        await until(pilot, lambda: isinstance(app.screen, FindModelScreen))
        find: Any = app.screen
        find.query_one("#words", Input).value = "tiny"
        await pilot.press("enter")
        await until(pilot, lambda: find.query_one("#note").has_class("bad"))
        assert "no search offline" in text(find, "#note")
        assert [one.name for one in find._found.items] == ["tiny"]
        assert isinstance(app.focused, Input)
        await pilot.press("down")
        assert isinstance(app.focused, OptionList)
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.chat_screen)
        assert taken == ["tiny"]


async def test_what_is_recommended_is_the_first_of_the_hub_with_size_fit_and_expected_speed(
    make_app: MakeApp, client: Hub, store: Store
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot, client, store)
        hub = [item for item in screen.items if item.state == "hub"]
        assert [item.name for item in hub[:3]] == [name for name, _ in offered()]
        assert all(item.bytes and item.fits and item.recommended for item in hub[:3])
        for item, (_, words) in zip(hub, offered(), strict=False):
            assert words.endswith(f", {item.expected}"), "as the welcome says it"
        screen.query_one(DataTable).move_cursor(row=row_of(screen, hub[0].name))
        await until(pilot, lambda: "Recommended for this machine." in text(screen, "#detail"))
        assert "this machine should reach perhaps 29 tok/s" in text(screen, "#detail")
        assert str(cells(hub[0], False)[-1]) == "~29 tok/s"


async def test_a_path_is_completed_or_dropped_and_the_cursor_stands_on_the_new_model(
    make_app: MakeApp, client: Hub, store: Store, tiny_target: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "notes.txt").write_text("no model")
    (folder / "own.gguf").write_bytes(tiny_target.read_bytes())
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await opened(app, pilot, client, store)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, ImportScreen))
        line = app.screen.query_one("#file", PathInput)
        line.value = f"{tmp_path}/my"
        line.cursor_position = len(line.value)
        await until(pilot, lambda: line._suggestion == f"{folder}/")
        await pilot.press("tab")
        await until(pilot, lambda: line.value == f"{folder}/" and line._suggestion == f"{folder}/own.gguf")
        await pilot.press("tab")
        assert line.value == f"{folder}/own.gguf"
        await until(pilot, lambda: not line._suggestion)
        line.post_message(events.Paste(f"'{folder}/own.gguf' "))
        await until(pilot, lambda: line.value == f"{folder}/own.gguf")
        app.screen.query_one("#name", Input).value = "zz-own"
        line.focus()
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)
        await until(pilot, lambda: screen.item is not None and screen.item.name == "zz-own")


@pytest.mark.parametrize(
    ("pasted", "path"),
    [
        ("/a/b.gguf", "/a/b.gguf"),
        ("'/a/my b.gguf' ", "/a/my b.gguf"),
        ("/a/my\\ b.gguf", "/a/my b.gguf"),
        ("file:///a/my%20b.gguf\n", "/a/my b.gguf"),
        ("/a/it's.gguf", "/a/it's.gguf"),
    ],
)
async def test_what_a_terminal_pastes_for_a_dropped_file_is_its_path(pasted: str, path: str) -> None:
    assert dropped(pasted) == path


async def test_models_are_seen_in_40_columns_and_12_lines(make_app: MakeApp, client: Hub, store: Store) -> None:
    app = make_app()
    async with app.run_test(size=(40, 12)) as pilot:
        screen = await opened(app, pilot, client, store)
        table = screen.query_one(DataTable)
        await until(pilot, lambda: screen.query_one("#detail").region.height == 5)
        assert screen.query_one("#detail").region.bottom <= screen.query_one(Footer).region.y
        assert table.scrollable_content_region.height >= 1 + 4, "the head and four models"
        await pilot.press(*["down"] * 7)
        assert table.cursor_row == 7
        await until(pilot, lambda: 0 < table._get_row_region(7).y - table.scroll_offset.y <= 4)
