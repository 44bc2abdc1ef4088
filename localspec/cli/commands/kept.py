"""`localspec chats` and `localspec corpus`: conversations on disk, and the texts that drafters search."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec import paths
from localspec.chat.plain_text import plain_text
from localspec.cli.output import report
from localspec.cli.parser import add_engine_settings, add_whole
from localspec.config import EngineSettings
from localspec.errors import LocalspecError, UsageError, explained

if TYPE_CHECKING:
    from localspec.chat.archive.archive import Archive
    from localspec.runtime.kept.corpus import CorpusFile

_SUFFIXES = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html", ".json": "json"}


def add_options_chats(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("list", help="pinned chats, then those used last")
    one.add_argument("--tag", metavar="TAG", help="only chats with this tag")
    add_whole(one, "--limit", "at most N", None)
    one.add_argument("--json", action="store_true", help="the list as JSON")
    one = actions.add_parser("search", help="find words in all chats")
    one.add_argument("words", nargs="+", metavar="WORD", help='all must occur; "in quotes": in that order')
    add_whole(one, "--limit", "at most N", 20)
    one.add_argument("--json", action="store_true", help="the list as JSON")
    one = actions.add_parser("show", help="print a chat")
    one.add_argument("chat", nargs="?", default="last", metavar="CHAT", help="its number, or last (default)")
    one.add_argument("--json", action="store_true", help="all branches as JSON, as `export` writes them")
    one = actions.add_parser("export", help="write chats as Markdown, HTML or JSON")
    one.add_argument("chats", nargs="*", metavar="CHAT", help="numbers of chats, or last; default: all")
    one.add_argument("--format", choices=["markdown", "html", "json"], help="default: by the name of the file, or JSON")
    one.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    one = actions.add_parser("import", help="take in localspec's JSON or ChatGPT's export")
    one.add_argument("file", metavar="FILE", help="JSON file, zip, or folder with conversations.json")
    one = actions.add_parser("rm", help="remove chats; `undo` brings them back for a week")
    one.add_argument("chats", nargs="+", metavar="CHAT", help="numbers of chats, or last")
    one.add_argument("--now", action="store_true", help="erase them for good")
    one = actions.add_parser("undo", help="bring back what was removed")
    one.add_argument("deletion", nargs="?", type=int, metavar="NUMBER", help="as `rm` said; default: list them")


def run_chats(options: argparse.Namespace) -> int:
    from localspec.chat.archive.archive import Archive

    action = _CHATS[options.action]
    with Archive.open() as archive:
        if archive.notice:
            changes = options.action == "import" or (options.action == "undo" and options.deletion is not None)
            if not archive.persistent and (changes or not archive.chats()):
                raise LocalspecError(archive.notice)
            print(f"localspec: {archive.notice}", file=sys.stderr)
        action(archive, options)
    return 0


def _number(archive: Archive, text: str) -> int:
    if text == "last":
        last = archive.last_chat()
        if last is None:
            raise UsageError("There are no chats yet.", "`localspec chat` begins one.")
        return last.id
    try:
        return archive.chat(int(text)).id
    except ValueError:
        why = "it must be a number of `localspec chats list`, or last."
        raise UsageError(f"A chat is called {text!r}; {why}") from None


def _list(archive: Archive, options: argparse.Namespace) -> None:
    chats = archive.chats(tag=options.tag, limit=options.limit)
    lines = (
        [] if chats else ["There are no chats yet." if options.tag is None else f"No chat has the tag {options.tag!r}."]
    )
    for chat in chats:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.used))
        tags = f"  [{', '.join(chat.tags)}]" if chat.tags else ""
        number, title = f"{chat.id:>5}{'*' if chat.pinned else ' '}", _line(chat.title or "(no title)")
        lines.append(f"{number} {used}  {chat.messages:>4} messages  {title}{_line(tags)}")
    report(options.json, [asdict(chat) for chat in chats], *lines, ensure_ascii=False)


def _line(text: str) -> str:
    return plain_text(text).replace("\n", " ")


def _search(archive: Archive, options: argparse.Namespace) -> None:
    words = (f'"{word}"' if " " in word and '"' not in word else word for word in options.words)
    hits = archive.search(" ".join(words), limit=options.limit)
    lines = [] if hits else ["Nothing was found."]
    for hit in hits:
        lines.append(f"{hit.chat_id:>5}  {_line(hit.title)}")
        lines += [f"       {hit.role}: {_line(hit.snippet)}"] if hit.role else []
    report(options.json, [asdict(hit) for hit in hits], *lines, ensure_ascii=False)


def _export(archive: Archive, options: argparse.Namespace) -> None:
    wanted = [_number(archive, text) for text in options.chats] or None
    kind = options.format or _SUFFIXES.get(Path(options.output or "").suffix.lower(), "json")
    text = archive.export(wanted, kind)
    if options.output is None:
        _write(text)
        return
    with explained(f"Cannot write {options.output}"):
        paths.typed(options.output).write_text(text, encoding="utf-8")


def _write(text: str) -> None:
    """A file's text to standard output; to a terminal only what cannot harm it."""
    sys.stdout.write(plain_text(text) if sys.stdout.isatty() else text)


