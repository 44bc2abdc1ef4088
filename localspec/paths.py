"""Where localspec keeps things: XDG folders through platformdirs, and the files shipped inside the package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PACKAGE = Path(__file__).parent


def shown(path: str | os.PathLike[str]) -> str:
    """A path for what holds UTF-8 alone; bytes of its name that are none become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def typed(text: str) -> Path:
    """The path that somebody typed, as a shell takes it: `~` and `~user` are expanded, and `~nobody_x` is a name where
    there is no such user. What can be no path is one that is not there.

    Ask `os.path` whether it is there: a `Path` raises if its name is too long, or a folder above may not be entered.
    """
    return Path(os.path.expanduser(text.replace("\0", "\ufffd")))  # Path.expanduser raises without such a user


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk that a folder is, or will be, on; 0 if nothing tells."""
    for place in (folder, *folder.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def write_whole(path: Path, text: str) -> None:
    """Writes a small file, whole or not at all: what was there stays until all of the new text is on disk.

    Raises:
        OSError: it cannot be written; nothing of the attempt is left.
    """
    beside = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden file beside `path`, which takes its place when the block ends without an error. One process at a time
    may write it: so what a killed one left is overwritten by the next, and never more than one such file lies there.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def cache_dir() -> Path:
    """Folder for what can be measured or built again (width probes, requantised models). LOCALSPEC_CACHE overrides."""
    override = os.environ.get("LOCALSPEC_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_path  # 4 ms, not needed for --help

    return user_cache_path("localspec")


def machine_dir() -> Path:
    """Folder of what was found out about this machine: its limits, its kernels, exact widths."""
    return cache_dir() / "machine"


def data_dir() -> Path:
    """Folder for what must last: the index of installed models, imported files. LOCALSPEC_DATA overrides."""
    override = os.environ.get("LOCALSPEC_DATA")
    if override:
        return Path(override)
    from platformdirs import user_data_path

    return user_data_path("localspec")


def config_dir() -> Path:
    """Folder of what the user writes: an own models.toml. LOCALSPEC_CONFIG overrides."""
    override = os.environ.get("LOCALSPEC_CONFIG")
    if override:
        return Path(override)
    from platformdirs import user_config_path

    return user_config_path("localspec")


def bundled(name: str) -> Path:
    """A data file shipped inside the package, such as `tiny-target-q8_0.gguf`."""
    return _PACKAGE / "data" / name


def models_toml() -> Path:
    """The shipped catalogue: beside the package in a wheel, at the repository root in an editable checkout."""
    shipped = _PACKAGE / "models.toml"
    return shipped if shipped.exists() else _PACKAGE.parent / "models.toml"
