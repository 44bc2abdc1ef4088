"""Whether a word of the command line names a model, and whether that can be opened: said before the screens come."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def names_model(word: str) -> bool:
    """Whether a word is the name of a model, installed or listed, or a GGUF file; else it may be a prompt."""
    from localspec.models.installed.installed import knows
    from localspec.paths import typed

    path = typed(word)
    is_file = os.path.isfile(path)
    if knows(word) or (word.endswith(".gguf") and (is_file or len(word.split()) == 1)):
        return True
    with suppress(OSError), open(path if is_file else os.devnull, "rb") as file:
        return file.read(4) == b"GGUF"
    return False


def check_openable(word: str, commands: Iterable[str] = ()) -> None:
    """Accepts an installed model or pair, a server's model of models.toml, or a GGUF file. Nothing is fetched.

    Args:
        word: as typed.
        commands: what else could have been meant.

    Raises:
        UsageError: neither a command nor a name that is known; the hint names those most like it.
        ModelError: a model that is known and not installed, or a file that cannot be read.
    """
    from localspec.cli.parser import did_you_mean
    from localspec.errors import UsageError
    from localspec.gguf import read_header
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find, knows, usable
    from localspec.paths import typed

    endpoints = Catalog.load().endpoints
    if word in endpoints:
        return
    names_file = word.endswith(".gguf") or "/" in word or os.path.isfile(typed(word))
    if not names_file and not knows(word):
        kinds = "command, model or file" if commands else "model, pair or file"
        hint = did_you_mean(word, [*commands, *usable(), *endpoints])
        raise UsageError(
            f"There is no {kinds} called {word!r}.",
            hint or "`localspec help` lists the commands, `localspec list` the models that are installed.",
        )
    target, _ = find(word)
    read_header(target)
