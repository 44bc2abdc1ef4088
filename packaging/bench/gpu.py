"""All that is to be measured on a GPU of CUDA, in calls of a few minutes each, on a machine without a network.

    python packaging/bench/gpu.py --pack SDIST WHEELS     before: llama-cpp-python's sources without docs and models
    python packaging/bench/gpu.py FOLDER [STEP ...] [--seconds 570] [--wheels WHEELS]

WHEELS holds that sdist and wheels of all that localspec, its extra `bench` and the builds need (pip download). Every
call does what FOLDER/results.jsonl does not have yet and stops in time; the same call again goes on. The first one
begins to compile llama.cpp in the background. `--python PATH` measures with an installed localspec instead. Exit code:
0 all is as wanted, 1 something is not, 3 there is more to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

HERE = Path(__file__).resolve().parent
LEFT_OUT = (".git/", "vendor/llama.cpp/docs/", "vendor/llama.cpp/models/")
"""Of llama-cpp-python's sdist: four fifths of its size, and nothing that is compiled."""
BUILD = """\
set -e
python3 -m venv {folder}/venv
pip="{folder}/venv/bin/python -m pip install -q --no-index --find-links {wheels}"
$pip scikit-build-core cmake ninja numpy
export CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native"
$pip --no-build-isolation {wheels}/llama_cpp_python-*.tar.gz
unset CMAKE_ARGS
$pip --no-build-isolation "{root}[bench]"
"""

Figures = dict[str, Any]


class MoreToDo(Exception):
    """The time is up, or the build goes on; what there is counts, and the same call goes on."""


class Bench:
    """What all steps need."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._results = self.folder / "results.jsonl"
        self._end = monotonic() + options.seconds
        self.card = card()

    @property
    def python(self) -> str:
        return self.options.python or str(self.folder / "venv" / "bin" / "python")

    def results(self) -> dict[str, Figures]:
        """What was found, by step."""
        lines = self._results.read_text(encoding="utf-8").splitlines() if self._results.exists() else []
        return {found["step"]: found for found in map(json.loads, lines)}

    def add(self, step: str, figures: Figures, good: bool) -> None:
        with self._results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "card": self.card, "good": good, **figures}) + "\n")

    def run(self, *command: str | Path, codes: tuple[int, ...] = (0,)) -> Any:
        """Runs Python on these arguments, with the kernel on; what it prints as its last line, JSON.

        Raises:
            MoreToDo: the time is up.
        """
        left = self._end - monotonic()
        if left < 5:
            raise MoreToDo
        arguments, environment = [self.python, *map(str, command)], {**os.environ, "LOCALSPEC_CUDA_KERNEL": "1"}
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=left, env=environment)
        except subprocess.TimeoutExpired:
            raise MoreToDo from None
        if done.returncode not in codes:
            raise SystemExit(f"{' '.join(arguments)} failed with code {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def localspec(self, *command: str | Path, codes: tuple[int, ...] = (0,)) -> Any:
        """A command of localspec with --json."""
        return self.run("-m", "localspec", *command, "--json", codes=codes)

    def target(self) -> str:
        """The file of the pair's target. Raises SystemExit if there is no pair yet."""
        return str(self._pair()["target"])

    def _pair(self) -> Figures:
        found = self.results().get("pair")
        if found is None:
            raise SystemExit("There are no models yet: the step pair makes them.")
        return found

    def pair(self) -> list[str]:
        """Options of the pair, all on the GPU."""
        layers, found = str(self.options.gpu_layers), self._pair()
        models = ["--target", found["target"], "--draft", found["draft"]]
        return [*models, "--gpu-layers", layers, "--draft-gpu-layers", layers]


def card() -> str:
    """Of the machine: names of GPUs and their driver."""
    if shutil.which("nvidia-smi") is None:
        return "no GPU"
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no GPU"


def build(bench: Bench) -> Figures:
    """llama.cpp for this GPU, and localspec, in the background."""
    if bench.options.python:
        return {"python": bench.options.python}
    folder, done, failed = bench.folder, bench.folder / "build.done", bench.folder / "build.failed"
    if not (folder / "build.sh").exists():
        text = BUILD.format(folder=folder, wheels=bench.options.wheels.resolve(), root=HERE.parents[1])
        (folder / "build.sh").write_text(text, encoding="utf-8")
        command = f"(bash {folder}/build.sh && touch {done} || touch {failed}) > {folder}/build.log 2>&1"
        subprocess.Popen(["bash", "-c", command], start_new_session=True)
    if failed.exists():
        raise SystemExit(f"The build failed; {folder}/build.log says why.")
    if not done.exists():
        raise MoreToDo
    return {"python": bench.python}


def kernel(step: str) -> Callable[[Bench], Figures]:
    """A step of gpu_kernel.py."""

    def run(bench: Bench) -> Figures:
        options = bench.options
        size = ["--rows", str(options.rows), "--vocab", str(options.vocab)]
        figures: Figures = bench.run(HERE / "gpu_kernel.py", step, *size, "--driver", options.driver)
        return figures

    return run


def pair(bench: Bench) -> Figures:
    """Models of real cost, made here."""
    options = bench.options
    shapes = ["--target-shape", options.shape, "--draft-shape", options.draft_shape, "--vocab", str(options.vocab)]
    formats = ["--quant", "Q8_0", "--draft-quant", "Q8_0", "--folder", bench.folder / "pair"]
    target, draft = bench.run(HERE / "make_pair.py", *shapes, *formats, "--json")
    return {"target": target["path"], "draft": draft["path"]}