def _rm(archive: Archive, options: argparse.Namespace) -> None:
    from localspec.runtime.kept.caches import CacheFolder  # imports numpy
    from localspec.runtime.kept.corpus import erase

    numbers = dict.fromkeys(_number(archive, text) for text in options.chats)  # all are there, or nothing is removed
    keys = {number: archive.chat(number).key for number in numbers}
    for key in keys.values():
        CacheFolder().remove(key)  # first: on a full disk it is the room for what is written after
    _check_lasting(archive)
    fault: LocalspecError | None = None
    for number, key in keys.items():
        deletion = archive.delete_chat(number)
        name = f'"{deletion.title}"' if deletion.title else "without a title"
        if options.now:
            archive.erase(deletion.id)
        _check_lasting(archive)
        if options.now:
            print(f"Erased chat {number} {name}.")
        else:
            print(f"Removed chat {number} {name}. `localspec chats undo {deletion.id}` brings it back.")
        try:
            erase(key)
        except LocalspecError as error:
            fault = error  # the next chats go all the same
    if fault is not None:
        raise fault


def _check_lasting(archive: Archive) -> None:
    if not archive.save_back():
        raise LocalspecError(archive.notice)


def _undo(archive: Archive, options: argparse.Namespace) -> None:
    if options.deletion is not None:
        archive.undo(options.deletion)
        print("It is back.")
        return
    deletions = archive.deletions()
    if not deletions:
        print("Nothing was removed lately.")
    for deletion in deletions:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(deletion.at))
        what = "chat" if deletion.message_id is None else "messages of chat"
        print(f"{deletion.id:>5}  {at}  {what} {deletion.chat_id}  {deletion.title}")


_CHATS: dict[str, Callable[..., None]] = {
    "list": _list,
    "search": _search,
    "show": lambda archive, options: _write(
        archive.export([_number(archive, options.chat)], "json" if options.json else "markdown")
    ),
    "export": _export,
    "import": lambda archive, options: print(archive.import_file(paths.typed(options.file)).sentence()),
    "rm": _rm,
    "undo": _undo,
}

_LARGEST = 4_000_000  # bytes of a file that is added


