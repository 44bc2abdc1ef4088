"""What a new llama.cpp needs: `packaging/port VERSION` or `packaging/port SOURCES`.

It compares localspec's copies of llama.cpp's structs and numbers with the headers in a source distribution of
llama-cpp-python, and says what differs. Where nothing does, it builds both and runs the tests of operations and
architectures. CONTRIBUTING.md has the whole way ("A new llama.cpp").
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

from copies import ABI, ROOT, THEIRS, C, Copy, bindings, copies, functions, their_field
from layout import Headers, parameters
from libraries import Refusal

from localspec.llama.library.lib import PINNED

TESTS = ("tests/llama/test_per_row.py", "tests/llama/test_architectures.py", "tests/llama/test_wide.py")


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code: 1 where something differs or fails."""
    parser = argparse.ArgumentParser(prog="packaging/port", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("release", metavar="RELEASE", help="a version of llama-cpp-python, or its source distribution")
    parser.add_argument("--compare-only", action="store_true", help="build and test nothing")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "port", metavar="FOLDER", help="what is fetched")
    options = parser.parse_args(arguments)
    try:
        work = options.work.absolute()
        sources = lay_out(options.release, work)
        version = version_of(sources)
        found = [*differences(list(copies()), their_headers(sources)), *other_parameters(sources), *lacking(sources)]
        counted = "1 difference" if len(found) == 1 else f"{len(found) or 'no'} differences"
        print(*found, f"llama-cpp-python {version}: {counted} from localspec's copies.", sep="\n", flush=True)
        if found or options.compare_only:
            return 1 if found else 0
        return try_out(sources, version, work)
    except (Refusal, OSError, tarfile.TarError) as error:
        sys.exit(f"packaging/port: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"packaging/port: {Path(error.cmd[0]).name} failed with exit code {error.returncode}; see above.")


# -- the source distribution -----------------------------------------------------------------------------------------


def lay_out(release: str, work: Path) -> Path:
    """The unpacked source distribution; fetched or unpacked into `work` if need be.

    Raises:
        Refusal: it is neither a version nor a source distribution.
    """
    given = Path(release)
    if given.is_dir():
        return given
    if not given.is_file() and not re.fullmatch(r"\d+(\.\w+)+", release):
        raise Refusal(f"there is no {release}; give a version of llama-cpp-python or its source distribution.")
    work.mkdir(parents=True, exist_ok=True)
    archive = given if given.is_file() else fetch(release, work)
    folder = work / archive.name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(archive) as members:
            members.extractall(work, filter="data")
    return folder


def fetch(version: str, work: Path) -> Path:
    """The file of a version, fetched once."""
    archive = work / f"llama_cpp_python-{version}.tar.gz"
    if not archive.exists():
        wanted = f"llama-cpp-python=={version}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*command, "-d", work, wanted], check=True)
    return archive


def version_of(sources: Path) -> str:
    """Of an unpacked source distribution.

    Raises:
        Refusal: it is none of llama-cpp-python.
    """
    file = sources / "llama_cpp" / "__init__.py"
    found = (
        re.search(r'^__version__ = "(.+)"', file.read_text(encoding="utf-8"), re.MULTILINE) if file.exists() else None
    )
    if found is None or not (sources / "vendor" / "llama.cpp" / "ggml").is_dir():
        raise Refusal(f"{sources} is no source distribution of llama-cpp-python.")
    return found[1]


# -- the comparison --------------------------------------------------------------------------------------------------


def their_headers(sources: Path) -> Headers:
    """Those of the llama.cpp inside."""
    tree = sources / "vendor" / "llama.cpp"
    return Headers(THEIRS, (tree / "include", tree / "ggml" / "include", tree / "ggml" / "src"))


def differences(ours: list[Copy], theirs: Headers) -> Iterator[str]:
    """A sentence for each number that is not theirs."""
    for copy, number in zip(ours, theirs.measure([copy.theirs for copy in ours]), strict=True):
        if number is None:
            yield f"{copy.what} is no longer declared; {copy.file} has {copy.ours}."
        elif number != copy.ours:
            yield f"{copy.what} is {number}; {copy.file} has {copy.ours}."


def other_parameters(sources: Path) -> Iterator[str]:
    """A sentence for each function in their tables whose number of parameters is not that of ours."""
    tree = sources / "vendor" / "llama.cpp" / "ggml"
    files = [file for part in ("include", "src") for file in (tree / part).glob("*.h")]
    theirs = parameters("\n".join(file.read_text(encoding="utf-8") for file in files))
    ours = parameters((ROOT / ABI).read_text(encoding="utf-8"))
    for (struct, field), count in ours.items():
        place = C.get(struct, ""), their_field(struct, field)
        if count and theirs.get(place, count) != count:
            yield f"{place[0]}: {place[1]} takes {theirs[place]} parameters; {ABI} has {count}."


def lacking(sources: Path) -> Iterator[str]:
    """A sentence for each name that is used and not there."""
    tree = sources / "vendor" / "llama.cpp"
    headers = [file for part in ("include", "ggml/include", "ggml/src", "src") for file in (tree / part).glob("*.h")]
    yield from _lacking(functions(), headers, "no header declares")
    yield from _lacking(bindings(), sorted((sources / "llama_cpp").glob("*.py")), "the bindings lack")


def _lacking(names: dict[str, str], files: Iterable[Path], what: str) -> Iterator[str]:
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8", errors="replace"))}
    for name, user in names.items():
        if name not in words:
            yield f"{what} {name}; {user} uses it."


# -- building and testing --------------------------------------------------------------------------------------------


def try_out(sources: Path, version: str, work: Path) -> int:
    """Builds localspec with this release and runs `TESTS`; their exit code."""
    python, root = (Path(sys.executable), ROOT) if version == _installed() else _made(sources, version, work)
    subprocess.run([root / "packaging" / "native"], check=True, env={**os.environ, "PYTHON": str(python)})
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not trial", *TESTS]
    return subprocess.run(command, cwd=root, check=False).returncode


def _installed() -> str:
    """The version of llama-cpp-python beside this Python; "" = there is none."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _made(sources: Path, version: str, work: Path) -> tuple[Path, Path]:
    """The Python of an environment with this release, and a copy of this repository that is pinned to it."""
    root, folder = work / f"localspec-{version}", work / f"python-{version}"
    shutil.rmtree(root, ignore_errors=True)
    known = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in known.stdout.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    for name in ("pyproject.toml", "localspec/llama/library/lib.py"):
        text = (root / name).read_text(encoding="utf-8")
        (root / name).write_text(text.replace(PINNED, version), encoding="utf-8")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, sources], check=True)  # compiles llama.cpp
    subprocess.run([*pip, "-e", f"{root}[test]", "cmake>=3.20"], check=True)
    return python, root


if __name__ == "__main__":
    sys.exit(main())
