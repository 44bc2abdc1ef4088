"""What stands on a chat's tab."""

from __future__ import annotations

from localspec.chat.archive.message import Chat
from localspec.chat.plain_text import plain_text

_LONGEST_LABEL = 24
"""Characters of a label; three tabs fit a terminal of 80 columns."""


def tab_label(chat: Chat) -> str:
    """The chat's title on one line, cut to 24 characters, as markup that shows it literally."""
    title = plain_text(chat.title).replace("\n", " ").replace("[", "\\[") or "New chat"
    return title if len(title) <= _LONGEST_LABEL else title[: _LONGEST_LABEL - 1] + "…"
