"""The KV cache of a chat waits on disk, spares its prompt when the chat goes on, and is deleted with it."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from localspec.cli.commands import chat
from localspec.cli.shared import engine_settings
from localspec.config import EngineSettings
from localspec.errors import UsageError
from localspec.runtime.kept.caches import CacheFolder
from localspec.tui.screens.commands import SlashCommands
from tests.tui.conftest import MakeApp, front, of_child, say, until

LONG = "Repeat: " + "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo. " * 12


@pytest.mark.asyncio
async def test_a_chat_goes_on_behind_a_restart_without_reading_it_again(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    read, key = [], ""
    for message, begin in ((LONG, {"temperature": 0.0, "max_tokens": 8}), ("And once more, please.", None)):
        local = of_child(exact="off")
        app = make_app(answerer=local, begin=begin)
        async with app.run_test(size=(100, 30)) as pilot:
            await say(pilot, message)
            stats = front(app).path[-1].stats
            read.append(stats["prompt_tokens"] - stats["reused_tokens"])
            if key:  # the second time: its file is there from the first
                assert app.session.archive.chat(front(app).chat_id).key == key
                await SlashCommands(app.chat_screen).run("delete", "")
                await until(pilot, lambda: not CacheFolder().path(key).exists())  # noqa: B023
            else:
                key = app.session.archive.chat(front(app).chat_id).key
        local.close()
        assert CacheFolder().path(key).exists() == (len(read) == 1)
    assert read[1] < read[0] / 4, read


@pytest.mark.parametrize(("given", "wanted"), [([], None), (["--chat-cache-gb", "0.5"], 0.5)])
def test_how_much_disk_they_take_is_an_option(given: list[str], wanted: float | None) -> None:
    parser = argparse.ArgumentParser()
    chat.add_options(parser)
    settings = engine_settings(parser.parse_args(given))
    assert settings.get("chat_cache_gb") == wanted
    assert EngineSettings(target=Path()).chat_cache_gb == 4.0, "as the help says"
    with pytest.raises(UsageError, match=r"chat_cache_gb is -1\.0; it must be"):
        EngineSettings(target=Path(), chat_cache_gb=-1.0)
