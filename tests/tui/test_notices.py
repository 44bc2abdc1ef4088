"""What the engine warns of is a note while the chat has the screen."""

from __future__ import annotations

import logging

from localspec.tui.notices import shown


def test_warnings_are_handed_over_and_nothing_else_is() -> None:
    logger, notes = logging.getLogger("localspec"), list[str]()
    with shown(notes.append):
        logger.warning("The drafter %s is not used any more: %s.", "echo", "it tired")
        logger.info("nothing")
        assert not logger.propagate, "nobody writes across the screen"
    logger.warning("afterwards")
    assert notes == ["The drafter echo is not used any more: it tired."]
    assert logger.propagate
