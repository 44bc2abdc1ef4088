"""Builds localspec's release: `python packaging/llama/release.py --out FOLDER`.

Its wheel and source distribution depend on localspec-llama, which needs no compiler, in place of llama-cpp-python, on
which a checkout depends. `--tree FOLDER` only lays out the sources for that, for a program that builds them on several
systems. Tracked files are taken, as they are in the checkout.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from libraries import UPSTREAM, Refusal, build, faults_in_a_sentence, make_tools

ROOT = Path(__file__).resolve().parents[2]
COMPILED = f'"llama-cpp-python=={UPSTREAM}"'
"""What a checkout depends on, in pyproject.toml."""
SHIPPED = f'"localspec-llama=={UPSTREAM}.*"'
EXTRAS = "[project.optional-dependencies]\n"
EXTRA = f"llama-cpp-python = [{COMPILED}] # compiled here, for a GPU perhaps; it serves in place of localspec-llama\n"


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="packaging/llama/release.py", description=(__doc__ or "").split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FOLDER", help="where the two files go")
    what.add_argument("--tree", type=Path, metavar="FOLDER", help="where the sources go, to be built elsewhere")
    options = parser.parse_args(arguments)
    with faults_in_a_sentence():
        if options.tree is not None:
            print(lay_out(ROOT, options.tree))
            return 0
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            python = make_tools(work / "tools")
            build(python, lay_out(ROOT, work / "tree"), work / "built", options.out.absolute())
    return 0


def lay_out(root: Path, tree: Path) -> Path:
    """The release's sources: the checkout's tracked files, but for what they depend on.

    Raises:
        Refusal: the folder is not empty.
        subprocess.CalledProcessError: `root` is no checkout.
    """
    if tree.exists() and any(tree.iterdir()):
        raise Refusal(f"{tree} is not empty; name another folder.")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in listed.strip("\0").split("\0"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, tree / name)
    project = tree / "pyproject.toml"
    project.write_text(released((root / "pyproject.toml").read_text(encoding="utf-8")), encoding="utf-8")
    return tree


def released(project: str) -> str:
    """pyproject.toml with the dependencies of a release.

    Raises:
        Refusal: it does not depend on llama-cpp-python as is expected.
    """
    if project.count(COMPILED) != 1 or project.count(EXTRAS) != 1:
        raise Refusal(f"pyproject.toml does not depend on {COMPILED} once.")
    return project.replace(COMPILED, SHIPPED).replace(EXTRAS, EXTRAS + EXTRA)


if __name__ == "__main__":
    sys.exit(main())
