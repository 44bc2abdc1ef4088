"""Before the first prompt goes to a server that was found by a search, the user is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.tui.shell.dialogs import Choice

if TYPE_CHECKING:
    from localspec.tui.shell.app import ChatApp


async def agreed(app: ChatApp) -> bool:
    """Whether a prompt may go to who answers now; from a worker, as it may open a dialog. A yes holds until another
    answers."""
    if not app.stranger:
        return True
    answerer = app.answerer
    rows = [
        ("yes", "Send it", "the program at this address gets the messages of your chats from now on"),
        ("no", "Do not send it", "the message stays in the chat; F5 loads a model of this machine"),
    ]
    answer = await app.push_screen_wait(Choice(f"Send this chat to {app.stranger}?", rows))
    if answer != "yes" or app.answerer is not answerer:
        app.say("Nothing was sent.")
        return False
    app.stranger = ""
    return True