def add_options_corpus(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    one = actions.add_parser("stats", help="what is kept")
    _add_shared(one)
    one = actions.add_parser("clear", help="delete what is kept, past answers and added files")
    one.add_argument("--all", action="store_true", help="of all models, not only of the target's tokenizer")
    _add_shared(one)
    trim = "cut what is kept to --corpus-mb, what was of no use for longest first"
    _add_shared(actions.add_parser("trim", help=trim))
    one = actions.add_parser("add", help="add text files, or all text files of folders")
    text = "names that begin with a dot and text that is not UTF-8 are left out"
    one.add_argument("files", nargs="+", metavar="FILE", help=text)
    _add_shared(one)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    text = "whose tokenizer; all models with the same share one corpus; default: the bundled pair"
    parser.add_argument("--target", metavar="NAME|FILE", help=text)
    add_engine_settings(parser, "corpus_mb", text="disk it may take; default: 16")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run_corpus(options: argparse.Namespace) -> int:
    return _CORPUS[options.action](options) or 0


def _opened(options: argparse.Namespace) -> tuple[Path, CorpusFile]:
    from localspec.llama.model import check_text_model
    from localspec.models.installed.installed import find
    from localspec.runtime.kept.corpus import file_of

    target, _ = find(options.target)
    given = {} if options.corpus_mb is None else {"corpus_mb": options.corpus_mb}
    settings = EngineSettings(target, **given)
    return target, file_of(check_text_model(target), settings.corpus_mb)


def _stats(options: argparse.Namespace) -> None:
    target, file = _opened(options)
    with closing(file):
        sequences = file.read()
    tokens = sum(len(one.tokens) for one in sequences)
    last = sequences[-1].used if sequences else None
    models = Counter("added by hand" if one.model is None else one.model or "not known" for one in sequences)
    facts: dict[str, Any] = {"target": target.name, "path": str(file.path), "texts": len(sequences), "models": models}
    facts |= {"tokens": tokens, "bytes": file.size, "budget_bytes": file.budget, "last_used": last}
    lines = [f"The corpus for {target.name} is empty. Chats fill it, and `localspec corpus add FILES`."]
    if sequences:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(last))
        lines = [
            f"{len(sequences)} texts of {tokens} tokens for the tokenizer of {target.name}, last used {at}; "
            f"{decimal(file.size)} of {decimal(file.budget)}.",
            str(file.path),
            "From: " + ", ".join(f"{name} {count}" for name, count in models.most_common()) + ".",
        ]
        if file.size > file.budget:
            lines.append("Others gave it more room; `localspec corpus trim` cuts it to yours.")
    report(options.json, facts, *lines)


def _clear(options: argparse.Namespace) -> None:
    from localspec.runtime.kept.corpus import files

    cleared = 0
    for file in files() if options.all else [_opened(options)[1]]:
        with closing(file):
            cleared += file.trim(0) > 0
            file.drop_damaged()
    done = f"Cleared {'all corpora' if options.all else 'the corpus'}." if cleared else "The corpus was empty."
    report(options.json, {"cleared": cleared}, done)


def _trim(options: argparse.Namespace) -> None:
    file = _opened(options)[1]
    with closing(file):
        removed = file.trim(file.budget)
    facts = {"removed": removed, "bytes": file.size, "budget_bytes": file.budget}
    report(options.json, facts, f"{removed} texts were removed; {decimal(file.size)} of {decimal(file.budget)}.")


def _add(options: argparse.Namespace) -> int:
    from localspec.llama.model import Model
    from localspec.runtime.kept.corpus import KEPT_SHARE, Sequence, name_of
    from localspec.types import NO_TOKENS

    target, file = _opened(options)
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
    facts = {"added": len(sequences), "tokens": tokens_added, "left_out": left_out, "path": str(file.path)}
    rest = f"; {left_out} that are empty, too large or no UTF-8 text were left out" if left_out else ""
    report(options.json, facts, f"Added {len(sequences)} files, {tokens_added} tokens{rest}.")
    return 0 if sequences else 1


def _texts(names: list[str]) -> Iterator[tuple[Path, str]]:
    """Every file and its text; "" = none. A name that is not there, or cannot be read as text, is a UsageError."""
    for name in names:
        path = paths.typed(name)
        if os.path.isdir(path):
            for place, folders, files in os.walk(path):
                folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
                for file in sorted(files):
                    if not file.startswith("."):
                        yield Path(place, file), _text(Path(place, file)) or ""
            continue
        text = _text(path) if os.path.exists(path) else None
        if text is None:
            not_text = f"it is no file of UTF-8 text of {decimal(_LARGEST)} at most"
            why = not_text if os.path.exists(path) else "there is no such file"
            raise UsageError(f"Cannot add {name}: {why}.")
        yield path, text


def _text(path: Path) -> str | None:
    """A file's text; None if it is none that can be added."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _LARGEST:
            return None
        text = path.read_text(encoding="utf-8")
        return None if "\0" in text else text
    except OSError as error:
        print(f"localspec: cannot read {path}: {error.strerror}.", file=sys.stderr)
    except UnicodeDecodeError:
        pass
    return None


_CORPUS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "stats": _stats, "clear": _clear, "trim": _trim, "add": _add,
}  # fmt: skip
