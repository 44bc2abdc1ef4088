"""What passes of a mixture of experts and of a hybrid cost, before and after a change of the library.

    python packaging/bench/mixtures.py [--before LIBRARY] [--rounds 7] [--threads 2]

Random weights of real shapes in Q4_K_M: 32 experts of which 4 are used (300 MB), and 36 layers of linear attention with
32 heads of 128 x 128 (a state of 75 MB) between 12 of attention. Both libraries take turns, each visit in a process of
its own; medians and the spread between the quartiles. "before" also has llama.cpp's tiled kernels, as it had them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS, LENGTH, PROMPT = (1, 2, 4, 8, 16), 300, 1024
_ROOT = Path(__file__).parents[2]
_VISIT = """
import json, sys, time
import numpy as np
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.settings import ContextSettings
from localspec.types import Feed

path, threads, rollback, widths, length, prompt = sys.argv[1], *map(json.loads, sys.argv[2:])
model = Model.load(path, kernels="wide")
context = Context(model, ContextSettings(n_ctx=2048, threads=threads, rollback=rollback))
tokens = np.random.default_rng(1).integers(64, model.n_vocab - 64, prompt + 1).astype(np.int32)
context.prefill(0, tokens[:65], 65)
context.forget(0)
start = time.perf_counter()
context.prefill(0, tokens, len(tokens))
found = {"prefill": prompt / (time.perf_counter() - start)}
context.forget(0)
context.prefill(0, tokens[:length], length)
for width in widths:
    if width - 1 > context.most_nodes:
        continue
    draft = tokens[length : length + width - 1]
    times = []
    for turn in range(6):
        history = tokens[: length + 1 + (turn if context.can_trim is False else 0)]
        feed = Feed(0, history, length, draft, np.arange(-1, width - 2, dtype=np.int32))
        start = time.perf_counter()
        context.decode([feed])
        times.append(time.perf_counter() - start)
    found[str(width)] = 1e3 * min(times[1:])
    context.forget(0)
    context.prefill(0, tokens[:length], length)
print(json.dumps(found))
"""


def files(folder: Path) -> dict[str, Path]:
    """The two models, written once."""
    sys.path.insert(0, str(_ROOT))
    from localspec.llama.quantize import quantize
    from tests.llama.architectures import write

    found = {}
    for name, layers, sizes in (
        (
            "qwen3moe",
            10,
            {"embedding_length": 1024, "attention__head_count": 16, "attention__head_count_kv": 4, "expert_count": 32,
             "expert_used_count": 4, "expert_feed_forward_length": 512},
        ),
        (
            "qwen35",
            48,
            {"embedding_length": 512, "feed_forward_length": 1024, "full_attention_interval": 4,
             "ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__time_step_rank": 32, "ssm__group_count": 16},
        ),
    ):  # fmt: skip
        path = folder / f"{name}-Q4_K_M.gguf"
        if not path.exists():
            made = write(name, folder, layers, context_length=4096, **sizes)
            quantize(made, path, "Q4_K_M")
            made.unlink()
        found[name] = path
    return found


def visit(path: Path, threads: int, rollback: int, library: str) -> dict[str, float]:
    """Milliseconds by width, and tokens of a prompt a second."""
    environment = os.environ | ({"LOCALSPEC_WIDE_LIBRARY": library} if library else {"GGML_CPU_TILED_MM": "0"})
    arguments = [str(path), *map(json.dumps, (threads, rollback, WIDTHS, LENGTH, PROMPT))]
    done = subprocess.run(
        [sys.executable, "-c", _VISIT, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", metavar="LIBRARY", help="localspec_wide of another version, for comparison")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rollback", type=int, default=4, help="states that the hybrid keeps")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "localspec-mixtures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    contenders = {"before": options.before, "after": ""} if options.before else {"after": ""}
    for name, path in files(options.folder).items():
        found: dict[str, list[dict[str, float]]] = {which: [] for which in contenders}
        for turn in range(options.rounds):
            for which in list(contenders)[:: -1 if turn % 2 else 1]:
                found[which].append(visit(path, options.threads, options.rollback, contenders[which]))
        print(f"{name}, {path.stat().st_size / 1e6:.0f} MB, {options.threads} threads, {options.rounds} rounds")
        for what in found["after"][0]:
            parts = []
            for which, rows in found.items():
                values = [row[what] for row in rows]
                low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
                parts.append(f"{which} {middle:8.2f} ({low:.2f} to {high:.2f})")
            unit = "tokens/s" if what == "prefill" else f"width {what}: ms"
            print(f"  {what if what == 'prefill' else ''} {unit:12} {'   '.join(parts)}")


if __name__ == "__main__":
    main()
