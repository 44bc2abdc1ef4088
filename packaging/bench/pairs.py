"""Padded pairs in the cache, checked against the small models they were made of."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from padded import FORMATS, Padded, Small
from shapes import SHAPES

from localspec import paths
from localspec.chat.prompt.template import ChatTemplate
from localspec.checks.prompts import load_prompts
from localspec.errors import LocalspecError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model, file_sha256
from localspec.types import Feed, Float32Array, Float64Array, Tokens
from tests.quantised import quantize

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1)."""
QUANTS = ("Q4_0", "Q4_K_M", "Q8_0", "F16")
_FORMAT = 1
_LOGIT_TOKENS, _TEXT_TOKENS, _WINDOW, _WIDTH = 128, 1024, 256, 32


@dataclass(frozen=True, slots=True)
class Check:
    """A padded file against the small model it was made of, on held-out text."""

    logit_difference: float
    """Largest difference of a logit, both models in Q8_0 for that format, in F16 for all others."""
    logit_spread: float
    """Standard deviation of the small model's logits: the scale to judge by."""
    perplexity: Perplexity
    small_perplexity: Perplexity


@dataclass(frozen=True, slots=True)
class Made:
    """A file of a padded pair."""

    path: Path
    check: Check
    """As it was when the file was written."""
    reused: bool
    """It was there already."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file: which small model, in which shape and format."""

    kind: str
    """"target" or "draft"."""
    shape: str
    quant: str
    vocabulary: int = 0
    """Tokens; 0 = the small model's."""

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UsageError(f"There is no shape {self.shape!r}; there are: {', '.join(SHAPES)}.")
        if self.quant not in QUANTS:
            raise UsageError(f"There is no format {self.quant!r} for padded models; there are: {', '.join(QUANTS)}.")
        if not 0 <= self.vocabulary <= 1 << 20:
            raise UsageError(f"The vocabulary is {self.vocabulary}; it must be between 0 and {1 << 20}.")

    @property
    def source(self) -> Path:
        return paths.bundled(f"tiny-{self.kind}-q8_0.gguf")

    @property
    def name(self) -> str:
        tokens = f"-v{self.vocabulary}" if self.vocabulary else ""
        return f"padded-{self.kind}-{self.shape}-{self.quant.lower()}{tokens}.gguf"

    @property
    def most_bytes(self) -> int:
        """Space it takes while it is made, roughly: F16 first where llama.cpp quantises it."""
        shape = SHAPES[self.shape]
        values = sum(one.rows * one.columns for one in shape.matrices(self.vocabulary or 4096))
        return int(values * {"Q8_0": 1.07, "F16": 2.0}.get(self.quant, 2.7))


def make(wanted: Wanted, folder: Path | None = None, *, again: bool = False, progress: Progress | None = None) -> Made:
    """Writes and checks a file, unless it is there.

    Args:
        wanted: which.
        folder: where to; None = the cache.
        again: write it even if it is there.
        progress: see `Progress`.

    Raises:
        UsageError: the small model does not fit into the shape.
        LocalspecError: no space, or llama.cpp cannot quantise it.
    """
    folder = folder or paths.cache_dir() / "padded"
    folder.mkdir(parents=True, exist_ok=True)
    path, notes = folder / wanted.name, folder / f"{wanted.name}.json"
    origin = {"format": _FORMAT, "source": file_sha256(wanted.source)}
    known = None if again else _read(path, notes, origin)
    if known is not None:
        return Made(path, known, True)
    report = progress or (lambda what, share: None)
    _check_space(folder, wanted)
    difference = _write(wanted, path, report)
    report(f"checking {path.name}", 0.95)
    check = Check(*difference, _perplexity(path), _perplexity(wanted.source))
    notes.write_text(json.dumps({**origin, "check": asdict(check)}, indent=1), encoding="utf-8")
    return Made(path, check, False)


def _write(wanted: Wanted, path: Path, report: Progress) -> tuple[float, float]:
    """Writes the file; largest logit difference before llama.cpp quantised it, and the spread of logits."""
    small = Small.read(wanted.source)
    padded = Padded.plan(small, SHAPES[wanted.shape], wanted.vocabulary)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as name:
        scratch = Path(name)
        first, source = path if wanted.quant in FORMATS else scratch / "large.gguf", wanted.source
        kind = "Q8_0" if wanted.quant == "Q8_0" else "F16"
        padded.write(first, wanted.shape, kind, lambda share: report(f"writing {path.name}", 0.6 * share))
        if kind == "F16":  # what a format makes of activations is no matter of padding
            source = scratch / "small.gguf"
            Padded.plan(small, small.shape).write(source, "own", kind)
        report(f"comparing logits of {path.name}", 0.6)
        difference = logit_difference(source, first)
        if first != path:
            report(f"quantising {path.name}", 0.7)
            quantize(first, path, wanted.quant)
    return difference