def plain(bench: Bench) -> Figures:
    """Plain decoding beside a bare loop over llama.cpp."""
    options = ["--gpu-layers", str(bench.options.gpu_layers), "--tokens", str(bench.options.tokens), "--json"]
    figures: Figures = bench.run(HERE / "plain_speed.py", bench.target(), "--lengths", "128,1536", *options)
    return figures


def strict(bench: Bench) -> Figures:
    """Texts with and without drafts, under strict."""
    wanted = ["--exact", "strict", "--limit", str(bench.options.prompts), "--max-tokens", str(bench.options.tokens)]
    found = bench.localspec("verify", *bench.pair(), "--context", "4096", *wanted, codes=(0, 1))
    return {name: found[name] for name in ("runs", "tokens", "forks", "exact")}


def drafting(bench: Bench) -> Figures:
    """localspec as it comes beside plain decoding."""
    asked = ["--workloads", "copy,maths,chat", "--temperature", "0,1", "--limit", "2"]
    size = ["--tokens", str(bench.options.tokens), "--rounds", "3"]
    found = bench.localspec("bench", "run", *bench.pair(), *asked, *size)
    ratios = {
        f"{cell['workload']} at {cell['temperature']:g}": one["speedup"]["value"]
        for cell in found["cells"]
        for one in cell["contenders"]
        if one["contender"] == "localspec" and one["speedup"]
    }
    return {"ratios": ratios, "least": min(ratios.values()), "copy": ratios["copy at 0"]}


@dataclass(frozen=True)
class Step:
    """Something to measure."""

    run: Callable[[Bench], Figures]
    wanted: str
    good: Callable[[Figures], bool] = lambda figures: True


STEPS = {
    "build": Step(build, "it builds"),
    "self-test": Step(kernel("self-test"), "it passes"),
    "verdicts": Step(
        kernel("verdicts"),
        "the same verdict in every row, nine of ten by lists",
        lambda found: found["differing"] == 0 and found["by_lists"] > 0.9 * found["rows"] and not found["failure"],
    ),
    "preselection": Step(
        kernel("preselection"),
        "at most 30 us",
        lambda found: max(found["logits_least_us"], found["noise_least_us"]) <= 30,
    ),
    "pair": Step(pair, "it is made"),
    "plain": Step(plain, "at least 0.97 of a bare loop", lambda found: min(found["exact=off"]) >= 0.97),
    "strict": Step(strict, "no fork in 500 runs", lambda found: found["forks"] == 0 and found["runs"] >= 500),
    "drafting": Step(
        drafting, "never below 0.98, copies at least 1.6", lambda found: found["least"] >= 0.98 and found["copy"] >= 1.6
    ),
}
"""In this order; what is measured waits for `build`, the last three for `pair`."""


def pack(sdist: Path, folder: Path) -> None:
    """Writes the sdist into the folder without what is not compiled."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(sdist) as source, tarfile.open(folder / sdist.name, "w:gz") as target:
        for member in source:
            if not member.name.partition("/")[2].startswith(LEFT_OUT):
                target.addfile(member, source.extractfile(member) if member.isfile() else None)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; default: all")
    parser.add_argument("--pack", type=Path, nargs=2, metavar=("SDIST", "WHEELS"))
    parser.add_argument("--wheels", type=Path, default=Path("wheels"))
    parser.add_argument("--python", default="", help="of an installed localspec; nothing is built then")
    parser.add_argument("--driver", default="libcuda.so.1", help="the driver's library")
    parser.add_argument("--seconds", type=float, default=570.0, help="stop after so many; default: 570")
    parser.add_argument("--shape", default="1b", help="of the target; default: 1b")
    parser.add_argument("--draft-shape", default="100m", help="of the draft model; default: 100m")
    parser.add_argument("--vocab", type=int, default=152_000)
    parser.add_argument("--rows", type=int, default=100_000, help="whose verdicts are compared; default: 100,000")
    parser.add_argument("--prompts", type=int, default=22, help="under strict, in 24 ways each; default: 22")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer; default: 96")
    parser.add_argument("--gpu-layers", type=int, default=-1)
    options = parser.parse_args()
    unknown = set(options.steps) - set(STEPS)
    if unknown or (options.folder is None) == (options.pack is None):
        parser.error(
            f"unknown steps {', '.join(sorted(unknown))}" if unknown else "give FOLDER, or --pack SDIST WHEELS"
        )
    return options


def main() -> int:
    """Measures what is missing and prints what there is; its exit code."""
    options = parse()
    if options.pack:
        pack(*options.pack)
        return 0
    bench, more = Bench(options), False
    for name in options.steps or STEPS:
        if name in bench.results():
            continue
        try:
            figures = STEPS[name].run(bench)
        except MoreToDo:
            more = True
            break
        bench.add(name, figures, STEPS[name].good(figures))
    results = bench.results()
    for name, found in results.items():
        figures = {key: value for key, value in found.items() if key not in ("step", "card", "good")}
        print(f"{name} on {found['card']}: {'good' if found['good'] else 'NOT GOOD'} (wanted: {STEPS[name].wanted})")
        print(f"  {json.dumps(figures)}")
    if more:
        print("There is more to do: the same command goes on.")
    return 3 if more else 0 if all(found["good"] for found in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
