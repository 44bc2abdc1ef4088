"""`localspec corpus`: what drafters search besides the conversation, counted, cleared and added to."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec import paths
from localspec.cli.parser import add_engine_settings
from localspec.errors import UsageError
from localspec.paths import typed

if TYPE_CHECKING:
    from localspec.gguf import Header
    from localspec.runtime.kept.corpus import CorpusFile

_LARGEST = 4_000_000
"""Bytes of a file that is added."""


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("stats", help="what is kept")
    _add_shared(one)
    one = actions.add_parser("clear", help="delete what is kept, past answers and added files")
    one.add_argument("--all", action="store_true", help="of all models, not only of the target's tokenizer")
    _add_shared(one)
    trim = "cut what is kept to --corpus-mb, what was of no use for longest first"
    _add_shared(actions.add_parser("trim", help=trim))
    one = actions.add_parser("add", help="add text files, or all text files of folders")
    one.add_argument(
        "files", nargs="+", metavar="FILE", help="names that begin with a dot and text that is not UTF-8 are left out"
    )
    _add_shared(one)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", metavar="NAME|FILE", help="whose tokenizer; all models with the same share one corpus; default: "
        "the bundled pair"
    )  # fmt: skip
    add_engine_settings(parser, "corpus_mb", told="disk it may take; default: 16")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    return _ACTIONS[options.action](options)


def _opened(options: argparse.Namespace) -> tuple[Path, Header, CorpusFile]:
    """The target's file, its header, and its corpus."""
    from localspec.config import EngineSettings
    from localspec.llama.model import check_text_model
    from localspec.models.installed.installed import find
    from localspec.runtime.kept.corpus import file_of

    target, _ = find(options.target)
    given = {} if options.corpus_mb is None else {"corpus_mb": options.corpus_mb}
    settings = EngineSettings(target, **given)
    header = check_text_model(target)
    return target, header, file_of(header, settings.corpus_mb)


def _stats(options: argparse.Namespace) -> int:
    target, _, file = _opened(options)
    with closing(file):
        sequences = file.read()
    tokens = sum(len(one.tokens) for one in sequences)
    last = sequences[-1].used if sequences else None
    models = Counter("added by hand" if one.model is None else one.model or "not known" for one in sequences)
    facts: dict[str, Any] = {
        "target": target.name,
        "path": str(file.path),
        "texts": len(sequences),
        "models": models,
        "tokens": tokens,
        "bytes": file.size,
        "budget_bytes": file.budget,
        "last_used": last,
    }
    if options.json:
        print(json.dumps(facts))
        return 0
    if not sequences:
        print(f"The corpus for {target.name} is empty. Chats fill it, and `localspec corpus add FILES`.")
    else:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(last))
        print(
            f"{len(sequences)} texts of {tokens} tokens for the tokenizer of {target.name}, last used {at}; "
            f"{decimal(file.size)} of {decimal(file.budget)}.\n{file.path}"
        )
        print("From: " + ", ".join(f"{name} {count}" for name, count in models.most_common()) + ".")
        if file.size > file.budget:
            print("Others gave it more room; `localspec corpus trim` cuts it to yours.")
    return 0


def _clear(options: argparse.Namespace) -> int:
    from localspec.runtime.kept.corpus import files

    cleared = 0
    for file in files() if options.all else [_opened(options)[2]]:
        with closing(file):
            cleared += file.trim(0) > 0
            file.drop_damaged()
    if options.json:
        print(json.dumps({"cleared": cleared}))
    else:
        print("The corpus was empty." if not cleared else f"Cleared {'all corpora' if options.all else 'the corpus'}.")
    return 0


def _trim(options: argparse.Namespace) -> int:
    file = _opened(options)[2]
    with closing(file):
        removed = file.trim(file.budget)
    if options.json:
        print(json.dumps({"removed": removed, "bytes": file.size, "budget_bytes": file.budget}))
    else:
        print(f"{removed} texts were removed; {decimal(file.size)} of {decimal(file.budget)}.")
    return 0


def _add(options: argparse.Namespace) -> int:
    from localspec.llama.model import Model
    from localspec.runtime.kept.corpus import KEPT_SHARE, Sequence, name_of
    from localspec.types import NO_TOKENS

    target, _, file = _opened(options)
    room, size, left_out = int(KEPT_SHARE * file.budget), 0, 0
    sequences = []
    with Model.load(target, kernels="plain") as model:
        for path, text in _texts(options.files):
            tokens = model.tokenize(text, special=False, add_bos=False) if text else NO_TOKENS
            if not len(tokens):
                left_out += 1
                continue
            name = name_of(str(paths.real(path)).encode("utf-8", "surrogateescape"))
            sequences.append(Sequence(name, tokens, time.time()))
            size += tokens.nbytes
            if size > room:
                raise UsageError(
                    f"The files make more than {decimal(room)} of tokens, which is what the corpus can take of them.",
                    "Add fewer, or give more room with --corpus-mb here and where it is used.",
                )
    tokens_added = sum(len(one.tokens) for one in sequences)
    with closing(file):
        file.write(sequences)
    if options.json:
        print(
            json.dumps({"added": len(sequences), "tokens": tokens_added, "left_out": left_out, "path": str(file.path)})
        )
    else:
        rest = f"; {left_out} that are empty, too large or no UTF-8 text were left out" if left_out else ""
        print(f"Added {len(sequences)} files, {tokens_added} tokens{rest}.")
    return 0 if sequences else 1


def _texts(names: list[str]) -> Iterator[tuple[Path, str]]:
    """Every file, and its text; "" = it is none. Files of a folder in the order of their names.

    Raises:
        UsageError: something that was named is not there, or cannot be read as text.
    """
    for name in names:
        path = typed(name)
        if os.path.isdir(path):
            for place, folders, files in os.walk(path):
                folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
                for file in sorted(files):
                    if not file.startswith("."):
                        yield Path(place, file), _text(Path(place, file)) or ""
            continue
        text = _text(path) if os.path.exists(path) else None
        if text is None:
            why = (
                f"it is no file of UTF-8 text of {decimal(_LARGEST)} at most"
                if os.path.exists(path)
                else "there is no such file"
            )
            raise UsageError(f"Cannot add {name}: {why}.")
        yield path, text


def _text(path: Path) -> str | None:
    """A file's text; None if it is none that can be added."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            print(f"localspec: cannot read {path}: {error.strerror}.", file=sys.stderr)
        return None
    return None if "\0" in text else text


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "stats": _stats,
    "clear": _clear,
    "trim": _trim,
    "add": _add,
}