def logit_difference(small: Path, large: Path) -> tuple[float, float]:
    """(largest difference of a logit, standard deviation of the small model's logits) on held-out text.

    What is added to all logits alike is no difference, and padding tokens have none.
    """
    with Model.load(small, kernels="plain") as one, Model.load(large, kernels="plain") as other:
        pieces = list(windows(one, held_out(one), _LOGIT_TOKENS, _LOGIT_TOKENS))
        settings = ContextSettings(flash_attention=True)
        largest, spread = 0.0, 0.0
        rows = zip(scored(one, pieces, _WIDTH, settings), scored(other, pieces, _WIDTH, settings), strict=True)
        for (_, left), (_, right) in rows:
            difference = right[: len(left)].astype(np.float64) - left
            largest = max(largest, float(np.abs(difference - np.median(difference)).max()))
            spread = max(spread, float(left.std()))
            if len(right) > len(left) and right[len(left) :].max() > right[: len(left)].max() - 50.0:
                raise LocalspecError(f"{large} is no use: a padding token may be drawn.", "Please report this.")
    return largest, spread


def _perplexity(path: Path) -> Perplexity:
    with Model.load(path) as model:
        pieces = list(windows(model, held_out(model), _TEXT_TOKENS, _WINDOW))
        return Perplexity.of(losses(model, pieces, _WIDTH, ContextSettings(flash_attention=True)))


def _check_space(folder: Path, wanted: Wanted) -> None:
    free, needed = shutil.disk_usage(folder).free, wanted.most_bytes
    if needed > free:
        raise LocalspecError(
            f"{wanted.name} needs {needed / 1e9:.1f} GB while it is made; {folder} has {free / 1e9:.1f} GB left.",
            "Free some space, or set LOCALSPEC_CACHE to another folder.",
        )


def _read(path: Path, notes: Path, origin: dict[str, Any]) -> Check | None:
    """What was found out about a file that is there; None = it must be made."""
    try:
        data = json.loads(notes.read_text(encoding="utf-8"))
        if not path.exists() or any(data[key] != value for key, value in origin.items()):
            return None
        check = data["check"]
        both = (Perplexity(**check.pop("perplexity")), Perplexity(**check.pop("small_perplexity")))
        return Check(check["logit_difference"], check["logit_spread"], *both)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


# How well a model predicts a text, in passes as verification runs them: logits, losses, perplexity.


def held_out(model: Model) -> str:
    """The shipped prompts with their right answers, as conversations of the model's template, or plainly."""
    template = ChatTemplate(model.chat_template, "", "")
    texts = []
    for prompt in load_prompts():
        if len(prompt.messages) != 1:
            continue
        asked = template.render(prompt.messages) if template.exists else prompt.messages[0].content + "\n"
        texts.append(asked + prompt.answer + model.text_of(model.eot if model.eot is not None else model.eos))
    return "\n".join(texts)


def windows(model: Model, text: str, count: int, size: int) -> Iterator[Tokens]:
    """int32[size] pieces of the text, `count` tokens in all, each after the begin-of-sequence token."""
    tokens = model.tokenize(text, special=True, add_bos=False)[:count]
    first = [] if model.bos is None or not model.add_bos else [model.bos]
    for start in range(0, len(tokens) - 1, size):
        yield np.concatenate([np.array(first, dtype=np.int32), tokens[start : start + size]]).astype(np.int32)


def scored(
    model: Model, pieces: Sequence[Tokens], width: int, settings: ContextSettings
) -> Iterator[tuple[int, Float32Array]]:
    """(token, float32[n_vocab] logits it was to be predicted from) for every token but the first of each piece.

    Each piece runs in an empty context, in passes of `width` rows. A row is valid until the next one is asked for.
    """
    longest = max(len(piece) for piece in pieces)
    context = Context(model, replace(settings, n_ctx=max(8, longest + width), max_rows=width, grid=max(16, width)))
    try:
        for piece in pieces:
            context.forget(0)
            for start in range(0, len(piece) - 1, width):
                draft = piece[start + 1 : start + width]
                parents = np.arange(-1, len(draft) - 1, dtype=np.int32)
                rows = context.decode([Feed(0, piece[: start + 1], 1, draft, parents)])[0]
                for index, token in enumerate(piece[start + 1 : start + 1 + width]):
                    yield int(token), rows[index]
    finally:
        context.close()


def losses(model: Model, pieces: Sequence[Tokens], width: int, settings: ContextSettings) -> Float64Array:
    """float64[n], minus log-probability of every token but the first of each piece, in nats."""
    found: list[float] = []
    for token, row in scored(model, pieces, width, settings):
        logits = row.astype(np.float64)
        top = logits.max()
        found.append(top + math.log(np.exp(logits - top).sum()) - logits[token])
    return np.array(found)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of a model on a text."""

    value: float
    error: float
    """Standard error."""
    tokens: int

    @classmethod
    def of(cls, losses: Float64Array) -> Perplexity:
        value = math.exp(losses.mean())
        return cls(value, float(value * losses.std() / math.sqrt(len(losses))), len(losses))
