"""A device is lost while the chat shows an answer: it goes on, or it ends and the next one is answered there."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.tui.widgets.dialogs import shown
from tests.gpu.conftest import LAYER, NAME
from tests.gpu.test_loss import SUBMISSIONS
from tests.tui.conftest import MakeApp, _quick, archive, folders, front, make_app, of_child, say, until  # noqa: F401

pytestmark = pytest.mark.trial


@pytest.mark.asyncio
@pytest.mark.parametrize("exact", SUBMISSIONS)
async def test_the_chat_goes_on(
    exact: str,
    make_app: MakeApp,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in {**LAYER, "LOST_AFTER": SUBMISSIONS[exact], "LOST_ONCE": str(tmp_path / "once")}.items():
        monkeypatch.setenv(name, value)
    local = of_child(exact=exact, device=NAME, context=256)
    app = make_app(answerer=local, begin={"temperature": 0.0, "max_tokens": 24, "drafter": "none"})
    with shown(app.warn):
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: app.session.facts is not None, 200.0)
            first = local.child
            await say(pilot, "Tell me a story.")
            answer = front(app).path[1]
            assert (tmp_path / "once").exists()
            if exact == "off":
                assert answer.state == "done"
                said = [note.message for note in app._notifications]
                assert any("The CPU goes on with the answers" in note for note in said), said
            else:
                assert answer.state == "error"
                assert f"The GPU ({NAME}) failed" in answer.note
            assert answer.content.strip()
            await say(pilot, "And another one.")
            assert front(app).path[3].state == "done"
            assert (local.child is first) == (exact == "off"), "under strict a new process has the models"
    local.close()
