"""A GPU is lost while the chat shows an answer: it goes on, or it ends with what was said and the next is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.llama.exact.choice import Progress
from localspec.runtime.engine import Engine
from localspec.tui.widgets.dialogs import shown
from tests.fake_gpus import CARD, Gpu, list_gpus
from tests.tui.conftest import MakeApp, front, here, say, until

GREEDY = {"temperature": 0.0, "max_tokens": 24, "drafter": "none"}


@pytest.mark.asyncio
@pytest.mark.parametrize("exact", ["off", "strict"])
async def test_the_chat_goes_on(exact: str, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    list_gpus(monkeypatch, CARD)
    gpu = Gpu(monkeypatch)
    engines = list[Engine]()

    def load(progress: Progress) -> Engine:
        engines.append(Engine.load(progress=progress, exact=exact, context=512))
        return engines[-1]

    local = here(load)
    app = make_app(answerer=local, begin=GREEDY)
    with shown(app.warn):
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: app.session.facts is not None)
            gpu.left = 8
            await say(pilot, "Tell me a story.")
            answer = front(app).path[1]
            assert gpu.refused >= 1
            assert answer.content.strip()
            said = [note.message for note in app._notifications]
            if exact == "off":
                assert answer.state == "done"
                assert any("The CPU goes on with the answers" in note for note in said)
            else:
                assert answer.state == "error"
                assert "The GPU (CUDA0) failed" in answer.note
                assert answer.stats["generated_tokens"] > 0, "what was said has its figures"
            gpu.left = 1 << 30
            await say(pilot, "And another one.")
            assert front(app).path[3].state == "done"
            assert (len(engines) == 1) == (exact == "off"), "under strict the models were loaded again"
    local.close()
