"""`localspec train` and `localspec extract`: a draft model of a target's own layers, and hidden states in a file."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.cli.output import bars, count_bar
from localspec.cli.parser import add_whole, numbers
from localspec.cli.shared import add_model_options, load_engine, places
from localspec.errors import UsageError, explained
from localspec.gguf import read_header
from localspec.machine import default_threads
from localspec.models.installed.store import Store
from localspec.paths import typed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from localspec.checks.gain import DraftGain
    from localspec.runtime.engine import Engine
    from localspec.training.course import Course, Reports
    from localspec.types import Tokens

_TRAIN = """\
The target answers prompts; some of its own layers and the tokens that its answers use become a small draft model, which
learns what the target finds likely. It is measured on prompts that nothing was learned from, written as an ordinary
GGUF file, and drafts for the target from then on. Texts stay the same, as with every drafter.

A third of the minutes is for answers, the rest for training. Ctrl-C ends at any time; the same command goes on. What it
takes is said before it starts. Needs PyTorch: pip install "localspec[train]".
"""
_LINE_SECONDS = 30.0  # between two lines of progress, where standard error is no terminal
_REACHED = 0.45
"""What passes reach of the rate at which this machine reads memory at most: 6.3 ms for SmolLM2 on two cores."""
_GPU_RATE = 100e9  # bytes a second that any GPU reads at least


def add_options_train(parser: argparse.ArgumentParser) -> None:
    parser.description = _TRAIN
    parser.add_argument("target", metavar="TARGET", help="model or GGUF file to train a draft model for")
    text = "what the target is asked: prompts in JSON or JSON lines, text or code files, your own chats; "
    text += "default: a list that localspec brings"
    parser.add_argument("--texts", nargs="+", default=[], metavar="FILE|FOLDER|chats", help=text)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="in all; default: 60")
    parser.add_argument("--out", metavar="NAME", help="what to call it; default: the target's name with -draft")
    add_whole(parser, "--layers", "of the target's", 2, most=8)
    parser.add_argument("--fresh", action="store_true", help="begin anew, without what earlier runs did")
    parser.add_argument("--dry-run", action="store_true", help="say what it takes, and do nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask whether your chats may be read")
    parser.add_argument("--eval", type=typed, metavar="FILE", help="only measure this draft model beside the target")
    text = "the plan, or what was measured, as JSON on standard output"
    parser.add_argument("--json", action="store_true", help=text)


def run_train(options: argparse.Namespace) -> int:
    """Exit code 130 when interrupted; the same command goes on."""
    from localspec.checks.prompts import CHATS
    from localspec.models.installed.installed import keep

    if CHATS in options.texts and not Path(CHATS).exists() and not (options.yes or options.dry_run):
        if not sys.stdin.isatty():
            raise UsageError("Your chats are read only if you say so.", "Add --yes.")
        said = "The target will answer what you asked in your chats again. Nothing leaves this machine."
        print(said, file=sys.stderr)
        if input("Read your chats? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("Nothing was trained: your chats were not to be read.", "Give other --texts, or none.")
    if options.eval is not None:
        return _eval(options)
    course = _course(options)
    for line in () if options.json else course.plan.lines():
        print(line, file=sys.stderr)
    if options.dry_run:
        if options.json:
            print(json.dumps(asdict(course.plan)))
        return 0
    try:
        with _reports() as tell:
            found = course.run(tell, options.fresh)
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on.", file=sys.stderr)
        return 130
    _print_measured(options, found)
    sentence = keep(course.target, course.name, course.result, Store(), found.worth_it)
    if not options.json:
        print(f"{course.name}: {sentence} How it went: {course.chart}")
    return 0


def _course(options: argparse.Namespace) -> Course:
    from localspec.checks import prompts
    from localspec.drafters.cut import check_tokenizer, gguf_package, read_shape
    from localspec.llama.exact import wide
    from localspec.models.facts.shape import shape_of
    from localspec.models.installed.installed import check_name, size_of, work_folder
    from localspec.runtime.costs import Rates, pass_seconds
    from localspec.training import course

    path, before = _compared(options.target)
    header = read_header(path)
    shape = read_shape(header)
    check_tokenizer(header)
    if importlib.util.find_spec("torch") is None:
        raise UsageError("Training needs PyTorch, which is not installed.", 'pip install "localspec[train]"')
    gguf_package()
    name = options.out or f"{Path(options.target).name.removesuffix('.gguf')}-draft"
    store = Store()
    check_name(name, store)
    own = next((one.path for one in store.entries() if one.name == name), None)
    words = ", ".join(options.texts) or "localspec's own list of prompts"
    begun = None if options.fresh else prompts.read(work_folder(name) / course.PROMPTS, words)
    learned, held = begun or prompts.gather(options.texts)
    known = wide.read_limits(default_threads())
    rates = Rates() if known is None else replace(Rates.of(known), memory=_REACHED * known.memory_rate)
    there = places()
    if len(there) > 1:
        rates = replace(rates, memory=_GPU_RATE)
    seconds = pass_seconds(shape_of(header), 1, 512, rates)
    found = course.plan(header, shape, options.layers, options.minutes, seconds, there)
    course.check_free(found, there[0].free_bytes, paths.free_bytes(paths.data_dir()), size_of(name))
    earlier = None if before is not None and own is not None and paths.real(before) == paths.real(own) else before
    return course.Course(path, name, words, learned, held, shape, found, options.layers, earlier)


def _compared(name: str) -> tuple[Path, Path | None]:
    """A target, and what drafts for it where it is installed."""
    from localspec.models.installed.installed import entry_of, find

    path, before = find(name)
    entry = entry_of(path, Store())
    return path, before if entry is None or before is not None else find(entry.name)[1]


def _eval(options: argparse.Namespace) -> int:
    from localspec.checks import prompts
    from localspec.checks.gain import measure
    from localspec.models.facts.heads import draft_kind
    from localspec.models.installed.installed import find_one
    from localspec.training.course import LAST_TOKENS

    (target, before), draft = _compared(options.target), find_one(options.eval)
    kind = draft_kind(read_header(draft))
    if kind.is_head:
        raise UsageError(f"--eval {options.eval} is {kind.sentence}; only draft models are measured.")
    if before is not None and paths.real(before) == paths.real(draft):  # it drafts for the target already
        before = None
    _, held = prompts.gather(options.texts)
    with _reports() as tell:
        found = measure(target, draft, before, held, LAST_TOKENS, tell.phase)
    _print_measured(options, found)
    return 0


def _print_measured(options: argparse.Namespace, found: DraftGain) -> None:
    print(json.dumps(found.as_dict()) if options.json else found.sentence)
    if found.equal < found.prompts:
        print(f"{found.prompts - found.equal} of {found.prompts} texts differed.", file=sys.stderr)


@contextmanager
def _reports() -> Iterator[Reports]:
    """A live line on a terminal, a line now and then elsewhere; on standard error."""
    from localspec.training.course import Reports

    bar = bars("TimeElapsedColumn", "{task.fields[detail]}")
    if bar is None:
        last, said = "", 0.0

        def phase(what: str, share: float, detail: str = "") -> None:
            nonlocal last, said
            now = time.monotonic()
            if what != last or now - said >= _LINE_SECONDS:
                last, said = what, now
                print(f"{what} {min(share, 1.0):.0%}{', ' if detail else ''}{detail}", file=sys.stderr, flush=True)

        yield Reports(phase, partial(print, file=sys.stderr, flush=True))
        return
    with bar:
        task = bar.add_task("plan", total=1.0, detail="")

        def shown(what: str, share: float, detail: str = "") -> None:
            bar.update(task, description=what, completed=min(share, 1.0), detail=detail)

        yield Reports(shown, partial(bar.console.print, markup=False, highlight=False))


_EXTRACT = """\
Reads texts with the target and writes, for every token, its final state (after the last norm) and what goes into the
layers named, as 32-bit numbers. A text longer than the window is cut into pieces, each read by itself. For
piece 0, 1, ... the file holds

  0.tokens     I32 [n]           the tokens that were read, begin-of-text included where the model wants it
  0.layer.5    F32 [n, n_embd]   what goes into layer 5 (layer 0: token embeddings)
  0.final      F32 [n, n_embd]

