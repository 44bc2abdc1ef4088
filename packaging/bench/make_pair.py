"""Models of real cost that say what the bundled pair says: two GGUF files, target and draft."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from pairs import Made, Wanted, make

from localspec.cli.output import load_progress
from localspec.errors import LocalspecError
from localspec.paths import typed

DESCRIPTION = """\
Embeds the bundled pair in larger shapes by padding with what changes nothing: the files cost what models of these
shapes cost, and say (and accept) what the bundled pair does. Numbers from such a pair are labelled as what they are.
They go to the cache, unless --folder says where, and are made once. Each is checked on held-out text: the largest
difference of a logit to the small model before llama.cpp quantised it (both in F16, or both in Q8_0), and perplexity.

Shapes: small (for trying out), 100m, 500m, 1b, 3b. Formats: Q4_0, Q4_K_M, Q8_0, F16. --vocab fills the vocabulary up
to N tokens that no text has, because a small one hides what a real output matrix costs.
"""


def main() -> None:
    """Makes both files and shows their checks."""
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-shape", default="1b", metavar="SHAPE", help="default: 1b")
    parser.add_argument("--draft-shape", default="100m", metavar="SHAPE", help="default: 100m")
    parser.add_argument("--quant", default="Q4_K_M", metavar="FORMAT", help="of the target; default: Q4_K_M")
    parser.add_argument("--draft-quant", default="Q4_0", metavar="FORMAT", help="of the draft; default: Q4_0")
    parser.add_argument("--vocab", type=int, default=0, metavar="N", help="tokens; default: the bundled pair's 4,096")
    parser.add_argument("--folder", type=typed, metavar="DIR", help="where to; default: the cache")
    parser.add_argument("--again", action="store_true", help="write files that are there already anew")
    parser.add_argument("--json", action="store_true", help="files and checks as JSON on standard output")
    options = parser.parse_args()
    try:
        _make(options)
    except LocalspecError as error:
        raise SystemExit(str(error)) from None


def _make(options: argparse.Namespace) -> None:
    wanted = [
        Wanted("target", options.target_shape, options.quant.upper(), options.vocab),
        Wanted("draft", options.draft_shape, options.draft_quant.upper(), options.vocab),
    ]
    with load_progress() as progress:
        made = [make(one, options.folder, again=options.again, progress=progress) for one in wanted]
    if options.json:
        print(json.dumps([{"path": str(one.path), "reused": one.reused, **asdict(one.check)} for one in made]))
        return
    for one in made:
        _print(one)
    print(f"localspec bench run --target {made[0].path} --draft {made[1].path}", file=sys.stderr)


def _print(made: Made) -> None:
    check = made.check
    size = made.path.stat().st_size / 1e9
    print(f"{made.path}: {size:.2f} GB{', there already' if made.reused else ''}")
    print(
        f"  largest difference of a logit to the small model: {check.logit_difference:.4f} "
        f"(standard deviation of its logits: {check.logit_spread:.2f})"
    )
    large, small = check.perplexity, check.small_perplexity
    print(f"  perplexity {large.value:.4f} ± {large.error:.4f}, of the small model {small.value:.4f}")


if __name__ == "__main__":
    main()
