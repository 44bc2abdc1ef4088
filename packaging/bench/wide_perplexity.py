"""Perplexity of a model on localspec's own kernels and on llama.cpp's: equal within noise?

    python packaging/bench/wide_perplexity.py [MODEL.gguf ...] [--tokens 4096] [--text FILE] [--reference]

Without a model the bundled target. The text is the bundled pair's held-out prompts with their answers, or a file.
Windows of --window tokens are scored each from an empty context, in passes of --width rows, so that both matrix
products and attention run as in verification. The difference is taken token by token against llama.cpp's default
(repacked weights); its standard error is the noise. llama.cpp's two ways differ from each other too: that is the
scale to judge by. With --reference the weights are also unpacked to F32 in a temporary file (four bytes a weight) and
run with an F32 cache and unfused attention: the last column then is the distance (root mean square over tokens, in
nats) of each from exact arithmetic. Exit code 1 if ours is worse by more than 3 standard errors and more than 0.1 %,
or could not be loaded. A 1 B model takes a minute or so per 4,096 tokens and kind of kernels on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from pairs import Perplexity, held_out, losses, windows

from localspec import paths
from localspec.llama.exact import wide
from localspec.llama.exact.wide import ALL_KERNELS, LLAMA_KERNELS, Kernels
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Float64Array
from tests.quantised import quantize

BASE: Kernels = "repacked"


class Judge:
    """Losses of one model in several ways, on the same tokens; one copy of it is in memory at a time."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self._path, self._options = path, options
        self._text: str | None = None if options.text is None else options.text.read_text(encoding="utf-8")

    def losses(self, kernels: Kernels) -> Float64Array:
        settings = ContextSettings(threads=self._options.threads, flash_attention=True)
        return self._run(self._path, kernels, settings)

    def reference(self) -> Float64Array:
        """With F32 weights, activations and cache."""
        settings = ContextSettings(threads=self._options.threads, flash_attention=False, type_k="f32", type_v="f32")
        with tempfile.TemporaryDirectory(dir=self._options.scratch) as folder:
            unpacked = quantize(self._path, Path(folder) / "reference.gguf", "F32", self._options.threads)
            return self._run(unpacked, "plain", settings)

    def _run(self, path: Path, kernels: Kernels, settings: ContextSettings) -> Float64Array:
        options = self._options
        with Model.load(path, kernels=kernels) as model:
            text = held_out(model) if self._text is None else self._text
            pieces = list(windows(model, text, options.tokens, options.window))
            return losses(model, pieces, options.width, settings)


def compare(path: Path, options: argparse.Namespace) -> tuple[int, dict[str, dict[str, float]]]:
    """(tokens, figures per kind of kernels)."""
    judge = Judge(path, options)
    found: dict[str, Float64Array] = {
        kernels: judge.losses(kernels) for kernels in (ALL_KERNELS if wide.available() else LLAMA_KERNELS)
    }
    exact = judge.reference() if options.reference else None
    if exact is not None:
        found["reference"] = exact
    count = len(found[BASE])
    rows = {}
    for name, values in found.items():
        perplexity, difference = Perplexity.of(values), values - found[BASE]
        rows[name] = {
            "perplexity": perplexity.value,
            "error": perplexity.error,
            "to_llama": math.expm1(difference.mean()),
            "to_llama_error": float(difference.std() / math.sqrt(count)),
            "largest_difference": float(np.abs(difference).max()),
        }
        if exact is not None:
            rows[name]["to_reference"] = float(np.sqrt(np.square(values - exact).mean()))
    return count, rows


def worse(row: dict[str, float]) -> bool:
    """Whether a perplexity is higher than llama.cpp's by more than noise."""
    return row["to_llama"] > max(3 * row["to_llama_error"], 1e-3)


def main() -> int:
    """Models in, table out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", default=[paths.bundled("tiny-target-q8_0.gguf")])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--text", type=Path, help="a UTF-8 file, such as README.md")
    parser.add_argument("--reference", action="store_true", help="also with everything in F32")
    parser.add_argument("--scratch", type=Path, help="folder of the F32 file; default: the system's")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not wide.available():
        print(f"only llama.cpp's kernels: {wide.status().reason}", file=sys.stderr)
    results, bad = [], []
    if not options.json:
        last = f"{'from F32':>10}" if options.reference else ""
        print(f"{'model':30}{'kernels':>10}{'tokens':>8}{'perplexity':>12}{'+-':>8}{'to repacked':>13}{'+-':>10}{last}")
    for path in options.models:
        count, rows = compare(path, options)
        results.append({"model": path.name, "tokens": count, "kernels": rows})
        if "wide" in rows and worse(rows["wide"]):
            bad.append(path.name)
        for kernels, row in rows.items() if not options.json else ():
            print(
                f"{path.name:30}{kernels:>10}{count:8}{row['perplexity']:12.4f}{row['error']:8.3f}"
                f"{row['to_llama']:+13.4%}{row['to_llama_error']:10.4%}"
                + (f"{row['to_reference']:10.4f}" if "to_reference" in row else ""),
                flush=True,
            )
    if options.json:
        print(json.dumps(results, indent=1))
    elif wide.available():
        print(f"worse than llama.cpp's: {', '.join(bad)}" if bad else "wide: equal within noise, or better")
    return 1 if bad or not wide.available() else 0


if __name__ == "__main__":
    raise SystemExit(main())
