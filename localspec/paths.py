"""Where localspec keeps things: XDG folders through platformdirs, files of the package, what is done with any file."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.errors import UsageError

_PACKAGE = Path(__file__).parent
_BLOCK_BYTES = 8 << 20  # read at once where a whole file is


def shown(path: str | os.PathLike[str]) -> str:
    """A path for what holds UTF-8 alone; bytes of its name that are none become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def typed(text: str) -> Path:
    """The path of what was typed, as a shell takes it: `~` and `~user` are expanded, for users that there are. What can
    be no path is one that is not there. Ask `os.path` whether it is there: a `Path` raises if its name is too long, or
    a folder above may not be entered."""
    return Path(os.path.expanduser(text.replace("\0", "\ufffd")))  # Path.expanduser raises without such a user


def real(path: str | os.PathLike[str]) -> Path:
    """The whole path, links followed; of a link to itself its own (`Path.resolve` fails there)."""
    return Path(os.path.realpath(path))


def is_pipe(path: str | os.PathLike[str]) -> bool:
    return stat.S_ISFIFO(os.stat(path).st_mode)


def read_own(path: Path) -> str:
    """A small file in UTF-8, with or without a byte order mark. Raises OSError: it cannot be read, or is a pipe."""
    if is_pipe(path):
        raise OSError(errno.EINVAL, "it is a pipe, not a file", str(path))
    return path.read_text(encoding="utf-8-sig")


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk that a folder is, or will be, on; 0 if nothing tells."""
    for place in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def new_mode() -> int:
    """The mode that the system gives a new file of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_whole(path: Path, text: str) -> None:
    """Writes a small file, whole or not at all: what was there stays until all of the new text is on disk. Raises
    OSError: it cannot be written; nothing of the attempt is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, f"{os.getpid()}-{threading.get_ident()}") as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path, ending: str = "part") -> Iterator[Path]:
    """A hidden file beside `path`, which takes its place when the block ends without an error. One process at a time
    may write one `ending`: it overwrites what a killed one left."""
    beside = path.with_name(f".{path.name}.{ending}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def cache_dir() -> Path:
    """Folder for what can be measured or built again (caches of chats, padded models). LOCALSPEC_CACHE overrides."""
    return _folder("cache", "LOCALSPEC_CACHE")


def data_dir() -> Path:
    """Folder for what must last: the index of installed models, imported files. LOCALSPEC_DATA overrides."""
    return _folder("data", "LOCALSPEC_DATA")


def config_dir() -> Path:
    """Folder of what the user writes: an own models.toml. LOCALSPEC_CONFIG overrides."""
    return _folder("config", "LOCALSPEC_CONFIG")


def _folder(kind: str, variable: str) -> Path:
    if override := os.environ.get(variable):
        return typed(override)
    if not os.path.isabs(os.environ.get(f"XDG_{kind.upper()}_HOME", "")):
        home()
    import platformdirs  # 4 ms, not needed for --help

    return Path(getattr(platformdirs, f"user_{kind}_path")("localspec"))


def home() -> Path:
    """The user's folder. Raises UsageError: there is none."""
    found = os.path.expanduser("~")
    if os.path.isabs(found):
        return Path(found)
    unknown = "HOME is not set, and the system does not know the user"
    why = unknown if found == "~" else f"HOME is {found!r}, which is no whole path"
    hint = "Set HOME, or LOCALSPEC_DATA, LOCALSPEC_CONFIG and LOCALSPEC_CACHE."
    raise UsageError(f"There is no home folder: {why}.", hint)


def bundled(name: str) -> Path:
    """A data file shipped inside the package, such as `tiny-target-q8_0.gguf`."""
    return _PACKAGE / "data" / name


def models_toml() -> Path:
    """The shipped catalogue: beside the package in a wheel, at the repository root in an editable checkout."""
    shipped = _PACKAGE / "models.toml"
    return shipped if shipped.exists() else _PACKAGE.parent / "models.toml"


Progress = Callable[[str, int, int], None]  # (file, bytes done, bytes in all)


def sha256_of(path: Path, progress: Progress | None = None, more: Callable[[bytes], object] | None = None) -> str:
    """Checksum of a file, lower-case hex; `more` gets its bytes, too."""
    import hashlib

    found, size, done = hashlib.sha256(), path.stat().st_size, 0
    with open(path, "rb", buffering=0) as data:
        while block := data.read(_BLOCK_BYTES):
            found.update(block)
            if more is not None:
                more(block)
            done += len(block)
            if progress is not None:
                progress(path.name, done, size)
    return found.hexdigest()
