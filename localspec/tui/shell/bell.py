"""How a terminal is told that a long answer has ended."""

from __future__ import annotations

import os

from localspec.chat.plain_text import one_line

BELL = "\a"


def sign(wish: str, in_front: bool, title: str) -> str:
    """What to write to the terminal; "" = nothing.

    Args:
        wish: `Preferences.answer_end`.
        in_front: the terminal is, as far as it says.
        title: of the chat.
    """
    if wish == "notify":
        sequence = f"\x1b]9;localspec: the answer of {one_line(title or 'a new chat')} is there\a"
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\" if os.environ.get("TMUX") else sequence
    return BELL if wish == "bell" or (wish == "auto" and not in_front) else ""
