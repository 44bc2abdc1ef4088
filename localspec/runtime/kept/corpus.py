"""Past answers, searched when drafting and kept on disk between runs: one corpus for each tokenizer.

Reading, sorting and writing happen on a thread of their own; while it works on the index nothing is found, and nothing
waits. What is of least use for longest makes room. Trouble with the disk is said once, in a sentence (a warning of the
logger `localspec`), and answers go on.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import LocalspecError
from localspec.gguf import Header
from localspec.models.facts.vocabulary import vocabulary
from localspec.native.suffix import SuffixIndex
from localspec.runtime.kept.corpus_file import CorpusFile, Sequence, mark_of, name_of
from localspec.types import Tokens

_LOG = logging.getLogger("localspec")
LEAST_TOKENS = 8
"""Shorter answers are not worth keeping."""
_KEPT_SHARE = 0.75
"""Of the budget, after what is of least use has left."""


def folder() -> Path:
    """Where the files are."""
    return paths.data_dir() / "corpus"


def file_of(header: Header, megabytes: float) -> CorpusFile:
    """The file of all models with this tokenizer.

    Raises:
        ModelFileError: the model's file has changed since its header was read.
    """
    words = vocabulary(header)
    digest = hashlib.sha256(f"{words.kind} {words.pre} {words.size} {words.merge_count}\n".encode())
    for token in words.tokens:
        digest.update(len(token).to_bytes(4, "little") + token)
    digest.update(words.merges)
    return CorpusFile(folder() / f"{digest.hexdigest()[:24]}.tokens", int(megabytes * 1e6))


def erase(chat: str) -> None:
    """Takes a deleted chat's answers out of the files of all tokenizers.

    Raises:
        LocalspecError: one of them cannot be written; what was there is as it was. The others are done.
    """
    fault: LocalspecError | None = None
    for path in sorted(folder().glob("*.tokens")):
        try:
            CorpusFile(path, 0).remove(chat)
        except OSError as error:
            said = f"The answers of the chat cannot be taken out of the corpus {path}: {error.strerror or error}."
            fault = LocalspecError(said, "`localspec corpus clear` deletes it.")
    if fault is not None:
        raise fault


class Corpus:
    """The sequences of one file in memory. `borrow`, `used` and `keep` are for the engine's thread."""

    def __init__(self, file: CorpusFile, n_vocab: int) -> None:
        """Begins to read; `n_vocab`: sequences with other tokens are left out."""
        self.file = file
        self._n_vocab = n_vocab
        self._most = file.budget // 4
        self._index = SuffixIndex()
        self._lock = threading.Lock()  # of the index
        self._held: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        """By number in the index: name and tokens; used last comes last. On the thread only."""
        self._numbers: dict[bytes, int] = {}
        self._tokens = 0
        self._used: set[int] = set()
        self._said = self._closed = False
        self._thread = ThreadPoolExecutor(1, "localspec-corpus")
        self._thread.submit(self._guarded, self._load)

    # -- on the engine's thread -------------------------------------------------------------------------------------

    def borrow(self) -> SuffixIndex | None:
        """The index, to be looked into until `give_back`; None while it is being worked on."""
        return self._index if self._lock.acquire(blocking=False) else None

    def give_back(self) -> None:
        """What was borrowed is not looked into any more."""
        self._lock.release()

    def used(self, sequence: int) -> None:
        """A guess from that sequence was right."""
        self._used.add(sequence)

    def keep(self, tokens: Tokens, chat: str | None = None) -> None:
        """Takes an answer, int32[n], given in a chat that may be deleted, or in none; on disk soon."""
        if len(tokens) >= LEAST_TOKENS:
            used, self._used = self._used, set()
            self._thread.submit(self._guarded, self._take, tokens.copy(), chat, used)

    def forget(self, chat: str) -> None:
        """The chat was deleted: its answers are found no more, and leave the disk; if they cannot, it warns."""
        self._thread.submit(self._guarded, self._leave, chat)

    def wait(self) -> None:
        """Until everything that was asked for is done."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Writes what is not on disk yet and frees the index; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._thread.submit(self._guarded, self._write_used, self._used)
        self._thread.shutdown()
        self._index.close()

    # -- on its own thread ------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Whatever goes wrong is said once, and answers go on."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - no caller looks at what becomes of the work
            if not self._said:
                self._said = True
                reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
                _LOG.warning(
                    "localspec: The corpus %s cannot be kept (%s); answers go on, and some are not added to it.",
                    self.file.path,
                    reason.rstrip("."),
                )

    def _load(self) -> None:
        contents = self.file.read()
        if contents.lost:
            _LOG.warning(
                "localspec: The corpus %s was damaged: %d of its %d bytes cannot be read and are left out; "
                "%d texts are there.",
                self.file.path,
                contents.lost,
                contents.size,
                len(contents.sequences),
            )
            self.file.mend()
        room, chosen = self._most, []
        for one in reversed(contents.sequences):
            if not len(one.tokens) or int(one.tokens.min()) < 0 or int(one.tokens.max()) >= self._n_vocab:
                continue
            room -= len(one.tokens)
            if room < 0:
                break
            chosen.append(one)
        chosen.reverse()
        with self._lock:
            first = self._index.add([one.tokens for one in chosen])
        for number, one in enumerate(chosen, first):
            self._hold(number, one)

    def _hold(self, number: int, one: Sequence) -> None:
        self._held[number] = (one.name, len(one.tokens))
        self._numbers[one.name] = number
        self._tokens += len(one.tokens)

    def _take(self, tokens: Tokens, chat: str | None, used: set[int]) -> None:
        self._write_used(used)
        one = Sequence(name_of(tokens, chat), tokens, time.time())
        known = self._numbers.get(one.name)
        if known is not None:
            self._write_used({known})
            return
        with self._lock:
            number = self._index.add([tokens])
        self._hold(number, one)
        if self._tokens > self._most:
            self._make_room()
        self.file.add([one])

    def _make_room(self) -> None:
        """Takes out what was of no use for longest."""
        while self._tokens > _KEPT_SHARE * self._most and len(self._held) > 1:
            self._drop(next(iter(self._held)))

    def _leave(self, chat: str) -> None:
        mark = mark_of(chat)
        for name in [name for name in self._numbers if name.startswith(mark)]:
            self._drop(self._numbers[name])
        try:
            erase(chat)
        except LocalspecError as error:
            _LOG.warning("localspec: %s", error)

    def _drop(self, number: int) -> None:
        name, length = self._held.pop(number)
        with self._lock:
            self._index.remove(number)
        del self._numbers[name]
        self._tokens -= length

    def _write_used(self, numbers: set[int]) -> None:
        there = [number for number in numbers if number in self._held]
        for number in there:
            self._held.move_to_end(number)
        self.file.used([self._held[number][0] for number in there])
