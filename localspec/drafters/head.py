"""A trained head: a file that guesses from the hidden states of the one target it was trained for.

Each method's module has `load(path, target) -> Head`, which reads headers only; `runtime.heads` finds the module of a
file. What the head needs of the target's passes is its `tap`; the target's context keeps that (`llama.states`), and
the drafter that `attach` makes reads it by position, as a cache of the history like every drafter's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from localspec.engine.interfaces import Drafter
from localspec.llama.context import Context
from localspec.llama.states import Tap


class Head(Protocol):
    """One file that guesses for one target."""

    name: str
    """The method: one of `models.methods.HEADS`; the drafter's name everywhere."""
    path: Path
    """The file or folder it came from; the target's own where it lies in there."""
    tap: Tap
    """Which states of the target it reads. Ask for their span by name (`States.span(slot, tokens, FINAL)`): the
    context may keep more, for another head."""

    def attach(self, target: Context, branches: int) -> Drafter:
        """Its drafter; loads what that computes with, which stays with the head until `close`.

        May be called again, when settings change: the drafter made before is closed after the new one was made, so
        a drafter's own `close` frees nothing that another one uses.

        Args:
            target: made with (at least) `tap`; its settings tell threads, slots and length.
            branches: guesses per position; 1 drafts a chain.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        ...

    def close(self) -> None:
        """Frees what it loaded, without which its drafters cannot guess; a second call does nothing."""
        ...
