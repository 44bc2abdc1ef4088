"""Measure every trained head on held-out prompts through the real engine, beside the draft model and prompt lookup.

Every drafter drafts chains of a fixed length in every pass that it has a guess for. tau = mean accepted length, the
next token included, over the passes that carried a draft; "share" = of all passes, those that did; both decide what
a drafter brings, which is tokens per pass. Times are means: only those of one run on a quiet machine can be compared.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.checks.prompts import load_workloads
from localspec.drafters.heads.head import find
from localspec.engine.stats import RequestStats
from localspec.gguf import read_header
from localspec.models.facts.heads import nextn_layers
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams

HEADS = Path(__file__).resolve().parents[2] / "tests" / "data" / "heads"
WORKLOADS = ("maths", "code-edit", "json", "copy", "chat")
COLUMNS = ("drafter", "target", "file", "kB", "tau, T=0", "tau, T=1", "share", "tokens/pass, T=0",
           "tokens/pass, T=1", "ms/draft", "ms/level", "ms/pass")  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """One drafter, the file it comes from and the target it guesses for."""

    drafter: str
    target: Path
    path: Path | None = None

    @property
    def kilobytes(self) -> str:
        """Size of its file or folder, in units of 1,000 bytes."""
        if self.path is None:
            return "-"
        files = [file for file in self.path.rglob("*") if file.is_file()] if self.path.is_dir() else [self.path]
        return f"{sum(file.stat().st_size for file in files) / 1000:.0f}"


def contenders(target: Path, draft: Path, folder: Path) -> Iterator[Contender]:
    """Prompt lookup, the draft model, and whatever heads lie in the folder; a model with prediction layers is a target
    of its own."""
    yield Contender("lookup", target)
    yield Contender("draft", target, draft)
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.suffix == ".gguf" and nextn_layers(read_header(path)):
            yield Contender("lookup", path)
            yield Contender("draft", path, draft)
            yield Contender("mtp", path, path)
        else:
            yield Contender(find(path, read_header(target)).name, target, path)


def measure(one: Contender, args: argparse.Namespace, temperature: float) -> list[RequestStats]:
    """One request after the other; the first is repeated and not counted, as it warms up."""
    files: dict[str, Any] = {}
    if one.path not in (None, one.target):
        files = {"draft": one.path} if one.drafter == "draft" else {"heads": (one.path,)}
    prompts = [prompt for found in load_workloads(WORKLOADS, limit=args.each).values() for prompt in found]
    found = []
    with Engine.load(
        one.target, **files, tuned=False, drafter=one.drafter, max_draft_tokens=args.nodes, corpus="off"
    ) as engine:
        for index, prompt in enumerate((prompts[0], *prompts)):
            sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
            generation = engine.chat(prompt.questions[0], sampling=sampling, seed=index, max_tokens=args.tokens)
            generation.text()
            found.append(generation.stats)
    return found[1:]


def mean_length(stats: list[RequestStats]) -> float:
    """tau over all passes that carried a draft; 0 = there were none."""
    passes = sum(one.draft_passes for one in stats)
    return 1.0 + sum(one.accepted for one in stats) / passes if passes else 0.0


def row(one: Contender, args: argparse.Namespace) -> tuple[str, ...]:
    """What the table says of one drafter."""
    cold, warm = (measure(one, args, temperature) for temperature in (0.0, 1.0))
    both = cold + warm
    passes, drafts = sum(each.passes for each in both), sum(each.draft_passes for each in both)
    drafting = 1000 * sum(each.draft_seconds for each in both)
    levels = sum(each.drafted for each in both)
    return (
        one.drafter, one.target.name, "-" if one.path is None else one.path.name, one.kilobytes,
        f"{mean_length(cold):.2f}", f"{mean_length(warm):.2f}", f"{drafts / max(1, passes):.0%}",
        *(f"{sum(e.generated for e in found) / sum(e.passes for e in found):.2f}" for found in (cold, warm)),
        f"{drafting / max(1, drafts):.2f}", f"{drafting / max(1, levels):.2f}",
        f"{1000 * statistics.mean(each.verify_seconds / each.passes for each in both if each.passes):.2f}",
    )  # fmt: skip


def main() -> None:
    """A markdown table on stdout."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, default=paths.bundled("tiny-target-q8_0.gguf"))
    options.add_argument("--draft", type=Path, default=paths.bundled("tiny-draft-q8_0.gguf"))
    options.add_argument("--heads", type=Path, default=HEADS, help="folder of heads, a file or folder each")
    options.add_argument("--only", action="append", default=[], help="of the drafters, this one (may be repeated)")
    options.add_argument("--nodes", type=int, default=5, help="length of every draft")
    options.add_argument("--each", type=int, default=None, help="prompts of each workload; all if left out")
    options.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    args = options.parse_args()
    for line in (COLUMNS, ["---"] * len(COLUMNS)):
        print("|", " | ".join(line), "|", flush=True)
    for one in contenders(args.target, args.draft, args.heads):
        if not args.only or one.drafter in args.only:
            print("|", " | ".join(row(one, args)), "|", flush=True)


if __name__ == "__main__":
    main()
