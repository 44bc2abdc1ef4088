"""The KV cache of a chat waits on disk, spares its prompt when the chat goes on, and is deleted with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.runtime.cache_folder import CacheFolder
from localspec.runtime.engine import Engine
from localspec.tui.local import LocalAnswerer
from localspec.tui.screens.slash import SlashCommands
from tests.tui.conftest import MakeApp, front, say, until

LONG = "Repeat: " + "Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo. " * 12


@pytest.mark.asyncio
async def test_a_chat_goes_on_behind_a_restart_without_reading_it_again(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    read = []
    for message, begin in ((LONG, {"temperature": 0.0, "max_tokens": 8}), ("And once more, please.", None)):
        local = LocalAnswerer(lambda progress: Engine.load(progress=progress, exact="off"), "bundled pair")
        app = make_app(answerer=local, begin=begin)
        async with app.run_test(size=(100, 30)) as pilot:
            await say(pilot, message)
            stats = front(app).path[-1].stats
            read.append(stats["prompt_tokens"] - stats["reused_tokens"])
            key = app.archive.chat(front(app).chat_id).key
        local.close()
        assert CacheFolder().path(key).exists()
    assert read[1] < read[0] / 4, read

    local = LocalAnswerer(lambda progress: Engine.load(progress=progress, exact="off"), "bundled pair")
    app = make_app(answerer=local)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.facts is not None)
        await SlashCommands(app.chat_screen).run("delete", "")
        await until(pilot, lambda: not CacheFolder().path(key).exists())
    local.close()
    assert not CacheFolder().path(key).exists()