and in its metadata the model's name and sha256, and for each piece its text file and its first token there. The text of
special tokens counts as these tokens, so chats can be given as the model's template writes them.
"""


class _Piece(NamedTuple):
    file: str
    start: int  # index of its first token in the text
    tokens: Tokens


def add_options_extract(parser: argparse.ArgumentParser) -> None:
    parser.description = _EXTRACT
    parser.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 texts")
    parser.add_argument("-o", "--out", type=typed, required=True, metavar="FILE", help="the safetensors file to write")
    parser.add_argument("--layers", metavar="N,...", help="layers whose inputs are written, from 0; default: none")
    add_whole(parser, "--window", "tokens read at once; default: all that the context holds", None, 2)
    add_model_options(parser)


def run_extract(options: argparse.Namespace) -> int:
    from localspec.runtime.engine import check_layers

    if options.drafter is not None or options.max_draft_tokens is not None:
        raise UsageError("`localspec extract` drafts nothing; leave out --drafter and --max-draft-tokens.")
    if options.out.is_dir():
        raise UsageError(f"{options.out} is a folder; name the file to write.")
    if paths.real(options.out) in [paths.real(typed(file)) for file in options.files]:
        raise UsageError(f"{options.out} is one of the texts; give the result another name.")
    layers = numbers("layers", options.layers, int) if options.layers else ()
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

    from localspec.models.facts.heads import save

    model = engine.loaded.model
    facts = {
        "model": paths.shown(model.path.name),
        "sha256": model.sha256,
        "configuration": engine.loaded.configuration,
        "pieces": json.dumps([[paths.shown(piece.file), piece.start] for piece in pieces], ensure_ascii=False),
    }
    with explained(f"{path.parent} cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with explained(f"{path} cannot be written"), TemporaryFile(dir=path.parent) as raw:
        lies: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
        with count_bar() as progress:
            for number, piece in enumerate(pieces):
                if progress is not None:
                    progress("Reading", number, len(pieces))
                states = engine.hidden_states(piece.tokens, layers)
                arrays: dict[str, npt.NDArray[Any]] = {f"{number}.tokens": piece.tokens}
                arrays |= {f"{number}.layer.{layer}": states.layers[layer] for layer in layers}
                for name, array in (arrays | {f"{number}.final": states.final}).items():
                    lies[name] = raw.tell(), array.dtype, array.shape
                    raw.write(np.ascontiguousarray(array).data)
        raw.flush()
        whole = np.memmap(raw, np.uint8, "r")
        save(path, {name: np.ndarray(shape, kind, whole, at) for name, (at, kind, shape) in lies.items()}, facts)
