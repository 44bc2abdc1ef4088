"""What the engine warns of is a note while the chat has the screen."""

from __future__ import annotations

import logging

import pytest

from localspec.tui.notices import shown
from tests.tui.conftest import MakeApp, until


def test_warnings_are_handed_over_and_nothing_else_is() -> None:
    logger, notes = logging.getLogger("localspec"), list[str]()
    with shown(notes.append):
        logger.warning("The drafter %s is not used any more: %s.", "echo", "it tired")
        logger.info("nothing")
        assert not logger.propagate, "nobody writes across the screen"
    logger.warning("afterwards")
    assert notes == ["The drafter echo is not used any more: it tired."]
    assert logger.propagate


@pytest.mark.asyncio
async def test_a_warning_is_a_note_and_one_that_comes_too_late_is_kept(make_app: MakeApp) -> None:
    app, logger = make_app(), logging.getLogger("localspec")
    with shown(app.warn):
        logger.warning("too early")
        async with app.run_test() as pilot:
            logger.warning("in time")
            await until(pilot, lambda: any(note.message == "in time" for note in app._notifications))
            app.exit(0)
            logger.warning("while it is left")
            await pilot.pause()
        logger.warning("afterwards")
    assert app.unseen == ["too early", "while it is left", "afterwards"]
