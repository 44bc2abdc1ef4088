"""`localspec extract`: hidden states of texts in a safetensors file, to train what guesses from them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.cli.options import add_model_options, load_engine
from localspec.cli.output import count_bar
from localspec.cli.parser import whole, whole_numbers
from localspec.errors import LocalspecError, UsageError, reason
from localspec.paths import typed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localspec.runtime.engine import Engine
    from localspec.types import Tokens

    _Lies = tuple[int, np.dtype[Any], tuple[int, ...]]
    """Where an array lies in a file: offset, number format and dimensions."""

_DESCRIPTION = """\
Reads texts with the target and writes, for every token, its final state (after the last norm) and what goes into the
layers named, as 32-bit numbers. A text longer than the window is cut into pieces, each read by itself. For
piece 0, 1, ... the file holds

  0.tokens     I32 [n]           the tokens that were read, begin-of-text included where the model wants it
  0.layer.5    F32 [n, n_embd]   what goes into layer 5 (layer 0: token embeddings)
  0.final      F32 [n, n_embd]

and in its metadata the model's name and sha256, and for each piece its text file and its first token there. The text of
special tokens counts as these tokens, so chats can be given as the model's template writes them.
"""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a text that is read at once."""

    file: str
    start: int
    """Index of its first token in the text."""
    tokens: Tokens


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.formatter_class = _DESCRIPTION, argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 texts")
    parser.add_argument("-o", "--out", type=typed, required=True, metavar="FILE", help="the safetensors file to write")
    parser.add_argument("--layers", metavar="N,...", help="layers whose inputs are written, from 0; default: none")
    parser.add_argument(
        "--window", type=whole(2), metavar="N", help="tokens read at once; default: all that the context holds"
    )
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.runtime.readings import check_layers

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError("`localspec extract` drafts nothing; leave out --drafter and --max-draft-tokens.")
    if options.out.is_dir():
        raise UsageError(f"{options.out} is a folder; name the file to write.")
    if paths.real(options.out) in [paths.real(typed(file)) for file in options.files]:
        raise UsageError(f"{options.out} is one of the texts; give the result another name.")
    layers = whole_numbers("layers", options.layers) if options.layers else ()
    texts = {file: read_text(file) for file in options.files}
    with load_engine(options, drafter="none", chat_cache_gb=0.0) as engine:
        layers = check_layers(engine.loaded.model, layers)
        pieces = [piece for file, text in texts.items() for piece in _pieces(engine, file, text, options.window)]
        if not pieces:
            raise UsageError("The texts are empty.")
        _write(engine, options.out, pieces, layers)
    print(f"{sum(len(piece.tokens) for piece in pieces)} tokens of {len(texts)} texts: {options.out}", file=sys.stderr)
    return 0


def _pieces(engine: Engine, file: str, text: str, window: int | None) -> Iterator[_Piece]:
    """A text cut into windows; each begins as the model wants texts to begin."""
    import numpy as np

    model, most = engine.loaded.model, engine.loaded.context.n_ctx
    if window is not None and window > most:
        raise UsageError(f"--window is {window}, and the context holds {most} tokens.", "Use a longer --context.")
    tokens = model.tokenize(text, special=True, add_bos=False)
    first = np.array([model.bos] if model.add_bos and model.bos is not None else [], dtype=np.int32)
    step = (window or most) - len(first)
    for start in range(0, len(tokens), step):
        yield _Piece(file, start, np.concatenate([first, tokens[start : start + step]]))


def _write(engine: Engine, path: Path, pieces: list[_Piece], layers: tuple[int, ...]) -> None:
    """States may be more than memory holds: they lie in a file without a name until all are there."""
    import numpy as np

    from localspec.models.facts.checkpoint import save

    model = engine.loaded.model
    facts = {
        "model": paths.shown(model.path.name),
        "sha256": model.sha256,
        "configuration": engine.loaded.configuration,
        "pieces": json.dumps([[paths.shown(piece.file), piece.start] for piece in pieces], ensure_ascii=False),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalspecError(f"{path.parent} cannot be made: {error.strerror}.") from None
    try:
        with TemporaryFile(dir=path.parent) as raw:
            lies: dict[str, _Lies] = {}
            for name, array in _states(engine, pieces, layers):
                lies[name] = raw.tell(), array.dtype, array.shape
                raw.write(np.ascontiguousarray(array).data)
            raw.flush()
            save(path, _mapped(raw, lies), facts)
    except OSError as error:
        raise LocalspecError(f"{path} cannot be written: {reason(error)}.") from None


def _states(engine: Engine, pieces: list[_Piece], layers: tuple[int, ...]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The file's arrays by name, piece after piece."""
    with count_bar() as progress:
        for number, piece in enumerate(pieces):
            if progress is not None:
                progress("Reading", number, len(pieces))
            states = engine.hidden_states(piece.tokens, layers)
            yield f"{number}.tokens", piece.tokens
            for layer in layers:
                yield f"{number}.layer.{layer}", states.layers[layer]
            yield f"{number}.final", states.final


def _mapped(raw: IO[bytes], lies: Mapping[str, _Lies]) -> dict[str, npt.NDArray[Any]]:
    import numpy as np

    whole = np.memmap(raw, np.uint8, "r")
    return {name: np.ndarray(shape, kind, whole, start) for name, (start, kind, shape) in lies.items()}
