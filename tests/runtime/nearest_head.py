"""A head without weights: guesses what followed the state that is most like the last one. For tests of the plumbing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, Drafter, DraftRequest, History, Outcome
from localspec.errors import PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import FINAL, Tap

LAYER = 1


class Nearest:
    """Drafts from the input of a layer, over every token the target has evaluated."""

    name = "mlp"
    needs = NEEDS_NOTHING
    free = False

    def __init__(self, target: Context) -> None:
        self.target, self.closed = target, False
        self.spans: list[tuple[int, int, int]] = []
        """Of every draft: tokens of the history, and the span of states."""

    def missing(self, slot: int, history: History) -> int:
        return 1

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        assert not self.closed
        return [self._guess(request) for request in requests]

    def _guess(self, request: DraftRequest) -> Draft:
        tokens, states = request.history.tokens, self.target.states
        assert states is not None
        start, stop = states.span(request.slot, tokens, LAYER)
        final = states.span(request.slot, tokens, FINAL)
        empty = final[0] == final[1]
        assert empty or start <= final[0] < final[1] == stop, "decoded rows are the last of all rows"
        self.spans.append((len(tokens), start, stop))
        count = min(request.max_nodes, request.max_depth)
        if stop - start < 3 or count < 1:
            return EMPTY_DRAFT
        rows = states.read(request.slot, LAYER, start, stop)
        far = ((rows[:-1] - rows[-1]) ** 2).sum(axis=1)
        nearest = start + int(far.argmin())
        guess = tokens[nearest + 2 : nearest + 2 + count].copy()  # the token behind the state is the last one: known
        return Draft.chain(guess, confidence=np.ones(len(guess), dtype=np.float32), origin=self.name)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class NearestHead:
    """Implements `drafters.head.Head`."""

    name = "mlp"
    tap = Tap((LAYER,), "decoded")

    def __init__(self, path: Path) -> None:
        self.path, self.closed = path, False
        self.drafters: list[Nearest] = []

    def attach(self, target: Context, branches: int) -> Drafter:
        assert not self.closed
        self.drafters.append(Nearest(target))
        return self.drafters[-1]

    def close(self) -> None:
        self.closed = True


def load(path: Path, target: Header) -> NearestHead:
    wanted, width = json.loads((path / "config.json").read_text())["hidden"], target.number("embedding_length")
    if wanted != width:
        raise PairError(f"{path.name} is for another target: hidden size: {width} in the target, {wanted} in the head.")
    return NearestHead(path)


def write(folder: Path, hidden: int = 256, **config: object) -> Path:
    """The files of such a head, in the layout of an MLP speculator."""
    folder.mkdir()
    told = {"model_type": "mlp_speculator", "hidden": hidden, **config}
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder
