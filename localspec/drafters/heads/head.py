"""A trained head: a file that guesses from the hidden states of the one target it was trained for.

Each method's module has `load(path, target) -> Head`, which reads headers only; `runtime.heads` finds the module of a
file. What the head needs of the target's passes is its `tap`; the target's context keeps that (`llama.states`), and
the drafter that `attach` makes reads it by position, as a cache of the history like every drafter's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from localspec.engine.interfaces import Drafter
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import Tap
from localspec.llama.exact.configuration import Kernels
from localspec.llama.model import Model


class Head(Protocol):
    """One file that guesses for one target."""

    name: str
    """The method: one of `methods.HEADS`; the drafter's name everywhere."""
    path: Path
    """File or folder of the head; the target's file if that contains the head."""
    tap: Tap
    """States of the target that the head reads. Ask for their span by name (`States.span(slot, tokens, FINAL)`): the
    context may keep more, for another head."""

    def attach(self, target: Context, branches: int) -> Drafter:
        """Makes the drafter of the head. Loads the weights, which stay loaded until `close`.

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


class Weights:
    """The model of a head's file: loaded once, when a drafter is first made, and freed with the head."""

    def __init__(self, path: Path, kind: type[Model]) -> None:
        """`kind`: how it is loaded."""
        self._path, self._kind = path, kind
        self._model: Model | None = None

    def beside(self, like: Model, *, kernels: Kernels = "repacked", nextn: bool = False) -> Model:
        """The loaded model.

        Args:
            like: the target, on whose devices it goes.
            kernels: as in `Model.load`.
            nextn: as in `Model.load`.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: there is no memory.
        """
        if self._model is None:
            self._model = self._kind.load(
                self._path, gpu_layers=like.gpu_layers, device=like.device, kernels=kernels, nextn=nextn
            )
        return self._model

    def close(self) -> None:
        """Frees it; a second call does nothing."""
        model, self._model = self._model, None
        if model is not None:
            model.close()
